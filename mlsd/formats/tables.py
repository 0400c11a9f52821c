"""The flat tables of trials and rounds that several formats share, with the kind of every column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from mlsd.records import CONTROLS
from mlsd.store.machine_tables import RowStream
from mlsd.store.rows import TrialFilter, comparability_key
from mlsd.store.store import ALL, Store
from mlsd.trials.acceptance import rate_of
from mlsd.trials.sums import decode_tok_s, share

Kind = Literal["text", "integer", "number", "flag"]

_TEXT = {
    "environment_key", "case_id", "suite", "arm", "target", "drafter", "draft", "prompt", "status", "reason",
    "started_at", "rollback_target", "rollback_draft", "verdict", "fell_back",
}  # fmt: skip
_FLAGS = ("valid", "timed")
_NUMBERS = {"tolerance", "worst_gap", "differences_per_1000"}
_ADDED: dict[str, Kind] = {
    "target_sha256": "text",
    "workload": "text",
    "temperature": "number",
    "control": "flag",  # a bound that nobody can use
    "decode_tok_s": "number",  # tokens after the first / time from the first to the last
    "acceptance_rate": "number",  # accepted / proposed
    "accepted_of_output": "number",  # accepted / committed
    "acceptance_by_position": "number",  # the chance of each drafted token that gives this MGL
    "mgl": "number",  # committed / rounds
    "host": "text",
    "chip": "text",
    "backend": "text",
    "llama_cpp_build": "text",
    "comparability_key": "text",  # rows with different keys must not be averaged or compared
}


def column_kind(column: str) -> Kind:
    """What a column of either table holds."""
    if column in _ADDED:
        return _ADDED[column]
    if column in _FLAGS:
        return "flag"
    return "text" if column in _TEXT else "number" if column in _NUMBERS else "integer"


def trial_table(store: Store, chosen: TrialFilter = ALL) -> RowStream:
    """One row a trial: its summary, the rates derived from it, and what it may be compared with."""
    summary = store.summary(chosen)
    return RowStream((*summary.columns, *_ADDED), _trial_rows(store, summary))


def _trial_rows(store: Store, summary: RowStream) -> Iterator[tuple[Any, ...]]:
    cases = store.cases()
    environments = {run.id: run.environment for run in store.runs()}
    keys: dict[tuple[str, str], str] = {}
    for values in summary.rows:
        row = dict(zip(summary.columns, values, strict=True))
        case, environment = cases[row["case_id"]], environments[row["run_id"]]
        mgl, place = share(row["committed"], row["rounds"]), (row["case_id"], row["environment_key"])
        if place not in keys:
            keys[place] = comparability_key(case, row["environment_key"])
        added = (
            case.target.sha256,
            case.prompt.workload,
            case.sampling.temperature,
            case.drafter.name in CONTROLS,
            decode_tok_s(row["n_tokens"], row["decode_ns"]),
            share(row["accepted"], row["proposed"]),
            share(row["accepted"], row["committed"]) if row["arm"] == "sd" else None,
            None if not mgl or row["arm"] != "sd" else rate_of(mgl, "position", row["gamma"] or None),
            mgl,
            environment.host,
            environment.chip,
            environment.backend,
            environment.llama_cpp_build,
            keys[place],
        )
        row |= {name: bool(row[name]) for name in _FLAGS}
        yield (*row.values(), *added)


def dict_rows(table: RowStream) -> Iterator[dict[str, Any]]:
    """The rows of a table with their column names."""
    return (dict(zip(table.columns, row, strict=True)) for row in table.rows)
