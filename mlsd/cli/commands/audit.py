"""`mlsd audit`: can these numbers be true? Of a table or log, a published study, one's own trials, or one speed."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlsd.audits.rows import Audit, RowAudit
from mlsd.cli.database import reading, study_options
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Real, json_option, refuse
from mlsd.cli.output import print_json, say
from mlsd.errors import InputError, TableError, choose
from mlsd.hardware.chips import bins, with_known_peak
from mlsd.outside import read_given
from mlsd.report.render.table import Tone
from mlsd.stats import grouped
from mlsd.store.database import is_study
from mlsd.units import counted

F = TypeVar("F", bound=Callable[..., Any])
_ORDER = ("impossible", "suspicious", "asked")
_ARM = ("target", "drafter", "draft", "options", "gamma", "prompt")
_TONES: dict[str, Tone] = {"possible": "good", "suspicious": "caution", "impossible": "bad", "not judged": "quiet"}
STANDARD_INPUT = Path("-")
_NAMED = 3  # rows of which the same is said


@click.group(cls=CommandGroup)
def audit() -> None:
    """Print which rows of results cannot be true and why, without running anything.

    FILE is what people paste (CSV or Markdown tables, a whole page, a log of llama-server; `-` is standard input), or
    a study database.
    """


def _shown_options(command: F) -> F:
    """How an audit is shown; the command returns it."""

    @functools.wraps(command)
    def with_output(*arguments: Any, show_all: bool, strict: bool, as_json: bool, **options: Any) -> None:
        result: Audit = command(*arguments, **options)
        if as_json:
            _print_json(result)
        else:
            _print(result, show_all)
        if strict and result.counts()["impossible"]:
            raise click.exceptions.Exit(1)

    wrapped = click.option("--strict", is_flag=True, help="Exit with 1 if a row is impossible.")(with_output)
    wrapped = click.option("--all", "show_all", is_flag=True, help="Also print rows that are possible.")(wrapped)
    return json_option(wrapped)  # type: ignore[return-value]


def check_chip(name: str | None, peak_gb_s: float | None) -> None:
    """Raises: InputError for a chip of which no bandwidth is known, where none is given."""
    if name is not None and peak_gb_s is None and not any(chip.peak_bandwidth_gb_s for chip in bins(name)):
        hint = choose(name, with_known_peak(), ", or give --peak-gb-s")
        raise InputError(f"No peak bandwidth is known of {name}.", hint=hint)


_peak_option = click.option("--peak-gb-s", type=Real(min=1), help="Peak memory bandwidth, in GB/s (10^9).")


@audit.command("table", default=True)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", metavar="NAME", help="The model of rows that name none, as in 'Qwen3.5-9B Q4_K_M'.")
@click.option("--chip", metavar="NAME", help="The chip of rows that name none, as in 'M4 Pro'.")
@_peak_option
@click.option(
    "--full-drafts/--variable-drafts", default=None, help="Whether tables draft gamma tokens every round [from counts]."
)
@_shown_options
@click.pass_context
def audit_table(ctx: click.Context, /, file: Path, **assumed: Any) -> Audit:
    """Print which rows of the tables or logs in FILE cannot be true, and why."""
    check_chip(assumed["chip"], assumed["peak_gb_s"])
    if file == STANDARD_INPUT:
        source = "standard input"
    elif is_study(file):
        refuse(ctx, assumed, True, "tables")
        return _of_database(file)
    else:
        read_given(file, TableError, "Give the path of a file.")  # before anything heavy is loaded
        source = file.name
    from mlsd.audits.check import audit as run_audit
    from mlsd.audits.tables import Assumed, table_contexts

    return run_audit(source, *table_contexts(file, Assumed(**assumed)))


@audit.command("study")
@study_options
@_shown_options
def audit_study(db: Path | None, machine: str | None, settings: str | None) -> Audit:
    """Print which trials of a study database cannot be true, and why."""
    return _of_database(db, machine, settings)


def _of_database(db: Path | None, machine: str | None = None, settings: str | None = None) -> Audit:
    with reading(db) as store:
        from mlsd.audits import trials
        from mlsd.audits.check import audit as run_audit

        printed_whole = click.get_current_context().params["as_json"]
        context = trials.database_context(store, machine, settings)
        return run_audit(str(store.path), context, possible=printed_whole)


@audit.command("published")
@click.argument("name", required=False)
@_shown_options
@click.pass_context
def audit_published(ctx: click.Context, name: str | None) -> Audit:
    """Print which rows of the published study NAME cannot be true; without NAME which studies ship."""
    from mlsd.audits import published_tables as published
    from mlsd.audits.check import audit as run_audit

    if name is None:
        titles = {known: published.load(known).title for known in published.names()}
        if ctx.params["as_json"]:
            lines = tuple(f"{known}: {title}" for known, title in titles.items())
            _print_json(Audit(source="published studies", rows=(), notes=lines))
        else:
            say("\n".join(f"{known:<{max(map(len, titles))}}  {title}" for known, title in titles.items()))
        ctx.exit()
    study = published.load(name)
    return run_audit(study.citation, *published.contexts(study))


@audit.command("speed")
@click.argument("tok_s", type=Real(min=0.01))
@click.option("--model", metavar="NAME", required=True, help="The model, as in 'Qwen3.5-9B Q4_K_M'.")
@click.option("--chip", metavar="NAME", help="The chip, as in 'M4 Pro'.")
@_peak_option
@json_option
def audit_speed(tok_s: float, model: str, chip: str | None, peak_gb_s: float | None, as_json: bool) -> None:
    """Print whether a plain speed, TOK_S tokens a second, can be true of a model on a chip, and whether it is usual."""
    if chip is None and peak_gb_s is None:
        raise click.UsageError("Give --chip NAME or --peak-gb-s NUMBER.")
    check_chip(chip, peak_gb_s)
    from mlsd.audits.check import audit as run_audit
    from mlsd.audits.tables import Assumed, one_speed

    result = run_audit("one speed", one_speed(tok_s, Assumed(model=model, chip=chip, peak_gb_s=peak_gb_s)))
    if as_json:
        _print_json(result)
    else:
        _print(result, show_all=True, every_finding=True)


def _print_json(result: Audit) -> None:
    print_json({"source": result.source, "counts": result.counts(), "notes": result.notes, "rows": result.rows})


def _print(result: Audit, show_all: bool, *, every_finding: bool = False) -> None:
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
    for (verdict, rule), same in sorted(grouped(doubted, _cause).items(), key=lambda item: _ORDER.index(item[0][0])):
        tone = _TONES["suspicious" if verdict == "asked" else verdict]
        say((f"{verdict:<10}  ", tone), f"{counted(len(same), 'row')}: {rule.replace('_', ' ')}")
        for row in same[:_NAMED]:
            say(f"    {_name(row)}")
            sentence = next(finding.sentence for finding in row.findings if finding.rule == rule)
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
                f"A round costs {span} plain steps, MGL (tokens per round) over speedup "
                f"({counted(len(costs), 'row')}; --all: each).",
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
    return row.verdict, next(finding.rule for finding in row.findings if finding.verdict == row.verdict)


def _name(row: RowAudit) -> str:
    """A row as its source says it; a trial by its arm, too."""
    label = f"{row.identity['table']}: {row.identity['label']}"
    label += "" if row.round_cost is None else f" [a round costs {row.round_cost:.2f} plain steps]"
    arm = [f"gamma {row.identity[f]}" if f == "gamma" else str(row.identity[f]) for f in _ARM if f in row.identity]
    return f"{label} ({', '.join(arm)})" if str(row.identity["label"]).startswith("trial ") and arm else label
