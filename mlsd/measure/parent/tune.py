"""Searching the best setting of a drafting method on one target, "off" among the answers.

Settings race in waves with plain decoding: gammas far apart, then the neighbours of the fastest in gamma and in one
option at a time. Trials of earlier calls count.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mlsd.drafters import find_method, resolve_spec, search_space
from mlsd.drafters.options import Range, Space, Values
from mlsd.engine.context import threads_of
from mlsd.errors import InputError, MlsdError
from mlsd.measure.bench import Bench
from mlsd.measure.parent.blocks import StartBench, Watcher, machine_lock, next_repeat
from mlsd.measure.parent.memory import Footprints, fit_here
from mlsd.measure.parent.race import Race
from mlsd.measure.parent.requests import bench_into, check_database, plan_here
from mlsd.planning.job import Job
from mlsd.planning.options import BenchOptions, Goal, SearchOptions, part
from mlsd.planning.plan import Plan, plan_bench
from mlsd.planning.question import parse_drafter
from mlsd.planning.request import BenchRequest, own_draft, resolve_bench
from mlsd.records import DrafterSpec, Environment, OptionValue, Record
from mlsd.store.newest import BENCHES, study_path
from mlsd.store.sessions import of_cases
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.on_or_off import Answer, answers
from mlsd.trials.results import ArmResult, Measured, SessionPlan, arm_results, settings_of
from mlsd.trials.stages import StageTime

_GAMMA = "gamma"
_FIRST_GAMMAS = 5  # of the first wave
_LAST_BLOCKS = 30  # most in which the fastest goes on alone, until it is decided
_FEW = 6  # values of an option that are all tried at once

Options = dict[str, OptionValue]


class TuneResult(Record, frozen=True, kw_only=True):
    """What a search found."""

    results: tuple[ArmResult, ...]  # every setting with a trial, the fastest first
    failed: dict[str, str]  # settings that could not be measured, and why
    answer: Answer | None  # None: nothing could be measured
    stopped: str  # why the search ended
    database: str  # where the trials are
    setting: BenchRequest  # what each was measured by; its one method has the options that were given
    stages: tuple[StageTime, ...] = ()  # where the time of its workers went


def tune(asked: SearchOptions, watcher: Watcher | None = None, start: StartBench = Bench) -> TuneResult:
    """Search; trials of earlier calls in its database (default: that of benches) count. `watcher` gets each wave.

    All are measured by one worker. Raises: what `resolve_bench` raises, InputError for two methods or numbers that mean
    nothing; before any measurement what the method raises for a target it cannot serve; LockError while another run
    measures on this machine; StoreError.
    """
    path, watcher = Path(asked.db) if asked.db else study_path(BENCHES), watcher or Watcher()
    setting = setting_of(asked)
    if len(setting.prompts) == 2:
        raise InputError(
            "Two prompts say nothing of a workload.", hint="Tune on one prompt, or on three and more for a workload."
        )
    check_database(path)
    drafter = setting.arms[0][0]
    space, footprints = search_space(drafter), Footprints()
    wave = _Wave((drafter.options,), first_gammas(space, asked.settings))
    bench = _bench(setting, wave, setting.repeats)
    every = plan_bench(_bench(setting, _every(drafter, space), 1)).loads
    with machine_lock():
        environment, plan = plan_here(bench, footprints, every)
        decides, cases = session_plan(setting, plan), plan.cases().values()
        with Store.open(path) as store:
            earlier = [row for session in of_cases(store, environment, decides, cases) for row in session.trials]
            search = _Search(asked, setting, store, environment, plan, decides, earlier, watcher, footprints)
            watcher.tell(_shown(wave))
            outcome, _ = bench_into(plan, bench, store, environment, watcher, decides, search, start)
            if outcome.interrupted:
                raise KeyboardInterrupt
            sessions = of_cases(store, environment, decides, cases)
    arms = [arm for session in sessions for arm in session.results() if not arm.is_plain]
    return TuneResult(
        results=tuple(sorted(arms, key=_speedup, reverse=True)),
        failed={f"gamma {gamma} {options}": why for (gamma, options), why in search.failed.items()},
        answer=next(iter(answers(arms)), None),
        stopped=search.reason,
        database=str(path),
        setting=setting,
        stages=outcome.stages,
    )


# --- waves --------------------------------------------------------------------------------------------------------


class _Wave(NamedTuple):
    """Settings that race together: every one of the options at every one of the gammas."""

    options: tuple[Options, ...]
    gammas: tuple[int, ...]


def setting_of(asked: SearchOptions) -> BenchRequest:
    """What each setting is measured by; its one method has the options that were given, and no gammas."""
    given, _ = own_draft(parse_drafter(asked.drafter) if isinstance(asked.drafter, str) else asked.drafter)
    bench = resolve_bench(part(BenchOptions, asked, drafters=(asked.drafter,), budget_s=None))
    if len(bench.arms) != 1:
        raise InputError("One method with one draft at most is tuned.", hint="Name it with --drafter.")
    drafter = msgspec.structs.replace(given, draft=bench.arms[0][0].draft)
    return msgspec.structs.replace(bench, suite="tune", arms=((drafter, ()),))


def _bench(setting: BenchRequest, wave: _Wave, n_blocks: int) -> BenchRequest:
    drafters = (msgspec.structs.replace(setting.arms[0][0], options=dict(options)) for options in wave.options)
    arms = tuple((resolve_spec(drafter), wave.gammas) for drafter in drafters)
    return msgspec.structs.replace(setting, arms=arms, repeats=n_blocks)


def _defaults(drafter: DrafterSpec, space: Space) -> Options:
    """The values of what is searched that the method has where none is given."""
    read = find_method(drafter.name).read(drafter)
    return {name: getattr(read, name) for name in space if name != _GAMMA and hasattr(read, name)}


def _every(drafter: DrafterSpec, space: Space) -> _Wave:
    """Every gamma with the options that were given and with each of their neighbours."""
    span = space[_GAMMA]
    assert isinstance(span, Range)
    near = neighbouring_options(drafter.options, _defaults(drafter, space), space)
    return _Wave((drafter.options, *near), tuple(range(span.low, span.high + 1)))


def first_gammas(space: Space, most: int = _FIRST_GAMMAS) -> tuple[int, ...]:
    """At most so many, far apart in equal ratios, the ends of the span among them; of one its middle."""
    span = space[_GAMMA]
    assert isinstance(span, Range)
    ratio, n = span.high / span.low, min(most, _FIRST_GAMMAS)
    shares = [i / (n - 1) for i in range(n)] if n > 1 else [0.5]
    return tuple(dict.fromkeys(round(span.low * ratio**share) for share in shares))


def neighbouring_gammas(gamma: int, tried: Sequence[int], space: Space) -> tuple[int, ...]:
    """The gammas half way (in ratio) to the next that were tried on both sides, none beyond what is searched."""
    span = space[_GAMMA]
    assert isinstance(span, Range)
    below = max((g for g in tried if g < gamma), default=span.low - 1)
    above = min((g for g in tried if g > gamma), default=span.high + 1)
    between = (math.floor(math.sqrt(max(below, 1) * gamma)), math.ceil(math.sqrt(gamma * above)))
    low, high = max(between[0], below + 1), min(between[1], above - 1)
    return tuple(g for g in (low, high) if g != gamma and below < g < above)


def neighbouring_options(options: Options, defaults: Options, space: Space) -> Iterator[Options]:
    """Options with one changed: a number of few or a choice to each other value, another number to half and twice."""
    for name, span in space.items():
        if name == _GAMMA:
            continue
        value = options.get(name, defaults.get(name))
        if isinstance(span, Values):
            others: Sequence[OptionValue] = [other for other in span.values if other != value]
        else:
            assert isinstance(value, int)
            few = span.high - span.low < _FEW
            steps = range(span.low, span.high + 1) if few else (value // 2, value * 2)
            others = [step for step in steps if span.low <= step <= span.high and step != value]
        for other in others:
            changed = {**options, name: other}
            yield {key: own for key, own in changed.items() if key not in space or own != defaults.get(key)}


class _Search(Race):
    """A race whose blocks, once none is left, are followed by those of another wave, in the same worker."""

    def __init__(
        self,
        asked: SearchOptions,
        setting: BenchRequest,
        store: Store,
        environment: Environment,
        plan: Plan,
        decides: SessionPlan,
        earlier: Sequence[Measured],
        watcher: Watcher,
        footprints: Footprints,
    ) -> None:
        super().__init__(Goal(budget_s=asked.budget_s), plan=decides, earlier=earlier)
        self._most, self._setting, self._watcher = asked.settings, setting, watcher
        self._store, self._environment, self._planned = store, environment, list(plan.slots())
        self._footprints, drafter = footprints, setting.arms[0][0]
        self._space = search_space(drafter)
        self._defaults = _defaults(drafter, self._space)
        self._leader: ArmResult | None = None  # of the wave before
        self._n_blocks = setting.repeats
        self.failed: dict[tuple[int, str], str] = {}  # by gamma and options, why
        self.reason = "no worker could go on; the failed trials say why"  # why the search ended

    @property
    def _tried(self) -> set[tuple[int, str]]:
        """Every setting with a trial, and those that failed, by gamma and options."""
        cases = {row.trial.case_id: row.case for row in self._trials}.values()
        return {*self.failed, *((case.gamma, _key(case.drafter.options)) for case in cases if case.gamma)}

    def more(self) -> Job | None:
        began_s = self._now_s()
        while self.stopped != "budget" and not self.is_over():
            wave = self._next()
            if wave is None:
                return None
            self._watcher.tell(_shown(wave))
            try:
                job = self._job(wave)
            except MlsdError as error:
                raced = [(gamma, _key(options)) for options in wave.options for gamma in wave.gammas]
                self.failed |= {setting: error.message for setting in raced if setting not in self._tried}
                continue
            self._prepared_s += self._now_s() - began_s
            return job
        self.reason = "the time is used up; the same command goes on from here"
        return None

    def _next(self) -> _Wave | None:
        """The wave after what was measured; None: the search is over, for this reason."""
        arms = [arm for arm in arm_results(self._trials, self._plan) if arm.standing is not None]
        # The fastest, decided or not, of those that may still win where there are any.
        leader = max(arms, key=lambda arm: (arm.effect != "slower", _speedup(arm)), default=None)
        if leader is None:
            self.reason = "no setting could be measured"
            return None
        wave, enough = self._neighbours(leader, self._leader), len(self._tried) >= self._most
        if wave is not None and not enough:
            self._leader, self._n_blocks = leader, self._setting.repeats
            return wave
        if leader.effect == "not decided yet" and self._n_blocks != _LAST_BLOCKS:
            self._n_blocks = _LAST_BLOCKS
            return _Wave((leader.case.drafter.options,), (leader.case.gamma,))
        self.reason = "the fastest setting has no neighbour that was not tried"
        if enough:
            self.reason = "as many settings as asked for were tried; --settings N goes on from here"
        return None

    def _job(self, wave: _Wave) -> Job:
        """The blocks of a wave, as memory holds its arms beside all that are open. Raises: MlsdError."""
        plain = {slot.case_id for slot in self._planned if slot.case.arm == "ar"}
        first = next_repeat(self._store, self._environment, plain)
        (load,) = plan_bench(_bench(self._setting, wave, self._n_blocks), first=first).loads
        whole_load = msgspec.structs.replace(load, slots=(*self._planned, *load.slots))
        _, (whole,) = fit_here([whole_load], footprints=self._footprints)
        self._planned += load.slots
        return msgspec.structs.replace(whole, slots=load.slots)

    def _neighbours(self, leader: ArmResult, led: ArmResult | None) -> _Wave | None:
        """The leader with its neighbours in gamma, else in one option; None where the last wave had no better."""
        gamma, options, tried = leader.case.gamma, leader.case.drafter.options, self._tried
        room = self._most - len(tried)
        beside = [g for g, other in tried if other == _key(options)]
        gammas = neighbouring_gammas(gamma, beside, self._space)[: max(room, 0)]
        if gammas and leader.effect != "slower":
            return _Wave((options,), (*gammas[:1], gamma, *gammas[1:]))
        if led is not None and led.setting == leader.setting and leader.effect == "slower":
            return None
        near = [o for o in neighbouring_options(options, self._defaults, self._space) if (gamma, _key(o)) not in tried]
        return _Wave((options, *near[:room]), (gamma,)) if near and room > 0 else None


def session_plan(setting: BenchRequest, plan: Plan) -> SessionPlan:
    """The plan of all calls of one search: they go on with one another."""
    drafter = msgspec.structs.replace(setting.arms[0][0], draft=None)  # `drafts` has it by content
    plain = next(case for case in plan.cases().values() if case.arm == "ar")
    drafts = sorted(file.ref.key for file in plan.models().values())
    prompts = [slot.case.prompt.sha256 for slot in plan.slots()]
    identity = (settings_of(plain), plain.n_predict, sorted(set(prompts)), drafts, msgspec.to_builtins(drafter))
    name = hashlib.sha256(msgspec.json.encode(identity, order="sorted")).hexdigest()[:16]
    return SessionPlan(
        id=f"tune {name}", pool="all", stopping=Stopping.SEQUENTIAL, n_threads=threads_of(setting.engine)
    )


def _speedup(arm: ArmResult) -> float:
    return 0.0 if arm.ratio is None else arm.ratio.value


def _key(options: Options) -> str:
    return msgspec.json.encode(options, order="sorted").decode()


def _shown(wave: _Wave) -> str:
    gammas = ", ".join(map(str, wave.gammas))
    named = [", ".join(f"{name}={value}" for name, value in own.items()) or "defaults" for own in wave.options]
    options = "" if named == ["defaults"] else f"; {' | '.join(named)}"
    return f"{len(wave.options) * len(wave.gammas)} settings race: gamma {gammas}{options}"
