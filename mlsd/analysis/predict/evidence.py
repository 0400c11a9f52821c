"""What study databases hold for advice: arms as they were measured, timed passes, and models."""

from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from typing import TypeVar

from mlsd.analysis.predict.costs import Costs, costs_from_points
from mlsd.analysis.results.comparability import choose, left_out, machines, refuted_words
from mlsd.analysis.results.widths import Certificate, certificates
from mlsd.errors import AnalysisError
from mlsd.records import Environment, ModelFacts, ModelRef, Record
from mlsd.stats import grouped
from mlsd.store.rows import CalibrationPoint, Coverage, PassKind, environment_key
from mlsd.store.sessions import judged, latest, sessions_of
from mlsd.store.store import Store
from mlsd.trials.results import ArmResult, Measured

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_CURVE = 3  # different k that make a curve


class Evidence(Record, frozen=True, kw_only=True):
    """What databases hold, of all of them together."""

    arms: Mapping[str, tuple[ArmResult, ...]] = {}  # by environment
    # (environment, model key) -> the newest of each kind
    passes: Mapping[tuple[str, str], tuple[CalibrationPoint, ...]] = {}
    coverage: Mapping[str, tuple[Coverage, ...]] = {}  # by model key
    widths: Mapping[tuple[str, str], Certificate] = {}  # likewise
    models: Mapping[str, ModelFacts] = {}  # by model key
    notes: tuple[str, ...] = ()  # which rows of the databases do not count

    def of(self, target: ModelRef, environment: str | None = None) -> list[ArmResult]:
        """Every arm of a target by its content, or its id where a hash is not known, of one machine or of all."""
        places = self.arms.values() if environment is None else [self.arms.get(environment, ())]
        return [arm for arms in places for arm in arms if same_model(arm.case.target, target)]

    def costs(self, environment: str, target: ModelRef, draft: ModelRef | None) -> Costs | None:
        """Calibrated costs of a pair on a machine; None where the target, or the draft it needs, was not timed."""
        of_target = self.passes.get((environment, target.key))
        of_draft = self.passes.get((environment, draft.key)) if draft is not None else ()
        if not of_target or of_draft is None:
            return None
        try:
            costs = costs_from_points(of_target, of_draft)
        except AnalysisError:  # timed as a draft only
            return None
        return costs if draft is None or costs.catch_up_ms else None


def same_model(model: ModelRef, other: ModelRef) -> bool:
    """Whether two are one file by its content; where either's hash is not known, by their ids."""
    return model.sha256 == other.sha256 if model.sha256 and other.sha256 else model.id == other.id


def predictable(arms: Iterable[ArmResult]) -> list[ArmResult]:
    """Arms of our own engine that rounds can be predicted from: greedy, timed, no controls, with valid trials."""
    return [
        arm
        for arm in arms
        if arm.case.source == "engine" and arm.case.sampling.greedy and not arm.control
        if arm.n_valid and arm.timed_whole.rounds
    ]


def read_evidence(
    stores: Iterable[Store],
    refuted: Callable[
        [Iterable[Measured], Environment, Mapping[str, ModelFacts]], Mapping[int, str]
    ] = lambda trials, environment, models: {},
) -> Evidence:
    """Everything in these databases that advice can use, of each machine the settings of most trials.

    Acceptance does not depend on the machine; costs are only taken of the one that is asked about. `refuted` gives the
    ids of trials that do not count.
    """
    notes: list[str] = []
    timed: Timed = {}
    models: dict[str, ModelFacts] = {}
    widths: dict[tuple[str, str], Certificate] = {}
    arms: dict[str, tuple[ArmResult, ...]] = {}
    for store in stores:
        chosen = [choose(store, key) for key in machines(store)]
        for machine in chosen:
            trials = list(filter(machine.keeps, store.trials(rounds=False)))
            invalid = refuted(trials, machine.environment, machine.models)
            sessions = sessions_of(judged(trials, invalid), store.runs())
            results = latest(arm for session in sessions for arm in session.results())
            results = [arm for arm in results if not any(machine.id in invalid for machine in arm.trials)]
            notes += [refuted_words(len(invalid), str(store.path))] if invalid else []
            arms[machine.environment_key] = (*arms.get(machine.environment_key, ()), *results)
        models |= store.models()
        widths |= certificates(store)
        notes += left_out(store)
        for timing, measured in _timed(
            store, frozenset().union(*(machine.other_calibrations for machine in chosen))
        ).items():
            timed.setdefault(timing, []).extend(measured)
    return Evidence(arms=arms, passes=_newest(timed), widths=widths, models=models, notes=tuple(notes))


# By machine, model and kind of pass what runs timed, each with how it compares: a curve is better, then the later run.
Timed = dict[tuple[str, str, PassKind], list[tuple[tuple[bool, str, int], tuple[CalibrationPoint, ...]]]]


def newest_passes(store: Store, without: Container[int] = ()) -> dict[tuple[str, str], tuple[CalibrationPoint, ...]]:
    """The newest points of each model by machine: of every kind of pass those of the newest run that timed it."""
    return _newest(_timed(store, without))


def _newest(timed: Timed) -> dict[tuple[str, str], tuple[CalibrationPoint, ...]]:
    passes: dict[tuple[str, str], tuple[CalibrationPoint, ...]] = {}
    for (machine, model, _), runs in timed.items():
        _, points = max(runs, key=lambda run: run[0])
        passes[machine, model] = (*passes.get((machine, model), ()), *points)
    return passes


def _timed(store: Store, without: Container[int]) -> Timed:
    """By machine, model and kind of pass what each run timed. Runs of `without` do not count.

    A model that is calibrated as a target and then as a draft keeps both.
    """
    runs = {run.id: run for run in store.runs()}
    rows = [(run_id, point) for run_id, point in store.figures(CalibrationPoint) if run_id not in without]
    timings: Timed = {}
    for (run_id, model, kind), same_run in grouped(rows, lambda row: (row[0], row[1].model_key, row[1].kind)).items():
        points = tuple(point for _, point in same_run)
        timing = (environment_key(runs[run_id].environment), model, kind)
        timings.setdefault(timing, []).append(((is_curve(points), runs[run_id].started_at, run_id), points))
    return timings


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
