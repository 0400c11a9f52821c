"""The report's pages on the machine, for a small mixture that llama.cpp really ran."""

import json
from pathlib import Path

import pytest

import mlsd
from mlsd.analysis.study.study import Study
from mlsd.cli import main
from mlsd.report.page import build
from mlsd.report.render import html, markdown
from mlsd.report.render.sections import Page
from mlsd.report.tables.machine import share_sentences

# Three repeats, the least that have an interval, however slow the machine is.
SHORT = ("--n-threads", "1", "--budget-s", "600", "--precision", "1000", "--depth", "16", "--rows", "1,2,3,4,5,6,7,8,9")
SMALL = ("--sizes-mb", "20,40", "--quant", "Q8_0", "--repeats", "2", "--read-mb", "64", "--n-threads", "1")


@pytest.fixture(scope="module")
def database(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts and passes of a mixture, and bandwidth, as `mlsd calibrate` stores them."""
    folder = tmp_path_factory.mktemp("calibrated")
    path = folder / "c.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLSD_CACHE", str(folder / "cache"))
        draft, figure = str(tiny / "qwen35moe-noise01.gguf"), str(folder / "experts.png")
        for arguments in (
            ["calibrate", str(tiny / "qwen35moe.gguf"), "--draft", draft, "-o", figure, *SHORT],
            ["calibrate", "memory", *SMALL],
        ):
            with pytest.raises(SystemExit) as stop:
                main([*arguments, "--db", str(path)])
                raise SystemExit(0)
            assert stop.value.code == 0
    return path


@pytest.fixture(scope="module")
def study(database: Path) -> Study:
    return mlsd.open_study(database)


@pytest.fixture(scope="module")
def page(study: Study) -> Page:
    return build(study)


def test_the_page_holds_the_answer_of_the_real_mixture(study: Study, page: Page) -> None:
    (mixture,) = study.machine.mixtures
    section = next(section for section in page.sections if section.id == "experts")
    text = share_sentences(mixture)
    assert section.text == text
    assert "bytes at batch one: verification amortizes" in text[0]
    assert "gains only if it commits more than" in text[1]
    assert [picture.id for picture in section.pictures] == ["expert-coverage"]
    assert section.missing == ()


def test_tables_hold_what_was_counted_and_timed(study: Study, page: Page) -> None:
    tables = {table.id: table for section in page.sections for table in section.tables}
    (mixture,) = study.machine.mixtures
    shares = tables["experts-qwen35moe"]
    assert [row[0].text for row in shares.rows] == [str(row.window) for row in mixture.coverage.rows]
    assert shares.rows[0][1].text == "4.00" and shares.rows[0][8].text.startswith("1.00")
    assert shares.rows[1][2].text != "-"  # drafted tokens
    assert shares.rows[-1][8].text == "-"  # counted, not timed
    ways = [row[0].text for row in tables["bandwidth"].rows]
    assert ways[-1] == "llama.cpp, Q8_0" and "plain read, numpy" in ways
    assert [row[0].text for row in tables["pass-curves"].rows] == ["qwen35moe"]
    (shown,) = study.machine.certificates.values()
    widths = next(table for table in tables.values() if table.title.startswith("Widths of qwen35moe at depth 16"))
    assert [row[0].text for row in widths.rows] == ["1", *map(str, shown)], "each width beside what it costs"


def test_a_database_of_calibrations_alone_is_a_report_of_the_machine(page: Page, study: Study) -> None:
    assert [section.id for section in page.sections] == ["machine", "costs", "experts", "passes"]
    assert "no setting to choose" in page.answer
    assert study.source.endswith("/c.sqlite"), "a hint can be copied as it stands"
    assert f"mlsd run B --db {study.source}" in page.summary
    for form in (html.render(page), markdown.render(page)):
        assert "verification amortizes" in form.replace("\\", "")
    assert 'aria-label="Expert coverage' in html.render(page)


def test_the_figure_of_the_command_is_a_picture(database: Path) -> None:
    assert (database.parent / "experts.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "expected"), [("x.jpeg", "not the name of a figure"), ("none/x.png", "There is no folder")]
)
def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_measured(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, expected: str
) -> None:
    database = tmp_path / "c.sqlite"
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", str(tiny / "llama.gguf"), "-o", str(tmp_path / name), "--db", str(database)])
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err
    assert not database.exists()


def test_a_dense_model_draws_its_passes(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-o", str(tmp_path / "t.svg"), "--db", str(tmp_path / "c.sqlite"), "--json", *SHORT]
    main(["calibrate", str(tiny / "llama.gguf"), *arguments])
    assert "Target efficiency" in (tmp_path / "t.svg").read_text(encoding="utf-8")
    printed = json.loads(capsys.readouterr().out)
    assert printed["time_a_token"] is None and printed["figure"].endswith("t.svg")
