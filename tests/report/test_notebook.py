"""What notebooks show: tables, figures and answers as HTML with a plain text beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlsd
from mlsd.analysis.study.study import Study
from mlsd.errors import InputError, StoreError
from mlsd.report import notebook


@pytest.mark.parametrize("key", list(notebook.TABLES))
def test_every_table_shows_in_a_notebook(study: Study, key: str) -> None:
    shown = notebook.table(study, key)
    assert ("<table" in shown.html) != (key in ("bandwidth", "passes"))  # of which this study has nothing
    assert len(repr(shown)) > 20


def test_a_figure_is_inline_and_a_missing_one_says_why(study: Study) -> None:
    drawn = notebook.figure(study, "drift")._repr_mimebundle_()
    assert "<svg" in drawn["image/svg+xml"] and drawn["text/plain"].startswith("[figure: ")
    assert "No expert of a mixture was counted" in repr(notebook.figure(study, "expert-coverage"))


def test_the_answer_comes_first_and_then_each_target(study: Study) -> None:
    lines = repr(notebook.answer(study)).splitlines()
    assert lines[0].startswith("Faster in 4 of 14: tiny-moe-q4_0 + tiny-draft, gamma 8 gives 2.13x on code.")
    assert [line.split(":")[0] for line in lines[1:]] == ["tiny-moe-q4_0", "tiny-dense"]


def test_the_published_study_is_impossible_in_all_its_speculative_rows() -> None:
    shown = repr(notebook.published_audit("study")).splitlines()
    assert sum(line.split()[:2] == ["table", "5"] and " impossible " in line for line in shown) == 18


def test_unknown_names_and_files_are_clear_messages(study: Study, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table 'x'"):
        notebook.table(study, "x")
    with pytest.raises(InputError, match="no figure 'x'"):
        notebook.figure(study, "x")
    with pytest.raises(StoreError):
        mlsd.open_study(tmp_path / "none.sqlite")
