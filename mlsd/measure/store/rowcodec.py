"""Records to table rows and back: the column order of `case`, `trial` and `round` in one place."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import StoreError
from mlsd.measure.store.rows import Run, StoredTrial
from mlsd.records import Case, Conditions, Environment, Losslessness, Round, Trial

# Fields of a Trial that are columns under their own name.
_PLAIN = (
    "case_id", "arm", "gamma", "block", "repeat", "position", "status", "started_at", "error", "n_prompt",
    "prefill_ns", "draft_prefill_ns", "decode_ns", "load_ns", "rollback_target", "rollback_draft",
    "failed_native_calls", "valid", "invalid_reason", "peak_rss_bytes", "text",
)  # fmt: skip
# Of these, what an error or a person wrote, which may name folders of this machine.
_TOLD = ("error", "rollback_draft", "invalid_reason")
_PATH = re.compile(r"(?<![\w.~/\-])~?/(?:[^\s/:'\"]+/)*([^\s/:'\"]+)")
# Fields that are JSON text, with the type they are read back as.
_JSON: dict[str, Any] = {
    "tokens": tuple[int, ...],
    "losslessness": Losslessness | None,
    "stats": dict[str, float],
    "conditions": Conditions | None,
    "earlier": tuple[str, ...],
}
# Columns for SQL only: each repeats what another column holds.
_DERIVED = ("n_tokens", "verdict")
_ROUND = Round.__struct_fields__
_CASE = (
    "id", "run_id", "suite", "arm", "target", "drafter", "draft", "gamma", "prompt", "n_predict", "record",
)  # fmt: skip


def _marks(columns: str) -> str:
    return ", ".join("?" for _ in columns.split(", "))


CASE_COLUMNS = ", ".join(_CASE)
CASE_MARKS = _marks(CASE_COLUMNS)
TRIAL_COLUMNS = ", ".join(("run_id", "environment_key", *_PLAIN, *_JSON, *_DERIVED))
TRIAL_MARKS = _marks(TRIAL_COLUMNS)
TRIAL_READ = ", ".join(f"trial.{name}" for name in ("id", "run_id", "environment_key", *_PLAIN, *_JSON))
ROUND_COLUMNS = ", ".join(("trial_id", "number", *_ROUND))
ROUND_MARKS = _marks(ROUND_COLUMNS)


def encode(value: object) -> str:
    """The JSON text of a record or of plain containers."""
    return msgspec.json.encode(value).decode()


def decode(text: str, kind: Any) -> Any:
    """The value of a JSON text; StoreError when it is not a `kind`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"A record in the results database cannot be read: {error}.",
            hint="It was edited or damaged: restore a copy, or look at the file with `mlsd results --check`.",
        ) from error


def case_row(case_id: str, run_id: int, case: Case) -> tuple[Any, ...]:
    """The row of a case, in the order of CASE_COLUMNS."""
    draft = case.drafter.draft.id if case.drafter.draft else None
    return (
        case_id, run_id, case.suite, case.arm, case.target.id, case.drafter.name, draft, case.gamma, case.prompt.key,
        case.n_predict, encode(case),
    )  # fmt: skip


def trial_row(run_id: int, environment_key: str, trial: Trial) -> tuple[Any, ...]:
    """The row of a trial, in the order of TRIAL_COLUMNS."""
    plain = (without_folders(getattr(trial, field)) if field in _TOLD else getattr(trial, field) for field in _PLAIN)
    # JSON has no NaN and no infinity: such a figure was not measured.
    stats = {name: value for name, value in trial.stats.items() if math.isfinite(value)}
    values = [trial.tokens, trial.losslessness, stats, trial.conditions, trial.earlier]
    encoded = (None if value is None else encode(value) for value in values)
    verdict = trial.losslessness.verdict if trial.losslessness else None
    return (run_id, environment_key, *plain, *encoded, len(trial.tokens), verdict)


def plan(plan: Mapping[str, Any]) -> str:
    """A run's plan as it is stored: databases are given to others, so nothing in it says where files lie."""
    return encode({key: _told(value) for key, value in plan.items()})


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {key: _told(inner) for key, inner in value.items()}
    return [_told(inner) for inner in value] if isinstance(value, list | tuple) else value


def without_folders(text: str | None) -> str | None:
    """Absolute paths in a text cut to their last part: ``in /home/jane/m.gguf`` -> ``in m.gguf``."""
    if text is None:
        return None
    with suppress(RuntimeError):  # a user without a home has none to cut
        text = text.replace(f"{Path.home()}/", "")
    return _PATH.sub(r"\1", text)


def round_rows(trial_id: int, rounds: Iterable[Round]) -> Iterator[tuple[int, ...]]:
    """The rows of a trial's rounds, numbered from 0, in the order of ROUND_COLUMNS."""
    for number, round_record in enumerate(rounds):
        yield (trial_id, number, *(getattr(round_record, field) for field in _ROUND))


def trial(row: tuple[Any, ...], rounds: tuple[Round, ...]) -> StoredTrial:
    """The trial of a row in the order of TRIAL_READ."""
    trial_id, run_id, environment_key = row[:3]
    fields = dict(zip((*_PLAIN, *_JSON), row[3:], strict=True))
    fields["valid"] = bool(fields["valid"])
    for field, kind in _JSON.items():
        if fields[field] is not None:
            fields[field] = decode(fields[field], kind)
    record = Trial(**fields, rounds=rounds)
    return StoredTrial(id=trial_id, run_id=run_id, environment_key=environment_key, trial=record)


def round_(row: tuple[Any, ...]) -> Round:
    """The round of a row in the order of ROUND_COLUMNS."""
    return Round(**dict(zip(_ROUND, row[2:], strict=True)))


def run(row: tuple[Any, ...]) -> Run:
    """The run of a row: id, status, started_at, ended_at, seed, environment, plan."""
    run_id, status, started_at, ended_at, seed, environment, plan = row
    return Run(
        id=run_id,
        status=status,
        started_at=started_at,
        ended_at=ended_at,
        seed=seed,
        environment=decode(environment, Environment),
        plan=decode(plan, dict[str, Any]),
    )
