"""``mlsd bench`` and ``search``: plain and speculative decoding of a target side by side; its best setting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.answers import answer_objects, head_lines, say_answers
from mlsd.cli.database import note_left_out
from mlsd.cli.output import note, print_json, print_table, say, verbosity
from mlsd.planning.options import BenchOptions, SearchOptions
from mlsd.planning.question import Invocation, parse_drafter
from mlsd.report.tables.arms import bench_table
from mlsd.units import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlsd.analysis.predict.replay import Replayed
    from mlsd.measure.parent.requests import BenchResult
    from mlsd.trials.results import ArmResult


# Of a bench for which neither methods nor the time are given.
_SHORT, _BUDGET_S = {"n_predict": 64, "gammas": (2, 4, 8)}, 40.0


@click.command()
@shared.model_argument("target")
@shared.options_of(BenchOptions)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="STUDY",
    help="Measure what the acceptance in this database or record, of any machine, would give here.",
)
@shared.json_option
@shared.build_option
@click.pass_context
def bench(ctx: click.Context, /, target: str, as_json: bool, replay: Path | None, **options: Any) -> list[ArmResult]:
    """Print how fast TARGET decodes plainly and with each setting of speculation, with intervals, and which to use.

    Plain (AR) and speculative decoding (SD) are measured in interleaved blocks, and the trials are kept.

    Without a method or --repeats it tries look-ups and the drafts here that share TARGET's vocabulary, until each is
    decided, for 40 s unless --until or --budget-s is given.

    TARGET and drafts are GGUF paths or ids that `mlsd models list` shows. A method that needs a draft is measured with
    each one given, or with its own (NAME:draft=FILE). A bench goes on with the blocks of earlier ones that asked the
    same of the same target and text, and shows their arms, too.

    With --replay each drafter of STUDY is a control: right as often as it was there at each position, at the cost of
    the same draft model where that is here. Its speedup is what that acceptance gives on this machine.
    """
    replayed = () if replay is None else _replayed(replay, target, options)
    from mlsd.planning.request import resolve_bench

    asked, db = BenchOptions(target, **options | _defaults(ctx)), options["db"]
    request = resolve_bench(asked)
    if (default := request.default_arms) is not None:
        missing = "" if default.drafts else " No matching draft found."
        note(f"No method given: trying {', '.join((*default.drafters, *default.drafts))}.{missing}")
        if default.to_get:
            note(f"To download drafts of its family: mlsd models pull {' '.join(map(quoted, default.to_get))}")
    from mlsd.cli.watch import TrialWatcher, say_warnings
    from mlsd.measure.parent.requests import bench as run_bench
    from mlsd.trials.fields import arm_object

    with TrialWatcher(None if request.goal is None else request.goal.budget_s) as watcher:
        result = run_bench(request, db, fresh=asked.fresh, watcher=watcher)
    question = Invocation.of(result.models, request.prompts, db)
    answers = answer_objects(result.answers, result.models, question, result.outcome.stages, result.database)
    if as_json:
        arms = [arm_object(arm) for arm in result.results]
        goal_met = {} if result.stopped is None else {"stopped": result.stopped}
        about = {"database": result.database, "stages": result.outcome.stages}
        print_json({**about, "trials": _trials(result), "summary": arms, "answers": answers, **goal_met})
    elif result.results:
        _print(result)
        _print_replayed(result, replayed)
    say_warnings(result.warnings)
    if not as_json:
        say_answers(answers, result.outcome.stages)
    if result.outcome.interrupted:
        ctx.exit(130)
    return list(result.results)


def _defaults(ctx: click.Context) -> dict[str, Any]:
    """Without a method or a number of blocks: look-ups and the drafts that are here, until decided or out of time."""
    given = {name for name in ctx.params if shared.was_given(ctx, name)}
    if given & {"drafts", "drafters", "repeats", "replay"}:
        return {}
    budget = {} if "until" in given else {"budget_s": _BUDGET_S}
    short = {"until": "decided", **budget, **_SHORT}
    return {"drafters": None, **{name: value for name, value in short.items() if name not in given}}


def _replayed(study: Path, target: str, options: dict[str, Any]) -> tuple[Replayed, ...]:
    """The controls of a study, put among the drafters; its gammas are measured where none were given."""
    from mlsd.analysis.predict.replay import replays

    replayed = replays(study, target)
    options["drafters"] = (*options["drafters"], *(control.drafter for control in replayed))
    options["gammas"] = options["gammas"] or tuple(sorted({gamma for control in replayed for gamma in control.gammas}))
    for control in replayed:
        note(f"Replaying {control.sentence}.")
    return replayed


def _print_replayed(result: BenchResult, replayed: Sequence[Replayed]) -> None:
    from mlsd.trials.decisions import times

    sources = {str(parse_drafter(control.drafter).options["accept"]): control.sentence for control in replayed}
    for arm in result.results:
        source = sources.get(str(arm.case.drafter.options.get("accept"))) if arm.control else None
        if source is not None and arm.ratio is not None:
            say(f"{times(arm.ratio)} at gamma {arm.case.gamma} on {arm.text}: the acceptance of {source}.")


def _trials(result: BenchResult) -> list[dict[str, Any]]:
    """Each trial as `mlsd results trials` lists it, with its tokens and rounds."""
    from mlsd.formats.tables import rows_of
    from mlsd.store.store import Store

    with Store.open(Path(result.database), create=False, read_only=True) as store:
        rows = zip(rows_of(result.trials, store.runs()), (stored.trial for stored in result.trials), strict=True)
        more = ("tokens", "losslessness", "stats")
        return [
            {**row, **{name: getattr(trial, name) for name in more}, "round_records": trial.rounds}
            for row, trial in rows
        ]


def _print(result: BenchResult) -> None:
    from mlsd.analysis.results.depths import depth_sentences
    from mlsd.measure.parent.race import STOPPED

    if verbosity.get() != "quiet":
        print_table(bench_table(result.results, *head_lines(result.database, result.results)))
    for arm in result.results:
        if arm.n_invalid:
            note(f"INVALID  {arm.setting}: {arm.n_invalid} of {arm.n_trials} trials: {arm.why_not}")
        if n_disturbed := arm.statuses.get("disturbed", 0):
            what = f"{n_disturbed} of {arm.n_trials} trials were interrupted or starved"
            note(f"DISTURBED  {arm.setting}: {what}: the output is right, the time is not used.")
    for sentence in depth_sentences(result.results):
        note(f"DEPTH  {sentence}")
    if result.stopped is not None:
        note(f"Stopped: {STOPPED[result.stopped]}. Intervals are corrected for several arms and for early stopping.")
    trials = [row.trial for row in result.trials]
    if not all(trial.timed for trial in trials):
        note("NOT TIMED  SD drafts inside the target to learn what is accepted; its times do not describe the method.")
    for reason in sorted({trial.fell_back for trial in trials if trial.fell_back is not None}):
        note(f"FELL BACK  The draft uses its own memory: {reason}")
    where = f"--db {quoted(result.database)}"
    note(f"Kept in {result.database}: mlsd report {where}.")


# --- search -------------------------------------------------------------------------------------------------------


@click.command()
@shared.model_argument("target")
@shared.options_of(SearchOptions)
@shared.json_option
@shared.build_option
def search(target: str, as_json: bool, **options: Any) -> list[ArmResult]:
    """Print the best gamma and options of a drafting method on TARGET, or "off".

    Gamma and the options that are not given (p_min of draft models and heads) are searched. Settings race against plain
    decoding in the same blocks and drop out as soon as they cannot win; then the neighbours of the fastest race. The
    same search again continues from earlier trials.
    """
    from mlsd.cli.watch import TrialWatcher
    from mlsd.measure.parent.tune import tune
    from mlsd.report.tables.arms import settings_table
    from mlsd.store.store import Store
    from mlsd.trials.fields import arm_object

    asked = SearchOptions(target, **options)
    with TrialWatcher(asked.budget_s, open_ended=True) as watcher:
        result = tune(asked, watcher)
    with Store.open(Path(result.database), create=False, read_only=True) as store:
        note_left_out(store)
    models = result.setting.files
    question = Invocation.of(models, result.setting.prompts, asked.db)
    answers = [] if result.answer is None else [result.answer]
    shown = answer_objects(answers, models, question, result.stages, result.database)
    if as_json:
        arms = [arm_object(arm) for arm in result.results]
        about = {"stopped": result.stopped, "failed": result.failed, "stages": result.stages}
        print_json({"database": result.database, "settings": arms, "answers": shown, **about})
        return list(result.results)
    if verbosity.get() != "quiet":
        print_table(settings_table(result, *head_lines(result.database, result.results)))
    say_answers(shown, result.stages)
    if result.answer is None:
        say("Answer: no setting could be measured.")
    note(f"Stopped: {result.stopped}. Trials in {result.database}.")
    return list(result.results)
