"""What methods with a trained head share: its file, checked against the target's, and a chain out of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain
from mlsd.drafters.draft_model import step_stats
from mlsd.drafters.method import DrafterSetup
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.heads import RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.rows import LayerRowsSession, Rows, check_layers
from mlsd.engine.verify import Proposal, Verification
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.gguf_tools.heads import DraftingHead, read_head
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source


def check_rows(own: object, target: Source) -> None:
    """Refuse a target whose graph does not give out the rows between its blocks. Raises: UnsupportedError."""
    check_layers(target.architecture, trunk_layers(target) or 0, ())


def check_head(architecture: str, target: Source, file: Source) -> DraftingHead:
    """The head in a file, checked against the target by their two headers. Raises: UnsupportedError."""
    head = read_head(file, target, architecture)
    # Only EAGLE-3's own driver reads the row after the last block where a next-token block would.
    last = architecture == "eagle3"
    check_layers(target.architecture, trunk_layers(target) or 0, head.target_layers, last=last)
    return head


@dataclass(frozen=True)
class Opened:
    """What a method builds its head from."""

    target: LayerRowsSession  # keeps the head's rows from now on
    model: LlamaModel  # the head's weights
    head: DraftingHead


def open_head(setup: DrafterSetup, architecture: str) -> Opened:
    """Load the head beside the target. Raises: UnsupportedError, ModelFileError, VocabularyError."""
    head = check_head(architecture, Source(setup.target_path), Source(setup.second))
    model: LlamaModel = setup.open_model(setup.second)
    check_vocabularies(setup.target.tokenizer, model)
    target = cast(LayerRowsSession, setup.target)
    target.keep_rows(head.target_layers)
    return Opened(target=target, model=model, head=head)


class HeadChain(Drafter):
    """A chain from one head, step after step in its own memory; a method says which row belongs to which position.

    Each round feeds newly committed tokens again, with the target's rows, in the pass that gives the first proposal.
    """

    rollback_name = "trim"
    # The head's position p holds token p + n_ahead, so the newest text is that much shorter there.
    n_ahead = 0

    def __init__(self, head: RowContext, clock: Clock, chain: Chain) -> None:
        self._head, self._clock, self._chain = head, clock, chain
        self._forget()

    def _forget(self) -> None:
        self._context: list[int] = []
        self._has_prompt = False
        self._n_steps = self._n_catch_up = self._catch_up_ns = self._forward_ns = 0
        self._single_ns: list[int] = []  # of each pass over one token

    def true_rows(self, first: int, end: int) -> Rows:
        raise NotImplementedError

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Forget the last text; the head reads the prompt when the target's rows of it are there, in `observe`."""
        self._head.clear()
        self._chain.begin(rng)
        self._forget()
        self._context = list(prompt)

    def propose(self, k: int) -> Proposal:
        chain = self._chain
        self._catch_up()
        chain.start(k)
        while chain.extend(self._head):
            self._step(chain.tokens[-1:])
        return chain.proposal()

    def _step(self, tokens: Sequence[int]) -> None:
        """Read one proposal with the head's own row of the position before."""
        started_ns = self._clock.now_ns()
        self._head.decode(tokens, self._head.hidden_row())
        self._single_ns.append(self._clock.now_ns() - started_ns)
        self._forward_ns += self._single_ns[-1]
        self._n_steps += 1

    def _catch_up(self) -> None:
        """Read the newly committed tokens; the last one's outputs are kept."""
        started_ns = self._clock.now_ns()
        self._n_catch_up += self._read()
        self._catch_up_ns += self._clock.now_ns() - started_ns
        self._n_steps += 1

    def _read(self, *, output: bool = True) -> int:
        """Read what is committed and not yet in the head's memory; returns its positions."""
        first, end = self._head.n_past, len(self._context) - self.n_ahead
        if end > first:
            self._head.decode(self._context[first + self.n_ahead :], self.true_rows(first, end), output=output)
        return max(0, end - first)

    def observe(self, verification: Verification) -> None:
        """Read the prompt after the first token; later forget the speculative positions, whose rows were its own."""
        if self._has_prompt:
            self._head.truncate(len(self._context) - self.n_ahead)
        else:
            self._read(output=False)
            self._has_prompt = True
        self._context.extend(verification.committed)

    def stats(self) -> dict[str, float]:
        """Passes of the head and their time, of which reading the committed tokens again is one part."""
        return {
            **self._chain.stats(),
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._catch_up_ns + self._forward_ns),
            "catch_up_ns": float(self._catch_up_ns),
            **step_stats(self._single_ns),
        }

    def close(self) -> None:
        self._head.close()
