"""Stored trials as arms of one target, drafter and prompt: what predictions and advice read."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

from mlsd.analysis.predict.predict import Costs, MeasuredGamma, costs_from_points
from mlsd.analysis.results.comparability import Chosen, choose, left_out, machines, refuted_words
from mlsd.errors import AnalysisError
from mlsd.records import CONTROLS, Case, ModelFacts, ModelRef, OptionValue, Record, Trial
from mlsd.stats import grouped
from mlsd.store.rows import CalibrationPoint, Coverage, PassKind, TrialFilter, environment_key
from mlsd.store.sessions import latest, sessions
from mlsd.store.store import Store
from mlsd.trials.answers import Answer, answers
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import speed

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_CURVE = 3  # different k that make a curve


class ArmGroup(Record, frozen=True, kw_only=True):
    """Plain decoding and every gamma of one drafter on one prompt, on one machine and build."""

    environment_key: str
    target: ModelRef
    drafter: str
    draft: ModelRef | None
    options: dict[str, OptionValue] = msgspec.field(default_factory=dict)  # of the drafter
    prompt: str
    workload: str | None
    arms: tuple[MeasuredGamma, ...]  # gamma 0 first

    @property
    def draft_id(self) -> str | None:
        return None if self.draft is None else self.draft.id


class Known(Record, frozen=True, kw_only=True):
    """What study databases hold for advice, of all of them together."""

    groups: tuple[ArmGroup, ...]
    passes: dict[tuple[str, str], tuple[CalibrationPoint, ...]]  # (environment, model key) -> the newest of each kind
    coverage: dict[str, tuple[Coverage, ...]]  # by model key
    models: dict[str, ModelFacts]  # by model key
    notes: tuple[str, ...] = ()  # which rows of the databases do not count
    measured: dict[str, tuple[ArmResult, ...]] = msgspec.field(
        default_factory=dict
    )  # by environment; see `measured_on`

    def measured_on(self, environment_key: str, target_id: str, workload: str | None) -> tuple[ArmResult, ...]:
        """What trials of this machine say of a target's settings on a workload, or on all together; decided or not."""
        own = [
            one
            for one in self.measured.get(environment_key, ())
            if one.case.target.id == target_id and not one.is_plain and not one.control and one.ratio is not None
            if not one.case.drafter.options
        ]
        everything = {text for one in own for text in one.workloads}
        if workload is None:
            return tuple(one for one in own if everything == {*one.workloads})
        return tuple(one for one in own if workload in (one.text, *one.workloads))

    def answers_on(self, environment_key: str, target_id: str) -> tuple[Answer, ...]:
        """What is to be said of a target's trials on this machine, as every other surface says it."""
        own = self.measured.get(environment_key, ())
        return tuple(answers(one for one in own if one.case.target.id == target_id))

    def costs(self, environment_key: str, target: ModelRef, draft: ModelRef | None) -> Costs | None:
        """Calibrated costs of a pair on a machine; None where the target, or the draft it needs, was not timed."""
        of_target = self.passes.get((environment_key, target.key))
        of_draft = self.passes.get((environment_key, draft.key)) if draft is not None else ()
        if not of_target or of_draft is None:
            return None
        try:
            costs = costs_from_points(of_target, of_draft)
        except AnalysisError:  # timed as a draft only
            return None
        return costs if draft is None or costs.catch_up_ms else None


def read_known(
    stores: Iterable[Store], refuted: Callable[[Store, Chosen], Mapping[int, str]] = lambda store, chosen: {}
) -> Known:
    """Everything in these databases that advice can use, of each machine the settings of most trials.

    Acceptance does not depend on the machine; costs are only taken of the one that is asked about. `refuted` gives the
    ids of trials that do not count.
    """
    notes: list[str] = []
    groups: list[ArmGroup] = []
    passes: dict[tuple[str, str], tuple[CalibrationPoint, ...]] = {}
    coverage: dict[str, tuple[Coverage, ...]] = {}
    models: dict[str, ModelFacts] = {}
    measured: dict[str, tuple[ArmResult, ...]] = {}
    for store in stores:
        chosen = [choose(store, machine) for machine in machines(store)]
        for one in chosen:
            wrong = refuted(store, one)
            groups += read_groups(store, one, wrong)
            found = sessions(store, keep=one.keeps, not_valid=wrong)
            own = latest(arm for session in found for arm in session.results())
            own = [arm for arm in own if not any(one.id in wrong for one in arm.trials)]
            notes += [refuted_words(len(wrong), str(store.path))] if wrong else []
            measured[one.environment_key] = (*measured.get(one.environment_key, ()), *own)
        models |= store.models()
        notes += left_out(store)
        passes |= newest_passes(store, frozenset().union(*(one.other_calibrations for one in chosen)))
        coverage |= newest(store.figures(Coverage), lambda row: row.model_key)
    return Known(
        groups=tuple(groups), passes=passes, coverage=coverage, models=models, notes=tuple(notes), measured=measured
    )


