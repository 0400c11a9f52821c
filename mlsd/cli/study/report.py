"""`mlsd report`: one page that says which setting to use, and everything behind it; of several studies, a site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, say, verbosity, working
from mlsd.errors import InputError
from mlsd.units import counted

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("sources", nargs=-1, type=_PATH)
@study_options
@click.option("-o", "--output", "folder", default="report", type=_PATH, help="Folder [default: report].")
@click.option("--site", type=_PATH, metavar="FOLDER", help="Write an index of all SOURCES and the report of each here.")
@json_option
def report(
    sources: tuple[Path, ...],
    db: Path | None,
    machine: str | None,
    settings: str | None,
    folder: Path,
    site: Path | None,
    as_json: bool,
) -> None:
    """Write report.html (one self-contained file), report.md and the figures of a study.

    The first line says which setting to use for which workload, "off" included. SOURCES are study databases or records;
    of several, or with --site, a static site is written: an index with a row for each machine and target, and a report
    of each.
    """
    from mlsd.measure.exchange.record import is_record

    if len(sources) > 1 or any(site is not None or is_record(source) for source in sources):
        if db is not None or machine is not None or settings is not None:
            raise InputError("--db, --machine and --settings choose within one study, not among several.")
        _show_site(sources, site or folder, as_json=as_json)
        return
    if sources and db is not None:
        raise InputError("A study was named twice.", hint="Give it with --db, or without.")
    show_report(sources[0] if sources else db, site or folder, machine, settings, as_json=as_json)


def _show_site(sources: Sequence[Path], folder: Path, *, as_json: bool) -> None:
    with working(f"Writing a site of {counted(len(sources), 'source')}") as tell:
        from mlsd.report.site import write_site

        written = write_site(sources, folder, tell)
    if as_json:
        print_json(written)
        return
    say(written.answer)
    for left in written.left_out:
        note(f"Left out: {left}")
    say(f"Site: {written.index}")


def show_report(
    db: Path | None, folder: Path, machine: str | None = None, settings: str | None = None, *, as_json: bool = False
) -> None:
    """Write the report of a study, and print its answer and where it lies."""
    study = open_study(db, machine, settings, say=False)
    with working("Writing the report"):
        from mlsd.report.write import write_report

        written = write_report(study, folder)
    if as_json:
        print_json(written)
        return
    say(written.answer)
    if written.missing and verbosity.get() == "verbose":
        for missing in written.missing:
            note(f"Missing: {missing}")
    elif written.missing:
        note(f"{counted(len(written.missing), 'part')} of the page need more data; the page lists them (so does -v).")
    say(f"Report: {written.html}")
