"""The page in a real browser: no complaint, sorting, filtering, light and dark, a narrow screen, paper."""

import csv
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlsd.analysis.study.study import Study
from mlsd.report.page import build
from mlsd.report.render import html
from mlsd.report.render.sections import Page
from tests.report.browser import Tab, browser

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

COLUMN = "[...document.querySelectorAll('#trials-t tbody tr:not([hidden])')].map(r => r.cells[{}].dataset.s ?? '-')"
TEXTS = "[...document.querySelectorAll('#trials-t tbody tr:not([hidden])')].map(r => r.cells[{}].textContent)"


@pytest.fixture(scope="module")
def tab(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("report") / "profile") as opened:
        opened.resize(1200)
        opened.media(scheme="light")
        opened.open(pages / "study.html")
        yield opened


@pytest.fixture(scope="module")
def pages(study: Study, page: Page, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the study, which opens with a scoreboard, and that of the same trials under another suite."""
    folder = tmp_path_factory.mktemp("pages")
    other = dataclasses.replace(study)
    other.__dict__["trials"] = study.trials.assign(suite="bench")
    for name, shown in (("study", page), ("bench", build(other))):
        (folder / f"{name}.html").write_text(html.render(shown), encoding="utf-8")
    return folder


def brightness(tab: Tab) -> tuple[float, float]:
    """Of the paper and of the ink, 0 to 255."""
    style = "getComputedStyle(document.body).{}.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    paper, ink = (tab.js(style.format(name)) for name in ("backgroundColor", "color"))
    return sum(paper) / 3, sum(ink) / 3


def test_the_page_opens_without_a_complaint_and_asks_the_network_for_nothing(tab: Tab) -> None:
    assert tab.js("document.querySelectorAll('figure svg').length") == 5  # the first once more for a narrow screen
    assert tab.js("document.querySelector('.answer').getBoundingClientRect().top") < 100
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []


def test_a_click_sorts_numbers_as_numbers_and_another_turns_it_round(tab: Tab) -> None:
    button = "document.querySelectorAll('#trials-t th button')[9]"
    assert tab.js(f"{button}.textContent") == "tok/s"
    tab.js(f"{button}.click()")
    up = tab.js(COLUMN.format(9))
    measured = [float(value) for value in up if value != "-"]
    assert measured == sorted(measured) and len(measured) > 50
    assert up.index("-") == len(measured)  # what was not measured stays last
    tab.js(f"{button}.click()")
    down = tab.js(COLUMN.format(9))
    assert [float(value) for value in down if value != "-"] == measured[::-1]
    assert down[-1] == "-"
    assert tab.js("document.querySelectorAll('#trials-t th')[9].getAttribute('aria-sort')") == "descending"


def test_the_filter_keeps_rows_that_hold_all_words_and_counts_them(tab: Tab) -> None:
    field = "document.querySelector('[data-filter=trials-t]')"
    enter = f"{field}.value = '{{}}'; {field}.dispatchEvent(new Event('input'))"
    total = len(tab.js(TEXTS.format(2)))
    tab.js(enter.format("tiny-dense CHINESE"))
    assert set(tab.js(TEXTS.format(2))) == {"tiny-dense"}
    assert set(tab.js(TEXTS.format(5))) == {"chinese"}
    shown = len(tab.js(TEXTS.format(2)))
    assert tab.js("document.querySelector('[data-count=trials-t]').textContent") == f"{shown} of {total} rows"
    tab.js(enter.format("no such words"))
    assert tab.js(TEXTS.format(2)) == []
    tab.js(enter.format(""))
    assert len(tab.js(TEXTS.format(2))) == total


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_has_the_verdict_and_claims_or_the_answer_one_chart_and_the_flags(
    tab: Tab, pages: Path, width: int, scheme: str
) -> None:
    tab.resize(width, 844)
    tab.media(scheme=scheme)
    box, heading = "document.querySelector('{}').getBoundingClientRect()", "document.querySelector('h1').textContent"
    try:
        assert len(tab.js(heading).split()) <= 15
        assert tab.js(f"{box.format('#scoreboard-t')}.top") < 200
        assert tab.js("document.documentElement.scrollWidth") <= width
        tab.open(pages / "bench.html")
        assert len(tab.js(heading).split()) <= 15
        chart, aside = (tab.js(f"{box.format(name)}.toJSON()") for name in (".first figure", "aside"))
        assert chart["top"] < 150 and tab.js("document.documentElement.scrollWidth") <= width
        assert (aside["left"] > chart["right"] - 1) if width == 1280 else (aside["top"] > chart["bottom"] - 1)
        drawn = "[...document.querySelectorAll('#figure-answer svg')].filter(one => one.getClientRects().length)"
        assert tab.js(f"{drawn}.length") == 1
        boxes = f"[...{drawn}[0].querySelectorAll('text')].map(one => one.getBoundingClientRect().toJSON())"
        letters = tab.js(boxes)
        assert min(one["height"] for one in letters) >= 10  # px
        assert max(one["right"] for one in letters) <= width
    finally:
        tab.media(scheme="light")
        tab.resize(1200)
        tab.open(pages / "study.html")


def test_the_rest_is_folded_and_unfolds(tab: Tab) -> None:
    folded = "[...document.querySelectorAll('details.section')].map(one => one.open)"
    assert not any(tab.js(folded))
    tab.js("document.getElementById('unfold').click()")
    assert all(tab.js(folded))
    tab.js("document.getElementById('unfold').click()")
    tab.js("location.hash = '#trials-s'")
    tab.js("new Promise(done => setTimeout(done, 50))")
    assert tab.js("document.getElementById('trials-s').open") is True
    tab.js("document.querySelectorAll('details.section').forEach(one => { one.open = true; })")


def test_a_table_is_downloaded_as_the_rows_that_the_filter_left(tab: Tab) -> None:
    tab.js(
        "window.made = []; URL.createObjectURL = (blob) => { blob.text().then((text) => window.made.push(text));"
        " return 'data:,'; }; HTMLAnchorElement.prototype.click = () => {};"
    )
    field = "document.querySelector('[data-filter=trials-t]')"
    tab.js(f"{field}.value = 'chinese'; {field}.dispatchEvent(new Event('input'))")
    tab.js("document.querySelector('[data-table=trials-t]').click()")
    tab.js("new Promise(done => setTimeout(done, 50))")
    (text,) = tab.js("window.made")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["prompt"] for row in rows} == {"chinese"}
    assert all(float(row["tok/s"]) > 0 for row in rows if row["tok/s"] != "-")
    tab.js(f"{field}.value = ''; {field}.dispatchEvent(new Event('input'))")


def test_light_and_dark_follow_the_system_and_the_button(tab: Tab) -> None:
    paper, ink = brightness(tab)
    assert paper > 240 and ink < 60
    axis = "getComputedStyle(document.querySelector('figure svg text')).fill.match(/[\\d.]+/g).slice(0,3).map(Number)"
    assert max(tab.js(axis)) < 60
    tab.media(scheme="dark")
    paper, ink = brightness(tab)
    assert paper < 50 and ink > 200
    assert min(tab.js(axis)) > 200  # figures follow the page
    tab.js("document.getElementById('theme').click()")
    assert brightness(tab)[0] > 240
    tab.js("document.getElementById('theme').click()")
    assert brightness(tab)[0] < 50
    tab.js("delete document.documentElement.dataset.theme")
    tab.media(scheme="light")


def test_a_narrow_screen_scrolls_tables_and_not_the_page(tab: Tab) -> None:
    tab.resize(360, 740)
    try:
        assert tab.js("document.documentElement.scrollWidth") <= 360
        assert tab.js("document.querySelector('#table-5 .scroll').scrollWidth") > 360
        assert tab.js("Math.max(...[...document.querySelectorAll('figure')].map(f => f.offsetWidth))") <= 360
    finally:
        tab.resize(1200)


def test_paper_shows_every_row_in_dark_ink_without_the_tools(tab: Tab) -> None:
    tab.media("print", "dark")
    try:
        assert brightness(tab)[0] > 240 and brightness(tab)[1] < 30
        assert tab.js("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert tab.js("getComputedStyle(document.querySelector('#trials .scroll')).overflowY") == "visible"
        assert tab.pdf().startswith(b"%PDF")
    finally:
        tab.media(scheme="light")


def test_nothing_done_to_the_page_made_it_complain(tab: Tab) -> None:
    assert tab.complaints == []
