"""Everything a report is made of, read once from the store: frames, evidence, fits, claims, audit, machine, warnings.

One machine and build at a time; what is left out is said. Draws and renders nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.rows import Audit
from mlsd.analysis.audit.trials import trials_context
from mlsd.analysis.claims.claims import ClaimVerdict, decide_all
from mlsd.analysis.fits.study_fits import CurveFit, PairFit, fit_curves, fit_pairs
from mlsd.analysis.results import distances as predictors
from mlsd.analysis.results import frames, metrics
from mlsd.analysis.results import pairs as pairing
from mlsd.analysis.study.machine_findings import Machine, read_machine
from mlsd.errors import AnalysisError
from mlsd.measure.store.rows import CalibrationPoint, DraftDistance, Run, environment_key, model_key
from mlsd.measure.store.study import Store
from mlsd.records import Case, Environment, ModelFacts, QualityWarning

T = TypeVar("T")


@dataclass(frozen=True)
class Study:
    """One machine's trials of a study database, and what was read beside them."""

    source: str  # file name of the database
    trials: pd.DataFrame
    outcomes: pd.DataFrame
    machine: Machine  # calibrations and bandwidth
    passes: dict[str, list[CalibrationPoint]]  # by target, as labelled in `trials`
    facts: dict[str, ModelFacts]  # by model, as labelled in `trials`
    runs: tuple[Run, ...]
    environment: Environment
    warnings: tuple[QualityWarning, ...]
    notes: tuple[str, ...]  # what was left out or renamed
    stats: dict[int, dict[str, float]]  # by trial: what its drafter counted and timed itself
    cases: dict[str, Case]  # by id
    distances: dict[str, DraftDistance]  # by case: how far what drafts lies from the target, where measured

    @cached_property
    def profile(self) -> str | None:
        """The profile of the latest run, which binds roles of the study to models."""
        named = [run.plan.get("profile") for run in self.runs if run.plan.get("profile")]
        return str(named[-1]) if named else None

    @cached_property
    def by_suite(self) -> list[metrics.Speedup]:
        """Speedups of each SD arm in each suite."""
        return metrics.speedups(self.trials, ("suite",))

    @cached_property
    def by_workload(self) -> list[metrics.Speedup]:
        """Speedups of each SD arm on each workload."""
        return metrics.speedups(self.trials, ("workload",))

    @cached_property
    def by_arm(self) -> list[metrics.Speedup]:
        """Speedups of each SD arm over everything."""
        return metrics.speedups(self.trials, ())

    @cached_property
    def evidence(self) -> pairing.Evidence:
        """Pairs of SD and AR trials. Raises AnalysisError when there is none."""
        columns = [column.name for column in frames.TRIALS]
        return pairing.evidence(columns, _plain_rows(self.trials), self.facts, self._ratios, self.cases)

    @property
    def _ratios(self) -> dict[int, float]:
        ids = self.trials.loc[self.trials["arm"] == "sd", ["trial_id", "case_id"]].itertuples(index=False)
        return {int(trial): self.distances[case].ratio for trial, case in ids if case in self.distances}

    @cached_property
    def pair_fits(self) -> list[PairFit]:
        """Cost models of every target and drafter."""
        return fit_pairs(self.evidence)

    @cached_property
    def curve_fits(self) -> list[CurveFit]:
        """T(k) of every target."""
        targets = list(dict.fromkeys(self.trials["target"]))
        return fit_curves(self.evidence, targets, self.passes, self.environment.peak_bandwidth_gb_s)

    @cached_property
    def claims(self) -> list[ClaimVerdict]:
        """Verdicts on the published claims."""
        return decide_all(self.evidence)

    @cached_property
    def audit(self) -> Audit:
        """Verdicts on every finished trial."""
        columns = [column.name for column in frames.TRIALS]
        return audit(self.source, trials_context(columns, _plain_rows(self.trials), self.environment, self.facts))

    @cached_property
    def contradictions(self) -> list[metrics.Contradiction]:
        """Trials whose own counts or times do not agree."""
        return metrics.contradictions(self.trials)


def attempt(read: Callable[[], T]) -> tuple[T | None, str]:
    """What `read` gives, or None and why the data cannot give it."""
    try:
        return read(), ""
    except AnalysisError as error:
        return None, str(error)


