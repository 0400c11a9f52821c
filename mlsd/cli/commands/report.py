"""`mlsd report`: one page that says which setting to use, and everything behind it."""

from pathlib import Path

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, say, verbosity, working
from mlsd.units import counted


@click.command()
@study_options
@click.option(
    "-o", "--output", "folder", default="report", type=click.Path(path_type=Path), help="Folder [default: report]."
)
@json_option
def report(db: Path | None, machine: str | None, settings: str | None, folder: Path, as_json: bool) -> None:
    """Write report.html (one self-contained file), report.md and the figures of a study.

    The first line says which setting to use for which workload, "off" included. Import a record first:
    `mlsd record import FILE --into DB`.
    """
    show_report(db, folder, machine, settings, as_json=as_json)


def show_report(
    db: Path | None,
    folder: Path,
    machine: str | None = None,
    settings: str | None = None,
    *,
    as_json: bool = False,
    beside: bool = False,
) -> None:
    """Write the report of a study, and print its answer and where it lies; `beside` other JSON only where."""
    study = open_study(db, machine, settings, say=False)
    with working("Writing the report"):
        from mlsd.report.page import write_report

        written = write_report(study, folder)
    if beside:
        note(f"Report: {written.html}")
        return
    if as_json:
        print_json(written)
        return
    say(written.answer)
    if written.verdict:
        say(written.verdict)
    if written.missing and verbosity.get() == "verbose":
        for missing in written.missing:
            note(f"Missing: {missing}")
    elif written.missing:
        note(f"{counted(len(written.missing), 'part')} of the page need more data; the page lists them (so does -v).")
    say(f"Report: {written.html}")
    if written.next:
        note(f"Next: {written.next}")
