"""Growing a chain of draft tokens from whatever gives logits: the likeliest token or a drawn one, ended early in doubt.

Where the likeliest token has too little probability, the rest of a chain would mostly be rejected. Published rules
differ in what becomes of the doubtful token: Kangaroo, SWIFT and ConfLayers still propose it, llama.cpp does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.engine.session import Logits
from mlsd.engine.verify import Probabilities, draw, probabilities
from mlsd.records import Record, Sampling

Probability = Annotated[float, Meta(ge=0, le=1)]
DoubtMode = Annotated[Literal["include", "drop"], Meta(description="that token is still proposed, or not")]


class Doubt(Record, frozen=True, kw_only=True):
    """When a chain ends before it is as long as it may be."""

    p_min: Annotated[Probability, Meta(description="a likeliest token below it (softmax) ends the draft; 0: never")] = (
        0.0
    )
    p_min_mode: DoubtMode = "drop"  # as llama.cpp's --draft-p-min


class Predictor(Protocol):
    """What a chain grows from: its output after the newest token."""

    def logits(self) -> Logits:
        """Logits, shape (1, n_vocab)."""

    def greedy(self) -> list[int]:
        """The likeliest token, alone; may be had where logits are not."""


class Chain:
    """The rule by which a method's chains grow, and how often and how long it doubted."""

    def __init__(
        self,
        clock: Clock,
        sampling: Sampling | None = None,
        doubt: Doubt | None = None,
        *,
        n_vocab: int | None = None,
    ) -> None:
        """By default greedy, and never in doubt; only tokens below `n_vocab` are proposed."""
        self.doubt, self._n_vocab = doubt or Doubt(), n_vocab
        self._sampling, self._clock = sampling or Sampling(), clock
        self._rng = np.random.default_rng(0)
        self._n_stops = self._confidence_ns = 0

    def begin(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._n_stops = self._confidence_ns = 0

    def grow(
        self, k: int, predictor: Predictor, forward: Callable[[Sequence[int]], None]
    ) -> tuple[tuple[int, ...], Probabilities | None]:
        """Up to `k` tokens, with the distributions they were drawn from where they were drawn.

        The predictor has taken in all text; `forward` gives it one more token.
        """
        tokens: list[int] = []
        rows: list[Probabilities] = []
        while len(tokens) < k:
            if tokens:
                forward(tokens[-1:])
            in_doubt = self._in_doubt(predictor, is_last=len(tokens) + 1 == k)
            if in_doubt and self.doubt.p_min_mode == "drop":
                break
            token = self._pick(predictor, rows)
            if self._n_vocab is not None and token >= self._n_vocab:
                break  # picked on the device, and unknown to the target
            tokens.append(token)
            if in_doubt:
                break
        return tuple(tokens), np.stack(rows) if rows else None

    def _in_doubt(self, predictor: Predictor, *, is_last: bool) -> bool:
        """Whether the chain ends here: by the row, not the drawn token, or the output would not follow the target."""
        if self.doubt.p_min == 0 or (is_last and self.doubt.p_min_mode == "include"):
            return False
        started_ns = self._clock.now_ns()
        found = top_probability(predictor.logits()[0]) < self.doubt.p_min
        self._confidence_ns += self._clock.now_ns() - started_ns
        self._n_stops += found
        return found

    def _pick(self, predictor: Predictor, rows: list[Probabilities]) -> int:
        if self._sampling.greedy:
            return predictor.greedy()[0]
        rows.append(probabilities(predictor.logits()[:, : self._n_vocab], self._sampling)[0])
        return draw(rows[-1], self._rng)

    def stats(self) -> dict[str, float]:
        """Drafts that ended in doubt and the time of finding out, where there is a threshold."""
        if self.doubt.p_min == 0:
            return {}
        return {"early_stops": float(self._n_stops), "confidence_ns": float(self._confidence_ns)}


def top_probability(row: Logits) -> float:
    """The largest probability of the softmax of a row of logits: 1 / sum(exp(logit - largest))."""
    return float(1.0 / np.exp(row - row.max()).sum(dtype=np.float64))
