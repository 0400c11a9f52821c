"""`mlsd audit`: can these numbers be true? Of a table or log, a published study, one's own trials, or one speed."""

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
from mlsd.units import counted

_COLORS = {"possible": "green", "suspicious": "yellow", "impossible": "red", "not judged": "bright_black"}
_NAMED = 3  # rows that lack the same


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--published",
    "name",
    metavar="NAME",
    is_flag=False,
    flag_value="",
    help="Audit a published study; without NAME, list them.",
)
@click.option("--tok-s", type=Real(min=0.01), help="Ask whether a plain speed is normal; with --model and --chip.")
@click.option("--model", metavar="NAME", help="The model of rows that name none, as in 'Qwen3.5-9B Q4_K_M'.")
@click.option("--chip", metavar="NAME", help="The chip of rows that name none, as in 'M4 Pro'.")
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
    tok_s: float | None,
    show_all: bool,
    strict: bool,
    db: Path | None,
    machine: str | None,
    settings: str | None,
    as_json: bool,
    **assumed: Any,
) -> None:
    """Check whether every row of results can be true, without running anything.

    FILE is a table as people paste it (CSV or Markdown), or a log of llama-server. Without FILE,
    --published or --tok-s the study database is checked: its trials, and the tables imported into it.
    """
    if sum(source is not None for source in (file, db, name, tok_s)) > 1:
        raise click.UsageError("Give only one of: a FILE, --published NAME, --db FILE, --tok-s SPEED.")
    if tok_s is not None and not (assumed["model"] and (assumed["chip"] or assumed["peak_gb_s"])):
        raise click.UsageError("--tok-s needs --model NAME and --chip NAME (or --peak-gb-s).")
    from mlsd.analysis.audit import tables

    given = tables.Assumed(**assumed)
    if name is not None:
        from mlsd.analysis.audit import published_tables as published

        if not name:
            raise click.UsageError(f"--published needs a name: {', '.join(published.names())}.")
        study = published.load(name)
        result = run_audit(study.citation, *published.contexts(study))
    elif tok_s is not None:
        result, show_all = run_audit("one speed", tables.one_speed(tok_s, given)), True
    elif file is not None:
        result = run_audit(str(file), *tables.table_contexts(file, given))
    else:
        from mlsd.analysis.audit import trials

        with reading(db) as store:
            contexts = trials.database_contexts(store, machine, settings, given)
        result = run_audit(str(store.path), *contexts)
    if as_json:
        rows = [
            {"identity": row.identity, "verdict": row.verdict, "rules": row.findings, "missing": row.missing}
            for row in result.rows
        ]
        print_json({"source": result.source, "counts": result.counts(), "notes": result.notes, "rows": rows})
    else:
        _print(result, show_all, every_finding=tok_s is not None)
    if strict and result.counts()["impossible"]:
        raise click.exceptions.Exit(1)


def _print(result: Audit, show_all: bool, *, every_finding: bool) -> None:
    say(f"Audit of {result.source}")
    for row in result.rows:
        shown = [f for f in row.findings if every_finding or f.verdict != "possible" or f.ask]
        if not shown and not show_all:
            continue
        say((f"{row.verdict:<10}  ", _COLORS[row.verdict]), f"{row.identity['table']}: {row.identity['label']}")
        for finding in shown:
            say((f"    {finding.sentence}", _COLORS["suspicious" if finding.ask else finding.verdict]))
    for missing, same in grouped((row for row in result.rows if row.missing), lambda row: row.missing).items():
        named = ", ".join(f"{row.identity['table']}: {row.identity['label']}" for row in same[:_NAMED])
        more = f", and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        say(("not judged  ", _COLORS["not judged"]), f"missing {'; '.join(missing)}: {named}{more}")
    for note in result.notes:
        say((f"note: {note}", "bright_black"))
    say(f"{counted(len(result.rows), 'row')}: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))
