"""Records to table rows and back: what stands in columns of `case` and `trial` beside their records, in one place.

Every value that comes out of a database passes the types of its record here (`mlsd.records`: Count, Few, Amount), and
nowhere else: a database may be edited, or another's.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mlsd.errors import StoreError
from mlsd.names import clean_json
from mlsd.outside import convert
from mlsd.records import (
    Case,
    EngineOptions,
    Environment,
    Few,
    Record,
    Round,
    Trial,
)
from mlsd.store.rows import Run, environment_key
from mlsd.trials.rates import Sums, sums
from mlsd.trials.results import Measured, SessionPlan
from mlsd.trials.stages import StageTime

_PATH = re.compile(r"(?<![\w.~/\-])~?/(?:[^\s/:'\"]+/)*([^\s/:'\"]+)")
_TRIAL_READER = msgspec.json.Decoder(Trial)
_CASE_READER = msgspec.json.Decoder(Case)


class _StoredRound(Round, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A round as it is stored: the list of its fields in their order."""


_ROUNDS = msgspec.json.Decoder(list[_StoredRound])
_SUMS = msgspec.json.Decoder(Sums | None)
_HINT = "It was edited or damaged: restore a copy, or look at the file with `mlsd results check`."
T = TypeVar("T")
CASE = ("id", "run_id", "suite", "arm", "target", "drafter", "draft", "gamma", "prompt", "n_predict", "record")
TRIAL = ("block_id", "case_id", "sums", "record", "each_round")
CASE_AT = 0  # where a row of `TRIAL_READ` has its case
TRIAL_READ = (
    "trial.case_id, trial.id, trial.block_id, block.superseded, block.run_id, block.environment_key, block.number, "
    "block.repeat, trial.sums, trial.record"
)
TRIAL_FROM = 'trial LEFT JOIN block ON block.id = trial.block_id LEFT JOIN "case" ON "case".id = trial.case_id'


def insert(table: str, columns: Iterable[str], verb: str = "INSERT") -> str:
    """The statement that puts a row of these columns into a table."""
    names = [f'"{name}"' for name in columns]
    return f'{verb} INTO "{table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))})'


def encode(value: object) -> str:
    """The JSON text of a record or of plain containers."""
    return msgspec.json.encode(value).decode()


def damaged(where: str, why: object) -> StoreError:
    """The error of a value that mlsd did not write so."""
    return StoreError(
        f"In the results database {where} cannot be read: {why}.",
        hint=_HINT,
    )


def decode(text: str, kind: Any, where: str) -> Any:
    """The value of a JSON text; StoreError when it is not a `kind`, which is a type or the reader of one."""
    reader = kind if isinstance(kind, msgspec.json.Decoder) else msgspec.json.Decoder(kind)
    try:
        return _decoded(text, reader)
    except _UNREADABLE as error:
        raise damaged(where, error) from error


_UNREADABLE = (msgspec.DecodeError, UnicodeError, TypeError, AttributeError, RecursionError)


def _decoded(text: str, reader: msgspec.json.Decoder[Any]) -> Any:
    return reader.decode(clean_json(text) if "\\" in text else text)  # cleaned but for escapes


def record(kind: type[T], values: Sequence[Any], where: str) -> T:
    """A record of the values of its fields in order, as columns hold them; StoreError for one that cannot be."""
    fields = dict(zip(kind.__struct_fields__, values, strict=False))  # type: ignore[attr-defined]
    return convert(fields, kind, f"In the results database {where}", StoreError, hint=_HINT)


def case_row(case_id: str, run_id: int, case: Case) -> tuple[Any, ...]:
    """The row of a case, in the order of `CASE`."""
    draft = case.drafter.draft.id if case.drafter.draft else None
    return (
        case_id, run_id, case.suite, case.arm, case.target.id, case.drafter.name, draft, case.gamma, case.prompt.key,
        case.n_predict, encode(case),
    )  # fmt: skip


