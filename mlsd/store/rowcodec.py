"""Records to table rows and back: the column order of `case` and `trial` in one place."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from mlsd.errors import StoreError
from mlsd.names import clean_json
from mlsd.records import Case, Conditions, EngineOptions, Environment, Losslessness, Record, Round, Trial
from mlsd.store.rows import Run, StoredTrial, environment_key
from mlsd.trials.results import SessionPlan
from mlsd.trials.sums import sums

# Fields of a Trial that are columns under their own name.
_PLAIN = (
    "case_id", "position", "status", "reason", "started_at", "n_prompt", "prefill_ns", "draft_prefill_ns", "decode_ns",
    "load_ns", "rollback_target", "rollback_draft", "timed", "fell_back", "failed_native_calls", "peak_rss_bytes",
    "text",
)  # fmt: skip
_OF_OTHERS = {"arm": '"case".arm', "gamma": '"case".gamma', "block": "block.number", "repeat": "block.repeat"}
# What an error or a person wrote, which may name folders of this machine.
_TOLD = ("reason", "fell_back")
_PATH = re.compile(r"(?<![\w.~/\-])~?/(?:[^\s/:'\"]+/)*([^\s/:'\"]+)")
# Fields that are JSON text, with the type they are read back as.
_JSON: dict[str, Any] = {
    "tokens": tuple[Annotated[int, msgspec.Meta(ge=0)], ...],
    "losslessness": Losslessness | None,
    "stats": dict[str, float],
    "conditions": Conditions | None,
    "earlier": tuple[str, ...],
}
# Columns for SQL only: each repeats what another column holds.
_ROUND = Round.__struct_fields__
SUMS = ("rounds", *_ROUND)
_DERIVED = ("n_tokens", "verdict", *SUMS)
_COUNTS = frozenset((
    *_ROUND, "gamma", "block", "repeat", "position", "n_prompt", "n_tokens", "n_predict", "rounds", "number",
    "failed_native_calls",
))  # fmt: skip
_SIGNED = ("seed", "id", "n_positions_off")
_MOST_ARMS = 1_000_000
T = TypeVar("T", bound=msgspec.Struct)
_CASE = (
    "id", "run_id", "suite", "arm", "target", "drafter", "draft", "gamma", "prompt", "n_predict", "record",
)  # fmt: skip


def _marks(columns: str) -> str:
    return ", ".join("?" for _ in columns.split(", "))


CASE_COLUMNS = ", ".join(_CASE)
CASE_MARKS = _marks(CASE_COLUMNS)
TRIAL_COLUMNS = ", ".join(("block_id", *_PLAIN, *_JSON, *_DERIVED, "each_round"))
TRIAL_MARKS = _marks(TRIAL_COLUMNS)
_READ = ("id", "block_id", *(f"{name}" for name in (*_PLAIN, *_JSON)))
TRIAL_READ = ", ".join(
    (*(f"trial.{name}" for name in _READ), "block.run_id", "block.environment_key", *_OF_OTHERS.values())
)
TRIAL_FROM = 'trial LEFT JOIN block ON block.id = trial.block_id LEFT JOIN "case" ON "case".id = trial.case_id'
SUMS_READ = ", ".join(f"trial.{name}" for name in SUMS)


def encode(value: object) -> str:
    """The JSON text of a record or of plain containers."""
    return msgspec.json.encode(value).decode()


Count = Annotated[int, msgspec.Meta(ge=0)]


def damaged(where: str, why: object) -> StoreError:
    """The error of a value that mlsd did not write so."""
    return StoreError(
        f"In the results database {where} cannot be read: {why}.",
        hint="It was edited or damaged: restore a copy, or look at the file with `mlsd results --check`.",
    )


def is_count(name: str) -> bool:
    """Whether a column or field of that name holds a whole number from 0 on, or nothing."""
    return name in _COUNTS or name.endswith(("_ns", "_bytes"))


def decode(text: str, kind: Any, where: str) -> Any:
    """The value of a JSON text; StoreError when it is not a `kind`, or has numbers that cannot be."""
    try:
        value = msgspec.json.decode(clean_json(text), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise damaged(where, error) from error
    return sane(value, where) if isinstance(value, msgspec.Struct) else value


def record(kind: type[T], values: Sequence[Any], where: str, *, above_zero: bool = False) -> T:
    """A record of the values of its fields in order, as columns hold them; StoreError for one that cannot be.

    With `above_zero` the last field is a measured time or rate.
    """
    fields = dict(zip(kind.__struct_fields__, values, strict=False))
    try:
        made = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise damaged(where, error) from error
    if above_zero and not values[-1] > 0:
        raise damaged(where, f"its {kind.__struct_fields__[-1]} is {values[-1]}")
    return sane(made, where)


def sane(record: T, where: str) -> T:
    """The record, unless a number of it is negative, infinite or none: mlsd measures none of these."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, int | float) and not 0 <= value < math.inf and name not in _SIGNED:
            raise damaged(where, f"its {name} is {value}")
    return record


def case_row(case_id: str, run_id: int, case: Case) -> tuple[Any, ...]:
    """The row of a case, in the order of CASE_COLUMNS."""
    draft = case.drafter.draft.id if case.drafter.draft else None
    return (
        case_id, run_id, case.suite, case.arm, case.target.id, case.drafter.name, draft, case.gamma, case.prompt.key,
        case.n_predict, encode(case),
    )  # fmt: skip


