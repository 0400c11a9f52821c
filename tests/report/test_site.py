"""Several studies as a site: a row for each machine and target, a report behind it, and nothing of one in another's."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mlsd.analysis.study.study import Study
from mlsd.cli.main import cli
from mlsd.measure.exchange.record import write_record
from mlsd.measure.store.store import Store
from mlsd.report.site import write_site
from mlsd.report.write import Written
from tests.analysis.studies import MACHINE, MOE, blocks, write

PUBLISHED = sorted((Path(__file__).parent.parent.parent / "studies").glob("*.record.json.gz"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A database, one of another machine with a hostile name, and a file that is neither; reports have other tests."""

    def report(study: Study, folder: Path) -> Written:
        folder.mkdir(parents=True)
        return Written(html=str(folder / "report.html"), markdown="", figures=(), answer="", missing=())

    monkeypatch.setattr("mlsd.report.site.write_report", report)
    write(tmp_path / "a.sqlite", blocks(MOE, repeats=2))
    other = write(tmp_path / "other.sqlite", blocks(MOE, repeats=2), msgspec.structs.replace(MACHINE, host="f" * 16))
    hostile = tmp_path / "<script>alert(1)<\u2215script>.sqlite"
    other.rename(hostile)
    (tmp_path / "notes.txt").write_text("nothing")
    return [tmp_path / "a.sqlite", hostile, tmp_path / "notes.txt"]


def test_every_machine_and_target_has_a_row_that_leads_to_its_report(sources: list[Path], tmp_path: Path) -> None:
    site = write_site(sources, tmp_path / "site")
    index = Path(site.index).read_text()
    pages = [Path(page).relative_to(tmp_path / "site").as_posix() for page in site.reports]
    assert pages == ["a/report.html", "script-alert-1-script/report.html"]
    assert all(f'href="{page}"' in index for page in pages)
    assert "<script>alert" not in index and "&lt;script&gt;alert" in index
    assert [text.split(":")[0] for text in site.left_out] == ["notes.txt"]


def test_a_record_that_contradicts_itself_is_left_out(sources: list[Path], tmp_path: Path) -> None:
    made_up = tmp_path / "b.record.json.gz"
    with Store.open(sources[0], read_only=True) as store:  # which its figures show
        write_record(store, made_up)
    site = write_site([sources[0], made_up], tmp_path / "site")
    assert len(site.reports) == 1
    assert "contradicts itself" in site.left_out[0]


@pytest.mark.heavy
def test_the_published_records_make_the_page_of_results(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["report", *map(str, PUBLISHED), "--site", str(tmp_path / "s"), "--json"])
    assert ran.exit_code == 0, ran.output
    written = json.loads(ran.stdout)
    assert PUBLISHED and len(written["reports"]) >= len(PUBLISHED) and not written["left_out"]
    assert all(Path(page).stat().st_size > 100_000 for page in written["reports"])


@pytest.mark.heavy
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_published_record_can_be_as_it_says(path: Path) -> None:
    ran = CliRunner().invoke(cli, ["record", "verify", str(path), "--sample", "2", "--json"])
    (found,) = json.loads(ran.stdout)
    assert ran.exit_code == 0, found["problems"]
