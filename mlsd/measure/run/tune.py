"""Searching the best setting of a drafting method on one target: gamma and options, with "off" among the answers.

Each setting is measured in a worker of its own, in blocks that hold the AR arm and the setting for every prompt, so
that what is searched is the paired speedup and plain decoding (a speedup of 1) can win. Settings that fall behind are
dropped after a few blocks; the search ends when the best setting is told apart from the others. The only door to
optuna, whose study file makes a search resumable.
"""

from __future__ import annotations

import math
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import optuna
from optuna.trial import TrialState

from mlsd.drafters import check_target, resolve_spec, search_space
from mlsd.drafters.options import Choice, Span
from mlsd.errors import InputError, MlsdError
from mlsd.measure.contexts import check_contexts
from mlsd.measure.messages import Done, Event, Job, ModelFile, ProbeJob, Slot, prompt_key
from mlsd.measure.process import run_job
from mlsd.measure.run.jobs import prompt_text
from mlsd.planning.prompts import Prompt
from mlsd.records import Case, DrafterSpec, EngineOptions, OptionValue, Record, Trial, content_id
from mlsd.units import tok_s

State = Literal["measured", "pruned", "failed"]
Stop = Literal["separated", "trials", "budget"]

_GAMMA = "gamma"
_STARTUP_SETTINGS = 4  # settings that run to their end before any is judged by the median of the others
_LEAST_BLOCKS = 2  # blocks of a setting before it may be dropped


class TuneRequest(Record, frozen=True, kw_only=True):
    """What to search, and on what."""

    target: ModelFile
    drafter: DrafterSpec  # options given here are fixed; the rest of the method's space is searched
    draft: ModelFile | None = None
    prompts: tuple[Prompt, ...]
    n_predict: int = 64
    blocks: int = 4  # of each setting that is not dropped
    trials: int = 20  # settings to try, those of earlier calls included
    budget_s: float | None = None  # of this call; the setting in progress is finished
    engine: EngineOptions = EngineOptions()
    seed: int = 0
    environment_key: str  # machine and build: searches of different ones are kept apart


class Setting(Record, frozen=True, kw_only=True):
    """One setting and its speedup over plain decoding: geometric mean over blocks with a 95 % interval."""

    gamma: int
    options: dict[str, OptionValue]
    state: State
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    n_blocks: int = 0
    acceptance_rate: float | None = None
    mgl: float | None = None
    reason: str | None = None  # why it failed


class TuneResult(Record, frozen=True, kw_only=True):
    """What a search found. `best` None: plain decoding, because no setting is decided to be faster."""

    best: Setting | None
    settings: tuple[Setting, ...]  # fastest first, failed ones last
    stopped: Stop
    study: str  # name inside the study file


def tune(request: TuneRequest, storage: Path, on_setting: Callable[[Setting, int], None] | None = None) -> TuneResult:
    """Search; goes on where an earlier call with the same request stopped. `on_setting` hears each setting's end.

    Raises: InputError for numbers that mean nothing or a study file that cannot be used; before any measurement what
    the method raises for a target it cannot serve.
    """
    _check(request)
    space = search_space(request.drafter)
    draft = None if request.draft is None else Path(request.draft.path)
    check_target(_example(request.drafter, space), Path(request.target.path), draft)
    check_contexts(ProbeJob(model=request.target, engine=request.engine))
    study = _open(request, storage)
    started_s = time.monotonic()
    while (stopped := _stop(request, study, time.monotonic() - started_s)) is None:
        trial = study.ask()
        try:
            setting = _try(request, study, trial, space)
        except BaseException:
            study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            raise
        if on_setting is not None:
            on_setting(setting, len(_tried(study)))
    settings = _settings(study)
    return TuneResult(best=winner(settings), settings=settings, stopped=stopped, study=study.study_name)


def _example(spec: DrafterSpec, space: dict[str, Span | Choice]) -> DrafterSpec:
    """One setting of the space, to see that the method can serve the target at all."""
    first = {name: span.values[0] if isinstance(span, Choice) else span.low for name, span in space.items()}
    first.pop(_GAMMA, None)
    return resolve_spec(msgspec.structs.replace(spec, options={**spec.options, **first}))


def _check(request: TuneRequest) -> None:
    least = {"n_predict": 2, "blocks": _LEAST_BLOCKS, "trials": 1}
    for name, bound in least.items():
        if getattr(request, name) < bound:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(request, name)}, but must be at least {bound}.")
    if request.budget_s is not None and not request.budget_s > 0:
        raise InputError(f"--budget-s is {request.budget_s}, but must be above 0.")


# --- the study file -----------------------------------------------------------------------------------------------


