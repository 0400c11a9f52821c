"""What methods with a trained head share: its file, checked against the target's, and a chain out of its memory."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain
from mlsd.drafters.draft_model import step_stats
from mlsd.drafters.method import DrafterSetup, MethodOptions
from mlsd.drafters.recipe import ContextPlan, Opening
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.heads import RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.rows import Rows, check_layers
from mlsd.engine.verify import Proposal, Verification
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.gguf_tools.heads import DraftingHead, read_head
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source


class HeadOptions(MethodOptions, frozen=True, kw_only=True):
    """What methods have in common that read the target's rows with a head from a file."""

    architecture: ClassVar[str] = "eagle3"

    def contexts(self, opening: Opening) -> tuple[ContextPlan, ...]:
        return opening.with_head()

    def check_target(self, target: Source) -> None:
        """Refuse one whose graph does not give out the rows between its blocks. Raises: UnsupportedError."""
        check_layers(target.architecture, trunk_layers(target) or 0, ())

    def check_second(self, target: Source, second: Source) -> object:
        return check_head(self.architecture, target, second)


def check_head(architecture: str, target: Source, file: Source) -> DraftingHead:
    """The head in a file, checked against the target by their two headers. Raises: UnsupportedError."""
    head = read_head(file, target, architecture)
    # Only EAGLE-3's own driver reads the row after the last block where a next-token block would.
    last = architecture == "eagle3"
    check_layers(target.architecture, trunk_layers(target) or 0, head.target_layers, last=last)
    return head


def open_head(setup: DrafterSetup, architecture: str) -> tuple[LlamaModel, DraftingHead]:
    """Load the head beside the target, which keeps its rows from now on.

    Raises: UnsupportedError, ModelFileError, EngineError.
    """
    head = check_head(architecture, Source(setup.target_path), Source(setup.second))
    model: LlamaModel = setup.open_model(setup.second)
    check_vocabularies(setup.target.tokenizer, model)
    setup.target.layer_rows.keep(head.target_layers)
    return model, head


class HeadMemory:
    """What a head has read of the text, of which it reads newly committed tokens again with the target's rows."""

    def __init__(
        self, head: RowContext, clock: Clock, true_rows: Callable[[int, int], Rows], *, n_ahead: int = 0
    ) -> None:
        """`true_rows` gives the rows of positions that the target has decoded.

        The head's position p holds token p + `n_ahead`, so the newest text is that much shorter there.
        """
        self.head, self._now, self._true_rows, self._n_ahead = head, clock.now_ns, true_rows, n_ahead
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the last text; the head reads the prompt when the target's rows of it are there, in `observe`."""
        self.head.clear()
        self._text = list(prompt)
        self._has_prompt = False
        self._n_steps = self._n_catch_up = self._catch_up_ns = self._forward_ns = 0
        self._single_ns: list[int] = []  # of each pass over one token

    def step(self, tokens: Sequence[int]) -> None:
        """Read one proposal with the head's own row of the position before."""
        started_ns = self._now()
        self.head.decode(tokens, self.head.hidden_row())
        self._single_ns.append(self._now() - started_ns)
        self._forward_ns += self._single_ns[-1]
        self._n_steps += 1

    def catch_up(self) -> None:
        """Read the newly committed tokens; the last one's outputs are kept."""
        started_ns = self._now()
        self._n_catch_up += self._read()
        self._catch_up_ns += self._now() - started_ns
        self._n_steps += 1

    def _read(self, *, output: bool = True) -> int:
        """Read what is committed and not yet in the head's memory; returns its positions."""
        first, end = self.head.n_past, len(self._text) - self._n_ahead
        if end > first:
            self.head.decode(self._text[first + self._n_ahead :], self._true_rows(first, end), output=output)
        return max(0, end - first)

    def observe(self, verification: Verification) -> None:
        """Read the prompt after the first token; later forget the speculative positions, whose rows were its own."""
        if self._has_prompt:
            self.head.truncate(len(self._text) - self._n_ahead)
        else:
            self._read(output=False)
            self._has_prompt = True
        self._text.extend(verification.committed)

    def stats(self) -> dict[str, float]:
        """Passes of the head and their time, of which reading the committed tokens again is one part."""
        return {
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._catch_up_ns + self._forward_ns),
            "catch_up_ns": float(self._catch_up_ns),
            **step_stats(self._single_ns),
        }


class HeadChain(Drafter):
    """A chain from one head, step after step in its own memory."""

    rollback_name = "trim"

    def __init__(self, memory: HeadMemory, chain: Chain) -> None:
        self._memory, self._chain = memory, chain

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._chain.begin(rng)
        self._memory.begin(prompt)

    def propose(self, k: int) -> Proposal:
        memory, chain = self._memory, self._chain
        memory.catch_up()
        chain.start(k)
        while chain.extend(memory.head):
            memory.step(chain.tokens[-1:])
        return chain.proposal()

    def observe(self, verification: Verification) -> None:
        self._memory.observe(verification)

    def stats(self) -> dict[str, float]:
        return {**self._chain.stats(), **self._memory.stats()}

    def close(self) -> None:
        self._memory.head.close()
