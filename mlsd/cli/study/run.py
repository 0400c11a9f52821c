"""``mlsd run``: suites on the models of a profile, into a study database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import certificate_option, json_option, make_overrides, plan_options
from mlsd.cli.output import note, print_json
from mlsd.cli.watch import make_watcher, say_warnings
from mlsd.errors import InputError

if TYPE_CHECKING:
    from mlsd.measure.run.distances import Drafting
    from mlsd.measure.run.runner import RunSettings
    from mlsd.measure.run.study import StudyResult
    from mlsd.measure.store.rows import DraftDistance
    from mlsd.planning.prepare import StudyRequest
    from mlsd.planning.tasks import Task


@click.command()
@click.argument("suites", nargs=-1, required=True)
@plan_options
@click.option("--db", type=click.Path(path_type=Path), help="Results [default: results/PROFILE.sqlite].")
@click.option("--cool-down", "cool_down_s", type=float, default=0.0, help="Seconds of rest between blocks.")
@click.option("--fresh", is_flag=True, help="Measure again what is done already.")
@click.option("--keep-failed", is_flag=True, help="Leave earlier failures alone instead of trying them again.")
@click.option("--tasks", "task_file", help="Tasks in place of prompts: a file like question.jsonl, or `shipped`.")
@click.option("--per-kind", type=int, help="Only so many tasks of each of the six kinds.")
@click.option("--answers", type=click.Path(path_type=Path, file_okay=False), help="Write answers, a JSONL file an arm.")
@click.option("--distances", is_flag=True, help="Afterwards `mlsd models distance` of each drafting model.")
@click.option("--lab", "address", metavar="ADDRESS", help="Measure on the machines of a lab; see `mlsd lab`.")
@click.option("--each/--split", default=True, help="Every machine of the lab measures everything, or equal ones share.")
@certificate_option
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, suites: tuple[str, ...], as_json: bool, dry_run: bool, **options: Any) -> None:
    """Run SUITES (A to F), each trial committed before the next; run again to resume.

    A trial that fails is a row with its reason. Only one run at a time measures on a machine.
    """
    from mlsd.measure.run.runner import RunSettings
    from mlsd.measure.run.study import run_study
    from mlsd.planning.prepare import StudyRequest

    request = StudyRequest(
        suites=suites, profile=options["profile"], overrides=make_overrides(options), tasks=_tasks(options)
    )
    if dry_run:
        from mlsd.cli.study.plan import show_plan

        show_plan(request, options["db"], as_json=as_json)
        return
    asked = {key: str(value) for key, value in ctx.params.items() if value not in (None, (), False)}
    settings = RunSettings(**{name: options[name] for name in ("fresh", "keep_failed", "cool_down_s", "seed")})
    if options["address"] is not None:
        _run_lab(ctx, request, options, settings, asked, as_json=as_json)
        return
    with make_watcher() as watcher:
        result = run_study(
            request,
            options["db"],
            settings=settings,
            watcher=watcher,
            answers=options["answers"],
            keep_distance=_say_distance if options["distances"] else None,
            options=asked,
        )
    say_warnings(result.warnings)
    for file in result.answers:
        missing = f", {file.n_missing} missing" if file.n_missing else ""
        note(f"{file.n_answered} answers{missing}: {file.path}")
    if as_json:
        print_json(result)
    else:
        _say_outcome(result)
    if result.outcome.interrupted:
        ctx.exit(130)


def _run_lab(
    ctx: click.Context,
    request: StudyRequest,
    options: dict[str, Any],
    settings: RunSettings,
    asked: dict[str, str],
    *,
    as_json: bool,
) -> None:
    from mlsd.measure.lab.study import run_lab_study

    for name in ("answers", "distances"):
        if options[name]:
            raise InputError(f"--{name} is not for a lab.", hint="Ask for it on one machine.")
    with make_watcher() as watcher:
        result = run_lab_study(
            request,
            options["address"],
            options["certificate"],
            options["db"],
            share=not options["each"],
            settings=settings,
            watcher=watcher,
            options=asked,
        )
    say_warnings(result.warnings)
    for refused in result.outcome.refused:
        note(f"Did not take part: {refused}")
    if as_json:
        print_json(result)
    for place in result.outcome.places:
        found = place.outcome
        machine = f"{place.environment.chip or place.environment.machine}, {place.environment.backend}"
        counts = f"{found.n_ok} trials measured, {found.n_failed} failed, {found.n_skipped} done before"
        note(f"{machine}: {counts}, {found.n_left} left; in {result.database}.")
    if any(place.outcome.n_left for place in result.outcome.places):
        note("The same command goes on where it stopped.")
        ctx.exit(130 if any(place.outcome.interrupted for place in result.outcome.places) else 1)


def _tasks(options: dict[str, Any]) -> tuple[Task, ...]:
    """The tasks of ``--tasks``, none without it."""
    from mlsd.planning.tasks import read_tasks, shipped_tasks, stratified

    file = options["task_file"]
    if file is None:
        for name in ("per_kind", "answers"):
            if options[name] is not None:
                raise InputError(f"--{name.replace('_', '-')} is only for tasks.", hint="Add --tasks FILE.")
        return ()
    tasks = shipped_tasks() if file == "shipped" else read_tasks(Path(file))
    return tasks if options["per_kind"] is None else stratified(tasks, options["per_kind"])


def _say_distance(drafting: Drafting, distance: DraftDistance) -> None:
    note(
        f"{drafting.draft.ref.id} for {drafting.target.ref.id}: perplexity ratio {distance.ratio:.3f}, "
        f"total variation {distance.total_variation:.3f}"
    )


def _say_outcome(result: StudyResult) -> None:
    path, outcome = result.database, result.outcome
    note(
        f"{outcome.n_ok} trials measured, {outcome.n_failed} failed, {outcome.n_skipped} done before, "
        f"{outcome.n_left} left; in {path}."
    )
    if outcome.interrupted:
        note("Interrupted; the same command goes on where it stopped.")
    else:
        note(f"Next: mlsd results --db {path}, mlsd report --db {path}")
