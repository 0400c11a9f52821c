"""The notebooks run from top to bottom on the small database beside them, hold no logic, and ship without output."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def test_the_three_notebooks_are_there() -> None:
    assert NAMES == ["bandwidth_analysis", "choosing_a_draft", "study_reproduction"]


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # the kernel's own libraries, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    for cell in book.cells:
        for output in cell.get("outputs", []):
            assert output.output_type in ("execute_result", "stream"), cell.source
    shown = [o for c in book.cells for o in c.get("outputs", []) if o.output_type == "execute_result"]
    assert len(shown) >= 7
    assert all("text/html" in output.data for output in shown)


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