def trial_row(block_id: int, trial: Trial) -> tuple[Any, ...]:
    """The row of a trial, in the order of TRIAL_COLUMNS."""
    plain = (without_folders(getattr(trial, field)) if field in _TOLD else getattr(trial, field) for field in _PLAIN)
    # JSON has no NaN and no infinity: such a figure was not measured.
    stats = {name: value for name, value in trial.stats.items() if math.isfinite(value)}
    values = [trial.tokens, trial.losslessness, stats, trial.conditions, trial.earlier]
    encoded = (None if value is None else encode(value) for value in values)
    verdict = trial.losslessness.verdict if trial.losslessness else None
    whole = sums(trial.rounds) if trial.rounds else None
    summed = (None if whole is None else getattr(whole, name) for name in SUMS)
    rounds = encode([msgspec.structs.astuple(one) for one in trial.rounds])
    return (block_id, *plain, *encoded, trial.n_tokens, verdict, *summed, rounds)


def plan(plan: Mapping[str, Any]) -> str:
    """A run's plan as it is stored: databases are given to others, so nothing in it says where files lie."""
    return encode({key: _without_folders(value) for key, value in plan.items()})


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    return [_without_folders(inner) for inner in value] if isinstance(value, list | tuple) else value


def without_folders(text: str | None) -> str | None:
    """Absolute paths in a text cut to their last part: ``in /home/jane/m.gguf`` -> ``in m.gguf``."""
    if text is None:
        return None
    with suppress(RuntimeError):  # a user without a home has none to cut
        text = text.replace(f"{Path.home()}/", "")
    return _PATH.sub(r"\1", text)


def trial(row: tuple[Any, ...], rounds: str | None = None) -> StoredTrial:
    """The trial of a row in the order of TRIAL_READ; `rounds` is its column of that name, where it is wanted."""
    names = (*_READ, "run_id", "environment_key", *_OF_OTHERS)
    fields = dict(zip(names, row, strict=True))
    trial_id, block_id, run_id, key = (fields.pop(name) for name in ("id", "block_id", "run_id", "environment_key"))
    where = f"trial {trial_id}"
    fields["timed"] = bool(fields["timed"])
    for field, kind in _JSON.items():
        if fields[field] is not None:
            fields[field] = decode(fields[field], kind, f"{where}, {field},")
    try:
        made = sane(msgspec.convert(fields, Trial), where)
    except msgspec.ValidationError as error:
        raise damaged(where, error) from error
    check_moment(made.started_at, where)
    if rounds is not None:
        made = msgspec.structs.replace(
            made, rounds=tuple(Round(**dict(zip(_ROUND, one, strict=True))) for one in round_rows(trial_id, rounds))
        )
    return StoredTrial(id=trial_id, block_id=block_id, run_id=run_id, environment_key=key, trial=made)


_Row = tuple[Count, Count, Count, Count, Count, Count, Count, Count, Count]  # the fields of a round in their order


def round_rows(trial_id: int, rounds: str) -> list[_Row]:
    """The rounds of a trial as its column `each_round` holds them."""
    found: list[_Row] = decode(rounds, list[_Row], f"trial {trial_id}, rounds,")
    for number, (proposed, accepted, *_) in enumerate(found):
        if accepted > proposed:
            raise damaged(f"round {number} of trial {trial_id}", f"it accepted {accepted} of {proposed}")
    return found


def check_moment(text: str | None, where: str) -> None:
    """Refuse what is no moment: figures and tables count time from it. Raises: StoreError."""
    try:
        datetime.datetime.fromisoformat(text or "").timestamp()
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise damaged(where, error) from error


def run(row: tuple[Any, ...]) -> Run:
    """The run of a row: id, status, started_at, ended_at, seed, environment, plan, environment_key."""
    run_id, status, started_at, ended_at, seed, environment, plan, key = row
    where = f"run {run_id}"
    known = decode(environment, Environment, f"the environment of {where}")
    if environment_key(known) != key:
        raise damaged(f"the environment of {where}", "it is not the one that its trials were measured in")
    check_moment(started_at, where)
    planned = decode(plan, dict[str, Any], f"the plan of {where}")
    _check_plan(planned, f"the plan of {where}")
    return record(Run, (run_id, status, started_at, ended_at, seed, known, planned), where)


class _Planned(Record, frozen=True):
    """What readers take of a run's plan, which may hold more."""

    suites: tuple[str, ...] | str | None = None
    profile: str | None = None
    engine: EngineOptions | None = None
    n_threads: Count | None = None
    decides: SessionPlan | None = None


def _check_plan(plan: dict[str, Any], where: str) -> None:
    try:
        decides = msgspec.convert(plan, _Planned).decides
    except msgspec.ValidationError as error:
        raise damaged(where, error) from error
    if decides is None:
        return
    for name, counts, least in (("n_arms", decides.n_arms, 0), ("n_questions", decides.n_questions, 1)):
        if not all(least <= n <= _MOST_ARMS for n in counts.values()):
            raise damaged(where, f"its {name} is {counts}")
    sane(decides, where)
