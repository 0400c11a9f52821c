from hypothesis import given
from hypothesis import strategies as st

from mlsd.report.render import html, markdown, terminal
from mlsd.report.render.table import Head, Table, number, percent, text
from tests.report.render.narrow import assert_nothing_is_cut

WORDS = st.text("abcdefgh é-.", min_size=1, max_size=40).filter(str.strip)
STEERING = "\x1b[2Jx\x07\x9b31m\u202e\x00"


def made(**changes: object) -> Table:
    values = {
        "title": "Speeds",
        "heads": (Head(label="model", numeric=False), Head(label="speed, tok/s")),
        "rows": ((text("a\nb", "bad"), number(12345.678, 1)), (text("c"), number(None))),
    }
    return Table(**(values | changes))  # type: ignore[arg-type]


def test_a_table_shows_title_units_and_numbers_on_the_right() -> None:
    assert [line.rstrip() for line in terminal.render(made()).splitlines()] == [
        "Speeds",
        "",
        " model  speed, tok/s",
        " ───────────────────",
        " a b         12345.7",
        " c                 -",
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


@given(
    width=st.integers(30, 200),
    rows=st.lists(st.tuples(WORDS, st.floats(0, 1e9), WORDS, st.floats(0, 1e9)), min_size=1, max_size=4),
)
def test_no_width_cuts_a_value(width: int, rows: list[tuple[str, float, str, float]]) -> None:
    heads = [Head(label="id", numeric=False), Head(label="speed"), Head(label="why", numeric=False, detail=True)]
    cells = tuple((text(a.replace(" ", "-")), number(b, 1), text(c), number(d, 3)) for a, b, c, d in rows)
    table = made(heads=(*heads, Head(label="share", detail=True)), rows=cells)
    shown = terminal.render(table, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert_nothing_is_cut(table, shown)


def test_a_narrow_terminal_leaves_details_out_and_names_them() -> None:
    heads = (Head(label="model", numeric=False), Head(label="speed"), Head(label="spread", detail=True))
    table = made(heads=heads, rows=((text("qwen3.5-35b-a3b-q4_k_m"), number(61.2, 1), percent(0.021)),))
    assert "spread" in terminal.render(table, width=80).splitlines()[2]
    assert terminal.render(table, width=34).splitlines()[2:] == [
        " model                   speed",
        " ─────────────────────────────",
        " qwen3.5-35b-a3b-q4_k_m   61.2",
        "",
        "Not shown at this width: spread",
        "(--wide shows every column).",
    ]
    assert terminal.render(table, width=25).splitlines()[2:5] == [
        " model",
        " ──────────────────────",
        " qwen3.5-35b-a3b-q4_k_m",
    ]


def test_what_decides_stays_longest() -> None:
    labels = ("arm", "gamma", "tok/s", "spread", "speedup", "95 % CI", "decision", "ms/round", "verdict")
    heads = tuple(Head(label=label, detail=label == "spread") for label in labels)
    table = made(heads=heads, rows=(tuple(text("x" * 9) for _ in labels),))
    heads_shown = [terminal.render(table, width=width).splitlines()[2].split() for width in (80, 70, 45, 25)]
    assert heads_shown[0] == ["arm", "gamma", "tok/s", "speedup", "95", "%", "CI", "decision", "verdict"]
    assert heads_shown[1:] == [
        ["arm", "gamma", "tok/s", "speedup", "95", "%", "CI", "decision"],
        ["arm", "gamma", "speedup", "decision"],
        ["arm", "speedup"],
    ]


def test_a_table_without_rows_says_what_that_means() -> None:
    assert "All is well." in terminal.render(made(rows=(), good_news="All is well.", note="Not this."))


def test_the_three_renderers_show_the_same_heads_and_cells() -> None:
    table = made(note="Said.")
    for shown in (terminal.render(table), html.table_text(table), markdown.table_text(table)):
        for words in ("Speeds", "speed, tok/s", "Said.", "c"):
            assert words in shown