def read_study(store: Store, machine: str | None = None) -> Study:
    """Read the trials of one machine and build: `machine` (the start of an environment key), else the latest run's.

    A database of calibrations alone is a study without trials. Raises AnalysisError when the store holds neither trial
    nor calibration, or nothing of that machine.
    """
    trials = frames.trials(store)
    runs = store.runs()
    key = _choose_machine(trials, runs, machine, store.path.name)
    measured = read_machine(store, key, runs, len(trials))
    if trials.empty and not measured:
        raise AnalysisError(f"{store.path.name} holds no trials.", hint="Measure something first: mlsd run.")
    notes = _other_machines(trials, runs, key)
    own = trials[trials["environment_key"] == key].reset_index(drop=True)
    cases = store.cases()
    own, labels, renamed = _unmixed(own, cases)
    known = store.models()
    facts = {label: known[key] for label, key in labels.items() if key in known}
    if own.empty:
        facts = {facts.ref.id: facts for facts in known.values()}
    own_runs = tuple(run for run in runs if environment_key(run.environment) == key)
    case_ids = set(own["case_id"])
    run_ids = {run.id for run in own_runs}
    outcomes = frames.outcomes(store)
    return Study(
        source=store.path.name,
        trials=own,
        outcomes=outcomes[outcomes["environment_key"] == key],
        machine=measured,
        passes={label: [p for run_id, p in store.calibration(k) if run_id in run_ids] for label, k in labels.items()},
        facts=facts,
        runs=own_runs,
        environment=own_runs[-1].environment,
        warnings=tuple(
            QualityWarning(code=w.code, message=w.message, advice=w.advice, case_id=w.case_id)
            for w in store.warnings()
            if w.run_id in run_ids and (w.case_id is None or w.case_id in case_ids)
        ),
        notes=(*notes, *renamed),
        stats=_stats(store),
        cases=cases,
        distances=predictors.case_distances(store.distances(), cases),
    )


def _choose_machine(trials: pd.DataFrame, runs: list[Run], machine: str | None, source: str) -> str:
    keys = [str(key) for key in trials["environment_key"].unique()]
    if trials.empty:
        keys = list(dict.fromkeys(environment_key(run.environment) for run in runs))
        if not keys:
            raise AnalysisError(f"{source} holds no trials.", hint="Measure something first: mlsd run.")
        if machine is None:
            return environment_key(runs[-1].environment)
    if machine is None:
        latest = int(trials["run_id"].max())
        return str(trials.loc[trials["run_id"] == latest, "environment_key"].iloc[0])
    found = [key for key in keys if key.startswith(machine)]
    if len(found) != 1:
        raise AnalysisError(
            f"{'No machine' if not found else 'More than one machine'} of this study has a key that starts with "
            f"{machine!r}.",
            hint=f"Choose from {', '.join(keys)}.",
        )
    return found[0]


def _other_machines(trials: pd.DataFrame, runs: list[Run], key: str) -> list[str]:
    """One line for each machine or build whose trials are left out."""
    places = {environment_key(run.environment): run.environment for run in runs}
    notes = []
    for other, count in Counter(trials["environment_key"]).items():
        if other != key:
            place = places.get(other)
            words = (
                "" if place is None else f" ({place.chip or place.machine}, {place.backend}, {place.llama_cpp_build})"
            )
            notes.append(
                f"{count} trials of another machine or build{words} are left out: times of different machines are "
                f"never mixed. Report on them with --machine {other}."
            )
    return notes


def _unmixed(trials: pd.DataFrame, cases: dict[str, Case]) -> tuple[pd.DataFrame, dict[str, str], list[str]]:
    """The trials with a label of their own for each target that one id names in several kinds; label -> model key."""
    named = {case_id: case.target for case_id, case in cases.items()}
    kinds = trials.groupby("target")["comparable"].nunique()
    mixed = set(kinds[kinds > 1].index)
    notes = []
    if mixed:
        trials = trials.copy()
        own = trials["target"].isin(mixed)
        trials.loc[own, "target"] = trials.loc[own, "target"] + " [" + trials.loc[own, "comparable"].str[:6] + "]"
        notes = [
            f"{target} was measured with different files, samplings or engine options; each kind stands by itself, "
            "with a mark behind its name."
            for target in sorted(mixed)
        ]
    labels = {}
    for label, case_id in trials.drop_duplicates("target")[["target", "case_id"]].itertuples(index=False):
        labels[str(label)] = model_key(named[case_id].sha256, named[case_id].id)
    for case in cases.values():
        if case.drafter.draft is not None:
            labels.setdefault(case.drafter.draft.id, model_key(case.drafter.draft.sha256, case.drafter.draft.id))
    return trials, labels, notes


def _stats(store: Store) -> dict[int, dict[str, float]]:
    from mlsd.measure.store.rows import TrialFilter

    chosen = TrialFilter(arm="sd", status="ok", valid=True)
    return {stored.id: stored.trial.stats for stored in store.trials(chosen, rounds=False)}


def _plain_rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Rows of plain Python values, None where a value is missing."""
    columns = [frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns]
    return list(zip(*columns, strict=True))
