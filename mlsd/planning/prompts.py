"""The prompts: four short ones, one long passage and the tasks that ship with mlsd, and texts from the user's files."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import PromptError, choose
from mlsd.folders import asset_path
from mlsd.outside import read_text
from mlsd.planning.tasks import KINDS, TASK_KEY, Task, tasks_by_name
from mlsd.records import PromptRef, Record

# The lengths of the study's sweep (32 to 1024 tokens, seed 002 table 3); any other `length-N` works as well.
SWEEP_LENGTHS = (32, 64, 128, 256, 512, 1024)

# The grammar of names: a word, for some a number behind it, and the depth. No number has more digits than a context.
_NAME = re.compile(r"([a-z_]{1,30})(?:-([1-9][0-9]{0,6}))?")
_DEEP = re.compile(r"(.+)@([0-9]+)", re.DOTALL)
_THINKS = {"chat": None, "think": True, "no-think": False}  # NAME+chat and so on: what the template is told
_ROLES = ("system", "user", "assistant")
_MOST_MESSAGES = 1_000
_MOST_NAMED = 100  # characters of an unknown name that a message repeats
_MOST_RANDOM = 1 << 20  # tokens; no model reads more
READ_ONCE_FROM = 512  # tokens asked for from which on a prompt is read once for all arms
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
    def asked(self) -> str:
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
    text, depth = _split_depth(name)
    plain, mark, switch = text.rpartition("+")
    prompt = _as_chat(find(plain), switch) if mark and switch in _THINKS else find(text)
    return deep_prompt(prompt, depth) if depth else prompt


def _as_chat(prompt: Prompt, switch: str) -> Prompt:
    key = f"{prompt.key}+{switch}"
    sha256, think = text_sha256(f"{switch} {prompt.sha256}"), _THINKS[switch]
    return msgspec.structs.replace(prompt, key=key, sha256=sha256, chat=True, think=think)


def _split_depth(text: str) -> tuple[str, int]:
    """`NAME@D` as name and depth; 0 without one. Raises: PromptError for a depth that no context has."""
    match = _DEEP.fullmatch(text)
    if match is None:
        return text, 0
    digits, most = match.group(2), len(_shipped_bytes("deep.txt.gz"))
    if len(digits) > len(str(most)) or not 1 <= int(digits) <= most:
        raise PromptError(
            f"A prompt cannot stand at depth {digits:.20}: the text before it has at most {most:,} tokens.",
            hint="Ask for a depth that the model's context has room for.",
        )
    return match.group(1), int(digits)


def _shallow(name: str) -> Prompt:
    shipped = _shipped()
    if (entry := shipped.get(name)) is not None:
        return _prompt(name, entry.text.strip(), entry.workload)
    if (task := tasks_by_name().get(name)) is not None:
        return task_prompt(task, name)
    if name == COPY:
        passage = _passage()[:_COPIED]
        text = f"{passage}\n\nThe same passage once more, word for word:\n\n{passage[:_HINT]}"
        return _prompt(name, text, COPY)
    match = _NAME.fullmatch(name)
    kind, n_tokens = (match.group(1), int(match.group(2) or 0)) if match else ("", 0)
    if kind == "length" and 1 <= n_tokens <= len(_passage().encode()):
        return _prompt(name, _passage(), _PASSAGE_WORKLOAD, n_tokens=n_tokens)
    if kind == "random" and 1 <= n_tokens <= _MOST_RANDOM:
        return _prompt(name, "random tokens", "random", n_tokens=n_tokens, random=True)
    more = (
        f", or length-N for exactly N tokens of prose (at most {len(_passage().encode()):,}), random-N (at most "
        f"{_MOST_RANDOM:,}), or a task ({', '.join(KINDS)}, each followed by -1, -2, ...), or give a text file"
    )
    known = choose(name[:_MOST_NAMED], (*shipped, COPY), more)
    raise PromptError(f"There is no prompt called {name[:_MOST_NAMED]!r}.", hint=known)


def shipped_prompt_sha256(name: str) -> str | None:
    """The hash of a prompt that mlsd ships, None for another one."""
    try:
        return load_prompt(name).sha256
    except PromptError:
        return None


def deep_prompt(prompt: Prompt, depth: int) -> Prompt:
    """The prompt behind the first `depth` tokens of the shipped deep text."""
    context = _deep_text()[: _MOST_TOKEN_CHARACTERS * depth]
    return msgspec.structs.replace(
        prompt,
        key=f"{prompt.key}@{depth}",
        sha256=text_sha256(f"{depth} {text_sha256(context)} {prompt.sha256}"),
        context=context,
        depth=depth,
    )


def _deep_text() -> str:
    """The passage, the tasks, then mlsd's source code as it was on one day; the file never changes."""
    return _shipped_bytes("deep.txt.gz").decode()


