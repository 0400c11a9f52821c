"""Audit rows from a study database: mlsd's own trials, whose counts are exact."""

from collections.abc import Iterable, Mapping, Sequence

from mlsd.analysis.results.comparability import choose
from mlsd.audits.cells import AS_PLAIN
from mlsd.audits.printed import Printed, exact
from mlsd.audits.rows import AuditContext, AuditRow
from mlsd.errors import AnalysisError
from mlsd.records import NO_DRAFTER, Environment, ModelFacts, Status
from mlsd.store.store import Store
from mlsd.trials.acceptance_meanings import loop_of
from mlsd.trials.arms import options_text
from mlsd.trials.identities import Broken
from mlsd.trials.rates import speed
from mlsd.trials.results import Measured


def database_context(store: Store, machine: str | None = None, settings: str | None = None) -> AuditContext:
    """The context of the trials that may be compared. Raises: AnalysisError when the database holds none."""
    chosen = choose(store, machine, settings)
    trials = filter(chosen.keeps, store.trials(rounds=False))
    return trials_context(trials, chosen.environment, chosen.models, chosen.notes, store.impossible)


def trials_context(
    trials: Iterable[Measured],
    environment: Environment | None = None,
    models: Mapping[str, ModelFacts] | None = None,
    notes: tuple[str, ...] = (),
    broken: Mapping[int, Broken] | None = None,
) -> AuditContext:
    """The context of trials and of those that cannot be, by id (`broken`): of their figures none is believed.

    Failed trials are left out. Raises AnalysisError when there is no other.
    """
    measured = list(trials)
    finished = [one for one in measured if one.trial.status is not Status.FAILED]
    if not finished and not broken:
        raise AnalysisError("The study contains no finished trials.", hint="Measure first: mlsd run.")
    failed = len(measured) - len(finished)
    facts = (models or {}).values()
    impossible = (
        AuditRow(table="left out", label=f"trial {trial_id}", target="", cannot_be=found.sentence)
        for trial_id, found in (broken or {}).items()
    )
    return AuditContext(
        rows=(*map(trial_row, finished), *impossible),
        peak_gb_s=None if environment is None else environment.peak_bandwidth_gb_s,
        pass_bytes={f.ref.id: float(f.active_bytes) for f in facts if f.active_bytes is not None},
        notes=(*notes, *([f"{failed} failed trials were left out."] if failed else [])),
    )


def refuted(trials: Iterable[Measured], environment: Environment, models: Mapping[str, ModelFacts]) -> dict[int, str]:
    """By id the valid trials that no machine can have measured, though all their identities hold: the reason."""
    measured = list(trials)
    if not _may_break_a_bound(measured, environment.peak_bandwidth_gb_s, models):
        return {}
    from mlsd.audits.check import BOUNDS
    from mlsd.audits.frame import frame

    rows = frame(trials_context(measured, environment, models))
    broken = {at for rule in BOUNDS for at, kind in rule(rows)["kind"].items() if kind == "impossible"}
    labels = rows["label"][[*broken]][rows["comparable"]]
    return {int(label.removeprefix("trial ")): "it cannot be true (mlsd audit)" for label in labels}


_LEAST_BREACH = 1.08  # of a bound: eight times the least noise between repeats that the audit assumes


def _may_break_a_bound(measured: Sequence[Measured], peak_gb_s: float | None, models: Mapping[str, ModelFacts]) -> bool:
    """Whether the audit may find any of these trials impossible; it is asked only then, since it takes most of a second
    for 10,000 trials.

    Of a round's time ``MGL / tok/s`` the audit takes its drafts and a plain pass, and what the target's and its drafts'
    bytes take of the peak bandwidth; it gives more slack than `_LEAST_BREACH`, never less.
    """
    trusted = [row for row in measured if row.trial.valid and not row.trial.failed_native_calls]
    plain: dict[tuple[object, ...], float] = {}
    for trial in trusted:
        if trial.case.drafter.name == NO_DRAFTER:
            question = _baseline_of(trial)
            plain[question] = max(plain.get(question, 0.0), speed(trial.trial) or 0.0)
    giga = {name: facts.active_bytes / 1e9 for name, facts in models.items() if facts.active_bytes is not None}
    for trial in trusted:
        case, whole, tok_s = trial.case, trial.whole, speed(trial.trial) or 0.0
        mgl, proposed = 1.0, 0.0
        if case.drafter.name != NO_DRAFTER:
            base = plain.get(_baseline_of(trial))
            if not base or not whole.mgl or case.arm != "sd":
                return True
            mgl, draft_s = whole.mgl, whole.draft_ns / whole.rounds / 1e9
            proposed = max(case.gamma, mgl - 1.0)
            rate = 1.0 if whole.acceptance_rate is None else whole.acceptance_rate
            if tok_s / base + tok_s * draft_s > _LEAST_BREACH * mgl or (case.gamma and mgl > 2.0 + case.gamma * rate):
                return True
        if peak_gb_s is not None and case.target.id in giga:
            draft_giga = giga.get(case.drafter.draft.id, 0.0) if case.drafter.draft else 0.0
            if (giga[case.target.id] + draft_giga * proposed) * tok_s > _LEAST_BREACH * mgl * peak_gb_s:
                return True
    return False


def _baseline_of(measured: Measured) -> tuple[object, ...]:
    """Equal for a trial and the plain trials by whose fastest the audit judges it first."""
    case = measured.case
    return case.target.id, case.prompt.key, measured.trial.n_prompt, case.n_predict, case.server


def trial_row(measured: Measured) -> AuditRow:
    """One trial as the audit reads it."""
    case, trial, sums = measured.case, measured.trial, measured.whole
    speculative, gamma, draft = case.arm == "sd", trial.gamma, case.drafter.draft
    counted = speculative and sums.rounds > 0
    reason = None if trial.valid else trial.reason or "no reason recorded"
    if trial.valid and trial.failed_native_calls:  # its output was found to be right all the same
        reason = f"{trial.failed_native_calls} native calls failed"
    return AuditRow(
        table=case.suite,
        label=f"trial {measured.id}",
        target=case.target.id,
        drafter=case.drafter.name,
        draft=None if draft is None else draft.id,
        options=options_text(case.drafter),
        gamma=gamma or None if speculative else None,  # of a server nobody may know it
        prompt=case.prompt.key,
        n_prompt=trial.n_prompt,
        n_predict=case.n_predict,
        repeat=trial.repeat,
        tok_s=_exact(speed(trial)),
        acceptance=_exact(sums.acceptance_rate if counted else None),
        acceptance_of="proposed",
        mgl=_exact(sums.mgl if counted else None),
        rounds=_exact(float(sums.rounds) if counted else None),
        n_output=trial.n_tokens,
        draft_ms=_exact(sums.ms_per_round["draft"] if counted and trial.decode_ns is not None else None),
        program=case.server or "mlsd",
        # A draft model proposes gamma tokens each round but for the tail that the output has no room for.
        fixed_length=counted and draft is not None and gamma > 0 and sums.proposed >= gamma * (sums.rounds - gamma),
        lossless=trial.losslessness is not None and trial.losslessness.verdict in AS_PLAIN,
        loop=loop_of(trial.tokens),
        failed_native_calls=0 if trial.valid else trial.failed_native_calls,
        invalid_reason=reason,
    )


def _exact(value: float | None) -> Printed | None:
    return None if value is None else exact(value)
