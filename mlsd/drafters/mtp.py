"""Drafting with the target's own next-token block (multi-token prediction), as Qwen3.5 ships it.

Each step reads a token and the hidden row of the position before: the target's own row where it is known, the block's
row for speculative positions. So every round feeds the newly committed tokens again, with true rows, in the one pass
that also gives the first proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.next_token import Hidden, HiddenRowsSession, NextTokenHead
from mlsd.engine.session import SessionOptions
from mlsd.engine.verify import Probabilities, draw, probabilities
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec, Sampling

ARCHITECTURES = ("qwen35", "qwen35moe")
LOADS_NEXT_TOKEN_BLOCK = True


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """The target keeps its hidden rows."""
    return msgspec.structs.replace(options, hidden_rows=True)


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse a file without the block.

    Raises: UnsupportedError, ModelFileError.
    """
    source = Source(target_path)
    if source.architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{target_path.name} is a {source.architecture} model; mtp works on {' and '.join(ARCHITECTURES)}.",
            hint="Choose another drafter for it.",
        )
    if int(source.own("nextn_predict_layers", 0)) < 1:
        raise UnsupportedError(
            f"{target_path.name} has no next-token block: it was left out when the file was made.",
            hint="Use a GGUF converted with the model's MTP layers.",
        )


def make(bench: DrafterBench) -> NextTokenDraft:
    """The block beside the target.

    Raises: UnsupportedError for a target without one.
    """
    check_target(bench.spec, bench.target_path)
    target = cast(HiddenRowsSession, bench.target)
    return NextTokenDraft(target, NextTokenHead(target), bench.clock, bench.sampling)


class NextTokenDraft:
    """A chain of tokens from one block used again and again."""

    name = "mtp"
    rollback_name: str | None = "trim"
    failed_native_calls = 0

    def __init__(self, target: HiddenRowsSession, head: NextTokenHead, clock: Clock, sampling: Sampling) -> None:
        self._target, self._head, self._clock, self._sampling = target, head, clock, sampling
        self._rng = np.random.default_rng(0)
        self._context: list[int] = []
        self._n_steps = self._n_catch_up = self._catch_up_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Forget the last text; the block reads the prompt when the target's rows of it are there, in `observe`."""
        self._head.clear()
        self._rng = rng
        self._context = list(prompt)
        self._n_steps = self._n_catch_up = self._catch_up_ns = 0

    def propose(self, k: int) -> Draft:
        """Up to `k` tokens, each from a pass of the block."""
        head = self._head
        tokens: list[int] = []
        rows: list[Probabilities] = []
        started_ns = self._clock.now_ns()
        pending = self._context[head.n_past :]
        head.decode(pending, self._rows_before(head.n_past, len(self._context)))
        self._n_catch_up += len(pending)
        self._catch_up_ns += self._clock.now_ns() - started_ns
        while True:
            tokens.append(self._pick(rows))
            if len(tokens) >= k:
                break
            head.decode(tokens[-1:], head.hidden_row())
        self._n_steps += k
        return Draft(tokens=tuple(tokens), probabilities=np.stack(rows) if rows else None)

    def _rows_before(self, first: int, end: int) -> Hidden:
        """The target's rows of positions first - 1 .. end - 2; before the text there is a row of zeros."""
        known = self._target.hidden
        if first > 0:
            return known[first - 1 : end - 1]
        return np.concatenate([np.zeros((1, known.shape[1]), dtype=np.float32), known[: end - 1]])

    def _pick(self, rows: list[Probabilities]) -> int:
        if self._sampling.greedy:
            return int(self._head.logits()[0].argmax())
        rows.append(probabilities(self._head.logits(), self._sampling)[0])
        return draw(rows[-1], self._rng)

    def observe(self, outcome: Outcome) -> None:
        """Read the prompt after the first token; later forget the speculative positions, whose rows were its own."""
        if self._head.n_past == 0:
            self._head.decode(self._context, self._rows_before(0, len(self._context)))
        else:
            self._head.truncate(len(self._context))
        self._context.extend(outcome.committed)

    def stats(self) -> dict[str, float]:
        """Passes of the block, and what reading the committed tokens again cost."""
        return {
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "catch_up_ns": float(self._catch_up_ns),
        }

    def close(self) -> None:
        """Free the block's context."""
        self._head.close()
