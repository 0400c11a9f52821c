"""The whole study as one JSON object: runs, models, cases, trials with rounds, warnings, and what else was stored."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from mlsd.records import CONTROLS
from mlsd.store import schema
from mlsd.store.rows import CalibrationPoint, Coverage, ExpertLoad, TrialFilter
from mlsd.store.store import Store


def write(store: Store, out: BinaryIO, chosen: TrialFilter) -> int:
    """Stream the document; `chosen` narrows the trials only. Returns how many trials."""
    count, cases = 0, store.cases()

    def trials() -> Iterator[Any]:
        nonlocal count
        for stored in store.trials(chosen):
            count += 1
            fields = msgspec.to_builtins(stored.trial)
            fields["control"] = cases[stored.trial.case_id].drafter.name in CONTROLS
            yield {"id": stored.id, "run_id": stored.run_id, "environment_key": stored.environment_key, **fields}

    encode = msgspec.json.encode
    out.write(b'{"schema_version": %d' % schema.CURRENT_VERSION)
    out.write(b',\n"models": ' + encode(store.models()) + b',\n"cases": ' + encode(cases))
    _write_list(out, "runs", iter(store.runs()))
    _write_list(out, "trials", trials())
    _write_list(out, "warnings", iter(store.warnings()))
    _write_list(out, "calibration", _with_run(store.figures(CalibrationPoint)))
    _write_list(out, "coverage", _with_run(store.figures(Coverage)))
    _write_list(out, "expert_load", _with_run(store.figures(ExpertLoad)))
    out.write(b"}\n")
    return count


def _with_run(rows: Iterator[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    return ({"run_id": run_id, **msgspec.to_builtins(record, str_keys=True)} for run_id, record in rows)


def _write_list(out: BinaryIO, name: str, items: Iterator[Any]) -> None:
    out.write(b',\n"%s": [' % name.encode())
    separator = b"\n"
    for item in items:
        out.write(separator + msgspec.json.encode(item))
        separator = b",\n"
    out.write(b"]")