def read_groups(store: Store, chosen: Chosen, without: Container[int] = ()) -> list[ArmGroup]:
    """Valid greedy trials that may be compared, by drafter and prompt; groups without plain decoding are left out."""
    plain: dict[bytes, list[Trial]] = {}
    speculative: dict[bytes, dict[bytes, list[Trial]]] = {}
    places: dict[bytes, Case] = {}
    for stored in store.trials(TrialFilter(valid=True)):
        trial = stored.trial
        if not chosen.keeps(stored) or stored.id in without or not trial.decode_ns:
            continue
        case = chosen.cases[trial.case_id]
        left_out = case.source != "engine" or case.drafter.name in CONTROLS
        if not case.sampling.greedy or left_out:
            continue
        place = msgspec.json.encode((case.target, case.prompt, case.n_predict))
        if case.arm == "ar":
            plain.setdefault(place, []).append(trial)
            continue
        drafter = msgspec.json.encode((case.drafter, case.rollback))
        speculative.setdefault(place, {}).setdefault(drafter, []).append(trial)
        places[place + drafter] = case
    return [
        _group(chosen.environment_key, places[place + drafter], plain[place], trials)
        for place, drafters in speculative.items()
        for drafter, trials in drafters.items()
        if place in plain
    ]


def _group(environment_key: str, case: Case, plain: list[Trial], trials: list[Trial]) -> ArmGroup:
    by_gamma = {0: plain} | {g: [t for t in trials if t.gamma == g] for g in sorted({t.gamma for t in trials})}
    return ArmGroup(
        environment_key=environment_key,
        target=case.target,
        drafter=case.drafter.name,
        draft=case.drafter.draft,
        options=case.drafter.options,
        prompt=case.prompt.key,
        workload=case.prompt.workload,
        arms=tuple(_arm(gamma, own) for gamma, own in by_gamma.items()),
    )


def _arm(gamma: int, trials: list[Trial]) -> MeasuredGamma:
    speeds = map(speed, trials)
    return MeasuredGamma(
        gamma=gamma,
        rounds=tuple(t.rounds for t in trials),
        tok_s=tuple(s for s in speeds if s is not None),
    )


def newest_passes(store: Store, without: Container[int] = ()) -> dict[tuple[str, str], tuple[CalibrationPoint, ...]]:
    """The newest points of each model by machine: of every kind of pass those of the newest run that timed it.

    A model that is calibrated as a target and then as a draft keeps both: target passes are those of the newest run
    that timed a curve, where one did. Runs of `without` do not count.
    """
    machines = {run.id: environment_key(run.environment) for run in store.runs()}
    kinds: dict[tuple[str, str], dict[PassKind, dict[int, list[CalibrationPoint]]]] = {}
    for run_id, point in store.figures(CalibrationPoint):
        if run_id in without:
            continue
        own = kinds.setdefault((machines[run_id], point.model_key), {})
        own.setdefault(point.kind, {}).setdefault(run_id, []).append(point)
    return {place: tuple(p for by_run in own.values() for p in _newest(by_run)) for place, own in kinds.items()}


def _newest(by_run: dict[int, list[CalibrationPoint]]) -> list[CalibrationPoint]:
    whole = [run_id for run_id, points in by_run.items() if is_curve(points)]
    return by_run[max(whole or by_run)]


def is_curve(points: Iterable[CalibrationPoint]) -> bool:
    """Whether T(1) and T(k) at two more k were timed; of a draft fewer are."""
    widths = {p.rows for p in points if p.kind == "target_pass"}
    return 1 in widths and len(widths) >= _CURVE


def newest(
    rows: Iterable[tuple[int, T]], key: Callable[[T], K], runs: Container[int] | None = None
) -> dict[K, tuple[T, ...]]:
    """Of rows with their run, by key those of the newest run, of these or of all."""
    groups = grouped((row for row in rows if runs is None or row[0] in runs), lambda row: key(row[1]))
    last = {place: max(run_id for run_id, _ in own) for place, own in groups.items()}
    return {place: tuple(row for run_id, row in own if run_id == last[place]) for place, own in groups.items()}
