from __future__ import annotations

from mlsd.report.render import html, markdown, terminal
from mlsd.report.render.table import Head, Table, number, text

STEERING = "\x1b[2Jx\x07\x9b31m\u202e\x00"


def made(**changes: object) -> Table:
    values = {
        "title": "Speeds",
        "heads": (Head(label="model", numeric=False), Head(label="speed", unit="tok/s")),
        "rows": ((text("a\nb", "bad"), number(12345.678, 1)), (text("c"), number(None))),
    }
    return Table(**(values | changes))  # type: ignore[arg-type]


def test_a_table_shows_title_units_and_numbers_on_the_right() -> None:
    assert [line.rstrip() for line in terminal.render(made()).splitlines()] == [
        "Speeds",
        "",
        " model   speed, tok/s",
        " ────────────────────",
        " a b          12345.7",
        " c                  -",
        "",
    ]


def test_nothing_in_a_cell_a_title_or_a_note_steers_the_terminal() -> None:
    shown = terminal.render(
        made(title=STEERING, heads=(Head(label=STEERING, numeric=False),), rows=((text(STEERING),),), note=STEERING),
        color=False,
    )
    assert shown.count("\N{REPLACEMENT CHARACTER}[2Jx\N{REPLACEMENT CHARACTER}") == 4
    assert not set("\x1b\x07\x9b\u202e\x00") & set(shown)


def test_colours_come_from_tones_and_only_when_asked_for() -> None:
    assert "\x1b" not in terminal.render(made())
    coloured = terminal.render(made(), color=True)
    assert "\x1b[31ma b" in coloured
    assert coloured.count("\x1b[31m") == 1


def test_lines_are_whole_unless_a_width_is_given() -> None:
    wide = made(rows=((text("x" * 500), number(1)),))
    assert "x" * 500 in terminal.render(wide)
    assert max(map(len, terminal.render(wide, width=60).splitlines())) <= 60


def test_a_table_without_rows_says_what_that_means() -> None:
    assert "All is well." in terminal.render(made(rows=(), good_news="All is well.", note="Not this."))


def test_the_three_renderers_show_the_same_heads_and_cells() -> None:
    table = made(note="Said.")
    for shown in (terminal.render(table), html.table_text(table), markdown.table_text(table)):
        for words in ("Speeds", "speed, tok/s", "Said.", "c"):
            assert words in shown