def _open(request: TuneRequest, storage: Path) -> Any:
    """The study of this request; trials that a killed call left open are closed."""
    _check_storage(storage)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{storage}",
        study_name=study_name(request),
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(_STARTUP_SETTINGS, n_warmup_steps=_LEAST_BLOCKS - 1),
    )
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    # A sampler begins anew with its seed; a resumed search must not ask for its first settings again.
    seed = request.seed + 1_000 * len(study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_SETTINGS + 2)
    return study


def _check_storage(storage: Path) -> None:
    if not storage.exists():
        return
    try:
        with closing(sqlite3.connect(storage)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise InputError(f"{storage} is no study file: {error}.", hint="Give another --study FILE.") from error
    if tables and "studies" not in tables:
        raise InputError(f"{storage} is a database of another kind.", hint="Give another --study FILE.")


def study_name(request: TuneRequest) -> str:
    """A name by content: what changes a measured ratio makes another study; how long to search does not."""
    same = msgspec.structs.replace(request, trials=1, budget_s=None, seed=0, blocks=_LEAST_BLOCKS)
    target = msgspec.structs.replace(request.target, path="")
    draft = None if request.draft is None else msgspec.structs.replace(request.draft, path="")
    return f"{request.drafter.name}-{content_id(msgspec.structs.replace(same, target=target, draft=draft))}"


def _tried(study: Any) -> list[Any]:
    """Trials that came to an end of their own, interrupted ones excluded."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    return [trial for trial in finished if "state" in trial.user_attrs]


def _settings(study: Any) -> tuple[Setting, ...]:
    """Every setting once, blocks of repeated trials pooled; the fastest first."""
    by_key: dict[bytes, list[dict[str, Any]]] = {}
    for trial in _tried(study):
        key = msgspec.json.encode((trial.user_attrs["gamma"], trial.user_attrs["options"]), order="sorted")
        by_key.setdefault(key, []).append(trial.user_attrs)
    found = [_pooled(same) for same in by_key.values()]
    return tuple(sorted(found, key=lambda s: -(s.speedup or 0.0)))


def _pooled(same: Sequence[dict[str, Any]]) -> Setting:
    states = [attrs["state"] for attrs in same]
    failed = next((attrs for attrs in same if attrs["state"] == "failed"), None)
    base = Setting(gamma=same[0]["gamma"], options=same[0]["options"], state="failed")
    if failed is not None:
        return msgspec.structs.replace(base, reason=failed["reason"])
    logs = [log for attrs in same for log in attrs["log_ratios"]]
    speedup, low, high = ratio_interval(logs)
    proposed, accepted, committed, rounds = (sum(attrs["counts"][i] for attrs in same) for i in range(4))
    return msgspec.structs.replace(
        base,
        state="measured" if "measured" in states else "pruned",
        speedup=speedup,
        low=low,
        high=high,
        n_blocks=len(logs),
        acceptance_rate=accepted / proposed if proposed else None,
        mgl=committed / rounds if rounds else None,
    )


# --- one setting --------------------------------------------------------------------------------------------------


def _try(request: TuneRequest, study: Any, trial: Any, space: dict[str, Span | Choice]) -> Setting:
    """Measure the setting that the sampler asks for and tell it what came out."""
    chosen = {name: _suggest(trial, name, span) for name, span in space.items()}
    gamma = int(chosen.pop(_GAMMA))
    options = {**request.drafter.options, **chosen}
    trial.set_user_attr("gamma", gamma)
    trial.set_user_attr("options", options)
    state: State
    try:
        spec = resolve_spec(msgspec.structs.replace(request.drafter, options=options))
        state = _measure(request, trial, spec, gamma)
    except MlsdError as error:
        trial.set_user_attr("reason", error.message)
        state = "failed"
    trial.set_user_attr("state", state)
    if state == "failed":
        study.tell(trial, state=TrialState.FAIL)
    elif state == "pruned":
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, statistics.fmean(study.trials[trial.number].user_attrs["log_ratios"]))
    return _pooled([study.trials[trial.number].user_attrs])


def _suggest(trial: Any, name: str, span: Span | Choice) -> Any:
    if isinstance(span, Choice):
        return trial.suggest_categorical(name, list(span.values))
    return trial.suggest_int(name, span.low, span.high, log=span.log)


def _measure(request: TuneRequest, trial: Any, spec: DrafterSpec, gamma: int) -> State:
    """Run the blocks of a setting; its log ratios and counts are kept with the trial after each."""
    job = tune_job(request, spec, gamma, seed=request.seed + trial.number)
    per_block = 2 * len(request.prompts)
    block: list[Trial] = []
    logs: list[float] = []
    counts = [0, 0, 0, 0]
    with closing(cast("Generator[Event]", run_job(job))) as events:
        for event in events:
            if not isinstance(event, Done):
                continue
            if not event.trial.valid:
                trial.set_user_attr("reason", event.trial.error or event.trial.invalid_reason)
                return "failed"
            if event.trial.decode_ns is None:
                raise InputError(
                    f"{spec.name} with these options cannot be tuned: it drafts inside the target, so its times are "
                    "not its own.",
                    hint="Tune it with mode=sync.",
                )
            block.append(event.trial)
            if len(block) < per_block:
                continue
            logs.append(log_ratio(block))
            for i, count in enumerate(_counts(block)):
                counts[i] += count
            block = []
            trial.set_user_attr("log_ratios", logs)
            trial.set_user_attr("counts", counts)
            trial.report(statistics.fmean(logs), len(logs) - 1)
            if len(logs) < request.blocks and trial.should_prune():
                return "pruned"
    return "measured"


def tune_job(request: TuneRequest, spec: DrafterSpec, gamma: int, *, seed: int) -> Job:
    """All blocks of one setting: in each, plain decoding and the setting on every prompt, pairs in random order."""
    rng = random.Random(seed)
    pairs = []
    for prompt in request.prompts:
        plain = Case(
            suite="tune",
            target=request.target.ref,
            prompt=prompt.ref,
            n_predict=request.n_predict,
            engine=request.engine,
        )
        pairs.append((plain, msgspec.structs.replace(plain, drafter=spec, gamma=gamma)))
    slots: list[Slot] = []
    for block in range(request.blocks):
        order = []
        for pair in rng.sample(pairs, len(pairs)):
            # The first block's plain output is what the others are compared with.
            order += list(pair) if block == 0 else rng.sample(pair, 2)
        slots += [
            Slot(case=case, case_id=case.id, block=block, repeat=block, position=i) for i, case in enumerate(order)
        ]
    known = {prompt.key: prompt for prompt in request.prompts}
    return Job(
        target=request.target,
        models=() if request.draft is None else (request.draft,),
        prompts={prompt_key(prompt.ref): prompt_text(prompt.ref, known.__getitem__) for prompt in request.prompts},
        slots=tuple(slots),
        keep_text=False,
        strict=True,
    )


def log_ratio(block: Sequence[Trial]) -> float:
    """Mean over prompts of ln(SD decode tok/s / AR decode tok/s) of one block."""

    def mean_log(arm: str) -> float:
        speeds = [tok_s(len(t.tokens) - 1, t.decode_ns) for t in block if t.arm == arm and t.decode_ns]
        return statistics.fmean(math.log(speed) for speed in speeds if speed)

    return mean_log("sd") - mean_log("ar")


def _counts(block: Sequence[Trial]) -> tuple[int, int, int, int]:
    rounds = [r for trial in block if trial.arm == "sd" for r in trial.rounds]
    return (
        sum(r.proposed for r in rounds),
        sum(r.accepted for r in rounds),
        sum(r.committed for r in rounds),
        len(rounds),
    )


# --- deciding -----------------------------------------------------------------------------------------------------


def ratio_interval(logs: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean of ratios given by their logs, with Student's 95 % interval of the mean log.

    ``exp(mean -+ t_{0.975, n-1} sd / sqrt(n))``, the interval of `analysis.stats.paired_ratio`; none for one ratio.
    """
    from scipy.stats import t

    centre, n = statistics.fmean(logs), len(logs)
    if n < 2:
        return math.exp(centre), None, None
    half = float(t.ppf(0.975, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    return math.exp(centre), math.exp(centre - half), math.exp(centre + half)


def winner(settings: Sequence[Setting]) -> Setting | None:
    """The fastest measured setting that is decided to beat plain decoding, or None: leave drafting off."""
    better = [s for s in settings if s.state == "measured" and s.low is not None and s.low > 1]
    return max(better, key=lambda s: s.speedup or 0.0, default=None)


def separated(settings: Sequence[Setting]) -> bool:
    """Whether the leader's interval lies above those of all others that were not dropped, "off" (exactly 1) included.

    Never before `_STARTUP_SETTINGS` settings ran to their end: among few, being first says little.
    """
    measured = [s for s in settings if s.state == "measured" and s.low is not None and s.high is not None]
    if len(measured) < _STARTUP_SETTINGS:
        return False
    leader = max(measured, key=lambda s: s.speedup or 0.0)
    if (leader.speedup or 0.0) <= 1:
        return all((s.high or math.inf) < 1 for s in measured)
    others = [s.high or math.inf for s in measured if s is not leader]
    return (leader.low or 0.0) > max([1.0, *others])


def _stop(request: TuneRequest, study: Any, elapsed_s: float) -> Stop | None:
    if separated(_settings(study)):
        return "separated"
    if len(_tried(study)) >= request.trials:
        return "trials"
    if request.budget_s is not None and elapsed_s >= request.budget_s:
        return "budget"
    return None
