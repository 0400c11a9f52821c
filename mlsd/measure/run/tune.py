"""Searching the best setting of a drafting method on one target: gamma and options, with "off" among the answers.

Each setting is a bench of its own into a study database: blocks that hold the AR arm and the setting for every prompt,
so that what is searched is the paired speedup and plain decoding (a speedup of 1) can win. Settings that fall behind
are dropped after a few blocks; the search ends when the best setting is told apart from the others. The only door to
optuna, whose own file beside the database makes a search resumable.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import optuna
from optuna.trial import TrialState

from mlsd.drafters import resolve_spec, search_space
from mlsd.drafters.options import Choice, Space, Span
from mlsd.errors import InputError, MlsdError
from mlsd.hardware import read_environment
from mlsd.measure.contexts import check_contexts
from mlsd.measure.process import run_info
from mlsd.measure.run.runner import RunSettings, Watcher, machine_lock, plan_jobs
from mlsd.measure.run.runs import bench_into, check_database, fitted_environment
from mlsd.measure.store.newest import BENCHES, study_path
from mlsd.measure.store.rows import environment_key
from mlsd.measure.store.store import Store
from mlsd.planning.job import Slot
from mlsd.planning.plan import Plan
from mlsd.planning.prepare import BenchRequest, Prepared, prepare_bench
from mlsd.records import AUTO_GAMMA, NO_DRAFTER, DrafterSpec, Environment, OptionValue, Record, Trial, content_id
from mlsd.stats import grouped, mean_over
from mlsd.units import tok_s

State = Literal["measured", "pruned", "failed"]
Stop = Literal["separated", "trials", "budget"]

_GAMMA = "gamma"
_STARTUP_SETTINGS = 4  # settings that run to their end before any is judged by the median of the others
_LEAST_BLOCKS = 2  # blocks of a setting before it may be dropped


class TuneRequest(Record, frozen=True, kw_only=True):
    """What to search, and on what."""

    drafter: DrafterSpec  # options given here are fixed; the rest of the method's space is searched
    setting: BenchRequest  # what each setting is measured by, but for its method; its repeats are the blocks
    trials: int = 20  # settings to try, those of earlier calls included
    budget_s: float | None = None  # of this call; the setting in progress is finished


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
    database: str  # where the trials are
    search_file: str  # where it can be resumed from
    search: str  # its name in there


def tune(
    request: TuneRequest,
    db: Path | None = None,
    search_file: Path | None = None,
    on_setting: Callable[[Setting, int], None] | None = None,
) -> TuneResult:
    """Search; goes on where an earlier call with the same request stopped. `on_setting` hears each setting's end.

    Trials go to the study database `db` (default: that of benches), what was tried to `search_file` (default: beside
    it). Raises: InputError for numbers that mean nothing or a file that cannot be used; before any measurement what
    the method raises for a target it cannot serve; LockError while another run measures on this machine.
    """
    path = db or study_path(BENCHES)
    storage = search_file or path.with_suffix(".optuna.db")
    _check(request)
    spec, space = request.drafter, search_space(request.drafter)
    example = prepare_bench(_bench(request, *_example(spec, space)))
    for job in plan_jobs(example):
        check_contexts(job)
    with machine_lock():
        check_database(path)
        environment = read_environment(run_info(request.setting.engine))
        study = _open(search_name(example.plan, spec, environment), request.setting.seed, storage)
        with Store.open(path) as store:
            search = _Search(request, spec, space, study, store, environment)
            started_s = time.monotonic()
            while (stopped := _stop(request, study, time.monotonic() - started_s)) is None:
                setting = search.next()
                if on_setting is not None:
                    on_setting(setting, len(_tried(study)))
    settings = _settings(study)
    return TuneResult(
        best=winner(settings),
        settings=settings,
        stopped=stopped,
        database=str(path),
        search_file=str(storage),
        search=study.study_name,
    )


def _example(spec: DrafterSpec, space: Space) -> tuple[DrafterSpec, int]:
    """One setting of the space, to see that the method can serve the target at all."""
    first = {name: span.values[0] if isinstance(span, Choice) else span.low for name, span in space.items()}
    gamma = int(first.pop(_GAMMA, AUTO_GAMMA))
    return resolve_spec(msgspec.structs.replace(spec, options={**spec.options, **first})), gamma


def _bench(request: TuneRequest, spec: DrafterSpec, gamma: int, number: int = 0) -> BenchRequest:
    """The bench of one setting, the `number`-th that is tried."""
    setting = request.setting
    return msgspec.structs.replace(setting, drafters=(spec,), gamma=(gamma,), seed=setting.seed + number, suite="tune")


def _check(request: TuneRequest) -> None:
    given = {"n-predict": request.setting.n_predict, "blocks": request.setting.repeats, "trials": request.trials}
    for name, least in (("n-predict", 2), ("blocks", _LEAST_BLOCKS), ("trials", 1)):
        if given[name] < least:
            raise InputError(f"--{name} is {given[name]}, but must be at least {least}.")
    if request.drafter.name == NO_DRAFTER or len(request.setting.drafts) > 1:
        raise InputError("One method with one draft at most is tuned.", hint="Name it with --drafter.")
    if request.budget_s is not None and not request.budget_s > 0:
        raise InputError(f"--budget-s is {request.budget_s}, but must be above 0.")


# --- the search file ----------------------------------------------------------------------------------------------


def _open(name: str, seed: int, storage: Path) -> Any:
    """The search of that name; trials that a killed call left open are closed."""
    _check_storage(storage)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage.parent.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{storage}",
        study_name=name,
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(_STARTUP_SETTINGS, n_warmup_steps=_LEAST_BLOCKS - 1),
    )
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    # A sampler begins anew with its seed; a resumed search must not ask for its first settings again.
    study.sampler = optuna.samplers.TPESampler(
        seed=seed + 1_000 * len(study.trials), n_startup_trials=_STARTUP_SETTINGS + 2
    )
    return study


def _check_storage(storage: Path) -> None:
    if not storage.exists():
        return
    try:
        with closing(sqlite3.connect(storage)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise InputError(f"{storage} is no search file: {error}.", hint="Give another --search FILE.") from error
    if tables and "studies" not in tables:
        raise InputError(f"{storage} is a database of another kind.", hint="Give another --search FILE.")


class _Searched(Record, frozen=True, kw_only=True):
    """What changes a measured ratio, and so makes another search; how long to search does not."""

    environment_key: str
    plain: tuple[str, ...]  # cases of plain decoding: target, prompts, lengths, engine
    drafter: DrafterSpec


def search_name(plan: Plan, spec: DrafterSpec, environment: Environment) -> str:
    """A name by content, from one setting's plan and the method with the options that are fixed."""
    cases = plan.cases()
    draft = next((case.drafter.draft for case in cases.values() if case.arm == "sd"), None)
    searched = _Searched(
        environment_key=environment_key(environment),
        plain=tuple(sorted(case_id for case_id, case in cases.items() if case.arm == "ar")),
        drafter=msgspec.structs.replace(spec, draft=draft),
    )
    return f"{spec.name}-{content_id(searched)}"


