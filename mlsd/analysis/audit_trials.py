"""Audit rows from mlsd's own trials: counts are exact, so nothing is left to guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlsd.analysis.audit_rows import AuditContext, AuditRow
from mlsd.analysis.printed import exact
from mlsd.analysis.trials import numbers
from mlsd.records import Case, Environment, ModelFacts, Trial


def trial_row(case: Case, trial: Trial, table: str = "trials") -> AuditRow:
    """One measured trial as the audit reads it."""
    n = numbers(trial)
    full = n.n_rounds > 0 and n.proposed >= case.gamma * (n.n_rounds - case.gamma) and case.drafter.draft is not None
    return AuditRow(
        table=table,
        label=f"{trial.case_id} block {trial.block}",
        target=case.target.id,
        drafter=case.drafter.name,
        draft=None if case.drafter.draft is None else case.drafter.draft.id,
        gamma=case.gamma if case.arm == "sd" else None,
        prompt=case.prompt.key,
        n_prompt=trial.n_prompt,
        n_predict=case.n_predict,
        repeat=trial.repeat,
        tok_s=None if not n.decode_tok_s else exact(n.decode_tok_s),
        acceptance=None if n.acceptance_rate is None else exact(n.acceptance_rate),
        mgl=exact(n.mgl) if n.mgl is not None and case.arm == "sd" else None,
        rounds=exact(n.n_rounds) if n.n_rounds and case.arm == "sd" else None,
        draft_ms=exact(n.draft_ns / n.n_rounds / 1e6) if n.n_rounds and case.arm == "sd" else None,
        fixed_length=full,
        program="mlsd",
        failed_native_calls=trial.failed_native_calls,
        invalid_reason=trial.invalid_reason,
        decode_ms=None if trial.decode_ns is None else trial.decode_ns / 1e6,
        parts_ms=sum(r.wall_ns for r in trial.rounds) / 1e6 if trial.rounds else None,
    )


def trials_context(
    pairs: Iterable[tuple[Case, Trial]],
    environment: Environment | None = None,
    models: Mapping[str, ModelFacts] | None = None,
) -> AuditContext:
    """The context of a study's trials; `models` maps model ids to what their files say. Failed trials are left out."""
    rows = tuple(trial_row(case, trial) for case, trial in pairs if trial.status == "ok")
    facts = models or {}
    return AuditContext(
        rows=rows,
        peak_gb_s=None if environment is None else environment.peak_bandwidth_gb_s,
        peak_source="" if environment is None else environment.peak_bandwidth_source or "",
        pass_bytes={name: float(f.active_bytes) for name, f in facts.items() if f.active_bytes is not None},
    )
