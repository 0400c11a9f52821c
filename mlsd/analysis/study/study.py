"""Everything a report is made of, read once from the store: frames, pairs, fits, claims, audit, machine, warnings.

One machine and build at a time; `notes` name what is left out. Draws and renders nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mlsd.analysis import frames
from mlsd.analysis.claims.claims import ClaimVerdict, decide_all
from mlsd.analysis.compare.sessions import Comparison, sessions
from mlsd.analysis.fits.calibration import pass_times
from mlsd.analysis.fits.study_fits import CurveFit, PairFit, fit_curves, fit_pairs
from mlsd.analysis.pairs import PairedTrials, pair_trials
from mlsd.analysis.results import comparability
from mlsd.analysis.results import distances as predictors
from mlsd.analysis.study.equations import Equations, equations
from mlsd.analysis.study.machine_findings import Machine, read_machine
from mlsd.analysis.study.traffic import Pass, plain_tokens
from mlsd.audits.rows import Audit
from mlsd.audits.trials import refuted, trials_context
from mlsd.errors import AnalysisError
from mlsd.records import Case, Environment, ModelFacts, QualityWarning, Status
from mlsd.store.rows import DraftDistance, Run
from mlsd.store.sessions import SessionTrials, judged, latest, sessions_of
from mlsd.store.store import Store
from mlsd.trials.fields import ARM
from mlsd.trials.identities import Broken
from mlsd.trials.on_or_off import Answer, answers, by_target, first_line
from mlsd.trials.results import ArmResult, Measured, order
from mlsd.units import counted

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


@dataclass(frozen=True)
class Study:
    """One machine's trials of a study database, and what was read beside them."""

    source: str  # path of the database, as hints name it
    stored: tuple[Measured, ...]  # its trials as they are stored, without their rounds
    machine: Machine  # calibrations and bandwidth
    facts: dict[str, ModelFacts]  # by model
    runs: tuple[Run, ...]
    environment: Environment
    warnings: tuple[QualityWarning, ...]
    left_out: tuple[str, ...]  # trials that may not be compared with these, and how to choose them
    cases: dict[str, Case]  # that count, by id
    impossible: dict[int, Broken]  # trials of the database that cannot be, by id, of which nothing here is made
    distances: dict[str, DraftDistance]  # by case: how far what drafts lies from the target, where measured
    comparisons: tuple[Comparison, ...] = ()  # of builds or settings, whichever machine and build they ran on
    other_machines: tuple[Study, ...] = ()  # the other machines of the database, never pooled with this one

    @property
    def machine_name(self) -> str:
        """The machine as a reader tells it from others."""
        machine, backend = self.environment.chip or self.environment.machine, self.environment.backend
        return f"{machine} ({backend})" if backend else machine

    @cached_property
    def targets(self) -> list[str]:
        """In the order of measuring."""
        return list(dict.fromkeys(one.case.target.id for one in self.stored))

    @cached_property
    def profile(self) -> str | None:
        """The profile of the latest run, which binds roles of the study to models."""
        return next((str(profile) for run in reversed(self.runs) if (profile := run.plan.get("profile"))), None)

    @cached_property
    def refuted(self) -> dict[int, str]:
        """Trials that no machine can have measured, though all their identities hold: they are not valid here."""
        return refuted(self.stored, self.environment, self.facts)

    @cached_property
    def judged(self) -> list[Measured]:
        """The trials, those that are refuted as such."""
        return list(judged(self.stored, self.refuted))

    @cached_property
    def _sessions(self) -> list[SessionTrials]:
        return sessions_of(self.judged, self.runs)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What was left out, and how to choose it."""
        lines = list(self.left_out)
        for status in (Status.INVALID, Status.DISTURBED):
            if n := sum(one.trial.status is status for one in self.stored):
                lines.append(f"No speedup, fit or claim uses the {counted(n, f'{status.value} trial')}.")
        if self.refuted:
            lines.append(comparability.refuted_words(len(self.refuted), self.source))
        return tuple(lines)

    @cached_property
    def results(self) -> list[ArmResult]:
        """Every arm of every question, by target; of what several sessions measured the latest."""
        return self._in_order(latest(arm for arms in self._by_session for arm in arms))

    @cached_property
    def _by_session(self) -> list[list[ArmResult]]:
        return [session.results() for session in self._sessions]

    @cached_property
    def pooled(self) -> list[ArmResult]:
        """The same with the workloads of a suite as one."""
        by_session = zip(self._sessions, self._by_session, strict=True)
        pooled = (session.pooled() if session.plan.pool == "workload" else arms for session, arms in by_session)
        return self._in_order(latest(arm for arms in pooled for arm in arms))

    @cached_property
    def plain_by_target(self) -> dict[str, ArmResult]:
        """Plain decoding of each target over all its texts, by its id: of suites A and C, else of the first suite."""
        by_target: dict[str, ArmResult] = {}
        for arm in sorted(self.pooled, key=lambda arm: arm.question.suite not in ("A", "C")):
            if arm.is_plain and arm.tok_s is not None:
                by_target.setdefault(arm.case.target.id, arm)
        return by_target

    def _in_order(self, arms: list[ArmResult]) -> list[ArmResult]:
        questions = list(dict.fromkeys((one.question.suite, one.text, one.question.n_predict) for one in arms))

        def key(arm: ArmResult) -> tuple[Any, ...]:
            where = questions.index((arm.question.suite, arm.text, arm.question.n_predict))
            return self.targets.index(arm.case.target.id), where, *order(arm)

        return sorted(arms, key=key)

    @cached_property
    def answers(self) -> list[Answer]:
        return answers(self.results)

    @property
    def answer(self) -> str:
        """Which setting to use: at a glance, then for each target."""
        return "\n".join((first_line(self.answers), *by_target(self.answers)))

    @cached_property
    def paired(self) -> PairedTrials:
        """Pairs of SD and AR trials. Raises AnalysisError when no trial was measured."""
        ratios = {case: distance.ratio for case, distance in self.distances.items() if self.cases[case].arm == "sd"}
        memory, _ = attempt(lambda: self.machine.bandwidth)
        return pair_trials(
            self.results,
            self.facts,
            {one.id: ratios[case] for one in self.stored if (case := one.trial.case_id) in ratios},
            machine_name=self.machine_name,
            profile=self.profile,
            memory_gb_s=None if memory is None else memory.best_gb_s,
        )

    @cached_property
    def pair_fits(self) -> list[PairFit]:
        return fit_pairs(self.paired)

    @cached_property
    def curve_fits(self) -> list[CurveFit]:
        timed = self.machine.timed
        passes = {name: timed[facts.ref.key] for name, facts in self.facts.items() if facts.ref.key in timed}
        return fit_curves(passes, self.facts, self.environment.peak_bandwidth_gb_s)

    @cached_property
    def verdicts(self) -> list[ClaimVerdict]:
        """Every published claim, decided on these trials."""
        return decide_all(self.paired)

    @cached_property
    def predictions(self) -> list[Equations]:
        """Equations 1 and 2 of the study, and the corrected form, with measured inputs."""
        costs, key = self.machine.evidence, self.machine.key
        return equations(self.pooled, self.pairs, lambda arm: costs.costs(key, arm.case.target, arm.case.drafter.draft))

    @cached_property
    def read_passes(self) -> list[Pass]:
        """What plain tokens, timed passes and `mlsd calibrate memory` read, and what this machine gives at most."""
        curves, _ = attempt(lambda: self.machine.timed_passes)
        memory, _ = attempt(lambda: self.machine.bandwidth)
        roof, _ = attempt(lambda: self.machine.roof)
        passes = [*plain_tokens(self.pooled, self.facts), *(curves or ()), *(memory.reads if memory else ())]
        return [msgspec.structs.replace(one, roof=roof) for one in passes]

    # --- the same as frames; docs/data.md has every column ---

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row a trial."""
        return frames.trials(self.judged, self.runs)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Every round of the valid trials; only now they are read."""
        return self._of_valid(frames.rounds)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Each speculative trial beside plain decoding of its block, with what the models' files say."""
        paired, _ = attempt(lambda: self.paired)
        return frames.pairs((), {}) if paired is None else paired.pairs

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """Rounds of valid trials by how many tokens they proposed and accepted; only now they are read."""
        return self._of_valid(frames.outcomes)

    def _of_valid(self, read: Callable[[Store, set[int]], pd.DataFrame]) -> pd.DataFrame:
        valid = {stored.id for stored in self.judged if stored.trial.valid}
        with Store.open(Path(self.source), create=False, read_only=True) as store:
            return read(store, valid)

    @cached_property
    def arms(self) -> pd.DataFrame:
        """Each arm on each text, then over all texts of a suite."""
        pooled = [one for one in self.pooled if len(one.workloads) > 1]
        return frames.frame_of([*self.results, *pooled], ARM)

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Plain decoding of each target over all its texts, as table 4 of the page has it."""
        arms = self.plain_by_target
        return frames.frame_of((arms[target] for target in self.targets if target in arms), frames.BASELINES)

    @cached_property
    def passes(self) -> pd.DataFrame:
        """T(k) and every other pass that was timed."""
        timed = {self.machine.name_of(key): pass_times(points) for key, points in self.machine.timed.items()}
        return frames.of_passes(timed)

    @cached_property
    def bandwidth(self) -> pd.DataFrame:
        """What each pass reads, how fast, and what memory gave."""
        return frames.frame_of(self.read_passes, frames.BANDWIDTH)

    @cached_property
    def experts(self) -> pd.DataFrame:
        """Experts counted in windows of k tokens, beside what theories expect."""
        mixtures, _ = attempt(lambda: self.machine.mixtures)
        return frames.of_mixtures(mixtures or ())

    @cached_property
    def claims(self) -> pd.DataFrame:
        """Every published claim with its decision here."""
        verdicts, _ = attempt(lambda: self.verdicts)
        return frames.frame_of(verdicts or (), frames.CLAIMS)

    @cached_property
    def equations(self) -> pd.DataFrame:
        """Speedups that the study's equations give with measured inputs, beside measured ones."""
        return frames.frame_of(self.predictions, frames.EQUATIONS)

    @cached_property
    def audit(self) -> Audit:
        """Whether each row can be true, with what is doubted of it."""
        from mlsd.audits.check import audit

        rows = trials_context(self.stored, self.environment, self.facts, broken=self.impossible)
        return audit(self.source, rows, possible=False)


