"""The prompts: four short ones, one long passage and the tasks that ship with mlsd, and texts from the user's files."""

import functools
import gzip
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from mlsd.errors import PromptError, TaskError, choose
from mlsd.folders import asset_path
from mlsd.outside import MOST_FILE_BYTES, Count, check_regular, parse, read_text
from mlsd.records import PromptRef, Record
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
    for row in _parquet_rows(path) if is_parquet else _json_rows(path):
        if isinstance(row, TaskError):
            broken, n_broken = [*broken, row][:_BROKEN_NAMED], n_broken + 1
            continue
        tasks.append(row)
        n_turns += len(row.turns)
        _check_number(path, n_turns, "turns")
    if broken:
        more = f" And {n_broken - _BROKEN_NAMED} more." if n_broken > _BROKEN_NAMED else ""
        raise TaskError(f"{path}, {' '.join(error.message for error in broken)}{more}", hint=broken[0].hint)
    if not tasks:
        raise TaskError(f"The task file {path} holds no task.", hint="Give the path of a question.jsonl.")
    if is_parquet and len({task.id for task in tasks}) < len(tasks):
        tasks = [replace(task, id=number) for number, task in enumerate(tasks, 1)]
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
                _check_number(path, n_bytes, "bytes of text", MOST_FILE_BYTES)
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
                _check_number(path, column.total_uncompressed_size, "bytes of text", MOST_FILE_BYTES)
    names = {name.partition(".")[0] for name in columns} or {*metadata.schema.to_arrow_schema().names}
    if missing := [name for name in _COLUMNS if name not in names]:
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


