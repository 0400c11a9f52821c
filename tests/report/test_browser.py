"""The page in a real browser: no complaint, sorting, filtering, light and dark, a narrow screen, paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import pytest

from mlsd.analysis.study.study import read_study
from mlsd.measure.store.store import Store
from mlsd.report.page import build
from mlsd.report.render import html
from tests.analysis.studies import whole_study
from tests.report.browser import Page, browser

pytestmark = [pytest.mark.browser, pytest.mark.heavy]

COLUMN = "[...document.querySelectorAll('#trials-t tbody tr:not([hidden])')].map(r => r.cells[{}].dataset.s ?? '-')"
TEXTS = "[...document.querySelectorAll('#trials-t tbody tr:not([hidden])')].map(r => r.cells[{}].textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("report")
    with Store.open(whole_study(folder / "s.sqlite"), read_only=True) as store:
        study = read_study(store)
    file = folder / "report.html"
    file.write_text(html.render(build(study)), encoding="utf-8")
    with browser(folder / "profile") as opened:
        opened.resize(1200)
        opened.media(scheme="light")
        opened.open(file)
        yield opened


def brightness(page: Page) -> tuple[float, float]:
    """Of the paper and of the ink, 0 to 255."""
    style = "getComputedStyle(document.body).{}.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    paper, ink = (page.js(style.format(name)) for name in ("backgroundColor", "color"))
    return sum(paper) / 3, sum(ink) / 3


def test_the_page_opens_without_a_complaint_and_asks_the_network_for_nothing(page: Page) -> None:
    assert page.js("document.querySelectorAll('figure svg').length") == 12  # the first once more for a narrow screen
    assert page.js("document.querySelector('.answer').getBoundingClientRect().top") < 100
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def test_a_click_sorts_numbers_as_numbers_and_another_turns_it_round(page: Page) -> None:
    button = "document.querySelectorAll('#trials-t th button')[9]"
    assert page.js(f"{button}.textContent") == "tok/s"
    page.js(f"{button}.click()")
    up = page.js(COLUMN.format(9))
    measured = [float(value) for value in up if value != "-"]
    assert measured == sorted(measured) and len(measured) > 50
    assert up.index("-") == len(measured)  # what was not measured stays last
    page.js(f"{button}.click()")
    down = page.js(COLUMN.format(9))
    assert [float(value) for value in down if value != "-"] == measured[::-1]
    assert down[-1] == "-"
    assert page.js("document.querySelectorAll('#trials-t th')[9].getAttribute('aria-sort')") == "descending"


def test_the_filter_keeps_rows_that_hold_all_words_and_counts_them(page: Page) -> None:
    field = "document.querySelector('[data-filter=trials-t]')"
    enter = f"{field}.value = '{{}}'; {field}.dispatchEvent(new Event('input'))"
    total = len(page.js(TEXTS.format(2)))
    page.js(enter.format("tiny-dense CHINESE"))
    assert set(page.js(TEXTS.format(2))) == {"tiny-dense"}
    assert set(page.js(TEXTS.format(5))) == {"chinese"}
    shown = len(page.js(TEXTS.format(2)))
    assert page.js("document.querySelector('[data-count=trials-t]').textContent") == f"{shown} of {total} rows"
    page.js(enter.format("no such words"))
    assert page.js(TEXTS.format(2)) == []
    page.js(enter.format(""))
    assert len(page.js(TEXTS.format(2))) == total


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_has_the_answer_one_chart_and_the_flags(page: Page, width: int, scheme: str) -> None:
    page.resize(width, 844)
    page.media(scheme=scheme)
    try:
        assert len(page.js("document.querySelector('h1').textContent").split()) <= 15
        place = "document.querySelector('{}').getBoundingClientRect()"
        chart, aside = (page.js(f"{place.format(name)}.toJSON()") for name in (".first figure", "aside"))
        assert chart["top"] < 150 and page.js("document.documentElement.scrollWidth") <= width
        assert (aside["left"] > chart["right"] - 1) if width == 1280 else (aside["top"] > chart["bottom"] - 1)
        drawn = "[...document.querySelectorAll('#figure-answer svg')].filter(one => one.getClientRects().length)"
        assert page.js(f"{drawn}.length") == 1
        letters = f"[...{drawn}[0].querySelectorAll('text')].map(one => one.getBoundingClientRect().height)"
        assert min(page.js(letters)) >= 10  # px
        ends = f"[...{drawn}[0].querySelectorAll('text')].map(one => one.getBoundingClientRect().right)"
        assert max(page.js(ends)) <= width
    finally:
        page.media(scheme="light")
        page.resize(1200)


def test_the_rest_is_folded_and_unfolds(page: Page) -> None:
    folded = "[...document.querySelectorAll('details.section')].map(one => one.open)"
    assert not any(page.js(folded))
    page.js("document.getElementById('unfold').click()")
    assert all(page.js(folded))
    page.js("document.getElementById('unfold').click()")
    page.js("location.hash = '#trials-s'")
    page.js("new Promise(done => setTimeout(done, 50))")
    assert page.js("document.getElementById('trials-s').open") is True
    page.js("document.querySelectorAll('details.section').forEach(one => { one.open = true; })")


def test_a_pointer_on_a_mark_shows_its_values(page: Page) -> None:
    shown = page.js("[...document.querySelectorAll('#figure-answer svg use > title')].map(one => one.textContent)")
    rows = page.js("document.querySelectorAll('#figure-answer .wide svg g[id*=ytick_]').length")
    assert len(shown) == 2 * rows > 6
    assert any("tiny-draft, gamma 4" in text and "speedup over plain decoding" in text for text in shown)


def test_a_table_is_downloaded_as_the_rows_that_the_filter_left(page: Page) -> None:
    page.js(
        "window.made = []; URL.createObjectURL = (blob) => { blob.text().then((text) => window.made.push(text));"
        " return 'data:,'; }; HTMLAnchorElement.prototype.click = () => {};"
    )
    field = "document.querySelector('[data-filter=trials-t]')"
    page.js(f"{field}.value = 'chinese'; {field}.dispatchEvent(new Event('input'))")
    page.js("document.querySelector('[data-table=trials-t]').click()")
    page.js("new Promise(done => setTimeout(done, 50))")
    (text,) = page.js("window.made")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["prompt"] for row in rows} == {"chinese"}
    assert all(float(row["tok/s"]) > 0 for row in rows if row["tok/s"] != "-")
    page.js(f"{field}.value = ''; {field}.dispatchEvent(new Event('input'))")


def test_light_and_dark_follow_the_system_and_the_button(page: Page) -> None:
    paper, ink = brightness(page)
    assert paper > 240 and ink < 60
    axis = "getComputedStyle(document.querySelector('figure svg text')).fill.match(/[\\d.]+/g).slice(0,3).map(Number)"
    assert max(page.js(axis)) < 60
    page.media(scheme="dark")
    paper, ink = brightness(page)
    assert paper < 50 and ink > 200
    assert min(page.js(axis)) > 200  # figures follow the page
    page.js("document.getElementById('theme').click()")
    assert brightness(page)[0] > 240
    page.js("document.getElementById('theme').click()")
    assert brightness(page)[0] < 50
    page.js("delete document.documentElement.dataset.theme")
    page.media(scheme="light")


def test_a_narrow_screen_scrolls_tables_and_not_the_page(page: Page) -> None:
    page.resize(360, 740)
    try:
        assert page.js("document.documentElement.scrollWidth") <= 360
        assert page.js("document.querySelector('#table-5 .scroll').scrollWidth") > 360
        assert page.js("Math.max(...[...document.querySelectorAll('figure')].map(f => f.offsetWidth))") <= 360
    finally:
        page.resize(1200)


def test_paper_shows_every_row_in_dark_ink_without_the_tools(page: Page) -> None:
    page.media("print", "dark")
    try:
        assert brightness(page)[0] > 240 and brightness(page)[1] < 30
        assert page.js("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert page.js("getComputedStyle(document.querySelector('#trials .scroll')).overflowY") == "visible"
        assert page.pdf().startswith(b"%PDF")
    finally:
        page.media(scheme="light")


def test_nothing_done_to_the_page_made_it_complain(page: Page) -> None:
    assert page.complaints == []