def attempt(read: Callable[[], T]) -> tuple[T | None, str]:
    """What `read` gives, or None and why the data cannot give it."""
    try:
        return read(), ""
    except AnalysisError as error:
        return None, str(error)


def read_study(store: Store, machine: str | None = None, settings: str | None = None, *, others: bool = True) -> Study:
    """Read the trials that may be compared, and what was measured beside them; see `comparability` for the arguments.

    With `others` the other machines of the database stand beside it, each as a study of its own.
    A database of calibrations alone is a study without trials. Raises AnalysisError when the store holds neither trial
    nor calibration, or nothing of that machine or with those settings.
    """
    return study_of(store, comparability.choose(store, machine, settings), others=others)


def study_of(store: Store, chosen: comparability.Chosen, *, others: bool = True) -> Study:
    """The same of trials that were chosen."""
    stored, measured = tuple(filter(chosen.keeps, store.trials(rounds=False))), read_machine(store, chosen)
    if not stored and not measured:
        raise AnalysisError(f"{store.path} holds no trials.", hint="Measure something first: mlsd run.")
    run_ids = {run.id for run in chosen.runs}
    return Study(
        source=str(store.path),
        stored=stored,
        machine=measured,
        facts=dict(chosen.models),
        runs=chosen.runs,
        environment=chosen.environment,
        warnings=tuple(
            QualityWarning(code=w.code, message=w.message, advice=w.advice, case_id=w.case_id)
            for w in store.warnings()
            if w.run_id in run_ids and (w.case_id is None or w.case_id in chosen.cases)
        ),
        left_out=chosen.notes,
        cases=dict(chosen.cases),
        impossible=store.impossible,
        distances=predictors.case_distances(store.distances(), chosen.cases),
        comparisons=sessions(store),
        other_machines=tuple(
            read_study(store, key, others=False)
            for key in (comparability.machines(store) if others else ())
            if key != chosen.environment_key
        ),
    )
