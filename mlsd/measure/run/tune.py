"""Searching the best setting of a drafting method on one target: gamma and options, with "off" among the answers.

Settings race in waves: a few gammas far apart first, then the neighbours of the fastest, in gamma and in one option at
a time, until it has none that was not tried. In a wave all settings stand in the same blocks as plain decoding, and
those that cannot win drop out (`race`); at last the fastest goes on until it is decided. Trials are kept in the study
like those of every bench, and trials of earlier calls and benches count.

0.2.0 asked a sampler (TPE of optuna) for twenty settings of four blocks each. Over 100 simulated surfaces of gamma,
n-gram length and match, at the noise of a calm machine (3 % a trial) and of the recorded one (10 %), what it named fell
short of the best by 2.4 and 5.2 % after 131 and 132 trials, with eight blocks by 1.6 and 3.8 % after 234 and 233; waves
by 1.0 and 3.2 % after 103 and 136.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mlsd.drafters import find_method, resolve_spec, search_space
from mlsd.drafters.options import Choice, Space, Span
from mlsd.errors import InputError, MlsdError
from mlsd.measure.run.race import TOGETHER, Goal, Measured, Race, Stop, standings
from mlsd.measure.run.runner import RunSettings, Watcher, machine_lock
from mlsd.measure.run.runs import bench_into, check_database, fitted
from mlsd.measure.store.newest import BENCHES, study_path
from mlsd.measure.store.rows import TrialFilter, environment_key
from mlsd.measure.store.store import Store
from mlsd.planning.prepare import BenchRequest, Prepared, prepare_bench
from mlsd.records import MOST_ADAPTIVE, NO_DRAFTER, Case, DrafterSpec, Environment, OptionValue, Record
from mlsd.trials.arms import arm_of
from mlsd.trials.decisions import Decision, Standing
from mlsd.trials.sums import sums_of

_GAMMA = "gamma"
_FIRST_GAMMAS = 5  # of the first wave
_LEAST_BLOCKS = 3
_LAST_BLOCKS = 30  # most in which the fastest goes on alone, until it is decided
_FEW = 6  # values of an option that are all tried at once

Options = dict[str, OptionValue]


class TuneRequest(Record, frozen=True, kw_only=True):
    """What to search, and on what."""

    drafter: DrafterSpec  # options given here are fixed; the rest of the method's space is searched
    setting: BenchRequest  # what each setting is measured by, but for its method; its repeats: most blocks of a wave
    trials: int = 20  # settings to try, those of earlier calls included
    budget_s: float | None = None  # of this call; the block in progress is finished


class Setting(Record, frozen=True, kw_only=True):
    """One setting and its speedup over plain decoding: intervals of all settings hold together, at every look."""

    gamma: int
    options: dict[str, OptionValue]
    decision: str  # faster, slower, undecided ..., why it is out, or why it failed
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    n_blocks: int = 0
    acceptance_rate: float | None = None
    mgl: float | None = None


class TuneResult(Record, frozen=True, kw_only=True):
    """What a search found. `best` None: plain decoding, because no setting is decided to be faster."""

    best: Setting | None
    settings: tuple[Setting, ...]  # fastest first, failed ones last
    stopped: str  # why the search ended
    database: str  # where the trials are


def tune(
    request: TuneRequest,
    db: Path | None = None,
    watcher: Watcher | None = None,
    said: Callable[[str], None] = lambda line: None,
) -> TuneResult:
    """Search; trials of earlier calls and benches in `db` (default: that of benches) count. `said` hears each wave.

    Raises: InputError for numbers that mean nothing; before any measurement what the method raises for a target it
    cannot serve; LockError while another run measures on this machine; StoreError.
    """
    path = db or study_path(BENCHES)
    _check(request)
    space = search_space(request.drafter)
    first = _Wave((request.drafter.options,), first_gammas(space))
    prepared = prepare_bench(_bench(request, first))
    with machine_lock():
        check_database(path)
        environment, prepared = fitted(prepared)
        with Store.open(path) as store:
            search = _Search(request, space, store, environment, prepared)
            stopped = search.run(first, watcher or Watcher(), said)
            settings = search.settings()
    best = search.decision.best if search.decision is not None else None
    return TuneResult(
        best=next((one for name, one in settings if best is not None and name == best.name), None),
        settings=tuple(one for _, one in settings),
        stopped=stopped,
        database=str(path),
    )


def _check(request: TuneRequest) -> None:
    given = {"n-predict": request.setting.n_predict, "blocks": request.setting.repeats, "trials": request.trials}
    for name, least in (("n-predict", 2), ("blocks", _LEAST_BLOCKS), ("trials", 1)):
        if given[name] < least:
            raise InputError(f"--{name} is {given[name]}, but must be at least {least}.")
    if request.drafter.name == NO_DRAFTER or len(request.setting.drafts) > 1:
        raise InputError("One method with one draft at most is tuned.", hint="Name it with --drafter.")
    if request.budget_s is not None and not request.budget_s > 0:
        raise InputError(f"--budget-s is {request.budget_s}, but must be above 0.")
    if len(request.setting.prompts) == 2:
        raise InputError(
            "Two prompts say nothing of a workload.", hint="Tune on one prompt, or on three and more for a workload."
        )


# --- waves --------------------------------------------------------------------------------------------------------


class _Wave(NamedTuple):
    """Settings that race together: every one of the options at every one of the gammas."""

    options: tuple[Options, ...]
    gammas: tuple[int, ...]


def _bench(request: TuneRequest, wave: _Wave) -> BenchRequest:
    specs = tuple(resolve_spec(msgspec.structs.replace(request.drafter, options=dict(own))) for own in wave.options)
    return msgspec.structs.replace(request.setting, drafters=specs, gamma=wave.gammas, suite="tune")


def first_gammas(space: Space) -> tuple[int, ...]:
    """Far apart in equal ratios, the ends of the span among them."""
    span = space.get(_GAMMA)
    if not isinstance(span, Span):
        return (MOST_ADAPTIVE,)
    ratio = span.high / span.low
    return tuple(dict.fromkeys(round(span.low * ratio ** (i / (_FIRST_GAMMAS - 1))) for i in range(_FIRST_GAMMAS)))


def gammas_beside(gamma: int, tried: Sequence[int], space: Space) -> tuple[int, ...]:
    """The gammas half way (in ratio) to the next that were tried on both sides, none beyond what is searched."""
    span = space.get(_GAMMA)
    if not isinstance(span, Span):
        return ()
    below = max((g for g in tried if g < gamma), default=span.low - 1)
    above = min((g for g in tried if g > gamma), default=span.high + 1)
    between = (math.floor(math.sqrt(max(below, 1) * gamma)), math.ceil(math.sqrt(gamma * above)))
    low, high = max(between[0], below + 1), min(between[1], above - 1)
    return tuple(g for g in (low, high) if g != gamma and below < g < above)


def options_beside(options: Options, defaults: Options, space: Space) -> Iterator[Options]:
    """The options with one changed: a choice or a number of few to each other value, another number to half and twice.

    What is default is not named.
    """
    for name, span in space.items():
        if name == _GAMMA:
            continue
        value = options.get(name, defaults.get(name))
        if isinstance(span, Choice):
            others: Sequence[OptionValue] = [other for other in span.values if other != value]
        else:
            assert isinstance(value, int)
            few = span.high - span.low < _FEW
            steps = range(span.low, span.high + 1) if few else (value // 2, value * 2)
            others = [step for step in steps if span.low <= step <= span.high and step != value]
        for other in others:
            changed = {**options, name: other}
            yield {key: own for key, own in changed.items() if key not in space or own != defaults.get(key)}


class _Search:
    """A search in progress; all that it knows is what the store holds."""

    def __init__(
        self, request: TuneRequest, space: Space, store: Store, environment: Environment, first: Prepared
    ) -> None:
        self._request, self._space, self._store, self._environment = request, space, store, environment
        cases = first.plan.cases().values()
        self._plain = {_as_plain(case).id: case for case in cases if case.arm == "ar"}
        self._draft = next((case.drafter.draft for case in cases if case.arm == "sd"), None)
        method, given = find_method(request.drafter.name), request.drafter.options
        own = method.read(request.drafter)
        self._defaults = {name: getattr(own, name) for name in space if name != _GAMMA and hasattr(own, name)}
        self._given = resolve_spec(request.drafter).options if given else {}
        self._failed: dict[tuple[int, str], Setting] = {}
        self.decision: Decision | None = None

    def run(self, wave: _Wave, watcher: Watcher, said: Callable[[str], None]) -> str:
        """Wave after wave; why the search ended."""
        began_s, known, n_blocks = time.monotonic(), self._measured(), self._request.setting.repeats
        led: Standing | None = None
        self._judge(known)
        while True:
            left_s = None if self._request.budget_s is None else self._request.budget_s - (time.monotonic() - began_s)
            if left_s is not None and left_s <= 0:
                return "the time is used up; the same command goes on from here"
            said(f"{len(wave.options) * len(wave.gammas)} settings race: {_shown(wave)}")
            race = self._race(wave, n_blocks, left_s, known, watcher)
            known = self._measured()
            self._judge(known)
            if race == "budget":
                return "the time is used up; the same command goes on from here"
            tried, leader = self._tried(known), self._leader()
            if leader is None:
                return "no setting could be measured"
            found = self._next(leader, tried, led)
            enough = len(tried) + len(self._failed) >= self._request.trials
            if found is not None and not enough:
                wave, led = found, leader
            elif leader.effect == "undecided" and n_blocks != _LAST_BLOCKS:
                wave, n_blocks = self._alone(leader, tried), _LAST_BLOCKS
            elif enough:
                return "as many settings as asked for were tried; --trials N goes on from here"
            else:
                return "the fastest setting has no neighbour that was not tried"

    def _alone(self, leader: Standing, tried: Mapping[tuple[int, str], str]) -> _Wave:
        gamma, key = next(place for place, name in tried.items() if name == leader.name)
        return _Wave((msgspec.json.decode(key, type=Options),), (gamma,))

    def _race(
        self, wave: _Wave, n_blocks: int, left_s: float | None, known: Sequence[Measured], watcher: Watcher
    ) -> Stop:
        race = Race(Goal(budget_s=left_s), rules=TOGETHER, earlier=known)
        try:
            asked = msgspec.structs.replace(_bench(self._request, wave), repeats=n_blocks)
            _, prepared = fitted(prepare_bench(asked))
            settings = RunSettings(seed=self._request.setting.seed)
            outcome, _ = bench_into(prepared, self._store, self._environment, settings, watcher, race.choose)
        except MlsdError as error:
            if not known:
                raise
            for options in wave.options:
                for gamma in wave.gammas:
                    self._fail(gamma, options, error)
            return "decided"
        if outcome.interrupted:
            raise KeyboardInterrupt
        return race.stopped

    def _fail(self, gamma: int, options: Options, error: MlsdError) -> None:
        if (gamma, _key(options)) not in self._tried(self._measured()):
            failed = Setting(gamma=gamma, options=dict(options), decision=f"failed: {error.message}")
            self._failed[gamma, _key(options)] = failed

    def _measured(self) -> list[Measured]:
        """Trials of this machine, here or in any bench, of plain decoding and of the method as it is fixed."""
        here, cases = environment_key(self._environment), self._store.cases()
        wanted = {id_ for id_, case in cases.items() if self._is_asked(case)}
        trials = self._store.trials(TrialFilter())
        return [
            (cases[stored.trial.case_id], stored.trial)
            for stored in trials
            if stored.environment_key == here and stored.trial.case_id in wanted
        ]

    def _is_asked(self, case: Case) -> bool:
        if _as_plain(case).id not in self._plain:
            return False
        spec = case.drafter
        fixed = all(spec.options.get(name) == value for name, value in self._given.items())
        searched = spec.options.keys() <= self._given.keys() | self._space.keys()
        return case.arm == "ar" or (
            spec.name == self._request.drafter.name and spec.draft == self._draft and fixed and searched
        )

    def _judge(self, known: Sequence[Measured]) -> None:
        """What all of them decide; a bench of the method in other blocks counts as far as it holds plain decoding.

        Intervals hold for the settings tried so far, as a report of them has it: whole searches in which nothing gains
        decide falsely in 1.3 % (`benchmarks/decisions.py`), with as many as may be tried in 0.7 %.
        """
        found = standings(known, rules=TOGETHER)
        self.decision = found.get("")

    def _tried(self, known: Sequence[Measured]) -> dict[tuple[int, str], str]:
        """(gamma, options) of every setting with a trial -> its name."""
        return {(c.gamma, _key(c.drafter.options)): arm_of(c).setting for c, _ in known if c.arm == "sd"}

    def _leader(self) -> Standing | None:
        """The fastest, decided or not, that was measured in more than one block where one was."""
        if self.decision is None or not self.decision.standings:
            return None
        if self.decision.leader is not None:
            return self.decision.of(self.decision.leader)
        return max(self.decision.standings, key=lambda one: one.ratio.value)

    def _next(self, leader: Standing, tried: Mapping[tuple[int, str], str], led: Standing | None) -> _Wave | None:
        """The leader beside its neighbours in gamma, else in one option; none where the last wave found no better."""
        gamma, key = next(place for place, name in tried.items() if name == leader.name)
        options: Options = msgspec.json.decode(key, type=Options)
        beside = gammas_beside(gamma, [g for g, other in (*tried, *self._failed) if other == key], self._space)
        if beside and leader.effect != "slower":
            return _Wave((options,), (*beside[:1], gamma, *beside[1:]))
        if led is not None and led.name == leader.name and leader.effect == "slower":
            return None
        known = {*tried, *self._failed}
        near = [o for o in options_beside(options, self._defaults, self._space) if (gamma, _key(o)) not in known]
        room = self._request.trials - len(tried) - len(self._failed)
        return _Wave((options, *near[:room]), (gamma,)) if near and room > 0 else None

    def settings(self) -> list[tuple[str, Setting]]:
        """Every setting by name, the fastest first, failed ones last."""
        known = self._measured()
        found = []
        for (gamma, key), name in self._tried(known).items():
            standing = self.decision.of(name) if self.decision is not None else None
            trials = [trial for case, trial in known if arm_of(case).setting == name]
            total = sums_of(trials)
            reason = next((trial.error or trial.invalid_reason for trial in trials if not trial.valid), None)
            one = Setting(
                gamma=gamma,
                options=msgspec.json.decode(key, type=Options),
                decision=f"failed: {reason or 'it was not timed'}",
                acceptance_rate=total.acceptance_rate,
                mgl=total.mgl,
            )
            if standing is not None:
                ratio = standing.ratio
                one = msgspec.structs.replace(
                    one,
                    decision=standing.out or standing.words,
                    speedup=ratio.value,
                    low=ratio.low,
                    high=ratio.high,
                    n_blocks=len({trial.block for trial in trials}),
                )
            found.append((name, one))
        found += [("", one) for one in self._failed.values()]
        return sorted(found, key=lambda pair: -(pair[1].speedup or 0.0))


def _as_plain(case: Case) -> Case:
    return msgspec.structs.replace(case, drafter=DrafterSpec(), gamma=0, suite="", rollback="auto")


def _key(options: Options) -> str:
    return msgspec.json.encode(options, order="sorted").decode()


def _shown(wave: _Wave) -> str:
    gammas = ", ".join(map(str, wave.gammas))
    named = [", ".join(f"{name}={value}" for name, value in own.items()) or "defaults" for own in wave.options]
    return f"gamma {gammas}" + ("" if named == ["defaults"] else f"; {' | '.join(named)}")
