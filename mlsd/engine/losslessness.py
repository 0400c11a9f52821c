"""Whether speculative output is what the target alone would have written, and if not, whether a tie explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec
import numpy as np

from mlsd.engine.session import Session, SessionOptions
from mlsd.records import Losslessness


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs (a missing token differs), or None when the outputs are equal."""
    for i, (token, other) in enumerate(zip(tokens, reference, strict=False)):
        if token != other:
            return i
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def judge(
    tokens: Sequence[int],
    reference: Sequence[int],
    prompt: Sequence[int],
    session: Session,
    kernel_noise: float | None,
) -> Losslessness:
    """Compare greedy output `tokens` with the plain greedy `reference` of the same target.

    Equal is `lossless`. Otherwise `tokens` are fed one by one to `session` (the target, with logits): when every
    emitted token lies within twice the kernel noise of the best one, kernels that round differently for one and for
    many rows explain the difference: `near_tie`. Anything else, a missing token included, is `diverged`.
    """
    index = first_difference(tokens, reference)
    if index is None:
        return Losslessness(verdict="lossless")
    tolerance = None if kernel_noise is None else 2 * kernel_noise
    gaps = _teacher_forced_gaps(tokens, prompt, session)
    worst = max(gap for gap, _ in gaps)
    explained = tolerance is not None and len(tokens) == len(reference) and worst <= tolerance
    return Losslessness(
        verdict="near_tie" if explained else "diverged",
        first_difference=index,
        top2_gap=gaps[index][1] if index < len(gaps) else None,
        worst_gap=worst,
        tolerance=tolerance,
    )


def _teacher_forced_gaps(tokens: Sequence[int], prompt: Sequence[int], session: Session) -> list[tuple[float, float]]:
    """For each token: logit of the best minus logit of this token, and of the best minus the second best."""
    session.clear()
    session.decode(prompt)
    gaps = []
    for token in tokens:
        row = session.logits()[0]
        second, best = np.partition(row, -2)[-2:]
        gaps.append((float(best - row[token]), float(best - second)))
        session.decode((token,))
    return gaps


def text_noise(
    tokens: Sequence[int],
    prompt: Sequence[int],
    open_session: Callable[[SessionOptions], Session],
    options: SessionOptions,
    widths: Sequence[int],
) -> float:
    """Kernel noise on this very text: `tokens` after `prompt`, one by one against batches of each width.

    The probe's noise is of a short text; kernels change with the depth of the context, and the router of a mixture of
    experts can turn the last bit of a sum into another expert. No rollback takes part, so a fault of one cannot hide.
    Returns the largest logit difference. Raises: EngineError when decoding fails.
    """
    widest = max(widths)
    options = msgspec.structs.replace(options, device_sampling=False, max_outputs=widest, n_snapshots=0)
    worst = 0.0
    for width in widths:
        with closing(open_session(options)) as single, closing(open_session(options)) as batched:
            single.decode(prompt)
            batched.decode(prompt)
            for start in range(0, len(tokens), width):
                part = tokens[start : start + width]
                batched.decode(part, n_outputs=len(part))
                rows = batched.logits()
                for token, row in zip(part, rows, strict=True):
                    single.decode((token,))
                    worst = max(worst, float(np.abs(single.logits()[0] - row).max()))
    return worst