def _task(line: str, where: str) -> Task:
    hint = "Each line is a JSON object with question_id, category and turns."
    task = parse(line, Task, where, TaskError, hint=hint)
    if task.category not in _KIND_OF:
        raise TaskError(
            f"{where}: the category {task.category!r} is unknown.", hint=f"Known ones are {', '.join(_KIND_OF)}."
        )
    if not task.turns or not all(turn.strip() for turn in task.turns):
        raise TaskError(f"{where}: there is no turn, or an empty one.")
    if len(task.turns) > _MOST_TURNS:
        raise TaskError(f"{where}: there are more than {_MOST_TURNS} turns.")
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
        ids = [task.id for task in tasks if task.kind == kind]
        n = min(per_kind, len(ids))
        chosen |= {ids[i * len(ids) // n] for i in range(n)}
    return tuple(task for task in tasks if task.id in chosen)


@functools.cache
def tasks_by_name() -> dict[str, Task]:
    """The shipped tasks under their names as prompts: ``qa-1`` and so on."""
    by_kind = grouped(shipped_tasks(), lambda task: task.kind)
    return {f"{kind}-{i}": task for kind in KINDS for i, task in enumerate(by_kind[kind], 1)}


# The lengths of the study's sweep (32 to 1024 tokens, seed 002 table 3); any other `length-N` works as well.
SWEEP_LENGTHS = (32, 64, 128, 256, 512, 1024)

# The grammar of names: a word, for some a number behind it, and the depth. No number has more digits than a context.
_NAME = re.compile(r"([a-z_]{1,30})(?:-([1-9][0-9]{0,6}))?")
_MARKS = re.compile(r"(.+?)(?:\+(chat|think|no-think))?(?:@([0-9]+))?", re.DOTALL)
_THINKS = {"chat": None, "think": True, "no-think": False}  # NAME+chat and so on: what the template is told
_ROLES = ("system", "user", "assistant")
_MOST_MESSAGES = 1_000
_MOST_NAMED = 100  # characters of an unknown name that a message repeats
_MOST_RANDOM = 1 << 20  # tokens; no model reads more
COPY = "copy"  # a passage and the request to repeat it
_COPIED, _HINT = 1_500, 60  # characters of it that are shown, and that the repetition begins with
_MOST_TOKEN_CHARACTERS = 8  # a token of such text is never longer on average
_PASSAGE_WORKLOAD = "prose"
_FILE_WORKLOAD = "file"

Tokenize = Callable[[str], Sequence[int]]


class Message(Record, frozen=True, kw_only=True):
    """What somebody says in a chat."""

    role: str  # system, user or assistant
    content: str


class Prompt(Record, frozen=True, kw_only=True):
    """A text to give to a target."""

    key: str  # the name it is asked for by: "code", "length-512", "qa-1", "file:notes"
    text: str  # the whole text; the model sees its first `n_tokens` tokens
    sha256: str  # of the UTF-8 text
    workload: str  # factual, code, reasoning, chinese, prose, file, or the kind of a task
    n_tokens: int | None = None  # cut to exactly so many of the target's tokens; None: the whole text
    chat: bool = False  # given in the model's own chat template, where it has one
    random: bool = False  # random tokens of the target's vocabulary, whatever the text
    think: bool | None = None  # the template's switch `enable_thinking`; None: as the template has it
    earlier: tuple[str, ...] = ()  # the user's turns before it, the target's answers between; only with `chat`
    messages: tuple[Message, ...] = ()  # a whole chat of a file, in place of the text
    context: str = ""  # another text, whose first `depth` tokens stand before all of it
    depth: int = 0
    path: str | None = None  # of the file that it was read from

    @property
    def called(self) -> str:
        """What to give to `--prompt` for it."""
        return self.key if self.path is None else self.path + self.key.removeprefix(f"file:{Path(self.path).stem}")

    @property
    def ref(self) -> PromptRef:
        return PromptRef(key=self.key, sha256=self.sha256, n_tokens=self.n_tokens, workload=self.workload)


LoadPrompt = Callable[[str], Prompt]  # gives the prompt of a name, as `load_prompt` does


class _PromptEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    workload: str
    text: str


def prompt_names() -> tuple[str, ...]:
    """Every name that `load_prompt` knows by heart, the four prompts first."""
    return (*_shipped(), *(f"length-{n}" for n in SWEEP_LENGTHS), COPY, *tasks_by_name())


def load_prompt(name: str) -> Prompt:
    """The prompt called `name`: one of the four, `length-N` for the first N tokens of the long passage, or a task.

    `copy` asks for a passage once more; on `random-N`, N random tokens, nothing repeats. `NAME+chat` is NAME in the
    model's chat template, `+think` and `+no-think` with its switch for thinking; `NAME@D` is NAME behind D tokens of
    other text. Raises: PromptError for an unknown name.
    """
    return _with_marks(name, _shallow)


def _with_marks(name: str, find: LoadPrompt) -> Prompt:
    """What `find` has by a name without its marks, as a chat and at the depth that they ask for."""
    match = _MARKS.fullmatch(name)
    text, switch, digits = match.groups() if match else (name, None, None)
    depth = 0
    if digits is not None:
        most = len(_shipped_bytes("deep.txt.gz"))
        depth = int(digits) if len(digits) <= len(str(most)) else most + 1
        if not 1 <= depth <= most:
            raise PromptError(
                f"A prompt cannot stand at depth {digits:.20}: the text before it has at most {most:,} tokens.",
                hint="Ask for a depth that the model's context has room for.",
            )
    prompt = find(text)
    if switch is not None:
        key, sha256 = f"{prompt.key}+{switch}", text_sha256(f"{switch} {prompt.sha256}")
        prompt = replace(prompt, key=key, sha256=sha256, chat=True, think=_THINKS[switch])
    if depth:  # passage, tasks, mlsd's code of one day
        context = _shipped_bytes("deep.txt.gz").decode()[: _MOST_TOKEN_CHARACTERS * depth]
        sha256 = text_sha256(f"{depth} {text_sha256(context)} {prompt.sha256}")
        prompt = replace(prompt, key=f"{prompt.key}@{depth}", sha256=sha256, context=context, depth=depth)
    return prompt


def _shallow(name: str) -> Prompt:
    shipped = _shipped()
    if (entry := shipped.get(name)) is not None:
        return _prompt(name, entry.text.strip(), entry.workload)
    if (task := tasks_by_name().get(name)) is not None:
        return task_prompt(task, name)
    passage = _shipped_bytes("long.txt").decode()
    if name == COPY:
        copied = passage[:_COPIED]
        text = f"{copied}\n\nThe same passage once more, word for word:\n\n{copied[:_HINT]}"
        return _prompt(name, text, COPY)
    match = _NAME.fullmatch(name)
    kind, n_tokens = (match.group(1), int(match.group(2) or 0)) if match else ("", 0)
    if kind == "length" and 1 <= n_tokens <= len(passage.encode()):
        return _prompt(name, passage, _PASSAGE_WORKLOAD, n_tokens=n_tokens)
    if kind == "random" and 1 <= n_tokens <= _MOST_RANDOM:
        return _prompt(name, "random tokens", "random", n_tokens=n_tokens, random=True)
    more = (
        f", or length-N for exactly N tokens of prose (at most {len(passage.encode()):,}), random-N (at most "
        f"{_MOST_RANDOM:,}), or a task ({', '.join(KINDS)}, each followed by -1, -2, ...), or give a text file"
    )
    hint = choose(name[:_MOST_NAMED], (*shipped, COPY), more)
    raise PromptError(f"There is no prompt called {name[:_MOST_NAMED]!r}.", hint=hint)


def shipped_prompt_sha256(name: str) -> str | None:
    """The hash of a prompt that mlsd ships, None for another one."""
    try:
        return load_prompt(name).sha256
    except PromptError:
        return None


def find_prompt(text: str) -> Prompt:
    """The shipped prompt of that name, or the text file: what has a folder or an ending in its name is one.

    Raises: PromptError when there is neither.
    """
    return _with_marks(text, _named)


def _named(name: str) -> Prompt:
    path = Path(name)
    return prompt_from_file(path) if len(path.parts) > 1 or path.suffix else _shallow(name)


def task_prompt(task: Task, key: str, turn: int = 0) -> Prompt:
    """One turn of a task as a prompt; the turns before it are part of its hash."""
    earlier, text = task.turns[:turn], task.turns[turn]
    whole = msgspec.json.encode((*earlier, text)).decode() if earlier else text
    return Prompt(key=key, text=text, sha256=text_sha256(whole), workload=task.kind, chat=True, earlier=earlier)


def task_prompts(tasks: Iterable[Task]) -> dict[str, Prompt]:
    """Every turn of every task as a prompt of its own, by key: ``task-81-turn-2``."""
    named = {f"{TASK_KEY}{task.id}-turn-{turn + 1}": (task, turn) for task in tasks for turn in range(len(task.turns))}
    return {key: task_prompt(task, key, turn) for key, (task, turn) in named.items()}


def prompt_from_file(path: Path | str) -> Prompt:
    """The whole text of a UTF-8 file, unchanged but for a byte-order mark; of a JSON file, its chat.

    Raises: PromptError if it cannot be used.
    """
    file = Path(path)
    text = read_text(file, "The prompt file", PromptError, "a text file")
    if not text.strip():
        raise PromptError(f"The prompt file {file} is empty.", hint="Put the text of the prompt into it.")
    messages = _messages(text, file) if file.suffix == ".json" else ()
    chat = bool(messages)
    return _prompt(f"file:{file.stem}", text, _FILE_WORKLOAD, path=str(path), chat=chat, messages=messages)


def _messages(text: str, path: Path) -> tuple[Message, ...]:
    """A chat as APIs take it: a list of role and content. Raises: PromptError for another list."""
    hint = 'Write [{"role": "user", "content": "..."}, ...], the last one of the user; a plain text is a .txt file.'
    messages = parse(text, tuple[Message, ...], f"The chat in {path}", PromptError, hint=hint)
    strange = next((message.role for message in messages if message.role not in _ROLES), None)
    if strange is not None:
        raise PromptError(f"The chat in {path} has a role {strange[:_MOST_NAMED]!r}.", hint=hint)
    if not 1 <= len(messages) <= _MOST_MESSAGES or messages[-1].role != "user":
        raise PromptError(
            f"The chat in {path} must have 1 to {_MOST_MESSAGES:,} messages, the last of the user.", hint=hint
        )
    return messages


def exact_prompt(text: str, n_tokens: int, tokenize: Tokenize) -> tuple[int, ...]:
    """The first `n_tokens` tokens of `text`; whatever `tokenize` puts in front (a BOS token) counts.

    Nothing is repeated or padded: a repeated prompt is trivially predictable and would flatter every drafter.
    Raises PromptError when the text is too short.
    """
    tokens = tuple(tokenize(text))
    if len(tokens) < n_tokens:
        raise PromptError(
            f"The text has {len(tokens)} tokens with this tokenizer; a prompt of {n_tokens} was asked for.",
            hint="Ask for a shorter prompt, or give a longer text file. Text is never repeated to fill a length.",
        )
    return tokens[:n_tokens]


def _prompt(key: str, text: str, workload: str, **more: Any) -> Prompt:
    return Prompt(key=key, text=text, sha256=text_sha256(text), workload=workload, **more)


def text_sha256(text: str) -> str:
    """SHA-256 (hex) of the UTF-8 bytes of `text`."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@functools.cache
def _shipped() -> dict[str, _PromptEntry]:
    content = asset_path("prompts/prompts.toml").read_bytes()
    return msgspec.toml.decode(content, type=dict[str, dict[str, _PromptEntry]])["prompts"]


@functools.cache
def _shipped_bytes(file: str) -> bytes:
    """The UTF-8 text of a shipped file, unpacked and without space around it."""
    path = asset_path(f"prompts/{file}")
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).strip()
