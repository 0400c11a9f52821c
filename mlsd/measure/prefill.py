"""The memory that a long prompt leaves, kept so that it is read once and not for every arm and repeat."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from mlsd.engine.session import Session
from mlsd.measure.messages import Alive, silent

_SHARE = 0.25  # of the memory that is free when another is kept


class SavedPrompts:
    """Memories by model and text. A text is read as any other outside of `reading` one that is kept."""

    def __init__(self, kept: Container[str], alive: Alive = silent) -> None:
        """`kept` are the keys of the prompts that are read once; `alive` hears of passes over long ones."""
        self._alive = alive
        self._kept = kept
        self._is_kept = self._is_timed = False
        self._known: dict[tuple[object, tuple[int, ...]], Any] = {}
        self._clocked: set[tuple[object, tuple[int, ...]]] = set()

    @contextmanager
    def reading(self, key: str, *, timed: bool = False) -> Iterator[None]:
        """Inside, texts are of this prompt. The first that is `timed` is read anew, so that there is a time of it."""
        before = self._is_kept, self._is_timed
        self._is_kept, self._is_timed = key in self._kept, timed
        try:
            yield
        finally:
            self._is_kept, self._is_timed = before

    def target(self, session: Session, prompt: Sequence[int]) -> bool:
        """Bring a prompt into a target, the last token's output included; whether its memory was known."""
        if not self._is_kept or session.options.kind != "plain":
            self._read(session, prompt, n_outputs=1)
            return False
        known = self.draft(session, prompt[:-1])
        session.decode(prompt[-1:])
        return known

    def draft(self, session: Session, tokens: Sequence[int]) -> bool:
        """The same for a draft, which gives no output yet."""
        if not self._is_kept:
            self._read(session, tokens)
            return False
        text = tuple(tokens)
        key = (session.model_key, text)
        if key in self._known and (key in self._clocked or not self._is_timed):
            session.set_memory(self._known[key], len(text))
            return True
        if text:
            self._read(session, text)
        if self._is_timed:
            self._clocked.add(key)
        if text and key not in self._known:
            self._known[key] = session.copy_memory()
            most_bytes = _SHARE * psutil.virtual_memory().available
            while len(self._known) > 1 and sum(map(len, self._known.values())) > most_bytes:
                del self._known[next(iter(self._known))]
        return False

    def _read(self, session: Session, tokens: Sequence[int], *, n_outputs: int = 0) -> None:
        """A long text in passes of the size that the context takes, with a sign of life behind each but the last."""
        most = session.options.n_batch
        last = max(0, len(tokens) - 1) // most * most
        for start in range(0, last, most):
            session.decode(tokens[start : start + most], n_outputs=0)
            self._alive("reading the prompt")
        session.decode(tokens[last:], n_outputs=n_outputs)
