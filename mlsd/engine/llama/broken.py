"""A session that does wrong on purpose: the study's mistake."""

from __future__ import annotations

from mlsd.engine.llama.native import LOG
from mlsd.engine.llama.session import LlamaSession
from mlsd.errors import MlsdError


class UncheckedSession(LlamaSession):
    """What the study's tool did: native calls that fail are counted and ignored."""

    _earlier: list[int] = []  # noqa: RUF012 - replaced, never changed

    def _failed(self, error: MlsdError) -> None:
        self.failed_native_calls += 1
        LOG.drain()

    def greedy(self) -> list[int]:
        """The same; where an output row has no token, whatever an earlier pass left behind."""
        tokens = super().greedy()
        if min(tokens, default=0) >= 0:
            self._earlier = tokens or self._earlier
            return tokens
        stale = self._earlier or [0]
        return [token if token >= 0 else stale[min(i, len(stale) - 1)] for i, token in enumerate(tokens)]
