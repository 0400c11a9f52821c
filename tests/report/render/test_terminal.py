from hypothesis import given
from hypothesis import strategies as st

from mlsd.columns import column
from mlsd.report.render import markdown, terminal
from mlsd.report.render.table import Table, formatted
from tests.report.render.narrow import assert_nothing_is_cut

TEXTS = st.text("abcdefgh é-.", min_size=1, max_size=40).filter(str.strip)
STEERING = "\x1b[2Jx\x07\x9b31m\u202e\x00"


def table_of(**changes: object) -> Table:
    values = {
        "title": "Speeds",
        "heads": (column("model"), column("speed, tok/s", "1")),
        "rows": ((formatted("INVALID: a\nb"), formatted(12345.678, "1")), (formatted("c"), formatted(None))),
    }
    return Table(**(values | changes))  # type: ignore[arg-type]


def test_a_table_shows_title_units_and_numbers_on_the_right() -> None:
    assert [line.rstrip() for line in terminal.render(table_of()).splitlines()] == [
        "Speeds",
        "",
        " model         speed, tok/s",
        " ──────────────────────────",
        " INVALID: a b       12345.7",
        " c                        -",
        "",
    ]


def test_nothing_in_a_cell_a_title_or_a_note_steers_the_terminal() -> None:
    shown = terminal.render(
        table_of(title=STEERING, heads=(column(STEERING),), rows=((formatted(STEERING),),), note=STEERING),
        color=False,
    )
    assert shown.count("\N{REPLACEMENT CHARACTER}[2Jx\N{REPLACEMENT CHARACTER}") == 4
    assert not set("\x1b\x07\x9b\u202e\x00") & set(shown)


def test_colours_come_from_tones_and_only_when_asked_for() -> None:
    assert "\x1b" not in terminal.render(table_of())
    coloured = terminal.render(table_of(), color=True)
    assert "\x1b[31mINVALID: a b" in coloured
    assert coloured.count("\x1b[31m") == 1


def test_lines_are_whole_unless_a_width_is_given() -> None:
    wide = table_of(rows=((formatted("x" * 500), formatted(1, "n")),))
    assert "x" * 500 in terminal.render(wide)
    assert max(map(len, terminal.render(wide, width=60).splitlines())) <= 60


@given(
    width=st.integers(30, 200),
    rows=st.lists(st.tuples(TEXTS, st.floats(0, 1e9), TEXTS, st.floats(0, 1e9)), min_size=1, max_size=4),
)
def test_no_width_cuts_a_value(width: int, rows: list[tuple[str, float, str, float]]) -> None:
    heads = [column("id"), column("speed", "1"), column("why", detail=True)]
    cells = tuple(
        (formatted(a.replace(" ", "-")), formatted(b, "1"), formatted(c), formatted(d, "3")) for a, b, c, d in rows
    )
    table = table_of(heads=(*heads, column("share", "3", detail=True)), rows=cells)
    shown = terminal.render(table, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert_nothing_is_cut(table, shown)


def test_a_narrow_terminal_leaves_details_out_and_names_them() -> None:
    heads = (column("model"), column("speed", "1"), column("spread", "1%", detail=True))
    table = table_of(
        heads=heads, rows=((formatted("qwen3.5-35b-a3b-q4_k_m"), formatted(61.2, "1"), formatted(0.021, "1%")),)
    )
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
    heads = tuple(column(label, "1", detail=label == "spread") for label in labels)
    table = table_of(heads=heads, rows=(tuple(formatted("x" * 9) for _ in labels),))
    heads_shown = [terminal.render(table, width=width).splitlines()[2].split() for width in (80, 70, 45, 25)]
    assert heads_shown[0] == ["arm", "gamma", "tok/s", "speedup", "95", "%", "CI", "decision", "verdict"]
    assert heads_shown[1:] == [
        ["arm", "gamma", "tok/s", "speedup", "95", "%", "CI", "decision"],
        ["arm", "gamma", "speedup", "decision"],
        ["arm", "speedup"],
    ]


def test_a_table_without_rows_says_what_that_means() -> None:
    assert "All is well." in terminal.render(table_of(rows=(), good_news="All is well.", note="Not this."))


def test_terminal_and_markdown_show_the_same_heads_and_cells() -> None:
    table = table_of(note="Said.")
    for shown in (terminal.render(table), markdown.table_text(table)):
        for content in ("Speeds", "speed, tok/s", "Said.", "c"):
            assert content in shown
