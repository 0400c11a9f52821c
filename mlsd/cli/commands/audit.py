"""`mlsd audit`: can these numbers be true? Of a table or log, a published study, one's own trials, or one speed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mlsd.audits.rows import Audit, RowAudit
from mlsd.cli.database import reading, study_options
from mlsd.cli.options import Real, json_option, refuse
from mlsd.cli.output import print_json, say
from mlsd.errors import TableError
from mlsd.outside import read_given
from mlsd.report.render.table import Tone
from mlsd.stats import grouped
from mlsd.store.database import is_study
from mlsd.units import counted

_ORDER = ("impossible", "suspicious", "asked")
_ARM = ("target", "drafter", "draft", "options", "gamma", "prompt")
_TONES: dict[str, Tone] = {"possible": "good", "suspicious": "caution", "impossible": "bad", "not judged": "quiet"}
STANDARD_INPUT = Path("-")
_NAMED = 3  # rows of which the same is said


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--published",
    "name",
    metavar="NAME",
    is_flag=False,
    flag_value="",
    help="Audit a published study; without NAME, list what ships.",
)
@click.option("--tok-s", type=Real(min=0.01), help="Ask whether a plain speed is normal; with --model and --chip.")
@click.option("--model", metavar="NAME", help="The model of rows that name none, as in 'Qwen3.5-9B Q4_K_M'.")
@click.option("--chip", metavar="NAME", help="The chip of rows that name none, as in 'M4 Pro'.")
@click.option("--peak-gb-s", type=Real(min=1), help="Peak memory bandwidth for tables, in GB/s (10^9).")
@click.option(
    "--full-drafts/--variable-drafts", default=None, help="Whether tables draft gamma tokens every round [from counts]."
)
@click.option("--all", "show_all", is_flag=True, help="Also print rows that are possible.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a row is impossible.")
@study_options
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    /,
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

    FILE is what people paste (CSV or Markdown tables, a whole page, a log of llama-server; `-` is
    standard input), or a study database. Without FILE, --published or --tok-s the newest database
    is checked.
    """
    if sum(source is not None for source in (file, db, name, tok_s)) > 1:
        raise click.UsageError("Give only one of: a FILE, --published NAME, --db FILE, --tok-s SPEED.")
    if tok_s is not None and not (assumed["model"] and (assumed["chip"] or assumed["peak_gb_s"])):
        raise click.UsageError("--tok-s needs --model NAME and --chip NAME (or --peak-gb-s).")
    if file is not None and file != STANDARD_INPUT and is_study(file):
        file, db = None, file
    of_database = file is None and name is None and tok_s is None
    refuse(ctx, ("machine", "settings"), not of_database, "a study database")
    refuse(ctx, assumed, name is not None, "a table that mlsd does not ship")
    refuse(ctx, assumed, of_database, "tables")
    if name == "":
        from mlsd.audits import published_tables as published

        shipped = {known: published.load(known).title for known in published.names()}
        if as_json:
            listed = tuple(f"{known}: {title}" for known, title in shipped.items())
            _print_json(Audit(source="published studies", rows=(), notes=listed))
        for known, title in shipped.items() if not as_json else ():
            say(f"{known:<{max(map(len, shipped))}}  {title}")
        return
    if file is not None and file != STANDARD_INPUT:  # a wrong name is answered before anything heavy is loaded
        read_given(file, TableError, "Give the path of a file.")
    result = _audited(file, name, tok_s, db, machine, settings, assumed)
    show_all = show_all or tok_s is not None
    if as_json:
        _print_json(result)
    else:
        _print(result, show_all, every_finding=tok_s is not None)
    if strict and result.counts()["impossible"]:
        raise click.exceptions.Exit(1)


