"""``mlsd bench``: plain and speculative decoding of one target, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import IntList, engine_options, make_engine, model_file, parse_drafter
from mlsd.cli.output import note, print_json, print_table, table
from mlsd.engine.rollback import STRATEGIES
from mlsd.errors import InputError, WorkerError
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec, Sampling, Trial
from mlsd.units import NOT_MEASURED, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.results.trials import ArmSummary
    from mlsd.measure.messages import ModelFile
    from mlsd.measure.run.bench import BenchRequest

_GAMMAS = (1, 2, 4, 8, 16)


@click.command()
@click.argument("target")
@click.option("--draft", help="Draft model, or drafting head: a path or a manifest id.")
@click.option("--drafter", "drafter_text", help="Drafting method: NAME or NAME:option=value,...")
@click.option("--gamma", type=IntList(), help="Most tokens proposed a round [default: the preset's, else 1,2,4,8,16].")
@click.option("--prompt", "prompt_name", help="Name of a shipped prompt [default: code].")
@click.option("--prompt-file", type=click.Path(dir_okay=False), help="Take the prompt from a text file.")
@click.option("--n-predict", type=int, default=256, show_default=True, help="Output tokens.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Blocks; each holds every arm once.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="Keep the k likeliest tokens (0: all).")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Keep this much probability.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of sampling and of the order of arms.")
@click.option("--rollback", type=click.Choice(["auto", *STRATEGIES]), default="auto", show_default=True)
@click.option("--stop-at-eog", is_flag=True, help="End at an end-of-generation token; arms may then differ in length.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: trials and summary.")
@engine_options
def bench(target: str, as_json: bool, **options: Any) -> None:
    """Measure plain (AR) and speculative decoding (SD) of TARGET in interleaved blocks.

    TARGET and the draft are GGUF paths or ids that `mlsd models list` shows.
    """
    from mlsd.measure.run.bench import bench_cases, run_bench
    from mlsd.measure.run.runner import machine_lock

    request = _request(target, options)
    cases = {case.id: case for case in bench_cases(request)}
    with machine_lock(), _Progress(total=len(cases) * request.repeats) as progress:
        trials = run_bench(request, progress.on_event)
    if all(trial.status == "failed" for trial in trials):
        raise WorkerError(f"Every trial failed: {trials[0].error}")
    summaries = _summaries(list(cases), trials, request)
    if as_json:
        print_json({"trials": [_trial_object(trial) for trial in trials], "summary": summaries})
    else:
        _print(request, trials, summaries)


def _request(target: str, options: dict[str, Any]) -> BenchRequest:
    from mlsd.measure.run.bench import BenchRequest
    from mlsd.planning.prompts import load_prompt, prompt_from_file

    if options["prompt_name"] and options["prompt_file"]:
        raise InputError("--prompt and --prompt-file exclude each other.", hint="Give one of them.")
    if options["prompt_file"]:
        prompt = prompt_from_file(options["prompt_file"])
    else:
        prompt = load_prompt(options["prompt_name"] or "code")
    target_file = model_file(target)
    draft_file = model_file(options["draft"]) if options["draft"] else None
    name = options["drafter_text"] or (DRAFT_MODEL if draft_file else NO_DRAFTER)
    drafter, gammas = _drafter(name, draft_file, options["gamma"], target_file)
    return BenchRequest(
        target=target_file,
        drafter=drafter,
        draft=draft_file,
        gammas=gammas,
        prompt=prompt.ref,
        prompt_text=prompt.text,
        chat=prompt.chat,
        n_predict=options["n_predict"],
        repeats=options["repeats"],
        rollback=options["rollback"],
        sampling=Sampling(
            temperature=options["temperature"],
            top_k=options["top_k"],
            top_p=options["top_p"],
            seed=options["seed"],
        ),
        engine=make_engine(options["n_threads"], options["n_gpu_layers"], options["n_ctx"], options["flash_attention"]),
        ignore_eog=not options["stop_at_eog"],
        seed=options["seed"],
    )


def _drafter(
    text: str, draft: ModelFile | None, gammas: tuple[int, ...] | None, target: ModelFile
) -> tuple[DrafterSpec, tuple[int, ...]]:
    """The method asked for with its options checked, and the gammas to measure it at."""
    from mlsd.drafters import check_target, preset_gamma, resolve_spec

    if text == NO_DRAFTER:
        return DrafterSpec(), ()
    spec = parse_drafter(text, None if draft is None else draft.ref)
    resolved, preset = resolve_spec(spec), preset_gamma(spec)
    check_target(resolved, Path(target.path), None if draft is None else Path(draft.path))
    return resolved, gammas or (_GAMMAS if preset is None else (preset,))


def _summaries(case_ids: list[str], trials: list[Trial], request: BenchRequest) -> list[ArmSummary]:
    from mlsd.analysis.results.trials import summarize

    by_case = {case_id: [trial for trial in trials if trial.case_id == case_id] for case_id in case_ids}
    baseline = by_case[case_ids[0]]
    return [
        summarize(own, baseline, request.drafter.name if own[0].arm == "sd" else NO_DRAFTER)
        for own in by_case.values()
        if own
    ]


def _trial_object(trial: Trial) -> dict[str, Any]:
    """A trial in the words of the JSON contract: counts and total times, then each round."""
    from mlsd.analysis.results.trials import PARTS, numbers

    derived = numbers(trial)
    verdict = trial.losslessness
    return {
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
        "n_tokens": len(trial.tokens),
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


def _print(request: BenchRequest, trials: list[Trial], summaries: list[ArmSummary]) -> None:
    first = next(trial for trial in trials if trial.status == "ok")
    prompt = f"prompt {request.prompt.key} ({first.n_prompt} tokens)"
    made = table(f"{request.target.ref.id}, {prompt}, {request.n_predict} output tokens", _COLUMNS)
    for row in summaries:
        made.add_row(*_cells(row))
    print_table(made)
    for row in summaries:
        if row.n_valid < row.n_trials:
            n_bad = row.n_trials - row.n_valid
            note(f"INVALID  {row.arm} gamma {row.gamma}: {n_bad} of {row.n_trials} trials: {row.invalid_reason}")
    if not all(trial.timed for trial in trials):
        note("NOT TIMED  SD drafts inside the target to learn what is accepted; its times say nothing of the method.")
    for reason in sorted({trial.fell_back for trial in trials if trial.fell_back is not None}):
        note(f"FELL BACK  The draft works on its own memory: {reason}")


def _cells(row: ArmSummary) -> list[str]:
    interval = NOT_MEASURED
    if row.ci_low is not None and row.ci_high is not None:
        interval = f"{row.ci_low:.2f} .. {row.ci_high:.2f}"
    parts = [format_number(row.ms_per_round.get(part)) for part in ("draft", "verify", "rollback", "sample", "other")]
    return [
        row.arm.upper() if row.arm == "ar" else f"SD {row.drafter}",
        str(row.gamma) if row.gamma else NOT_MEASURED,
        format_number(row.decode_tok_s, 1),
        format_percent(row.spread),
        NOT_MEASURED if row.speedup is None else f"{row.speedup:.2f}x",
        interval,
        format_percent(row.acceptance_rate),
        format_number(row.mgl),
        format_number(sum(row.ms_per_round.values()) if row.ms_per_round else None),
        *parts,
        row.verdict or NOT_MEASURED if row.n_valid == row.n_trials else "INVALID",
    ]


_COLUMNS = [
    *("arm", "gamma", "tok/s", "spread", "speedup", "95 % CI", "acceptance", "MGL"),
    *("ms/round", "draft", "verify", "rollback", "sample", "other", "verdict"),
]


class _Progress:
    """A progress bar on a terminal's standard error; silent elsewhere."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("loading", total=total)

    def on_event(self, event: Any) -> None:
        from mlsd.measure.messages import Done, Loaded

        if isinstance(event, Loaded):
            self._bar.update(self._task, description=f"measuring on {event.backend.device}")
        elif isinstance(event, Done):
            self._bar.advance(self._task)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
