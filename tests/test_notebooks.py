"""The notebooks run from top to bottom on the small database beside them, hold no logic, and ship without output."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path

import nbformat
import pytest

import mlsd
from tools.notebook_outputs import FOLDER, MEASURES, executed

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def test_the_notebooks_are_there() -> None:
    assert NAMES == ["bandwidth_analysis", "choosing_a_draft", MEASURES, "study_reproduction"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # the kernel's own libraries, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    book = executed(path)
    for cell in book.cells:
        for output in cell.get("outputs", []):
            assert output.output_type in ("execute_result", "stream"), cell.source
    shown = [o for c in book.cells for o in c.get("outputs", []) if o.output_type == "execute_result"]
    assert len(shown) >= (2 if path.stem == MEASURES else 7)
    assert all({"text/html", "image/svg+xml"} & set(output.data) for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_uses_the_public_library_only(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert {alias.name for alias in node.names} == {"mlsd"}, cell.source
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mlsd":
                assert node.attr in mlsd.__all__


def test_a_suite_is_planned_run_and_reported_in_ten_lines() -> None:
    cells = nbformat.read(FOLDER / f"{MEASURES}.ipynb", as_version=4).cells
    lines = [line for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines() if line.strip()]
    assert len(lines) == 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_holds_calls_and_no_logic(path: Path) -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert all(isinstance(node, allowed) for node in ast.parse(cell.source).body), cell.source
            assert cell.outputs == [] and cell.execution_count is None


def test_the_database_is_small_whole_and_names_no_place_of_its_maker() -> None:
    path = FOLDER / "data" / "tiny.sqlite"
    assert path.stat().st_size < 1_000_000
    assert not re.search(rb'"/\w+/', path.read_bytes())  # a string that is an absolute path
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        trials, valid = db.execute("SELECT count(*), sum(valid) FROM trial").fetchone()
    db.close()
    assert trials == valid == 135
