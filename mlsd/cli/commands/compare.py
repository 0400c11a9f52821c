"""``mlsd compare``: two builds or settings side by side, behind a gate that this machine's noise sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec.structs import replace

from mlsd.cli import options as shared
from mlsd.cli.answers import say_stages
from mlsd.cli.database import db_option, note_left_out
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.cli.watch import TrialWatcher, say_warnings
from mlsd.errors import InputError
from mlsd.planning.options import BUDGET_S, BenchOptions, CalibrateOptions, declared, option
from mlsd.records import EngineOptions
from mlsd.trials.intervals import Stopping
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.compare.sessions import Comparison
    from mlsd.measure.parent.compare import Compared, CompareRequest
    from mlsd.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_MARGIN = 0.02
_FIRST = 6  # blocks of a session with a goal before its precision is looked at
_MOST_BLOCKS = 1_000  # of a session that goes on until it knows enough
_OF_BOTH = ("drafts", "drafters", "gammas", "prompts", "n_predict", "repeats", "seed")
_OPEN = 4  # exit code where nothing is decided of what --fail-on asks for
_FAIL_ON = ("slower", "different", "undecided")


def _fail_on(text: str) -> tuple[str, float]:
    """What makes the exit code 1: ``slower:3%``, ``different``, ``undecided``."""
    what, _, share = text.partition(":")
    if what not in _FAIL_ON or (share and what != "slower"):
        raise ValueError(f"{text!r} is not one of slower:3%, {', '.join(_FAIL_ON)}")
    return what, shared.read_share(share) if share else 0.0


def _sides(kind: click.ParamType[T]) -> shared.Parsed[tuple[T, ...]]:
    """A value of both sides, or `x/y` for A and B."""

    def read(text: str) -> tuple[T, ...]:
        a, slash, b = text.partition("/")
        return tuple(kind.convert(side, None, None) for side in (a, b if slash else a))

    return shared.Parsed("text", read)


def _of_sides(command: F) -> F:
    """Add the options of the native contexts, each of both sides or of A and B."""
    for declaration in reversed(declared(EngineOptions)):
        help_ = f"{declaration.option.meaning} x/y gives A x and B y."
        kind = _sides(shared.click_type(declaration)["type"])
        command = shared.option_of(declaration, type=kind, default=None, help=help_)(command)
    return command


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="A B TARGET")
@click.option("--target-b", help="B's target, where it is another: another quantization of the same model.")
@shared.options_of(BenchOptions, *_OF_BOTH, gammas=(4,), n_predict=128, repeats=10)
@click.option(
    "--until", type=shared.SHARE, help="Add blocks until a change of this size would be visible, or the time is up."
)
@shared.option_of(
    option(BenchOptions, "budget_s"),
    help="Start no block after this many seconds of blocks [default: 600 with --until].",
)
@shared.declared_option(
    CalibrateOptions, "rows", "k of T(k) [default: as wide as the arms' passes are; 1 to 33 with -o].", default=None
)
@shared.output_option("Draw T(k) of both builds into this .png or .svg.", required=False)
@click.option(
    "--no-control", is_flag=True, help="Leave out the control (A a second time): faster, but noise is not measured."
)
@click.option(
    "--fail-on",
    type=shared.Parsed("result", _fail_on),
    multiple=True,
    help="Exit code 1 for slower:3%, different or undecided; 4 where nothing is decided.",
)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write a comment for a pull request.")
@db_option("results/compare.sqlite")
@shared.json_option
@_of_sides
@click.pass_context
def compare(ctx: click.Context, /, names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print what of TARGET is faster, slower, equal or undecided on build B of llama.cpp, compared with A.

    Both are measured block by block.

    A build is `.` (this one), another environment's Python, a wheel of llama-cpp-python, or a folder with shared
    libraries of this version. `mlsd compare . . TARGET` shows this machine's noise.
    """
    if options["output"] is not None:
        from mlsd.report.page import check_figure_path

        check_figure_path(options["output"])
        options["rows"] = options["rows"] or tuple(range(1, 34))
    request = _request(names, options)
    from mlsd.analysis.compare.gate import precise_enough
    from mlsd.analysis.compare.sessions import newest
    from mlsd.measure.parent.compare import compare as run_compare
    from mlsd.store.store import Store

    margin = options["until"] or _MARGIN

    def next_block(store: Store, session: str, n_blocks: int) -> Sequence[str] | None:
        sides = ("0", "1") if options["no_control"] else ("0", "control", "1")
        if options["until"] is None or n_blocks < _FIRST:
            return sides
        return None if precise_enough(newest(store, session, margin).findings, margin) else sides

    with TrialWatcher(None if options["until"] is None else request.budget_s) as watcher:
        done = run_compare(request, next_block, options["db"], watcher)
    with Store.open(Path(done.database), read_only=True) as store:
        note_left_out(store)
        comparison = newest(store, done.session, margin)
    say_warnings(done.warnings)
    _report(ctx, comparison, options, as_json, done)


