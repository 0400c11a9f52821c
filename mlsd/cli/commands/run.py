"""``mlsd run``: suites on the models of a profile, into a study database; or, before anything runs, their plan."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from mlsd.cli import options as shared
from mlsd.cli.answers import head_lines, say_stages
from mlsd.cli.output import byte_counter, columns, note, print_json, print_table, say, working
from mlsd.cli.watch import TrialWatcher, say_default, say_warnings, watching_steps
from mlsd.errors import InputError
from mlsd.hardware import memory_bytes
from mlsd.measure.heat import MOST_S
from mlsd.planning.options import RunOptions
from mlsd.planning.prompts import Task, read_tasks, shipped_tasks, stratified
from mlsd.planning.suite import largest_profile, load_profiles
from mlsd.report.tables.catalogue import load_table, memory_table, plan_table
from mlsd.store.rows import DraftDistance
from mlsd.units import format_bytes, format_duration, quoted

if TYPE_CHECKING:
    from mlsd.measure.messages import DistanceJob
    from mlsd.measure.parent.blocks import Watcher
    from mlsd.measure.parent.forecast import Forecast
    from mlsd.measure.parent.requests import StudyResult
    from mlsd.models.library import Library
    from mlsd.planning.plan import Plan
    from mlsd.planning.question import Asked
    from mlsd.planning.request import StudyRequest

_LINE_MBIT_S = 100  # of a usual connection; how fast hub and line are is not known before


@click.command()
@click.argument("suites", nargs=-1, required=True, shell_complete=shared.offer_suites)
@shared.options_of(RunOptions)
@click.option(
    "--cool-down",
    "cool_down_s",
    type=shared.Real(),
    help="Seconds of rest between blocks [default: until cool on a graphics device or without a fan, else none].",
)
@click.option(
    "--tasks", "task_file", help="Tasks instead of prompts: a question.jsonl, SPEED-Bench's parquet, or `shipped`."
)
@click.option("--per-kind", type=shared.Whole(), help="At most this many tasks of each kind.")
@click.option("--distances", is_flag=True, help="Then run `mlsd models distance` for every draft.")
@click.option("--pull", is_flag=True, help="Download what is missing, each model before its trials; asks once.")
@click.option("--yes", is_flag=True, help="Do not ask before a download.")
@click.option(
    "--costs",
    "costs_s",
    type=shared.Real(),
    help="Then calibrate each target so many seconds, and measure bandwidth; 0: neither.",
)
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Then write a report into this folder.")
@click.option("--lab", "address", metavar="ADDRESS", help="Measure on the machines of a lab; see `mlsd lab`.")
@shared.certificate_option
@click.option(
    "--dry-run", is_flag=True, help="Show what would be measured, how long it takes and what it needs, and stop."
)
@shared.build_option
@shared.json_option
@click.pass_context
def run(ctx: click.Context, /, suites: tuple[str, ...], as_json: bool, dry_run: bool, **options: Any) -> None:
    """Print which setting to use, as SUITES (A to G) run on the models of a profile say.

    Every trial is stored as it ends, a failed one with its reason, and the same command resumes. Only one run measures
    on a machine at a time.
    """
    from mlsd.measure.parent.blocks import Watcher
    from mlsd.measure.parent.requests import run_study
    from mlsd.planning.plan import prepare_study
    from mlsd.planning.request import resolve_study

    asked = RunOptions(suites, **{name: options[name] for name in RunOptions.__struct_fields__ if name in options})
    if options["pull"] and asked.profile is None and not asked.models:
        asked = replace(asked, profile=_proposed(asks=not options["yes"] and sys.stdin.isatty()))
    tasks = _tasks(options["task_file"], options["per_kind"])
    request = resolve_study(asked, tasks, here=options["address"] is None)
    if dry_run:
        if not _show_plan(request, options["db"], options["cool_down_s"], as_json=as_json):
            ctx.exit(1)
        return
    say_default(request)
    library = None
    if options["pull"]:
        library = _agree(request, options["db"], options["cool_down_s"], ask=not options["yes"])
    more = shared.given_options(ctx, ("task_file", "per_kind", "cool_down_s", "address", "build"))
    if options["address"] is not None:
        if library is not None:
            for id_ in prepare_study(request).missing:
                _pull(library, Watcher(), id_)
        _run_lab(ctx, request, options, more, as_json=as_json)
        return
    with TrialWatcher() as watcher:
        result = run_study(
            request,
            options["db"],
            fresh=options["fresh"],
            cool_down_s=options["cool_down_s"],
            watcher=watcher,
            keep_distance=_say_distance if options["distances"] else None,
            options=more,
            pull=None if library is None else partial(_pull, library, watcher),
        )
    say_warnings(result.warnings)
    if as_json:
        print_json(result)
    else:
        _say_outcome(result)
    if result.outcome.interrupted:
        ctx.exit(130)
    if options["costs_s"]:
        from mlsd.measure.parent.bandwidth import measure_costs

        note("Then T(k) of every target and the memory's bandwidth, for the study's equations and its section 5.2.")
        with watching_steps("Timing passes and memory") as steps:
            engine = request.overrides.engine
            names = [suite.name for suite in request.suites]
            measure_costs(Path(result.database), names, steps, engine, options["costs_s"])
    if options["folder"] is not None:
        from mlsd.cli.commands.report import show_report

        show_report(Path(result.database), options["folder"], beside=as_json)


def _proposed(*, asks: bool) -> str | None:
    """The largest profile for this machine; None, with a note, where there is no terminal to ask for its download."""
    best = largest_profile(load_profiles(), memory_bytes())
    if best is None:
        return None
    if asks:
        note(f"Profile {best.name} is the largest for this machine's memory; --profile (PROFILE=) names another.")
        return best.name
    note(f"Without a terminal only what is here is measured. PROFILE={best.name} is the largest for this machine.")
    return None


def _agree(request: StudyRequest, db: Path | None, cool_down_s: float | None = None, *, ask: bool) -> Library | None:
    """Show what is missing, how large it is and how long all of it takes; ask once. None where nothing is missing."""
    from mlsd.measure.parent.forecast import plan_study
    from mlsd.measure.parent.memory import refuse_loads
    from mlsd.models.library import space_hint

    planned, forecast = plan_study(request, db, here=True, cool_down_s=cool_down_s)
    refuse_loads(forecast.memory)
    if not planned.missing:
        return None
    library, to_get = request.library, []
    for id_ in planned.missing:
        size = format_bytes(forecast.sizes[id_])
        if id_ in forecast.elsewhere:
            note(f"{id_}: {size}, used in its folder: {forecast.elsewhere[id_]}")
        else:
            to_get.append(id_)
            note(f"{id_}: {size} to download or make")
    n_bytes = forecast.download_bytes
    if n_bytes is not None and n_bytes > forecast.free_disk_bytes:
        raise InputError(
            f"{format_bytes(n_bytes)} are to be downloaded or made, {format_bytes(forecast.free_disk_bytes)} are free.",
            hint=space_hint("HF_HUB_CACHE"),
        )
    if to_get:
        took = None if n_bytes is None else n_bytes * 8 / (_LINE_MBIT_S * 1e6)
        note(f"In all {format_bytes(n_bytes)}: {format_duration(took)} at {_LINE_MBIT_S} Mbit/s.")
        duration = "duration unknown" if forecast.time.seconds is None else forecast.time.text
        note(f"{forecast.time.n_trials} trials; {duration}.")
        if (first := planned.next_to_bring()) is not None:
            names = ", ".join(ref.id for ref in first.missing)
            note(f"Local models are measured first, then mlsd downloads {names}, each before its own trials.")
        note("The same command continues where it stopped.")
    if to_get and ask:
        if not sys.stdin.isatty():
            raise InputError("Cannot ask before downloading: no terminal.", hint="Add --yes (make study ARGS=--yes).")
        click.confirm("Go on?", abort=True, err=True)
    return library


def _pull(library: Library, watcher: Watcher, id_: str) -> None:
    with watcher.paused(), byte_counter() as begin:
        library.pull(library.manifest.find(id_), begin)
    while library.notes:
        note(library.notes.pop(0))


def _run_lab(
    ctx: click.Context,
    request: StudyRequest,
    options: dict[str, Any],
    more: Asked,
    *,
    as_json: bool,
) -> None:
    from mlsd.lab.study import run_lab_study

    if options["distances"]:
        raise InputError("--distances is not for a lab.", hint="Ask for it on one machine.")
    with TrialWatcher() as watcher:
        result = run_lab_study(
            request,
            options["address"],
            options["certificate"],
            options["db"],
            fresh=options["fresh"],
            cool_down_s=options["cool_down_s"],
            watcher=watcher,
            options=more,
        )
    say_warnings(result.warnings)
    for refused in result.refused:
        note(f"Did not measure: {refused}")
    if as_json:
        print_json(result)
    for machine in result.machines:
        outcome = machine.outcome
        name = f"{machine.environment.chip or machine.environment.machine}, {machine.environment.backend}"
        counts = f"{outcome.n_ok} trials measured, {outcome.n_failed} failed, {outcome.n_skipped} done before"
        note(f"{name}: {counts}, {outcome.n_left} left; in {result.database}.")
    if not as_json:
        _say_answer(result.answer)
    if any(machine.outcome.interrupted for machine in result.machines):
        ctx.exit(130)
    if any(machine.outcome.n_left for machine in result.machines):
        note("The same command continues where it stopped.")
        ctx.exit(1)


def _tasks(file: str | None, per_kind: int | None) -> tuple[Task, ...]:
    if file is None:
        if per_kind is not None:
            raise InputError("--per-kind is only for tasks.", hint="Add --tasks FILE.")
        return ()
    tasks = shipped_tasks() if file == "shipped" else read_tasks(Path(file))
    return tasks if per_kind is None else stratified(tasks, per_kind)


def _say_distance(job: DistanceJob, distance: DraftDistance) -> None:
    note(
        f"{job.draft.ref.id} for {job.target.ref.id}: perplexity ratio {distance.ratio:.3f}, "
        f"total variation {distance.total_variation:.3f}"
    )


def _say_answer(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        say(f"Answer: {sentence}")


def _say_outcome(result: StudyResult) -> None:
    from mlsd.measure.parent.requests import results_of

    path, outcome = result.database, result.outcome
    note(
        f"{outcome.n_ok} trials measured, {outcome.n_failed} failed, {outcome.n_skipped} done before, "
        f"{outcome.n_left} left; in {path}."
    )
    for line in head_lines(path, results_of(path, outcome.run_id)):
        note(line)
    _say_answer(result.answer)
    say_stages(outcome.stages)
    if not outcome.interrupted:
        note(f"Next: mlsd results --db {quoted(path)}, mlsd report --db {quoted(path)}")


# --- the plan -----------------------------------------------------------------------------------------------------


def _show_plan(request: StudyRequest, db: Path | None, cool_down_s: float | None = None, *, as_json: bool) -> bool:
    """Print a plan with what it needs on this machine: tables for people, or one JSON object; False: no load fits."""
    from mlsd.measure.parent.forecast import plan_study

    with working("Planning"):
        planned, forecast = plan_study(request, db, cool_down_s=cool_down_s)
    say_default(request)
    if as_json:
        print_json(_plan_object(planned, forecast))
    else:
        _print_plan(planned, forecast)
    return not forecast.memory or any(load.verdict != "does not fit" for load in forecast.memory)


def _plan_object(planned: Plan, forecast: Forecast) -> dict[str, Any]:
    slots = list(planned.slots())
    repeats, roles = Counter(slot.case_id for slot in slots), {slot.case_id: slot.role for slot in slots}
    cases = [
        {"id": case_id, "arm": case.arm, "role": roles[case_id], "trials": repeats[case_id], "case": case}
        for case_id, case in planned.cases().items()
    ]
    return {
        "profile": planned.profile,
        "suites": planned.study_trials,
        "study_trials": sum(planned.study_trials.values()),
        "paired_baselines": planned.paired_baselines,
        "seed": planned.seed,
        "needs": forecast,
        "left_out": planned.left_out,
        "cases": cases,
    }


def _print_plan(planned: Plan, forecast: Forecast) -> None:
    for line in _needs(planned, forecast):
        say(line)
    print_table(plan_table(planned))
    if planned.loads:
        print_table(load_table(forecast))
        print_table(memory_table(forecast.memory, arms=columns() is None))
    for left in planned.left_out:
        say(left.sentence)


def _needs(planned: Plan, forecast: Forecast) -> list[str]:
    n_paired = planned.paired_baselines
    kinds = f" ({sum(planned.study_trials.values())} study trials, {n_paired} paired baselines)" if n_paired else ""
    cases = f"{len(planned.cases())} cases, {forecast.time.n_trials} trials{kinds}, {len(forecast.memory)} loads"
    lines = [cases, f"time: {forecast.time.text}"]
    if not forecast.time.n_trials:
        lines[1] = "nothing to measure: take other suites, a larger profile, or models of your own (--model ROLE=MODEL)"
    elif forecast.time.seconds is None:
        lines[1] = "time: not known; give --db with earlier results of these models"
    else:
        if forecast.time.n_unknown:
            lines[1] += f", without {forecast.time.n_unknown} trials whose rate is not known"
        if "public rows" in forecast.time.sources:
            lines[1] += f"; by public rows of {forecast.chips}, with acceptance as wide as it was seen"
        if forecast.rest_s is None:
            lines[1] += f"; rests until it is cool come on top, {MOST_S / 60:.0f} min behind each block at most"
    if forecast.budget is not None:
        lines.append(f"memory: {format_bytes(forecast.budget.limit_bytes)} may be used ({forecast.budget.basis})")
    lines += [f"{load.verdict}: {load.why}" for load in forecast.memory if load.verdict != "fits"]
    if forecast.missing:
        size = "of a size not fully known" if forecast.download_bytes is None else format_bytes(forecast.download_bytes)
        lines.append(f"disk: {size} to download or make, {format_bytes(forecast.free_disk_bytes)} free")
        lines.append(f"not on this machine: {', '.join(forecast.missing)}")
    lines += [f"with another program, and used from there: {id_}: {path}" for id_, path in forecast.elsewhere.items()]
    return lines
