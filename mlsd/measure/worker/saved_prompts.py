"""A prompt is read once a worker: every generation goes on from a copy of the memory that reading it left.

Whether a copy is right is seen once for each kind of context: one more token is decoded behind what was read and behind
the copy, and both memories must then hold the same bytes. That is remembered by file, build, device and options.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from mlsd.engine.context import Context, ContextOptions, Logits
from mlsd.engine.llama.native import backend_info
from mlsd.engine.rollback_choice import Prefix
from mlsd.errors import EngineError, InputError
from mlsd.folders import cache_dir, write_atomically
from mlsd.hardware import memory_bytes
from mlsd.measure.messages import report_progress
from mlsd.measure.probe_cache import answer_path
from mlsd.records import Losslessness, ModelRef

_FORMAT = 2  # raise it when what proves a copy changes
_SHARE = 0.25  # of the memory that is free when another is saved


class PromptOutput(NamedTuple):
    """What a target gives out behind a prompt: all that an acceptance rule asks of a context before the first round."""

    tokens: tuple[int, ...]
    rows: Logits | None  # None: the device samples

    def greedy(self) -> list[int]:
        return list(self.tokens)

    def logits(self) -> Logits:
        assert self.rows is not None  # as its context, which samples by the logits
        return self.rows

    def row(self, node: int) -> Logits:
        row: Logits = self.logits()[0]
        return row


@dataclass(eq=False)
class Reading:
    """The memory that a context held when it had read a text, from which generations go on."""

    memory: Any
    output: PromptOutput | None  # None: of a draft, which was asked for none
    verdict: Losslessness | None = None  # how it goes on beside another reading; None: not compared


class CopyProofs:
    """Whether copies of memories are right, by the kind of context, kept between runs for models with a hash."""

    def __init__(self, ref: Callable[[Path], ModelRef] | None = None) -> None:
        """`ref` names the model of a file; without it nothing is kept."""
        self._ref = ref
        self._known: dict[tuple[object, ContextOptions], bool] = {}

    def get(self, context: Context) -> bool | None:
        """Whether copies are right in such a context; None: nobody has looked."""
        key = context.model_key, reading_options(context)
        if key not in self._known and (path := self._path(context)) is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self._known[key] = msgspec.json.decode(path.read_bytes(), type=bool)
        return self._known.get(key)

    def set(self, context: Context, *, is_right: bool) -> None:
        self._known[context.model_key, reading_options(context)] = is_right
        if (path := self._path(context)) is not None:
            with contextlib.suppress(InputError):  # a cache that cannot be written costs a second the next time
                write_atomically(path, msgspec.json.encode(is_right).decode())

    def _path(self, context: Context) -> Path | None:
        model_path = getattr(getattr(context, "model", None), "path", None)
        if self._ref is None or model_path is None or (sha256 := self._ref(model_path).sha256) is None:
            return None
        options = reading_options(context)
        return answer_path(cache_dir() / "copies", backend_info(options.n_gpu_layers), _FORMAT, sha256, options)


def reading_options(context: Context) -> ContextOptions:
    """What decides how a context reads a text: all of its options but its length and the outputs that it may give."""
    return msgspec.structs.replace(context.options, n_ctx=0, max_outputs=1)


class SavedPrompts:
    """Memories by model and text, the oldest of which are dropped where memory is tight."""

    def __init__(self, proofs: CopyProofs | None = None) -> None:
        self._proofs = proofs or CopyProofs()
        self._is_anew = self._is_target_anew = False
        self._draft_read: tuple[Context, tuple[int, ...]] | None = None  # what a draft has read for its time
        self._saved: dict[tuple[object, bool, tuple[int, ...]], Reading] = {}
        # The last text that a context of another kind read for its time; no generation goes on from this copy.
        self._second_reading: tuple[tuple[int, ...], tuple[Any, Logits]] | None = None

    @contextlib.contextmanager
    def anew(self, *, target: bool, draft: bool = True) -> Iterator[None]:
        """Inside, a `draft` reads, and a `target`, as if nothing were known: for the time that it takes."""
        before, self._draft_read = (self._is_anew, self._is_target_anew), None
        self._is_anew, self._is_target_anew = draft, target
        try:
            yield
        finally:
            self._is_anew, self._is_target_anew = before

    def target(self, context: Context, prompt: Sequence[int]) -> Context | PromptOutput:
        """Bring a prompt into an empty target; who gives its output: the context, or what was saved of another."""
        right = self._proofs.get(context)
        saved = self._saved.get(_key(context, prompt))
        if self._is_target_anew or context.options.kind != "plain" or right is False:
            read_in_passes(context, prompt, n_outputs=1)
            return context
        if saved is None or saved.output is None or right is None:
            read_in_passes(context, prompt, n_outputs=1)
            if not self.keep(context, prompt):
                context.clear()
                return self.target(context, prompt)
            saved = self._saved[_key(context, prompt)]
        context.set_memory(saved.memory, len(prompt))
        assert saved.output is not None
        return saved.output

    def draft(self, context: Context, tokens: Sequence[int]) -> None:
        """Bring the same into an empty draft, which gives no output yet."""
        if not tokens:
            return
        right = self._proofs.get(context)
        saved = self._saved.get(_key(context, tokens))
        if self._is_anew or right is False:
            read_in_passes(context, tokens)
            self._draft_read = (context, tuple(tokens)) if self._is_anew else None
            return
        if saved is None or right is None:
            read_in_passes(context, tokens)
            if not self._keep(context, tokens, None, tokens[-1]):
                context.clear()
                read_in_passes(context, tokens)
                return
            saved = self._saved[_key(context, tokens)]
        context.set_memory(saved.memory, len(tokens))

    def keep_draft(self) -> None:
        """Save what a draft has just read for its time, if it still holds that and no more; it may then hold more."""
        (context, tokens), self._draft_read = self._draft_read or (None, ()), None
        if context is not None and context.n_past == len(tokens) and self._proofs.get(context) is not False:
            self._keep(context, tokens, None, tokens[-1])

    def reading(self, context: Context, prompt: Sequence[int]) -> Reading | None:
        """What a context goes on from behind a prompt, where copies of such contexts are right."""
        return self._saved.get(_key(context, prompt)) if self._proofs.get(context) else None

    def prefix(self, context: Context, prompt: Sequence[int]) -> Prefix | None:
        """A prompt that a context read and the memory behind it, where copies of such contexts are right."""
        reading = self.reading(context, prompt)
        return None if reading is None else Prefix(tuple(prompt), reading.memory)

    def drop(self, prompt: tuple[int, ...]) -> None:
        """Have a prompt read again, which was read wrongly."""
        self._saved = {key: reading for key, reading in self._saved.items() if key[2] != prompt}
        self._second_reading = None

    def second_reading(self, prompt: tuple[int, ...]) -> tuple[Any, Logits] | None:
        """The memory and the last row of logits of a target that read a prompt, but from which no run goes on."""
        text, reading = self._second_reading or (None, None)
        return reading if text == prompt else None

    def keep(self, context: Context, prompt: Sequence[int]) -> bool:
        """Save what a target holds that has just read a prompt; whether copies are right. It then holds more."""
        tokens = tuple(context.greedy())
        rows = None if context.options.device_sampling else context.logits()
        return self._keep(context, prompt, PromptOutput(tokens, rows), tokens[0])

    def _keep(self, context: Context, text: Sequence[int], output: PromptOutput | None, token: int) -> bool:
        key = _key(context, text)
        memory = context.copy_memory()
        saved = self._saved.get(key)
        if saved is None or saved.output is None:
            saved = self._saved[key] = Reading(memory, output)
        if self._proofs.get(context) is None:
            self._proofs.set(context, is_right=self._goes_on_alike(context, saved.memory, len(text), token))
        if memory is not saved.memory and output is not None and output.rows is not None and self._proofs.get(context):
            self._second_reading = tuple(text), (memory, output.rows)
        most_bytes = _SHARE * min(psutil.virtual_memory().available, memory_bytes())
        while len(self._saved) > 1 and sum(len(prompt.memory) for prompt in self._saved.values()) > most_bytes:
            oldest = next(iter(self._saved))
            if oldest == key:
                break
            del self._saved[oldest]
        return self._proofs.get(context) is True

    @staticmethod
    def _goes_on_alike(context: Context, memory: Any, n_past: int, token: int) -> bool:
        """Whether a token leaves the same behind what the context holds and behind the copy."""
        try:
            context.decode((token,))
            expected = bytes(context.copy_memory())
            context.set_memory(memory, n_past)
            context.decode((token,))
            return bytes(context.copy_memory()) == expected
        except EngineError:
            return False


def _key(context: Context, text: Sequence[int]) -> tuple[object, bool, tuple[int, ...]]:
    return context.model_key, context.options.device_sampling, tuple(text)


def read_in_passes(context: Context, tokens: Sequence[int], *, n_outputs: int = 0) -> None:
    """A long text in passes of the size that the context takes, with a sign of life behind each but the last."""
    most = context.options.n_batch
    last = max(0, len(tokens) - 1) // most * most
    for start in range(0, last, most):
        context.decode(tokens[start : start + most], n_outputs=0)
        report_progress("reading the prompt")
    context.decode(tokens[last:], n_outputs=n_outputs)
