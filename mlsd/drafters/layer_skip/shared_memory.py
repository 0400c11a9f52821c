"""A draft cut out of its target that works on the target's memory: each round it is copied."""

from collections.abc import Sequence

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain
from mlsd.drafters.draft_model import DraftModel
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.state import StateLink
from mlsd.engine.rollback import Rollback
from mlsd.engine.verify import Proposal


class SyncedDraft(DraftModel):
    """The draft never reads a prompt and never rolls back: each round its memory is replaced."""

    def __init__(self, context: LlamaContext, link: StateLink, clock: Clock, chain: Chain) -> None:
        super().__init__(context, _Replaced("sync", context), clock, chain)
        self._link, self._clock = link, clock
        self._sync_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Forget the last text; the target's memory of the prompt comes with the first proposal."""
        self._link.reset()
        self._chain.begin(rng)
        self._forget()
        self._text = list(prompt)
        self._sync_ns = 0

    def propose(self, k: int) -> Proposal:
        """Copy the target's memory, then draft; the copy counts as rollback, which it replaces."""
        started_ns = self._clock.now_ns()
        self._link.pull()
        sync_ns = self._clock.now_ns() - started_ns
        self._sync_ns += sync_ns
        proposal = super().propose(k)
        return msgspec.structs.replace(proposal, rollback_ns=proposal.rollback_ns + sync_ns)

    def stats(self) -> dict[str, float]:
        """Draft passes, and time and bytes of the copies, which stand in place of a rollback."""
        passes = {name: value for name, value in super().stats().items() if name != "draft_rollback_ns"}
        return {**passes, "sync_ns": float(self._sync_ns), "sync_bytes": float(self._link.n_bytes)}


class _Replaced(Rollback):
    """Of a memory that the next round replaces."""

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        return 0
