"""Tasks that drafting methods are compared on: the shipped set of six kinds, or a file.

A file is lines of JSON like Spec-Bench's question.jsonl (arXiv 2401.07851), whose eight MT-bench categories are one
kind, or SPEED-Bench's parquet (arXiv 2604.09557), whose categories and entropy tiers are kinds of their own.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import TaskError
from mlsd.folders import asset_path
from mlsd.limits import FILE_BYTES
from mlsd.outside import Count, check_regular, read_text
from mlsd.records import Record
from mlsd.stats import grouped

_COLUMNS = ("question_id", "category", "turns")  # of SPEED-Bench's parquet
_LENGTH = re.compile(r"throughput[_-](\d+k)", re.IGNORECASE)
_MOST_ROWS = 100_000  # of a file, and turns of all of them
_MOST_TURNS = 64  # of one conversation
_BATCH_ROWS = 64
TASK_KEY = "task-"  # how the prompts of a file's tasks are called begins so
MULTI_TURN = "multi_turn"
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_OTHERS = ("translation", "summarization", "qa", "math_reasoning", "rag")
_BROKEN_NAMED = 5  # broken lines of a file that a message names
KINDS = (MULTI_TURN, *_OTHERS)
_KIND_OF = {**dict.fromkeys(_MT_BENCH, MULTI_TURN), "mt_bench": MULTI_TURN, **{kind: kind for kind in _OTHERS}}


class Task(Record, frozen=True, kw_only=True):
    """One conversation to have with a target."""

    id: Count = msgspec.field(name="question_id")
    category: str  # as the file has it: "writing", "rag"
    turns: tuple[str, ...]  # what the user says; the target answers after each
    own_kind: str | None = msgspec.field(default=None, name="mlsd_kind")  # SPEED-Bench's category, with the length

    @property
    def kind(self) -> str:
        return self.own_kind or _KIND_OF[self.category]


@functools.cache
def shipped_tasks() -> tuple[Task, ...]:
    """The set that was written for mlsd: eight tasks of each kind, the multi-turn ones with two turns."""
    return read_tasks(asset_path("tasks/tasks.jsonl"))


def read_tasks(path: Path) -> tuple[Task, ...]:
    """The tasks of a file, in its order; empty lines are passed over.

    A name that ends in .parquet is read as SPEED-Bench's, other files as lines of JSON. A file of more rows, turns or
    bytes than there may be is refused before these are in memory.
    Raises: TaskError naming the file, each broken row (the first few) and what is wrong with it.
    """
    is_parquet = path.suffix == ".parquet"
    tasks: list[Task] = []
    broken: list[TaskError] = []
    n_broken = n_turns = 0
    for found in _parquet_rows(path) if is_parquet else _json_rows(path):
        if isinstance(found, TaskError):
            broken, n_broken = [*broken, found][:_BROKEN_NAMED], n_broken + 1
            continue
        tasks.append(found)
        n_turns += len(found.turns)
        _check_number(path, n_turns, "turns")
    if broken:
        more = f" And {n_broken - _BROKEN_NAMED} more." if n_broken > _BROKEN_NAMED else ""
        raise TaskError(f"{path}, {' '.join(error.message for error in broken)}{more}", hint=broken[0].hint)
    if not tasks:
        raise TaskError(f"The task file {path} holds no task.", hint="Give the path of a question.jsonl.")
    if is_parquet and len({task.id for task in tasks}) < len(tasks):
        tasks = [msgspec.structs.replace(task, id=number) for number, task in enumerate(tasks, 1)]
    return tuple(tasks)


def _check_number(path: Path, number: int, what: str, most: int = _MOST_ROWS) -> None:
    if number > most:
        raise TaskError(f"{path} holds more than {most:,} {what}.", hint="Split it, or leave out what is not needed.")


def _json_rows(path: Path) -> Iterator[Task | TaskError]:
    text = read_text(path, "The task file", TaskError, "a question.jsonl")
    seen: set[int] = set()
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        _check_number(path, number, "lines")
        try:
            if line.strip():
                task = _task(line, f"line {number}")
                if task.id in seen:
                    raise TaskError(f"line {number}: question_id {task.id} occurs twice.")
                seen.add(task.id)
                yield task
        except TaskError as error:
            yield error


def _parquet_rows(path: Path) -> Iterator[Task | TaskError]:
    """SPEED-Bench's rows; ids that are no numbers give way to the place in the file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise TaskError(
            "A parquet of tasks needs the package pyarrow, which is not installed.", hint="pip install 'mlsd[parquet]'"
        ) from error
    length = _LENGTH.search(path.stem)
    number = n_bytes = 0
    try:
        check_regular(path)
        texts = _checked_columns(path, parquet.read_metadata(path))
        # As dictionaries a text that is repeated is in memory once, so its lengths are known before it is unfolded.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(_COLUMNS)):
                n_bytes += sum(_text_bytes(batch.column(name)) for name in _COLUMNS)
                _check_number(path, n_bytes, "bytes of text", FILE_BYTES.most)
                for row in batch.to_pylist():
                    number += 1
                    yield _speed_bench_task(row, number, length and length.group(1))
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise TaskError(f"The task file {path} cannot be read as parquet: {error}.") from error


