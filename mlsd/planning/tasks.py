"""Tasks that drafting methods are compared on: the shipped set of six kinds, or a file.

A file is lines of JSON like Spec-Bench's question.jsonl (arXiv 2401.07851), whose eight MT-bench categories are one
kind, or SPEED-Bench's parquet (arXiv 2604.09557), whose categories and entropy tiers are kinds of their own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import TaskError
from mlsd.folders import asset_path
from mlsd.outside import check_regular, read_text
from mlsd.records import Record
from mlsd.stats import grouped

_COLUMNS = ("question_id", "category", "turns")  # of SPEED-Bench's parquet
_LENGTH = re.compile(r"throughput[_-](\d+k)", re.IGNORECASE)
_MOST_ROWS = 100_000
TASK_KEY = "task-"  # how the prompts of a file's tasks are called begins so
MULTI_TURN = "multi_turn"
_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_OTHERS = ("translation", "summarization", "qa", "math_reasoning", "rag")
_BROKEN_NAMED = 5  # broken lines of a file that a message names
KINDS = (MULTI_TURN, *_OTHERS)
_KIND_OF = {**dict.fromkeys(_MT_BENCH, MULTI_TURN), "mt_bench": MULTI_TURN, **{kind: kind for kind in _OTHERS}}


class Task(Record, frozen=True, kw_only=True):
    """One conversation to have with a target."""

    id: int = msgspec.field(name="question_id")
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

    A name that ends in .parquet is read as SPEED-Bench's, other files as lines of JSON.
    Raises: TaskError naming the file, each broken line (the first few) and what is wrong with it.
    """
    if path.suffix == ".parquet":
        return _read_parquet(path)
    lines = read_text(path, "The task file", TaskError, "a question.jsonl").split("\n")
    tasks: dict[int, Task] = {}
    broken: list[TaskError] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = _task(line, f"line {number}")
            if task.id in tasks:
                raise TaskError(f"line {number}: question_id {task.id} occurs twice.")
            tasks[task.id] = task
        except TaskError as error:
            broken.append(error)
    if broken:
        more = f" And {len(broken) - _BROKEN_NAMED} more." if len(broken) > _BROKEN_NAMED else ""
        named = " ".join(error.message for error in broken[:_BROKEN_NAMED])
        raise TaskError(f"{path}, {named}{more}", hint=broken[0].hint)
    if not tasks:
        raise TaskError(f"The task file {path} holds no task.", hint="Give the path of a question.jsonl.")
    return tuple(tasks.values())


def _read_parquet(path: Path) -> tuple[Task, ...]:
    """SPEED-Bench's rows; ids that are no numbers give way to the place in the file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise TaskError(
            "A parquet of tasks needs the package pyarrow, which is not installed.", hint="pip install 'mlsd[parquet]'"
        ) from error
    try:
        check_regular(path)
        with parquet.ParquetFile(path) as file:
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise TaskError(
                    f"{path} has no column {', '.join(missing)}.",
                    hint="SPEED-Bench has question_id, category and turns.",
                )
            if file.metadata.num_rows > _MOST_ROWS:
                raise TaskError(f"{path} holds {file.metadata.num_rows:,} rows, more than {_MOST_ROWS:,}.")
            rows = file.read(columns=list(_COLUMNS)).to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise TaskError(f"The task file {path} cannot be read as parquet: {error}.") from error
    length = _LENGTH.search(path.stem)
    tasks = tuple(_speed_bench_task(row, n, length and length.group(1), path) for n, row in enumerate(rows, 1))
    if not tasks:
        raise TaskError(f"The task file {path} holds no task.")
    ids = {task.id for task in tasks}
    return tasks if len(ids) == len(tasks) else tuple(msgspec.structs.replace(t, id=n) for n, t in enumerate(tasks, 1))


def _speed_bench_task(row: dict[str, Any], number: int, length: str | None, path: Path) -> Task:
    identity, category, turns = (row[name] for name in _COLUMNS)
    good_turns = isinstance(turns, list) and turns and all(isinstance(turn, str) and turn.strip() for turn in turns)
    if not good_turns or not isinstance(category, str) or not re.fullmatch(r"[\w ./&-]{1,40}", category):
        raise TaskError(
            f"{path}, row {number}: no task.", hint="Each row has a category in words and turns, a list of texts."
        )
    return Task(
        id=identity if isinstance(identity, int) and identity >= 0 else number,
        category=category,
        turns=tuple(turns),
        own_kind=f"{category} {length}" if length else category,
    )


def _task(line: str, place: str) -> Task:
    try:
        task = msgspec.json.decode(line, type=Task)
    except msgspec.DecodeError as error:
        raise TaskError(
            f"{place}: {error}.", hint="Each line is a JSON object with question_id, category and turns."
        ) from error
    if task.category not in _KIND_OF:
        raise TaskError(
            f"{place}: the category {task.category!r} is unknown.", hint=f"Known ones are {', '.join(_KIND_OF)}."
        )
    if not task.turns or not all(turn.strip() for turn in task.turns):
        raise TaskError(f"{place}: there is no turn, or an empty one.")
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
