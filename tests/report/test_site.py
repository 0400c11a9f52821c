"""Several studies as a site: a row for each machine and target, a report behind it, and nothing of one in another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mlsd.cli.main import cli
from mlsd.measure.exchange.record import write_record
from mlsd.measure.store.store import Store
from mlsd.report.site import write_site
from tests.analysis.studies import MACHINE, MOE, blocks, write

PUBLISHED = sorted((Path(__file__).parent.parent.parent / "studies").glob("*.record.json.gz"))


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """A database, a published record, a database of another machine with a hostile name, and a file that is neither."""
    write(tmp_path / "a.sqlite", blocks(MOE, repeats=2))
    other = write(tmp_path / "other.sqlite", blocks(MOE, repeats=2), msgspec.structs.replace(MACHINE, host="f" * 16))
    shutil.copy(PUBLISHED[0], tmp_path / "b.record.json.gz")
    hostile = tmp_path / "<script>alert(1)<\u2215script>.sqlite"
    other.rename(hostile)
    (tmp_path / "notes.txt").write_text("nothing")
    return [tmp_path / "a.sqlite", tmp_path / "b.record.json.gz", hostile, tmp_path / "notes.txt"]


def test_every_machine_and_target_has_a_row_that_leads_to_its_report(sources: list[Path], tmp_path: Path) -> None:
    site = write_site(sources, tmp_path / "site")
    index = Path(site.index).read_text()
    assert [Path(page).relative_to(tmp_path / "site").as_posix() for page in site.reports] == [
        "a/report.html", "b/report.html", "script-alert-1-script/report.html",
    ]  # fmt: skip
    assert all(f'href="{Path(page).relative_to(tmp_path / "site").as_posix()}"' in index for page in site.reports)
    assert "<script>alert" not in index and "&lt;script&gt;alert" in index
    assert [text.split(":")[0] for text in site.left_out] == ["notes.txt"]


def test_a_record_that_contradicts_itself_is_left_out(sources: list[Path], tmp_path: Path) -> None:
    with Store.open(sources[0], read_only=True) as store:  # made up, which its figures show
        write_record(store, sources[1])
    site = write_site(sources[:2], tmp_path / "site")
    assert len(site.reports) == 1
    assert "contradicts itself" in site.left_out[0]


def test_the_command_writes_a_site_of_several_studies_and_of_records(sources: list[Path], tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["report", *map(str, sources[:2]), "--site", str(tmp_path / "s"), "--json"])
    assert ran.exit_code == 0, ran.output
    assert len(json.loads(ran.stdout)["reports"]) == 2
    one = CliRunner().invoke(cli, ["report", str(sources[1]), "-o", str(tmp_path / "t")])
    assert one.exit_code == 0 and (tmp_path / "t" / "index.html").exists()


@pytest.mark.heavy
def test_the_published_records_make_the_page_of_results(tmp_path: Path) -> None:
    site = write_site(PUBLISHED, tmp_path)
    assert PUBLISHED and len(site.reports) >= len(PUBLISHED)
    assert not site.left_out


@pytest.mark.heavy
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_every_published_record_can_be_as_it_says(path: Path) -> None:
    ran = CliRunner().invoke(cli, ["record", "verify", str(path), "--sample", "2", "--json"])
    (found,) = json.loads(ran.stdout)
    assert ran.exit_code == 0, found["problems"]
