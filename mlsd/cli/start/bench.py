"""``mlsd bench``: plain and speculative decoding of one target, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli.options import (
    GammaList,
    IntList,
    draft_option,
    drafter_option,
    engine_options,
    json_option,
    prompt_option,
    repeats_option,
    seed_option,
)
from mlsd.cli.output import note, print_json, print_table, table
from mlsd.cli.watch import make_watcher, say_warnings
from mlsd.engine.rollback import FAULTS, SABOTAGE, STRATEGIES
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, Sampling
from mlsd.units import NOT_MEASURED, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.results.trials import ArmSummary
    from mlsd.measure.run.study import BenchResult, BenchTrial


_ALARM = f"""\b
To see the alarm ring: --sabotage KIND breaks the target's rollback on purpose after every rejection, KIND:once after
the first, while everything else is as ever. Such trials are kept as what they are and are never valid.
KIND: {", ".join(FAULTS)} (see mlsd.engine.rollback.Sabotage).
"""


@click.command(epilog=_ALARM)
@click.argument("target")
@draft_option("Draft model, or drafting head: a path or an id; may be repeated.", dest="drafts", multiple=True)
@drafter_option("Method: NAME or NAME:option=value,...; may be repeated.", dest="drafters", multiple=True)
@click.option(
    "--gamma",
    type=GammaList(),
    help="Most tokens proposed a round; auto: as many as pay, chosen anew each round [default: the preset's, else "
    "1,2,4,8,16].",
)
@prompt_option(default=("code",), show_default=True)
@click.option("--depth", "depths", type=IntList(), default=(0,), help="Tokens of other text before each prompt [0].")
@click.option("--n-predict", type=int, default=256, show_default=True, help="Output tokens.")
@repeats_option("Blocks; each holds every arm once.", default=3)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Keep the k likeliest tokens (0: all).")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Keep this much probability.")
@seed_option("Of sampling and of the order of arms.")
@click.option("--rollback", type=click.Choice(["auto", *STRATEGIES]), default="auto", show_default=True)
@click.option("--sabotage", type=click.Choice([f"{f}{n}" for f in FAULTS for n in ("", ":once")]), hidden=True)
@click.option("--stop-at-eog", is_flag=True, help="End at an end-of-generation token; arms may then differ in length.")
@click.option("--db", type=click.Path(path_type=Path), help="Where trials are kept [default: results/bench.sqlite].")
@click.option("--fresh", is_flag=True, help="Let earlier trials of these arms count no more.")
@json_option
@engine_options
@click.pass_context
def bench(
    ctx: click.Context, /, target: str, gamma: Any, db: Path | None, as_json: bool, **options: Any
) -> list[ArmSummary]:
    """Measure plain (AR) and speculative decoding (SD) of TARGET in interleaved blocks, and keep the trials.

    TARGET and drafts are GGUF paths or ids that `mlsd models list` shows. A method that needs a draft is measured with
    each one given, or with its own (NAME:draft=FILE); drafts that no method asks for are draft models. Every call
    measures anew: the same bench again adds its trials to the earlier ones. The table shows this call's; `mlsd report`
    and `mlsd advise` read all.
    """
    from mlsd.measure.run.study import bench as run_bench
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
    with make_watcher() as watcher:
        result = run_bench(request, db, fresh=options["fresh"], watcher=watcher)
    summaries = _summaries(result)
    if as_json:
        trials = [_trial_object(row) for row in result.trials]
        rows = [{**_arm(row), **msgspec.to_builtins(summary)} for row, summary in summaries]
        print_json({"database": result.database, "trials": trials, "summary": rows})
    elif summaries:
        _print(result, summaries)
    say_warnings(result.warnings)
    if result.outcome.interrupted:
        ctx.exit(130)
    return [summary for _, summary in summaries]


def _arm(row: BenchTrial) -> dict[str, Any]:
    """What tells an arm from others beside its gamma."""
    drafter = row.case.drafter
    return {
        "prompt": row.case.prompt.key,
        "drafter": drafter.name,
        "draft": drafter.draft.id if drafter.draft else None,
        "options": drafter.options,
    }


def _summaries(result: BenchResult) -> list[tuple[BenchTrial, ArmSummary]]:
    """Every arm of every prompt with its first trial; plain decoding first, then by method and gamma."""
    from mlsd.analysis.results.trials import summarize

    def place(row: BenchTrial) -> tuple[Any, ...]:
        arm = _arm(row)
        return (
            arm["prompt"],
            row.case.gamma > 0,
            arm["drafter"],
            arm["draft"] or "",
            str(arm["options"]),
            row.case.gamma,
        )

    by_case: dict[str, list[BenchTrial]] = {}
    for row in sorted(result.trials, key=place):
        by_case.setdefault(row.trial.case_id, []).append(row)
    plain = {own[0].case.prompt.key: own for own in by_case.values() if own[0].case.arm == "ar"}
    return [
        (
            own[0],
            summarize(
                [row.trial for row in own],
                [row.trial for row in plain.get(own[0].case.prompt.key, [])],
                own[0].case.drafter.name,
            ),
        )
        for own in by_case.values()
    ]


def _trial_object(row: BenchTrial) -> dict[str, Any]:
    """A trial in the words of the JSON contract: counts and total times, then each round."""
    from mlsd.analysis.results.trials import PARTS, numbers

    trial = row.trial
    derived = numbers(trial)
    verdict = trial.losslessness
    return {
        **_arm(row),
        "arm": trial.arm,
        "gamma": trial.gamma,
        "block": trial.block,
        "repeat": trial.repeat,
        "status": trial.status,
        "error": trial.error,
        "decode_tok_s": derived.decode_tok_s,
        "acceptance_rate": derived.acceptance_rate,
        "mgl": derived.mgl,
        "rounds": derived.n_rounds,
        "proposed": derived.proposed,
        "accepted": derived.accepted,
        "n_prompt": trial.n_prompt,
        "n_tokens": trial.n_tokens,
        "tokens": trial.tokens,
        "verdict": None if verdict is None else verdict.verdict,
        "losslessness": verdict,
        "valid": trial.valid,
        "invalid_reason": trial.invalid_reason,
        "failed_native_calls": trial.failed_native_calls,
        "rollback": trial.rollback_target,
        "rollback_draft": trial.rollback_draft,
        "timed": trial.timed,
        "fell_back": trial.fell_back,
        "prefill_ns": trial.prefill_ns,
        "draft_prefill_ns": trial.draft_prefill_ns,
        "decode_ns": trial.decode_ns,
        **{part: None if trial.decode_ns is None else getattr(derived, part) for part in PARTS},
        "stats": trial.stats,
        "round_records": trial.rounds,
    }


def _print(result: BenchResult, summaries: list[tuple[BenchTrial, ArmSummary]]) -> None:
    case = result.trials[0].case
    trials = [row.trial for row in result.trials]
    n_prompt = {row.case.prompt.key: row.trial.n_prompt for row in result.trials if row.trial.status == "ok"}
    prompts = ", ".join(f"{key} ({count} tokens)" for key, count in n_prompt.items())
    named = ["prompt"] if len(n_prompt) > 1 else []
    title = f"{case.target.id}, prompt {prompts}, {case.n_predict} output tokens"
    made = table(title, [*named, *_COLUMNS], left=len(named) + 1)
    for row, summary in summaries:
        made.add_row(*(row.case.prompt.key for _ in named), *_cells(row, summary))
    print_table(made)
    for row, summary in summaries:
        if summary.n_valid < summary.n_trials:
            n_bad = summary.n_trials - summary.n_valid
            note(
                f"INVALID  {_name(row)} gamma {summary.gamma}: {n_bad} of {summary.n_trials}: {summary.invalid_reason}"
            )
    if not all(trial.timed for trial in trials):
        note("NOT TIMED  SD drafts inside the target to learn what is accepted; its times say nothing of the method.")
    for reason in sorted({trial.fell_back for trial in trials if trial.fell_back is not None}):
        note(f"FELL BACK  The draft works on its own memory: {reason}")
    note(f"Kept in {result.database}: mlsd report --db {result.database}, or mlsd advise.")


def _name(row: BenchTrial) -> str:
    """The arm as a person reads it: AR, the draft model, or the method with what was set of it."""
    arm = _arm(row)
    if arm["drafter"] == NO_DRAFTER:
        return "AR"
    options = ",".join(f"{name}={value}" for name, value in arm["options"].items())
    name = arm["draft"] if arm["drafter"] == DRAFT_MODEL else " ".join(filter(None, (arm["drafter"], arm["draft"])))
    return f"SD {name}{f':{options}' if options else ''}"


def _cells(row: BenchTrial, summary: ArmSummary) -> list[str]:
    interval = NOT_MEASURED
    if summary.ci_low is not None and summary.ci_high is not None:
        interval = f"{summary.ci_low:.2f} .. {summary.ci_high:.2f}"
    ms = summary.ms_per_round
    return [
        _name(row),
        str(summary.gamma) if summary.gamma else NOT_MEASURED,
        format_number(summary.decode_tok_s, 1),
        format_percent(summary.spread),
        NOT_MEASURED if summary.speedup is None else f"{summary.speedup:.2f}x",
        interval,
        format_percent(summary.acceptance_rate),
        format_number(summary.mgl),
        format_number(sum(ms.values()) if ms else None),
        *(format_number(ms.get(part)) for part in ("draft", "verify", "rollback", "sample", "other")),
        summary.verdict or NOT_MEASURED if summary.n_valid == summary.n_trials else "INVALID",
    ]


_COLUMNS = [
    *("arm", "gamma", "tok/s", "spread", "speedup", "95 % CI", "acceptance", "MGL"),
    *("ms/round", "draft", "verify", "rollback", "sample", "other", "verdict"),
]