def _tried(study: Any) -> list[Any]:
    """Trials that came to an end of their own, interrupted ones excluded."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    return [trial for trial in finished if "state" in trial.user_attrs]


def _settings(study: Any) -> tuple[Setting, ...]:
    """Every setting once, blocks of repeated trials pooled; the fastest first."""
    tried = [trial.user_attrs for trial in _tried(study)]
    by_setting = grouped(tried, lambda own: msgspec.json.encode((own["gamma"], own["options"]), order="sorted"))
    found = [_pooled(same) for same in by_setting.values()]
    return tuple(sorted(found, key=lambda s: -(s.speedup or 0.0)))


def _pooled(same: Sequence[dict[str, Any]]) -> Setting:
    states = [attrs["state"] for attrs in same]
    failed = next((attrs for attrs in same if attrs["state"] == "failed"), None)
    base = Setting(gamma=same[0]["gamma"], options=same[0]["options"], state="failed")
    if failed is not None:
        return msgspec.structs.replace(base, reason=failed["reason"])
    logs = [log for attrs in same for log in attrs["log_ratios"]]
    speedup = mean_over([math.exp(log) for log in logs], ratio=True)
    proposed, accepted, committed, rounds = (sum(attrs["counts"][i] for attrs in same) for i in range(4))
    return msgspec.structs.replace(
        base,
        state="measured" if "measured" in states else "pruned",
        speedup=speedup.value,
        low=speedup.low,
        high=speedup.high,
        n_blocks=len(logs),
        acceptance_rate=accepted / proposed if proposed else None,
        mgl=committed / rounds if rounds else None,
    )


# --- one setting --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Search:
    """What all settings of a search share."""

    request: TuneRequest
    spec: DrafterSpec
    space: Space
    study: Any
    store: Store
    environment: Environment

    def next(self) -> Setting:
        """Measure the setting that the sampler asks for and tell it what came out."""
        trial = self.study.ask()
        try:
            self._try(trial)
        except BaseException:
            self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            raise
        return _pooled([self.study.trials[trial.number].user_attrs])

    def _try(self, trial: Any) -> None:
        chosen = {name: _suggest(trial, name, span) for name, span in self.space.items()}
        gamma = int(chosen.pop(_GAMMA, AUTO_GAMMA))
        options = {**self.spec.options, **chosen}
        trial.set_user_attr("gamma", gamma)
        trial.set_user_attr("options", options)
        blocks = _Blocks(trial, self.request.setting.repeats)
        try:
            spec = resolve_spec(msgspec.structs.replace(self.spec, options=options))
            bench = _bench(self.request, spec, gamma, trial.number)
            prepared = prepare_bench(bench)
            memory = fitted_environment(prepared)[1]
            into = (self.store, self.environment, memory, RunSettings(seed=bench.seed))
            outcome, _ = bench_into(prepared, *into, blocks, blocks.choose)
            if outcome.interrupted:
                raise KeyboardInterrupt
        except MlsdError as error:
            trial.set_user_attr("reason", error.message)
            blocks.state = "failed"
        if blocks.untimed:
            raise InputError(
                f"{self.spec.name} with these options cannot be tuned: it drafts inside the target, so its times are "
                "not its own.",
                hint="Tune it with mode=sync.",
            )
        trial.set_user_attr("state", blocks.state)
        if blocks.state == "measured":
            self.study.tell(trial, statistics.fmean(blocks.logs))
        else:
            self.study.tell(trial, state=TrialState.FAIL if blocks.state == "failed" else TrialState.PRUNED)


def _suggest(trial: Any, name: str, span: Span | Choice) -> Any:
    if isinstance(span, Choice):
        return trial.suggest_categorical(name, list(span.values))
    return trial.suggest_int(name, span.low, span.high, log=span.log)


class _Blocks(Watcher):
    """Keeps log ratios and counts with the sampler's trial after each block, and ends a setting that falls behind."""

    def __init__(self, trial: Any, n_blocks: int) -> None:
        self._trial, self._n_blocks = trial, n_blocks
        self._block: list[Trial] = []
        self._counts = [0, 0, 0, 0]
        self.logs: list[float] = []
        self.state: State = "measured"
        self.untimed = False  # the method's times are not its own

    def planned(self, prepared: Prepared) -> None:
        """See how many trials a block has, all prompts together."""
        self._per_block = sum(1 for _ in prepared.plan.slots()) // self._n_blocks

    def trial(self, slot: Slot, trial: Trial) -> None:
        """Judge the trial, and the block that it completes."""
        self.untimed |= trial.valid and trial.decode_ns is None
        if not trial.valid:
            self._trial.set_user_attr("reason", trial.error or trial.invalid_reason)
            self.state = "failed"
        self._block.append(trial)
        if self.state == "measured" and not self.untimed and len(self._block) == self._per_block:
            self._end_block()

    def choose(self, left: Sequence[Slot], measured: Sequence[Trial]) -> Sequence[Slot]:
        """The next block, all prompts together, unless the setting is through."""
        over = self.untimed or self.state != "measured"
        return () if over else [slot for slot in left if slot.repeat == left[0].repeat]

    def _end_block(self) -> None:
        self.logs.append(log_ratio(self._block))
        self._counts = [a + b for a, b in zip(self._counts, _counts(self._block), strict=True)]
        self._block = []
        self._trial.set_user_attr("log_ratios", self.logs)
        self._trial.set_user_attr("counts", self._counts)
        self._trial.report(statistics.fmean(self.logs), len(self.logs) - 1)
        if len(self.logs) < self._n_blocks and self._trial.should_prune():
            self.state = "pruned"


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
