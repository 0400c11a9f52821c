"""`mlsd audit`: can these numbers be true? Of a CSV, of a published study, or of one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlsd.analysis.audit.audit import audit as run_audit
from mlsd.analysis.audit.rows import Audit
from mlsd.cli.database import reading, study_options
from mlsd.cli.options import Real, json_option
from mlsd.cli.output import print_json, say
from mlsd.stats import grouped

_COLORS = {"possible": "green", "suspicious": "yellow", "impossible": "red", "not judged": "bright_black"}
_NAMED = 3  # rows that are not judged for one want


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--published", "name", metavar="NAME", help="Audit a published study; a wrong NAME lists them.")
@click.option("--peak-gb-s", type=Real(min=1), help="Peak memory bandwidth for tables, in GB/s (10^9).")
@click.option(
    "--full-drafts/--variable-drafts",
    default=None,
    help="Whether tables draft gamma tokens every round [from counts].",
)
@click.option("--all", "show_all", is_flag=True, help="Also print rows that are possible.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a row is impossible.")
@study_options
@json_option
def audit(
    file: Path | None,
    name: str | None,
    show_all: bool,
    strict: bool,
    db: Path | None,
    machine: str | None,
    settings: str | None,
    as_json: bool,
    **known: Any,
) -> None:
    """Check whether every row of results can be true, without running anything.

    FILE is a CSV with the columns of the mixture-of-experts study. Without FILE or --published the
    study database is checked: its trials, and the tables imported into it.
    """
    if sum(source is not None for source in (file, db, name)) > 1:
        raise click.UsageError("Give only one of: a CSV file, --published NAME, --db FILE.")
    from mlsd.analysis.audit import imported, trials
    from mlsd.analysis.audit import published_tables as published

    if name is not None:
        study = published.load(name)
        result = run_audit(study.citation, *published.contexts(study))
    elif file is not None:
        result = run_audit(str(file), imported.read_csv(file, **known))
    else:
        with reading(db) as store:
            contexts = trials.database_contexts(store, machine, settings, **known)
        result = run_audit(str(store.path), *contexts)
    if as_json:
        rows = [
            {"identity": row.identity, "verdict": row.verdict, "rules": row.findings, "missing": row.missing}
            for row in result.rows
        ]
        print_json({"source": result.source, "counts": result.counts(), "notes": result.notes, "rows": rows})
    else:
        _print(result, show_all)
    if strict and result.counts()["impossible"]:
        raise click.exceptions.Exit(1)


def _print(result: Audit, show_all: bool) -> None:
    say(f"Audit of {result.source}")
    for row in result.rows:
        doubts = [finding for finding in row.findings if finding.verdict != "possible" or finding.ask]
        if not doubts and not show_all:
            continue
        say((f"{row.verdict:<10}  ", _COLORS[row.verdict]), f"{row.identity['table']}: {row.identity['label']}")
        for finding in doubts:
            say((f"    {finding.sentence}", _COLORS["suspicious" if finding.ask else finding.verdict]))
    for missing, same in grouped((row for row in result.rows if row.missing), lambda row: row.missing).items():
        named = ", ".join(f"{row.identity['table']}: {row.identity['label']}" for row in same[:_NAMED])
        more = f", and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        say(("not judged  ", _COLORS["not judged"]), f"for want of {'; '.join(missing)}: {named}{more}")
    for told in result.notes:
        say((f"note: {told}", "bright_black"))
    say(f"{len(result.rows)} rows: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))
