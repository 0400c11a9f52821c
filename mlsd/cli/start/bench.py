"""``mlsd bench``: plain and speculative decoding of one target, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from mlsd.cli import options as shared
from mlsd.cli.database import db_option
from mlsd.cli.options import Real, Whole
from mlsd.cli.output import note, print_json, print_table, say, verbosity
from mlsd.cli.watch import make_watcher, say_warnings
from mlsd.engine.rollback import FAULTS, SABOTAGE, STRATEGIES
from mlsd.records import Sampling
from mlsd.report.tables.arms import bench_table
from mlsd.trials.fates import Fate
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.results.bench_arms import ArmSummary, BenchArm
    from mlsd.measure.run.race import Goal
    from mlsd.measure.run.runs import BenchResult
    from mlsd.planning.prepare import BenchRequest


_SHORT, _FEW_GAMMAS, _SHORT_BUDGET_S = 64, (2, 4, 8), 40.0  # of a bench that nobody chose anything of


_ALARM = f"""\b
To see the alarm ring: --sabotage KIND breaks the target's rollback on purpose after every rejection, KIND:once after
the first, while everything else is as ever. Such trials are kept as what they are and are never valid.
KIND: {", ".join(FAULTS)} (see mlsd.engine.rollback.Sabotage).
"""


@click.command(epilog=_ALARM)
@shared.model_argument("target")
@shared.draft_option("Draft model, or drafting head: a path or an id; may be repeated.", dest="drafts", multiple=True)
@shared.drafter_option("Method: NAME or NAME:option=value,...; may be repeated.", dest="drafters", multiple=True)
@click.option(
    "--gamma",
    type=shared.GammaList(),
    help="Most tokens proposed per round; auto: chosen each round by what pays [default: the preset's, else "
    "1,2,4,8,16].",
)
@shared.prompt_option(default=("code",), show_default=True)
@click.option(
    "--depth",
    "depths",
    type=shared.IntList(),
    default=(0,),
    help="Tokens of unrelated text before each prompt [default: 0].",
)
@click.option("--n-predict", type=Whole(), default=256, show_default=True, help="Output tokens.")
@shared.repeats_option("Blocks; each holds every arm once.", default=3)
@shared.until_option(
    "As many blocks as needed, instead of --repeats: until every arm is decided (faster, slower, no difference "
    "above 3 %) or cannot win any more; with x% until the best is known to that share, too."
)
@shared.budget_option("Start no block that would end after this many seconds [default: 600 with --until].")
@click.option("--temperature", type=Real(), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=Whole(min=0), default=0, help="Keep the k most likely tokens (0: all).")
@click.option("--top-p", type=Real(0, 1, min_open=True), default=1.0, help="Keep this much probability.")
@shared.seed_option("Seed of sampling and of the order of arms.")
@click.option("--rollback", type=click.Choice(["auto", *STRATEGIES]), default="auto", show_default=True)
@click.option("--sabotage", type=click.Choice([f"{f}{n}" for f in FAULTS for n in ("", ":once")]), hidden=True)
@click.option("--stop-at-eog", is_flag=True, help="Stop at an end-of-generation token; arms may then differ in length.")
@db_option("results/bench.sqlite")
@click.option("--fresh", is_flag=True, help="Ignore earlier trials of these arms.")
@shared.json_option
@shared.build_option
@shared.engine_options
@click.pass_context
def bench(
    ctx: click.Context, /, target: str, gamma: Any, db: Path | None, as_json: bool, **options: Any
) -> list[ArmSummary]:
    """Measure plain (AR) and speculative decoding (SD) of TARGET in interleaved blocks, and keep the trials.

    With TARGET alone it tries what needs no choice: look-ups, and drafts of its vocabulary that are here, until each
    is decided or 40 s are over. Then it says what to set, or to keep speculation off.

    TARGET and drafts are GGUF paths or ids that `mlsd models list` shows. A method that needs a draft is measured with
    each one given, or with its own (NAME:draft=FILE); other drafts are used as draft models. Running the same bench
    again adds trials to the earlier ones: the table shows those of this call, `mlsd report` and `mlsd advise` read all.
    """
    from mlsd.analysis.results.bench_arms import arm_object, bench_arms, trial_object
    from mlsd.measure.run.runs import bench as run_bench
    from mlsd.planning.prepare import BenchRequest

    request = BenchRequest(
        target=target,
        gamma=gamma,
        ignore_eog=not options["stop_at_eog"],
        sampling=Sampling(**{name: options[name] for name in ("temperature", "top_k", "top_p", "seed")}),
        engine=options["engine"],
        **{name: options[name] for name in ("drafts", "drafters", "prompts", "depths", "n_predict", "repeats", "seed")},
        rollback=f"{SABOTAGE}:{options['sabotage']}" if options["sabotage"] else options["rollback"],
    )
    goal = shared.goal_of(options["until"], options["budget_s"])
    nothing_chosen = all(
        ctx.get_parameter_source(name) is ParameterSource.DEFAULT for name in ("drafts", "drafters", "repeats", "until")
    )
    if nothing_chosen:
        request, goal = _what_needs_no_choice(ctx, request)
    with make_watcher(None if goal is None else goal.budget_s) as watcher:
        result = run_bench(request, db, fresh=options["fresh"], watcher=watcher, goal=goal)
    arms = bench_arms(result.trials, result.decisions)
    if as_json:
        trials = [trial_object(row) for row in result.trials]
        rows = [{**arm_object(arm.case), **msgspec.to_builtins(arm.summary)} for arm in arms]
        print_json({"database": result.database, "trials": trials, "summary": rows, **_told(result)})
    elif arms:
        _print(result, arms, brief=nothing_chosen)
    say_warnings(result.warnings)
    if nothing_chosen and not as_json:
        _answer(result, arms, target)
    if result.outcome.interrupted:
        ctx.exit(130)
    return [arm.summary for arm in arms]


def _what_needs_no_choice(ctx: click.Context, request: BenchRequest) -> tuple[BenchRequest, Goal]:
    """Look-ups and the drafts that are here, for as long as it takes to decide, within a minute."""
    from mlsd.measure.run.race import Goal
    from mlsd.planning.obvious import obvious

    found = obvious(request.target)
    drafts = f" and the drafts {', '.join(found.drafts)}" if found.drafts else ", for no draft of it is here"
    note(f"Nothing was chosen: trying {', '.join(found.drafters)}{drafts}.")
    if found.to_get:
        note(f"Drafts of its family that are not here: mlsd models pull {' '.join(map(quoted, found.to_get))}")
    if ctx.get_parameter_source("n_predict") is ParameterSource.DEFAULT:
        request = msgspec.structs.replace(request, n_predict=_SHORT)
    if request.gamma is None:
        request = msgspec.structs.replace(request, gamma=_FEW_GAMMAS)
    request = msgspec.structs.replace(request, drafts=found.drafts, drafters=found.drafters)
    return request, Goal(budget_s=_SHORT_BUDGET_S)


def _answer(result: BenchResult, arms: list[BenchArm], target: str) -> None:
    """What to set, in one sentence, and how."""
    from mlsd.models.library import resolve_model
    from mlsd.servers.flags import advice

    for prompt, decision in result.decisions.items():
        best = decision.best
        of = next((arm.case for arm in arms if best is not None and arm.arm.setting == best.name), None)
        if best is None or of is None:
            tried = decision.of(decision.leader) if decision.leader is not None else None
            open_ = any(one.effect == "undecided" and one.out is None for one in decision.standings)
            known = (
                "nothing is decided to be faster yet; a longer --budget-s may" if open_ else "nothing tried is faster"
            )
            most = "" if tried is None else f" (best: {tried.name}, {tried.ratio.value:.2f}x)"
            say(f"Answer for {prompt}: keep speculation off, {known}{most}.")
            of = None
        else:
            low, high = best.ratio.low or 0.0, best.ratio.high or 0.0
            say(
                f"Answer for {prompt}: switch speculation on with {best.name}; it decodes {best.ratio.value:.2f} times "
                f"as fast as plain decoding (95 %: {low:.2f} to {high:.2f})."
            )
        spec, gamma = (None, 0) if of is None else (of.drafter, of.gamma)
        draft = None if spec is None or spec.draft is None else str(resolve_model(spec.draft.id).path)
        for line in advice(spec, gamma, draft, resolve_model(target).path):
            say(line)


def _told(result: BenchResult) -> dict[str, Any]:
    return {} if result.stopped is None else {"decisions": result.decisions, "stopped": result.stopped}


def _print(result: BenchResult, arms: list[BenchArm], *, brief: bool) -> None:
    from mlsd.measure.run.race import STOPPED

    print_table(bench_table(arms))
    for arm in arms:
        found = arm.summary
        if found.wrong:
            note(f"INVALID  {arm.arm.setting}: {found.wrong} of {found.n_trials} trials: {found.invalid_reason}")
        if n_disturbed := found.fates.get(Fate.DISTURBED, 0):
            what = f"{n_disturbed} of {found.n_trials} trials were interrupted or starved"
            note(f"DISTURBED  {arm.arm.setting}: {what}: the output is right, the time is not used.")
        if limit := _limit(arm) if verbosity.get() == "verbose" else None:
            note(f"LIMIT  {arm.arm.setting}: {limit}")
    for prompt, decision in result.decisions.items() if not brief else ():
        say(f"{prompt}: {decision.words}.")
    if result.stopped is not None:
        note(f"Stopped: {STOPPED[result.stopped]}. Intervals hold together, and whenever they are looked at.")
    trials = [row.trial for row in result.trials]
    if not all(trial.timed for trial in trials):
        note("NOT TIMED  SD drafts inside the target to learn what is accepted; its times say nothing of the method.")
    for reason in sorted({trial.fell_back for trial in trials if trial.fell_back is not None}):
        note(f"FELL BACK  The draft works on its own memory: {reason}")
    note(f"Kept in {result.database}: mlsd report --db {quoted(result.database)}, or mlsd advise.")


def _limit(arm: BenchArm) -> str | None:
    """How far an arm's rounds are from the least that they could take, and why."""
    from mlsd.analysis.results.round_split import round_split

    trials = [row.trial for row in arm.trials if row.trial.valid and row.trial.rounds and row.trial.timed]
    limit = round_split(trials).limit if trials and arm.case.arm == "sd" else None
    if limit is None:
        return None
    rest = ", ".join(f"{part} {ms:.3f}" for part, ms in limit.rest_ms.items())
    return (
        f"a round takes {limit.over:.2f} times gamma x T_draft(1) + T(gamma + 1) = {limit.ms:.3f} ms; the rest: {rest}"
    )