def _checked_columns(path: Path, metadata: Any) -> list[str]:
    """The columns that hold texts, by their paths. Raises: TaskError where one is missing or larger than may be."""
    columns: dict[str, str] = {}
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if (name := column.path_in_schema).partition(".")[0] in _COLUMNS:
                columns[name] = column.physical_type
                _check_number(path, max(column.num_values, metadata.num_rows), "rows or turns")
                _check_number(path, column.total_uncompressed_size, "bytes of text", FILE_BYTES.most)
    found = {name.partition(".")[0] for name in columns} or {*metadata.schema.to_arrow_schema().names}
    if missing := [name for name in _COLUMNS if name not in found]:
        raise TaskError(
            f"{path} has no column {', '.join(missing)}.", hint="SPEED-Bench has question_id, category and turns."
        )
    return [name for name, kind in columns.items() if kind == "BYTE_ARRAY"]


def _text_bytes(column: Any) -> int:
    """UTF-8 bytes of all texts of a column or of its lists."""
    from pyarrow import compute, types

    while types.is_list(column.type) or types.is_large_list(column.type):
        column = column.flatten()
    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = compute.binary_length(column.dictionary).take(column.indices)
    return compute.sum(lengths).as_py() or 0


def _speed_bench_task(row: dict[str, Any], number: int, length: str | None) -> Task | TaskError:
    identity, category, turns = (row[name] for name in _COLUMNS)
    good_turns = isinstance(turns, list) and 0 < len(turns) <= _MOST_TURNS
    good_turns = good_turns and all(isinstance(turn, str) and turn.strip() for turn in turns)
    if not good_turns or not isinstance(category, str) or not re.fullmatch(r"[\w ./&-]{1,40}", category):
        hint = f"Each row has a category in words and turns, a list of up to {_MOST_TURNS} texts."
        return TaskError(f"row {number}: no task.", hint=hint)
    return Task(
        id=identity if isinstance(identity, int) and 0 <= identity <= 2**53 else number,
        category=category,
        turns=tuple(turns),
        own_kind=f"{category} {length}" if length else category,
    )


def _task(line: str, place: str) -> Task:
    try:
        task = msgspec.json.decode(line, type=Task)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise TaskError(
            f"{place}: {error}.", hint="Each line is a JSON object with question_id, category and turns."
        ) from error
    if task.category not in _KIND_OF:
        raise TaskError(
            f"{place}: the category {task.category!r} is unknown.", hint=f"Known ones are {', '.join(_KIND_OF)}."
        )
    if not task.turns or not all(turn.strip() for turn in task.turns):
        raise TaskError(f"{place}: there is no turn, or an empty one.")
    if len(task.turns) > _MOST_TURNS:
        raise TaskError(f"{place}: there are more than {_MOST_TURNS} turns.")
    return task


def stratified(tasks: Sequence[Task], per_kind: int) -> tuple[Task, ...]:
    """At most `per_kind` tasks of each kind, evenly spread over those there are, in the order of `tasks`.

    Spec-Bench orders its multi-turn questions by category, so an even spread takes eight or more from all eight.
    Raises: TaskError when `per_kind` is less than 1.
    """
    if per_kind < 1:
        raise TaskError(f"A subset of {per_kind} tasks of each kind was asked for; at least 1 is needed.")
    chosen: set[int] = set()
    for kind in dict.fromkeys((*KINDS, *(task.kind for task in tasks))):
        own = [task.id for task in tasks if task.kind == kind]
        n = min(per_kind, len(own))
        chosen |= {own[i * len(own) // n] for i in range(n)}
    return tuple(task for task in tasks if task.id in chosen)


@functools.cache
def tasks_by_name() -> dict[str, Task]:
    """The shipped tasks under their names as prompts: ``qa-1`` and so on."""
    by_kind = grouped(shipped_tasks(), lambda task: task.kind)
    return {f"{kind}-{i}": task for kind in KINDS for i, task in enumerate(by_kind[kind], 1)}
