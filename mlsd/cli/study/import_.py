"""``mlsd import``: somebody else's table of results into a study database, apart from measured trials."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.output import note


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["study-csv", "llama-bench"]), required=True)
@click.option(
    "--db",
    type=click.Path(path_type=Path),
    default=Path("results") / "imported.sqlite",
    show_default=True,
    help="Study database.",
)
def import_(file: Path, kind: str, db: Path) -> None:
    """Read FILE into a study database.

    Imported rows have no rounds: they are listed and audited, and never mixed with measured trials. A file that was
    read before is not read twice.
    """
    from mlsd.measure.exchange import read_table
    from mlsd.measure.store.study import Store

    rows = read_table(file, kind)  # type: ignore[arg-type]  # click.Choice guarantees it
    with Store.open(db) as store:
        count = store.add_imported(rows)
    skipped = f", {len(rows) - count} known already" if count < len(rows) else ""
    note(f"{count} rows of {file} imported into {db}{skipped}. `mlsd results --db {db}` lists them.")
