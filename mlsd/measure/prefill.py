"""The memory that a long prompt leaves, kept so that it is read once and not for every arm and repeat.

Held in the host's memory, the oldest given up first. A session that keeps more of a prompt than its memory (rows for a
drafting head) reads it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import psutil

from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.session import Session

_SHARE = 0.25  # of the memory that is free when another is kept


class SavedPrompts:
    """Memories by model and text."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, tuple[int, ...]], Any] = {}
        self._clocked: set[tuple[object, tuple[int, ...]]] = set()

    def target(self, session: Session, prompt: Sequence[int], *, timed: bool = False) -> bool:
        """Bring a prompt into a target, the last token's output included; whether its memory was known.

        The first that is `timed` reads it anew, so that there is a time of it.
        """
        if session.options.kind not in ("plain", "tapped"):
            session.decode(prompt)
            return False
        known = self.draft(session, prompt[:-1], timed=timed)
        session.decode(prompt[-1:])
        return known

    def draft(self, session: Session, tokens: Sequence[int], *, timed: bool = False) -> bool:
        """The same for a draft, which gives no output yet."""
        own, text = cast(LlamaSession, session), tuple(tokens)
        key = (own.model_key, text)
        if key in self._known and (key in self._clocked or not timed):
            own.set_memory(self._known[key], len(text))
            return True
        if text:
            own.decode(text, n_outputs=0)
        if timed:
            self._clocked.add(key)
        if text and key not in self._known:
            self._known[key] = own.copy_memory()
            most_bytes = _SHARE * psutil.virtual_memory().available
            while len(self._known) > 1 and sum(map(len, self._known.values())) > most_bytes:
                del self._known[next(iter(self._known))]
        return False
