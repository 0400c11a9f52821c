"""`mlsd report`: one page that says which setting to use, and everything behind it."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.database import db_option, find_database
from mlsd.cli.output import note, print_json


@click.command()
@db_option
@click.option(
    "-o", "--output", "folder", default="report", type=click.Path(path_type=Path), help="Folder [default: report]."
)
@click.option("--machine", metavar="KEY", help="Which machine's trials, by the start of its key [default: the latest].")
@click.option("--json", "as_json", is_flag=True, help="Print the paths, the answer and what is missing as JSON.")
def report(db: Path | None, folder: Path, machine: str | None, as_json: bool) -> None:
    """Write report.html (one self-contained file), report.md and the figures of a study.

    The first line says which setting to use for which workload, "off" included.
    """
    from mlsd.analysis.study.study import read_study
    from mlsd.measure.store.study import Store
    from mlsd.report.write import write_report

    with Store.open(find_database(db), create=False, read_only=True) as store:
        study = read_study(store, machine)
    written = write_report(study, folder)
    if as_json:
        print_json(written)
        return
    click.echo(written.answer)
    for missing in written.missing:
        note(f"Missing: {missing}")
    click.echo(f"Report: {written.html}")
