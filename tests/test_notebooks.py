"""Notebooks run from top to bottom on the small database beside them, hold no logic, and ship with what they show."""

import ast
import re
import shlex
import sqlite3
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

import mlsd
from mlsd.cli import main
from tests.cli.conftest import parsed
from tools.notebook_outputs import FOLDER, MEASURES, commands, executed

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]


def test_the_notebooks_are_there() -> None:
    assert NAMES == ["bandwidth_analysis", "choosing_a_draft", MEASURES, "study_reproduction"]


def assert_shown(book: nbformat.NotebookNode, stem: str) -> None:
    """Every cell ran in order; frames, figures and sentences are there, and standard error is empty."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    shown = [output for output in outputs if output.output_type in ("execute_result", "display_data")]
    assert len(shown) >= (2 if stem == MEASURES else 7)
    assert all({"text/html", "image/png"} & set(output.data) for output in shown)
    drawing = [cell for cell in cells if "mlsd.draw." in cell.source]
    blank = [cell.source for cell in drawing if not any("image/png" in one.get("data", ()) for one in cell.outputs)]
    assert blank == [], "each of these cells draws a figure, which nobody sees"
    assert [output for output in outputs if output not in shown and output.get("name") != "stdout"] == []


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # the kernel's own libraries, not ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    assert_shown(executed(path), path.stem)


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # the kernel's own libraries, not ours
@pytest.mark.parametrize("name", [name for name in NAMES if name != MEASURES])
def test_a_notebook_shows_another_database_after_one_changed_line_or_says_what_that_lacks(
    name: str, tmp_path: Path
) -> None:
    """Of the record that ships: another machine, without calibrations."""
    other = tmp_path / "other.sqlite"
    main(["record", "import", str(FOLDER.parent / "studies" / "tiny-epyc-cpu.record.gz"), "--into", str(other)])
    if name == "bandwidth_analysis":
        with pytest.raises(CellExecutionError, match="mlsd calibrate memory"):
            executed(FOLDER / f"{name}.ipynb", other)
    else:
        book = executed(FOLDER / f"{name}.ipynb", other)
        assert not re.search(
            r"\bnan %|\bNone\b", "".join(out.get("text", "") for c in book.cells for out in c.get("outputs", ()))
        )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_ships_with_what_it_shows_and_nothing_of_where_it_ran(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    assert_shown(book, path.stem)
    assert set(book.metadata) == {"kernelspec", "language_info"} and not any(cell.metadata for cell in book.cells)
    text = path.read_text(encoding="utf-8")
    assert len(text) < 600_000
    assert not re.search(r"/(home|Users|root|work|tmp|private)/", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_uses_the_public_library_only(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert {alias.name for alias in node.names} <= {"mlsd", "pandas"}, cell.source
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


def test_the_database_is_small_whole_and_names_no_place_of_its_maker() -> None:
    path = FOLDER / "data" / "tiny.sqlite"
    assert path.stat().st_size < 5_000_000
    assert not re.search(rb'"/\w+/', path.read_bytes())  # a string that is an absolute path
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    study = mlsd.open_study(path)
    assert len(study.trials) >= 100 and study.trials["valid"].all()
    assert study.bandwidth.loc[study.bandwidth["source"] == "known bytes", "model"].nunique() == 4


@pytest.mark.slow
@pytest.mark.parametrize("words", commands(), ids=lambda words: words[0])
def test_the_commands_that_make_the_database_are_commands(words: list[str], tmp_path: Path) -> None:
    assert parsed(shlex.join(("mlsd", *words))).startswith(f"mlsd {words[0]}") and words[-2:] == [
        "--db",
        "study.sqlite",
    ]
    if words[0] == "run":
        main([*words[:-1], str(tmp_path / "study.sqlite"), "--dry-run"])