def _request(names: tuple[str, ...], options: dict[str, Any]) -> CompareRequest:
    from mlsd.measure.parent.compare import CompareRequest
    from mlsd.planning.request import bench_request

    if len(names) != 3:
        raise InputError(
            f"mlsd compare takes A, B and TARGET; {len(names)} words were given.",
            hint="mlsd compare . path/to/python TARGET",
        )
    a, b, target = names
    given = {name: options[name] for name in EngineOptions.__struct_fields__ if options.get(name) is not None}
    first, second = (EngineOptions(**{name: sides[side] for name, sides in given.items()}) for side in (0, 1))
    until = options["until"] is not None
    arms = {name: options[name] for name in _OF_BOTH} | ({"repeats": _MOST_BLOCKS} if until else {})
    bench, other = (
        replace(bench_request(model, engine=engine, **arms), suite="compare")
        for model, engine in ((target, first), (options["target_b"] or target, second))
    )
    return CompareRequest(
        builds=(a, b),
        bench=bench,
        other=None if other == bench else other,
        rows=options["rows"],
        control=not options["no_control"],
        stopping=Stopping.SEQUENTIAL if until else Stopping.FIXED,
        budget_s=options["budget_s"] or (BUDGET_S if until else None),
    )


def _report(ctx: click.Context, comparison: Comparison, options: dict[str, Any], as_json: bool, done: Compared) -> None:
    from mlsd.folders import write_atomically
    from mlsd.report.render import markdown
    from mlsd.report.tables.sides import comparison_table

    if options["output"] is not None:
        from mlsd.report.figures.machine import build_curves
        from mlsd.report.page import write_figure

        write_figure(lambda: build_curves(comparison), options["output"])
        note(f"T(k) of both: {options['output']}.")
    failures = _failures(comparison, options["fail_on"])
    printed: dict[str, Any] = msgspec.to_builtins(comparison)
    for finding, record in zip(printed["findings"], comparison.findings, strict=True):
        finding.update({"sentence": record.sentence, "percent": record.percent})
    shown = comparison_table(comparison)
    if options["markdown"] is not None:
        parts = (markdown.escape(comparison.answer), markdown.table_text(shown), *map(markdown.escape, failures))
        write_atomically(options["markdown"], "\n\n".join(parts) + "\n")
    if as_json:
        about = {"database": done.database, "stages": done.stages}
        print_json({**about, "answer": comparison.answer, "failures": failures, **printed})
    else:
        print_table(shown)
        say(comparison.answer)
        say_stages(done.stages)
        for failure in failures:
            note(f"FAILED  {failure}")
        note(f"Kept in {done.database}: mlsd report --db {quoted(done.database)}.")
    if done.interrupted:
        ctx.exit(130)
    if failures:
        ctx.exit(1)
    counting = [finding for finding in comparison.findings if finding.measure.counts]
    if options["fail_on"] and all(finding.verdict == "not decided yet" for finding in counting):
        note(f"NOT DECIDED YET  Nothing is decided of what --fail-on asks for (exit code {_OPEN}).")
        ctx.exit(_OPEN)


def _failures(comparison: Comparison, fail_on: Sequence[tuple[str, float]]) -> list[str]:
    failures = []
    for what, share in fail_on:
        if what == "different":
            failures += list(comparison.outputs)
            continue
        undecided = (f for f in comparison.findings if f.verdict == "not decided yet")
        failures += [
            f"{f.measure.name} is {f.sentence}." for f in (comparison.slower(share) if what == "slower" else undecided)
        ]
    return failures
