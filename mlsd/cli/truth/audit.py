"""`mlsd audit`: can these numbers be true? Of a CSV, of a published study, or of one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, say

if TYPE_CHECKING:
    from mlsd.analysis.audit.rows import Audit, AuditContext

_COLORS = {"possible": "green", "suspicious": "yellow", "impossible": "red"}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--db", type=click.Path(path_type=Path), help="Audit the trials of a study database.")
@click.option("--published", "name", metavar="NAME", help="Audit a published study: study, small-models, hybrid.")
@click.option("--peak-gb-s", type=click.FloatRange(min=1), help="Peak memory bandwidth for FILE, in GB/s (10^9).")
@click.option(
    "--full-drafts/--variable-drafts", default=None, help="Whether FILE drafts gamma tokens every round [from counts]."
)
@click.option("--all", "show_all", is_flag=True, help="Print possible rows, too.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a row is impossible.")
@json_option
def audit(
    file: Path | None,
    db: Path | None,
    name: str | None,
    peak_gb_s: float | None,
    full_drafts: bool | None,
    show_all: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Ask of every row of results whether it can be true, without running anything.

    FILE is a CSV with the columns of the mixture-of-experts study.
    """
    if sum(source is not None for source in (file, db, name)) != 1:
        raise click.UsageError("Give one of: a CSV file, --published NAME, --db FILE.")
    from mlsd.analysis.audit.audit import audit as run_audit

    source, context = _stored(db) if db is not None else _context(file, name, peak_gb_s, full_drafts)
    result = run_audit(source, context)
    if as_json:
        print_json(_document(result))
    else:
        _print(result, show_all)
    if strict and result.counts()["impossible"]:
        raise click.exceptions.Exit(1)


def _context(
    file: Path | None, name: str | None, peak_gb_s: float | None, full_drafts: bool | None
) -> tuple[str, AuditContext]:
    if name is not None:
        from mlsd.analysis.audit import published_tables as published

        study = published.load(name)
        return study.citation, published.context(study)
    from mlsd.analysis.audit.imported import read_csv

    assert file is not None
    return str(file), read_csv(file, full_drafts=full_drafts, peak_gb_s=peak_gb_s)


def _stored(db: Path) -> tuple[str, AuditContext]:
    from mlsd.analysis.audit.trials import trials_context
    from mlsd.measure.store.study import Store

    with Store.open(db, create=False, read_only=True) as store:
        runs, table = store.runs(), store.summary()
        environment = runs[-1].environment if runs else None
        return str(db), trials_context(table.columns, table.rows, environment, store.models())


def _document(result: Audit) -> dict[str, object]:
    return {
        "source": result.source,
        "counts": result.counts(),
        "notes": result.notes,
        "rows": [{"identity": row.identity, "verdict": row.verdict, "rules": row.findings} for row in result.rows],
    }


def _print(result: Audit, show_all: bool) -> None:
    say(f"Audit of {result.source}")
    for row in result.rows:
        if row.verdict == "possible" and not show_all:
            continue
        say((f"{row.verdict:<10}  ", _COLORS[row.verdict]), f"{row.identity['table']}: {row.identity['label']}")
        for finding in row.findings:
            if finding.verdict != "possible":
                say((f"    {finding.sentence}", _COLORS[finding.verdict]))
    for told in result.notes:
        say((f"note: {told}", "bright_black"))
    say(f"{len(result.rows)} rows: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))