def _audited(
    file: Path | None,
    name: str | None,
    tok_s: float | None,
    db: Path | None,
    machine: str | None,
    settings: str | None,
    assumed: Mapping[str, Any],
) -> Audit:
    """The audit of what was named: a published study, one speed, a file, else a study database."""
    from mlsd.audits.check import audit as run_audit
    from mlsd.audits.tables import Assumed, one_speed, table_contexts

    if name is not None:
        from mlsd.audits import published_tables as published

        study = published.load(name)
        return run_audit(study.citation, *published.contexts(study))
    if tok_s is not None:
        return run_audit("one speed", one_speed(tok_s, Assumed(**assumed)))
    if file is not None:
        source = file.name if file != STANDARD_INPUT else "standard input"
        return run_audit(source, *table_contexts(file, Assumed(**assumed)))
    from mlsd.audits import trials

    with reading(db) as store:
        context = trials.database_context(store, machine, settings)
    return run_audit(str(store.path), context)


def _print_json(result: Audit) -> None:
    rows = [
        {
            "identity": row.identity,
            "verdict": row.verdict,
            "rules": row.findings,
            "missing": row.missing,
            "round_cost": row.round_cost,
        }
        for row in result.rows
    ]
    print_json({"source": result.source, "counts": result.counts(), "notes": result.notes, "rows": rows})


def _print(result: Audit, show_all: bool, *, every_finding: bool) -> None:
    """Rows by what was found of them, the worst first; with `show_all` row by row."""
    say(f"Audit of {result.source}")
    doubted = [row for row in result.rows if row.verdict in ("impossible", "suspicious") or row.questions]
    if show_all:
        for row in result.rows:
            say((f"{row.verdict:<10}  ", _TONES[row.verdict]), _name(row))
            for finding in row.findings:
                if every_finding or finding.verdict != "possible" or finding.ask:
                    say((f"    {finding.sentence}", _TONES["suspicious" if finding.ask else finding.verdict]))
        doubted = []
    for (verdict, rule), same in sorted(grouped(doubted, _cause).items(), key=lambda one: _ORDER.index(one[0][0])):
        tone = _TONES["suspicious" if verdict == "asked" else verdict]
        say((f"{verdict:<10}  ", tone), f"{counted(len(same), 'row')}: {rule.replace('_', ' ')}")
        for row in same[:_NAMED]:
            say(f"    {_name(row)}")
            sentence = next(one.sentence for one in row.findings if one.rule == rule)
            say((f"        {sentence}", tone))
        if len(same) > _NAMED:
            say(f"    and {len(same) - _NAMED} more (--all names them)")
    for missing, same in grouped((row for row in result.rows if row.missing), lambda row: row.missing).items():
        named = "; ".join(_name(row) for row in same[:_NAMED])
        more = f"; and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        say(("not judged  ", _TONES["not judged"]), f"missing {'; '.join(missing)}: {named}{more}")
    costs = [row.round_cost for row in result.rows if row.round_cost is not None]
    if costs and not show_all:
        span = f"{min(costs):.2f} to {max(costs):.2f}" if len(costs) > 1 else f"{costs[0]:.2f}"
        say(
            (
                f"A round costs {span} plain steps, MGL over speedup ({counted(len(costs), 'row')}; --all: each).",
                "quiet",
            )
        )
    for note in result.notes:
        say((f"note: {note}", "quiet"))
    say(f"{counted(len(result.rows), 'row')}: " + ", ".join(f"{n} {verdict}" for verdict, n in result.counts().items()))


def _cause(row: RowAudit) -> tuple[str, str]:
    """What is said of a row, and the first rule that says it."""
    if row.verdict in ("possible", "not judged"):
        return "asked", row.questions[0].rule
    return row.verdict, next(one.rule for one in row.findings if one.verdict == row.verdict)


def _name(row: RowAudit) -> str:
    """A row as its source says it; a trial by its arm, too."""
    label = f"{row.identity['table']}: {row.identity['label']}"
    label += "" if row.round_cost is None else f" [a round costs {row.round_cost:.2f} plain steps]"
    arm = [f"gamma {row.identity[f]}" if f == "gamma" else str(row.identity[f]) for f in _ARM if f in row.identity]
    return f"{label} ({', '.join(arm)})" if str(row.identity["label"]).startswith("trial ") and arm else label
