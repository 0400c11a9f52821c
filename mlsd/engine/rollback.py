"""Rollback strategies: how a context forgets the positions that verification rejected; and the target that uses them.

Each round `mark` comes before speculative tokens go in, `step` before each of them that goes in alone (a draft's), and
`rewind` once it is known how many stay. What is exact where is checked (`probe`):

    trim           attention only; cuts the memory at any position
    snapshots      recurrent and hybrid; exact only inside the last decoded batch, so for a target, never for a draft
                   that decodes token by token: there llama.cpp says True and leaves a wrong state
    ladder         a draft that decodes token by token; saves the recurrent state before each token, on the host
    device-ladder  the same with the copies on the device, each under a sequence of its own
    checkpoint     any memory with a recurrent part; saves the state at the mark and decodes the kept tokens again
    unchecked      what the study's tool did: ask for a cut, ignore the answer; always invalid, for demonstrations only

`probe.choose_strategy` chooses one. Verifying in two halves, and forking sequences, were measured and not built
(docs/architecture.md).
"""

from collections.abc import Sequence

import msgspec

from mlsd.clock import Clock
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.verify import NOTHING, Proposal, Verification
from mlsd.errors import EngineError, choose

SAVING = ("ladder", "device-ladder", "checkpoint")  # keep recurrent states beside the context


class Rollback:
    """One strategy, bound to one context. This one cuts attention memory, which costs microseconds."""

    def __init__(self, name: str, context: Context) -> None:
        self.name, self._context = name, context

    def mark(self) -> None:
        """Remember the memory as it is: everything in it is confirmed."""

    def step(self) -> None:
        """One more speculative token is about to be decoded alone."""

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        """Keep positions below `n_past`, forget the rest; returns the positions decoded again.

        `replay` holds the tokens from the mark up to `n_past`. A strategy that must go back to the mark decodes them
        again; given an empty `replay` it stops at the mark, and `context.n_past` says so.
        """
        if n_past < self._context.n_past:
            self._context.truncate(n_past)
        return 0


class Snapshots(Rollback):
    """Go back to a recurrent state that the engine kept for a position inside the last batch."""

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        """Cut where snapshots are exact. Raises: EngineError elsewhere, where llama.cpp reports no failure."""
        context = self._context
        depth = context.n_past - n_past
        reach = min(context.n_snapshots, context.last_width - 1)
        if depth > reach:
            raise EngineError(
                f"Snapshots reach {max(reach, 0)} positions back ({context.n_snapshots} kept, last batch "
                f"{context.last_width} wide), {depth} were asked for.",
                hint="Use the checkpoint strategy for a context that decodes token by token.",
            )
        if depth:
            context.truncate(n_past)
        return 0


class Ladder(Rollback):
    """Load the state saved where the kept tokens end: nothing is decoded again."""

    _n_marked = 0

    def mark(self) -> None:
        self._n_marked = self._context.n_past

    def step(self) -> None:
        self._context.save_state(self._context.n_past - self._n_marked)

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        if n_past < self._context.n_past:
            self._context.load_state(n_past - self._n_marked)
            self._context.truncate(n_past)
        return 0


class Checkpoint(Rollback):
    """Load the state saved at the mark and decode the kept tokens again."""

    _n_marked = 0

    def mark(self) -> None:
        self._context.save_state()
        self._n_marked = self._context.n_past

    def rewind(self, n_past: int, replay: Sequence[int]) -> int:
        context = self._context
        if n_past == context.n_past:
            return 0
        if replay and len(replay) != n_past - self._n_marked:
            raise EngineError(
                f"{len(replay)} tokens cannot replay positions {self._n_marked} to {n_past}.",
                hint="This is a fault of mlsd; please report it.",
            )
        context.load_state()
        context.truncate(self._n_marked)
        if replay:
            context.decode(replay, n_outputs=0)
        return len(replay)


_TABLE = {
    "trim": Rollback,
    "snapshots": Snapshots,
    "ladder": Ladder,
    "device-ladder": Ladder,  # on a context that keeps its states on the device
    "checkpoint": Checkpoint,
    "unchecked": Rollback,  # on one that was opened with `checked=False`, whose cut ignores the answer
}


def make_rollback(name: str, context: Context) -> Rollback:
    """The strategy of that name over `context`."""
    if name not in _TABLE:
        raise EngineError(f"There is no rollback strategy {name!r}.", hint=choose(name, _TABLE))
    return _TABLE[name](name, context)


def rollback_options(name: str | None, options: ContextOptions, gamma: int) -> ContextOptions:
    """A context that keeps what the strategy needs to take back up to `gamma` positions."""
    return msgspec.structs.replace(
        options,
        n_snapshots=gamma if name == "snapshots" else 0,
        n_saved_states=gamma if name in ("ladder", "device-ladder") else 0,
        saved_on_device=name == "device-ladder",
    )


class Target:
    """The context whose output is drafted: it verifies a proposal in one pass, then forgets what was rejected.

    Its times and `n_rows`, the positions decoded, are those of the newest round.
    """

    def __init__(self, context: Context, strategy: Rollback, clock: Clock) -> None:
        self.context, self._strategy, self._now = context, strategy, clock.now_ns
        self.n_rows = self.pass_ns = self.rollback_ns = 0
        self._n_past, self._last, self._proposal = 0, 0, NOTHING

    def verify(self, last: int, proposal: Proposal) -> Context:
        """Decode the newest committed token and what is proposed after it; the context holds the outputs of all."""
        context, n_proposed = self.context, len(proposal.tokens)
        self._n_past, self._last, self._proposal = context.n_past, last, proposal
        started_ns = marked_ns = self._now()
        if n_proposed:
            self._strategy.mark()
            marked_ns = self._now()
        if proposal.tree is None:
            self.n_rows = 1 + n_proposed
            context.decode((last, *proposal.tokens), n_outputs=1 + n_proposed)
        else:
            self.n_rows = 1 + len(proposal.tree.tokens)
            context.decode_tree(last, proposal.tree)
        self.pass_ns, self.rollback_ns = self._now() - marked_ns, marked_ns - started_ns
        return context

    def rollback(self, verification: Verification) -> None:
        """Forget what was not accepted."""
        n_accepted, started_ns = verification.accepted, self._now()
        if self._proposal.tree is not None:
            self.n_rows += self.context.keep_path(verification.path)
        elif n_accepted < len(self._proposal.tokens):
            replay = (self._last, *verification.committed[:n_accepted])
            self.n_rows += self._strategy.rewind(self._n_past + 1 + n_accepted, replay)
        else:
            return
        self.rollback_ns += self._now() - started_ns
