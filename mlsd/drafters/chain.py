"""Growing a chain of draft tokens from whatever gives logits: the likeliest token or a drawn one, ended early in doubt.

Where the likeliest token has too little probability, the rest of a chain would mostly be rejected. Published rules
differ in what becomes of the doubtful token: Kangaroo, SWIFT and ConfLayers still propose it, llama.cpp does not, and
counts its probability among the ten likeliest alone (`common_speculative_impl_draft_simple::draft`, as of b11524).
"""

from typing import Annotated, Literal, Protocol

import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters.options import Values
from mlsd.engine.context import Logits
from mlsd.engine.verify import Probabilities, Proposal, draw, probabilities
from mlsd.records import Record, Sampling

# Thresholds to search; ik_llama.cpp's tuner has eleven from 0 to 0.95.
P_MIN = Values(values=(0.0, 0.3, 0.5, 0.6, 0.75, 0.9))
Probability = Annotated[float, Meta(ge=0, le=1)]
EarlyStopMode = Annotated[
    Literal["include", "drop"],
    Meta(description="that token is still proposed, as in papers, or not, as in llama.cpp (of its ten likeliest)"),
]
_LLAMA_TOP_K = 10  # tokens that llama.cpp's draft samplers keep, of which its probabilities are
_NOTHING = 40.0  # logits below the largest: less than 1e-17 of it


class EarlyStop(Record, frozen=True, kw_only=True):
    """When a chain ends before it is as long as it may be."""

    p_min: Annotated[Probability, Meta(description="a likeliest token below it (softmax) ends the draft; 0: never")] = (
        0.0
    )
    p_min_mode: EarlyStopMode = "drop"  # as llama.cpp's --spec-draft-p-min


class Predictor(Protocol):
    """What a chain grows from: its output after the newest token."""

    def logits(self) -> Logits:
        """Logits, shape (1, n_vocab)."""

    def greedy(self) -> list[int]:
        """The likeliest token, alone; may be had where logits are not."""


class Chain:
    """A chain that grows token by token, how often it ended early, and the time of finding out.

    `start` a chain, then `extend` it from the outputs after all text and each token so far, until it says no.
    """

    def __init__(
        self,
        clock: Clock,
        sampling: Sampling | None = None,
        stop: EarlyStop | None = None,
        *,
        n_vocab: int | None = None,
    ) -> None:
        """By default greedy, and never ended early; only tokens below `n_vocab` are proposed."""
        self.stop, self._n_vocab, self._now = stop or EarlyStop(), n_vocab, clock.now_ns
        self._sampling = sampling or Sampling()
        self._greedy = self._sampling.greedy
        self.begin(np.random.default_rng(0))

    def begin(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._n_stops = self._confidence_ns = 0

    def start(self, k: int) -> None:
        """A chain of at most `k` tokens, at least one."""
        self._k = k
        self.tokens: list[int] = []
        self._rows: list[Probabilities] = []

    def extend(self, outputs: Predictor) -> bool:
        """Add the next token, if any; whether another may follow it, once a pass has taken it in."""
        is_last, stop = len(self.tokens) + 1 == self._k, self.stop
        # By the row, not the drawn token, or the output would not follow the target.
        unsure = stop.p_min > 0 and not (is_last and stop.p_min_mode == "include") and self._is_unsure(outputs)
        if unsure and stop.p_min_mode == "drop":
            return False
        if self._greedy:
            token = outputs.greedy()[0]
        else:
            self._rows.append(probabilities(outputs.logits()[:, : self._n_vocab], self._sampling)[0])
            token = draw(self._rows[-1], self._rng)
        if self._n_vocab is not None and token >= self._n_vocab:
            return False  # picked on the device, and unknown to the target
        self.tokens.append(token)
        return not (is_last or unsure)

    def _is_unsure(self, outputs: Predictor) -> bool:
        started_ns = self._now()
        n_top = _LLAMA_TOP_K if self.stop.p_min_mode == "drop" else None
        is_unsure = top_probability(outputs.logits()[0], n_top) < self.stop.p_min
        self._confidence_ns += self._now() - started_ns
        self._n_stops += is_unsure
        return is_unsure

    def proposal(self, rollback_ns: int = 0) -> Proposal:
        """The chain, with the distributions that its tokens were drawn from where they were drawn."""
        rows = np.stack(self._rows) if self._rows else None
        return Proposal(tokens=tuple(self.tokens), probabilities=rows, rollback_ns=rollback_ns)

    def stats(self) -> dict[str, float]:
        """Drafts that ended early and the time of finding out, where there is a threshold."""
        if self.stop.p_min == 0:
            return {}
        return {"early_stops": float(self._n_stops), "confidence_ns": float(self._confidence_ns)}


def top_probability(row: Logits, n_top: int | None = None) -> float:
    """The largest probability of the softmax of a row, or of its `n_top` largest logits: 1 / sum(exp(logit - max))."""
    largest = row.max()
    if n_top is not None:
        row = np.sort(row[row > largest - _NOTHING])[-n_top:]
    return float(1.0 / np.exp(row - largest).sum(dtype=np.float64))
