"""A draft cut out of its target that works on the target's memory: each round it is copied."""

from collections.abc import Sequence

from mlsd.clock import Clock
from mlsd.drafters.model_drafter import OwnMemory
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.state import StateLink
from mlsd.engine.rollback import Rollback
from mlsd.engine.verify import Verification


class SharedMemory(OwnMemory):
    """The draft never reads a prompt and never rolls back: each round its memory is replaced.

    The copy counts as rollback, which it replaces.
    """

    counted = (*OwnMemory.counted, "sync_ns")

    def __init__(self, context: LlamaContext, link: StateLink, clock: Clock) -> None:
        super().__init__(context, Rollback("sync", context), clock)
        self._link = link

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last text; the target's memory of the prompt comes with the first proposal."""
        self._link.reset()
        self._forget(prompt)

    def news(self) -> list[int]:
        started_ns = self._now()
        self._link.pull()
        sync_ns = self._now() - started_ns
        self.tally["sync_ns"] += sync_ns
        self.rollback_ns += sync_ns
        return super().news()

    def observe(self, verification: Verification) -> None:
        self._take_in(verification.committed)

    def stats(self) -> dict[str, float]:
        """Draft passes, and time and bytes of the copies, which stand in place of a rollback."""
        passes = {name: value for name, value in super().stats().items() if name != "draft_rollback_ns"}
        return {**passes, "sync_bytes": float(self._link.n_bytes)}