def case(row: tuple[Any, ...]) -> Case:
    """The case of a row in the order of `CASE`; StoreError where its columns say something else."""
    case_id, run_id, *_, text = row
    decoded: Case = decode(text, _CASE_READER, f"case {case_id}")
    if case_row(case_id, run_id, decoded)[:-1] != row[:-1]:
        raise damaged(f"case {case_id}", "its columns say something else than its record")
    return decoded


def trial_row(block_id: int, trial: Trial, whole: Sums | None) -> tuple[Any, ...]:
    """The row of a trial and of what its rounds sum to, in the order of `TRIAL`."""
    reason, fell_back = without_folders(trial.reason), without_folders(trial.fell_back)
    stored = msgspec.structs.replace(trial, rounds=(), reason=reason, fell_back=fell_back)
    rounds = encode([msgspec.structs.astuple(each) for each in trial.rounds])
    return block_id, trial.case_id, encode(whole), encode(stored), rounds


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


def trial_record(text: str, where: str) -> Trial:
    """The trial of a stored record, without its rounds. Raises: StoreError."""
    decoded: Trial = decode(text, _TRIAL_READER, where)
    check_moment(decoded.started_at, where)
    return msgspec.structs.replace(decoded, rounds=()) if decoded.rounds else decoded


def trial(row: Sequence[Any], case: Case) -> Measured:
    """The trial of a row in the order of TRIAL_READ, with what its rounds sum to; with the rounds where they follow."""
    case_id, trial_id, block_id, superseded, run_id, key, number, repeat, sums_text, text, *each_round = row
    where = f"trial {trial_id}"
    decoded = trial_record(text, where)
    if (decoded.case_id, decoded.block, decoded.repeat) != (case_id, number, repeat):
        raise damaged(where, "its record is of another case or block")
    whole: Sums | None = decode(sums_text, _SUMS, f"{where}, its sums,")
    if whole is not None and not _agree(whole):
        raise damaged(where, "its sums do not agree with how its rounds ended")
    if each_round:
        listed: list[_StoredRound] = decode(each_round[0], _ROUNDS, f"{where}, rounds,")
        rounds = msgspec.convert(listed, tuple[Round, ...], from_attributes=True)
        if whole != (sums(rounds) if rounds else None):
            raise damaged(where, "its rounds do not sum to what is said of them")
        decoded = msgspec.structs.replace(decoded, rounds=rounds)
    return Measured(case, decoded, whole, block_id, trial_id, run_id, key, bool(superseded))


def _agree(whole: Sums) -> bool:
    """Whether counts are those of the endings of single rounds, of which none accepts more than it proposed."""
    rounds = proposed = accepted = 0
    for n_proposed, n_accepted, n in whole.endings:
        if n_accepted > n_proposed:
            return False
        rounds, proposed, accepted = rounds + n, proposed + n_proposed * n, accepted + n_accepted * n
    return (rounds, proposed, accepted) == (whole.rounds, whole.proposed, whole.accepted)


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
    decoded = decode(environment, Environment, f"the environment of {where}")
    if environment_key(decoded) != key:
        raise damaged(f"the environment of {where}", "it is not the one that its trials were measured in")
    check_moment(started_at, where)
    if ended_at is not None:
        check_moment(ended_at, where)
    planned = decode(plan, dict[str, Any], f"the plan of {where}")
    convert(planned, _Planned, f"In the results database the plan of {where}", StoreError, hint=_HINT)
    return record(Run, (run_id, status, started_at, ended_at, seed, decoded, planned), where)


class _Planned(Record, frozen=True):
    """What readers take of a run's plan, which may hold more."""

    suites: tuple[str, ...] | str | None = None
    profile: str | None = None
    engine: EngineOptions | None = None
    n_threads: Few | None = None
    decides: SessionPlan | None = None
    stages: tuple[StageTime, ...] = ()
