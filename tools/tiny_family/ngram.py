"""The yardstick: an interpolated Kneser-Ney n-gram model over the same tokens.

p(w | h) = max(c(h w) - d, 0) / c(h) + d N(h) / c(h) * p(w | h'), with h' one token shorter, N(h) the number of
different tokens seen after h, c the plain counts at the longest order and the numbers of different left neighbours
below it, and a uniform distribution at the bottom (Chen & Goodman 1999, interpolated form, one discount d = 0.75).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
from tokens import VOCAB_SIZE, excerpts

_DISCOUNT = 0.75


class KneserNey:
    """Counts of one corpus, ready to score another."""

    def __init__(self, tokens: np.ndarray, vocab_size: int, order: int = 5) -> None:
        self._order, self._vocab_size = order, vocab_size
        text = [int(t) for t in tokens]
        self._counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        self._counts[order] = Counter(zip(*(text[i:] for i in range(order)), strict=False))
        for n in range(order - 1, 0, -1):
            # Lower orders count different left neighbours, not occurrences.
            self._counts[n] = Counter(gram[1:] for gram in self._counts[n + 1])
        self._totals: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
        self._kinds: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
        for n in range(1, order + 1):
            for gram, count in self._counts[n].items():
                self._totals[n - 1][gram[:-1]] += count
                self._kinds[n - 1][gram[:-1]] += 1

    def probability(self, history: tuple[int, ...], token: int) -> float:
        """p(token | the last order - 1 tokens of `history`)."""
        p = 1.0 / self._vocab_size
        longest = min(len(history), self._order - 1)
        for n in range(longest + 1):
            context = history[len(history) - n :]
            total = self._totals[n].get(context, 0)
            if total:
                seen = max(self._counts[n + 1].get((*context, token), 0) - _DISCOUNT, 0.0)
                p = seen / total + _DISCOUNT * self._kinds[n][context] / total * p
        return p

    def mean_nats(self, tokens: np.ndarray) -> float:
        """Mean negative log-likelihood in nats a token of the sequence `tokens`."""
        text = [int(t) for t in tokens]
        reach = self._order - 1
        return -sum(
            math.log(self.probability(tuple(text[max(0, i - reach) : i]), text[i])) for i in range(len(text))
        ) / len(text)


def score(run: Path) -> None:
    """Write what the yardstick gives the held-out tokens."""
    held_out = np.load(run / "held_out.npy")
    yardstick = KneserNey(np.load(run / "train.npy"), VOCAB_SIZE)
    told = {
        "nats_per_token": round(yardstick.mean_nats(held_out), 4),
        # The same windows that the tests score with the models, each without what stands before it.
        "window_nats_per_token": round(float(np.mean([yardstick.mean_nats(w) for w in excerpts(held_out)])), 4),
    }
    (run / "five_gram.json").write_text(json.dumps(told, indent=1) + "\n")
