"""Audit rows from a study database: mlsd's own trials, whose counts are exact.

Trials are rows with the columns of the store's `trial_summary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlsd.analysis.audit.audit import can_be
from mlsd.analysis.audit.cells import AS_PLAIN
from mlsd.analysis.audit.rows import AuditContext, AuditRow
from mlsd.analysis.results.comparability import Chosen, choose
from mlsd.errors import AnalysisError
from mlsd.formats.printed import Printed, exact
from mlsd.records import Case, Environment, ModelFacts
from mlsd.store.store import Store
from mlsd.trials.arms import options_text
from mlsd.trials.identities import Broken
from mlsd.trials.sums import decode_tok_s, sums_of_row


def database_contexts(store: Store, machine: str | None = None, settings: str | None = None) -> list[AuditContext]:
    """The context of the trials that may be compared. Raises: AnalysisError when the database holds none."""
    chosen = choose(store, machine, settings)
    return [_of_chosen(store, chosen, impossible_rows(store.impossible), chosen.notes)]


def _of_chosen(
    store: Store, chosen: Chosen, broken: tuple[AuditRow, ...] = (), notes: tuple[str, ...] = ()
) -> AuditContext:
    table = chosen.summary(store)
    return trials_context(
        table.columns, table.rows, chosen.environment, chosen.models, notes, broken, cases=chosen.cases
    )


def trials_context(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    environment: Environment | None = None,
    models: Mapping[str, ModelFacts] | None = None,
    notes: tuple[str, ...] = (),
    broken: tuple[AuditRow, ...] = (),
    *,
    cases: Mapping[str, Case] | None = None,
) -> AuditContext:
    """The context of a study's trials and of those that cannot be (`impossible_rows`); failed trials are left out.

    Raises AnalysisError when there is no other.
    """
    trials = [dict(zip(columns, row, strict=True)) for row in rows]
    finished = [trial for trial in trials if trial["status"] != "failed"]
    if not finished and not broken:
        raise AnalysisError("The study contains no finished trials.", hint="Measure first: mlsd run.")
    failed = len(trials) - len(finished)
    facts = (models or {}).values()
    return AuditContext(
        rows=(*(trial_row(trial, (cases or {}).get(trial["case_id"])) for trial in finished), *broken),
        peak_gb_s=None if environment is None else environment.peak_bandwidth_gb_s,
        pass_bytes={f.ref.id: float(f.active_bytes) for f in facts if f.active_bytes is not None},
        notes=(*notes, *([f"{failed} failed trials were left out."] if failed else [])),
    )


def impossible_rows(broken: Mapping[int, Broken]) -> tuple[AuditRow, ...]:
    """A row of each trial that no answer is made of; of its figures none is believed."""
    return tuple(
        AuditRow(table="left out", label=f"trial {trial_id}", target="", cannot_be=found.sentence)
        for trial_id, found in broken.items()
    )


def refuted(store: Store, chosen: Chosen) -> dict[int, str]:
    """By id the valid trials that no machine can have measured, though all their identities hold: the reason."""
    try:
        context = _of_chosen(store, chosen)
    except AnalysisError:  # nothing is finished
        return {}
    found = (row.label for row in context.sound if not can_be(row, context))
    return {int(label.removeprefix("trial ")): "it cannot be true (mlsd audit)" for label in found}


def trial_row(trial: Mapping[str, Any], case: Case | None = None) -> AuditRow:
    """One trial as the audit reads it, from its summary; its case says options and who decoded."""
    own, speculative = sums_of_row(trial), trial["arm"] == "sd"
    counted, tok_s = speculative and own.rounds > 0, decode_tok_s(trial["n_tokens"], trial["decode_ns"])
    drafted = counted and trial["draft_ns"] is not None
    failed, reason = trial["failed_native_calls"], None
    if not trial["valid"]:
        reason = trial["reason"] or "no reason recorded"
    elif failed:  # its output was found to be right all the same
        reason = f"{failed} native calls failed"
    return AuditRow(
        table=trial["suite"],
        label=f"trial {trial['trial_id']}",
        **{name: trial[name] for name in ("target", "drafter", "draft", "prompt", "n_prompt", "n_predict", "repeat")},
        options="" if case is None else options_text(case.drafter),
        gamma=trial["gamma"] or None if speculative else None,  # of a server nobody may know it
        tok_s=_exact(tok_s),
        acceptance=_exact(own.acceptance_rate if counted else None),
        acceptance_of="proposed",
        mgl=_exact(own.mgl if counted else None),
        rounds=_exact(float(own.rounds) if counted else None),
        n_output=trial["n_tokens"],
        draft_ms=_exact(own.ms_per_round["draft"] if drafted else None),
        program="mlsd" if case is None or case.server is None else case.server,
        # A draft model proposes gamma tokens each round but for the tail that the output has no room for.
        fixed_length=counted
        and trial["draft"] is not None
        and trial["gamma"] > 0
        and own.proposed >= trial["gamma"] * (own.rounds - trial["gamma"]),
        lossless=trial["verdict"] in AS_PLAIN,
        failed_native_calls=0 if trial["valid"] else failed,
        invalid_reason=reason,
    )


def _exact(value: float | None) -> Printed | None:
    return None if value is None else exact(value)
