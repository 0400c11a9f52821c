"""The flat table of trials that several formats share."""

from collections.abc import Iterable, Iterator
from typing import Any

from mlsd.records import CONTROLS
from mlsd.store.rows import Run, TrialFilter, comparability_key
from mlsd.store.store import ALL, Store
from mlsd.trials.results import Measured
from mlsd.trials.sums import PARTS, share, speed

_SUMMED = ("rounds", "proposed", "accepted", "committed", "rows")
COLUMNS = (
    "trial_id", "run_id", "environment_key", "case_id", "suite", "arm", "target", "drafter", "draft", "gamma", "prompt",
    "n_predict", "block_id", "block", "repeat", "position", "status", "valid", "reason", "started_at", "n_prompt",
    "n_tokens", "prefill_ns", "draft_prefill_ns", "decode_ns", "load_ns", "rollback_target", "rollback_draft",
    "failed_native_calls", "verdict", "peak_rss_bytes", "timed", "fell_back", "tolerance", "worst_gap",
    "differences_per_1000", *_SUMMED, *PARTS,
    "target_sha256", "workload", "temperature",
    "control",  # a bound that nobody can use
    "decode_tok_s",  # tokens after the first / time from the first to the last
    "acceptance_rate",  # accepted / proposed
    "accepted_of_output",  # accepted / committed
    "acceptance_by_position",  # accepted / reached: sum accepted / sum min(proposed, accepted + 1)
    "mgl",  # committed / rounds
    "host", "chip", "backend", "llama_cpp_build",
    "comparability_key",  # rows with different keys must not be averaged or compared
)  # fmt: skip


def trial_rows(store: Store, chosen: TrialFilter = ALL) -> Iterator[dict[str, Any]]:
    """One row a trial, by column: its summary, the rates derived from it, and what it may be compared with."""
    return rows_of(store.trials(chosen, rounds=False), store.runs())


def rows_of(trials: Iterable[Measured], runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """The same of some trials."""
    environments = {run.id: run.environment for run in runs}
    keys: dict[tuple[str, str], str] = {}
    for stored in trials:
        trial, case, environment = stored.trial, stored.case, environments[stored.run_id]
        whole, judged, draft = stored.sums, trial.losslessness, case.drafter.draft
        sd = case.arm == "sd"
        if (place := (trial.case_id, stored.environment_key)) not in keys:
            keys[place] = comparability_key(case, stored.environment_key)
        values = (
            stored.id, stored.run_id, stored.environment_key, trial.case_id, case.suite, trial.arm, case.target.id,
            case.drafter.name, draft and draft.id, case.gamma, case.prompt.key, case.n_predict, stored.block_id,
            trial.block, trial.repeat, trial.position, trial.status.value, trial.valid, trial.reason, trial.started_at,
            trial.n_prompt, trial.n_tokens, trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns, trial.load_ns,
            trial.rollback_target, trial.rollback_draft, trial.failed_native_calls, judged and judged.verdict,
            trial.peak_rss_bytes, trial.timed, trial.fell_back, judged and judged.tolerance,
            judged and judged.worst_gap, judged and judged.differences_per_1000,
            *(whole and getattr(whole, name) for name in _SUMMED),
            *(whole and getattr(whole, part) if trial.decode_ns is not None else None for part in PARTS),
            case.target.sha256, case.prompt.workload, case.sampling.temperature, case.drafter.name in CONTROLS,
            speed(trial), whole and whole.acceptance_rate,
            share(whole.accepted, whole.committed) if whole and sd else None,
            whole and whole.acceptance_by_position, whole and whole.mgl, environment.host,
            environment.chip, environment.backend, environment.llama_cpp_build, keys[place],
        )  # fmt: skip
        yield dict(zip(COLUMNS, values, strict=True))