def _passage() -> str:
    return _shipped_bytes("long.txt").decode()


def find_prompt(text: str) -> Prompt:
    """The shipped prompt of that name, or the text file: what has a folder or an ending in its name is one.

    Raises: PromptError when there is neither.
    """
    return _with_marks(text, _named)


def _named(name: str) -> Prompt:
    place = Path(name)
    return prompt_from_file(place) if len(place.parts) > 1 or place.suffix else _shallow(name)


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
    place = Path(path)
    text = read_text(place, "The prompt file", PromptError, "a text file")
    if not text.strip():
        raise PromptError(f"The prompt file {place} is empty.", hint="Put the text of the prompt into it.")
    messages = _messages(text, place) if place.suffix == ".json" else ()
    chat = bool(messages)
    return _prompt(f"file:{place.stem}", text, _FILE_WORKLOAD, path=str(path), chat=chat, messages=messages)


def _messages(text: str, place: Path) -> tuple[Message, ...]:
    """A chat as APIs take it: a list of role and content. Raises: PromptError for another list."""
    hint = 'Write [{"role": "user", "content": "..."}, ...], the last one of the user; a plain text is a .txt file.'
    try:
        messages = msgspec.json.decode(text, type=tuple[Message, ...])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PromptError(f"The prompt file {place} is no chat: {error}.", hint=hint) from error
    strange = next((one.role for one in messages if one.role not in _ROLES), None)
    if strange is not None:
        raise PromptError(f"The chat in {place} has a role {strange[:_MOST_NAMED]!r}.", hint=hint)
    if not 1 <= len(messages) <= _MOST_MESSAGES or messages[-1].role != "user":
        raise PromptError(
            f"The chat in {place} must have 1 to {_MOST_MESSAGES:,} messages, the last of the user.", hint=hint
        )
    return messages


def exact_prompt(text: str, n_tokens: int, tokenize: Tokenize) -> tuple[int, ...]:
    """The first `n_tokens` tokens of `text`; whatever `tokenize` puts in front (a BOS token) counts.

    Nothing is repeated or padded: a repeated prompt is trivially predictable and would flatter every drafter.
    Raises PromptError when the text is too short.
    """
    if n_tokens < 1:
        raise PromptError(f"A prompt of {n_tokens} tokens is not possible.", hint="Ask for at least one token.")
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


def _shipped() -> dict[str, _PromptEntry]:
    return _read_shipped(asset_path("prompts/prompts.toml"))


@functools.cache
def _read_shipped(place: Path) -> dict[str, _PromptEntry]:
    return msgspec.toml.decode(place.read_bytes(), type=dict[str, dict[str, _PromptEntry]])["prompts"]


@functools.cache
def _shipped_bytes(file: str) -> bytes:
    """The UTF-8 text of a shipped file, unpacked and without space around it."""
    place = asset_path(f"prompts/{file}")
    data = place.read_bytes()
    return (gzip.decompress(data) if place.suffix == ".gz" else data).strip()
