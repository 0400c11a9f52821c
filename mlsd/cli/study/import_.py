"""``mlsd import``: somebody else's record into a study database, apart from what was measured here."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.database import db_option
from mlsd.cli.output import note
from mlsd.errors import TableError
from mlsd.formats.record import import_record, opened_record
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.units import quoted


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@db_option("results/imported.sqlite")
def import_(file: Path, db: Path | None) -> None:
    """Read the record FILE into a study database.

    Its trials keep the key of their machine (read them with `--machine`); a record that contradicts itself is refused.
    Importing a file again adds nothing. Tables are audited as they are: `mlsd audit FILE`.
    """
    from mlsd.analysis.audit.record_identities import problems

    db = db or study_path("imported")
    with opened_record(file) as record:
        if found := problems(record):
            raise TableError(
                f"{file} contradicts itself: {found[0].where}: {found[0].sentence}.",
                hint=f"Nothing was imported; see `mlsd record verify {quoted(file)}`.",
            )
        with Store.open(db) as store:
            done = import_record(store, record)
    known = f", {done.n_known} known already" if done.n_known else ""
    note(f"{done.n_new} trials of {file} imported into {db}{known}. `mlsd results --db {quoted(db)}` lists them.")
    for key in done.machines:
        note(f"Read them: mlsd report --db {quoted(db)} --machine {quoted(key)}")
