"""ConfLayers' choice of blocks to leave out: those whose output is less confident than their neighbours'.

Source: arXiv 2604.14612 and its code. Hidden values are read as if they were logits; windows are wider where the
confidence curve bends and towards the end of the network. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
import numpy.typing as npt

_STEP = 0.05
_SLACK = 0.25  # the share left out may exceed the one asked for by this much
_MOST_STEPS = 400


def module_confidence(hidden: npt.NDArray[np.float32]) -> float:
    """One minus the normalised entropy of softmax(h), meaned over rows: 0 says everything alike, 1 one thing only.

    `hidden` has shape (positions, width).
    """
    shifted = hidden.astype(np.float64) - hidden.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    p = weights / weights.sum(axis=1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
    return float((1.0 - entropy / log(hidden.shape[1])).mean())


def select(confidence: Sequence[float], share: float) -> tuple[int, ...]:
    """Blocks to leave out, given the confidence of every block; first and last stay.

    Block i goes when c_i < mean(window) - lambda * std(window), the window around it without itself. lambda moves in
    steps of 0.05 until between `share` and `share` + 0.25 of the blocks go; where no step does, the least confident
    blocks against their windows go.
    """
    n_layers = len(confidence)
    inner = np.asarray(confidence[1:-1], dtype=np.float64)
    if inner.size < 3:
        return ()
    spread = float(inner.std())
    scores = (inner - inner.mean()) / spread if spread else np.zeros_like(inner)
    margins = _margins(scores, n_layers)
    least = max(1, round(share * n_layers))
    most = max(least, int((share + _SLACK) * n_layers))
    threshold = 0.0
    for _ in range(_MOST_STEPS):
        n_out = int((margins < threshold).sum())
        if n_out < least:
            threshold += _STEP
        elif n_out > most:
            threshold -= _STEP
        else:
            return tuple(int(i) + 1 for i in np.flatnonzero(margins < threshold))
    return tuple(sorted(int(i) + 1 for i in np.argsort(margins, kind="stable")[:least]))


def _margins(scores: npt.NDArray[np.float64], n_layers: int) -> npt.NDArray[np.float64]:
    """(c_i - mean of the window) / std of the window, so that block i goes when this is below -lambda."""
    bend = np.abs(np.gradient(np.gradient(scores)))
    top = float(bend.max())
    bend = 0.5 + 0.5 * (bend - float(bend.mean())) / top if top else np.full_like(bend, 0.5)
    n_equal = 1 + int(np.argmin(np.isclose(bend, bend[0]))) if not np.isclose(bend, bend[0]).all() else 1
    margins = np.empty_like(scores)
    for i in range(scores.size):
        reach = 2 + int(5 * n_equal * float(np.clip(bend[i], 0, 1)) * (i + 2) / n_layers)
        window = np.delete(scores[max(0, i - reach) : i + reach + 1], min(i, reach))
        deviation = float(window.std())
        margins[i] = (scores[i] - float(window.mean())) / deviation if deviation else 0.0
    return margins
