"""``mlsd import``: somebody else's record or table of results into a study database, apart from what it holds."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.database import db_option
from mlsd.cli.output import note
from mlsd.errors import InputError, TableError
from mlsd.measure.exchange import read_table
from mlsd.measure.exchange.record import import_record, is_record, read_record
from mlsd.measure.store.newest import study_path
from mlsd.measure.store.store import Store
from mlsd.outside import read_given
from mlsd.units import quoted


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["record", "study-csv", "llama-bench"]),
    help="[default: record]",
)
@db_option("results/imported.sqlite")
def import_(file: Path, kind: str | None, db: Path | None) -> None:
    """Read FILE into a study database.

    The trials of a record keep the key of their machine (read them with `--machine`); a record that contradicts itself
    is refused. The rows of a table have no rounds: they are listed and audited, and never mixed with measured trials.
    Importing a file again adds nothing.
    """
    db = db or study_path("imported")
    kind = kind or ("record" if is_record(file) else None)
    if kind is None:
        read_given(file, InputError, "Give the path of a file.")
        raise InputError(f"{file} is no record.", hint="Name the table's format with --format.")
    if kind == "record":
        _record(file, db)
        return

    rows = read_table(file, kind)  # type: ignore[arg-type]  # click.Choice guarantees it
    with Store.open(db) as store:
        count = store.add_imported(rows)
    _say(count, len(rows), "rows", file, db)


def _record(file: Path, db: Path) -> None:
    from mlsd.analysis.audit.record_identities import problems

    record = read_record(file)
    if found := problems(record):
        raise TableError(
            f"{file} contradicts itself: {found[0].where}: {found[0].sentence}.",
            hint=f"Nothing was imported; see `mlsd record verify {quoted(file)}`.",
        )
    with Store.open(db) as store:
        done = import_record(store, record)
    _say(done.n_new, done.n_new + done.n_known, "trials", file, db)
    for key in done.machines:
        note(f"Read them: mlsd report --db {quoted(db)} --machine {quoted(key)}")


def _say(count: int, of: int, what: str, file: Path, db: Path) -> None:
    skipped = f", {of - count} known already" if count < of else ""
    note(f"{count} {what} of {file} imported into {db}{skipped}. `mlsd results --db {quoted(db)}` lists them.")
