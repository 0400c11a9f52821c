"""A column is one line: what it is called, how it is shown, and what fills it, wherever it stands."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mlsd.analysis.frames import FRAMES
from mlsd.columns import chosen, column, columns, inside
from mlsd.report.render.table import formatted, interval, significant
from mlsd.stats import Interval
from tools.notebook_outputs import DATABASE

ROW = SimpleNamespace(case=SimpleNamespace(target=None), ms={"draft": 2.5}, pair=(1, 7), speedup=Interval(value=1.5))


@pytest.mark.parametrize(
    ("path", "value"), [("ms.draft", 2.5), ("pair.1", 7), ("case.target.id", None), ("ms.other", None)]
)
def test_a_path_reads_fields_items_and_nothing_behind_nothing(path: str, value: object) -> None:
    assert column("x", of=path).get(ROW) == value


@pytest.mark.parametrize(
    ("value", "format", "shown"),
    [(12345, "n", "12\u202f345"), (0, "n+", "-"), (float("nan"), "2", "-"),
     (0.4267, "1%", "42.7 %"), (1.5, "2x", "1.50x"), (True, "flag", "yes"),
     (2_500_000, "ms", "2.500"), (2_000_000, "bytes", "2.00 MB"), (None, "3", "-"), ("code", "", "code"),
     (Interval(value=1.5, low=1.2, high=1.9, n=4), "[2]x", "1.50x [1.20, 1.90]"), ("any", "0%", "any"),
     (Interval(value=1.5, low=1.2, high=1.9), "2..", "1.20 .. 1.90"), (Interval(value=1.5), "2..", "-")],
)  # fmt: skip
def test_a_format_says_how_a_value_is_shown(value: object, format: str, shown: str) -> None:
    assert formatted(value, format).text == shown


@pytest.mark.parametrize(
    ("low", "high", "n", "shown"),
    [(0.01, 5.55, 2, "0.31x (2 texts)"), (0.31, 0.31, 2, "0.31x (2 texts)"), (0.29, 0.33, 2, "0.31x [0.29, 0.33]"),
     (0.01, 5.55, 3, "0.31x [0.01, 5.55]")],
)  # fmt: skip
def test_two_texts_that_give_no_interval_are_told_by_their_number(low: float, high: float, n: int, shown: str) -> None:
    assert interval(Interval(value=0.31, low=low, high=high, n=n), 2, "x", units="texts").text == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0462, "0.0462"), (1.2345, "1.23"), (0.00462, "0.00462"), (float("inf"), "unbounded")]
)
def test_a_number_keeps_digits_that_show_something(value: float, shown: str) -> None:
    assert significant(value) == shown


def test_columns_without_a_meaning_are_spelled_in_one_string() -> None:
    shown = columns("draft, ms:2=ms.draft; pair; of all:1%=share*")
    assert [(c.label, c.format, c.detail, c.numeric) for c in shown] == [
        ("draft, ms", "2", False, True), ("pair", "", False, False), ("of all", "1%", True, True)
    ]  # fmt: skip
    assert [c.get(ROW) for c in shown[:2]] == [2.5, (1, 7)]


def test_columns_are_chosen_by_name_and_read_inside_of_rows() -> None:
    shown = (column("speedup", "[2]x", "measured"), column("draft_ms", "2", "drafting of a round", "ms.draft"))
    assert [one.label for one in chosen(shown, "draft_ms", draft_ms="ms")] == ["ms"]
    assert [one.get({"arm": ROW}) for one in inside("arm", shown)] == [ROW.speedup, 2.5]
    assert [one.get({}) for one in inside("arm", shown)] == [None, None]


ADDED = """
import json, sys
import msgspec
from mlsd.columns import column
from mlsd.trials import fields
fields.ARM += (column("half_gamma", "1", "half of gamma", lambda arm: arm.case.gamma / 2, "gamma/2"),)

import mlsd
from mlsd.cli.main import main
from mlsd.report import page
from mlsd.report.render import html, markdown, terminal
from mlsd.report.render.sections import Section
from mlsd.report.render.table import table
from mlsd.report.tables.columns import of_arms
from tools import data_reference, json_reference
study = mlsd.open_study(sys.argv[1])
shown = table("arms", study.results, *of_arms("setting half_gamma"))
whole = msgspec.structs.replace(page.build(study), sections=(Section(id="added", title="Added", tables=(shown,)),))
print(json.dumps({
    "terminal": terminal.render(shown), "page": html.render(whole), "Markdown": markdown.table_text(shown),
    "CSV": study.arms.to_csv(), "docs": data_reference.tables()["arms"], "schema": json_reference.text(),
}))
main(["results", "--db", sys.argv[1], "--json"])
"""


@pytest.mark.slow
def test_a_column_added_in_one_line_is_seen_everywhere() -> None:
    """One line more in `trials.fields.ARM`; a table shows it by its name."""
    done = subprocess.run([sys.executable, "-c", ADDED, DATABASE], capture_output=True, text=True, check=True)
    outputs, results = map(json.loads, done.stdout.split("\n", 1))
    named = {"terminal": "gamma/2", "page": "gamma/2", "Markdown": "gamma/2", "CSV": "half_gamma",
             "docs": "`half_gamma` | number | half of gamma", "schema": '"half_gamma"'}  # fmt: skip
    assert [place for place, name in named.items() if name not in "".join(outputs[place])] == []
    assert {arm["half_gamma"] for arm in results["arms"]} == {0.0, 2.0, 4.0, 8.0}


@pytest.mark.parametrize("name", FRAMES)
def test_every_column_of_a_frame_has_a_meaning_and_a_name_of_its_own(name: str) -> None:
    columns = FRAMES[name]
    assert all(one.meaning and one.label for one in columns)
    assert len({one.name for one in columns}) == len(columns)
