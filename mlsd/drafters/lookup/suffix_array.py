"""Suffix arrays over token ids, in numpy: every place of a text in the order of what follows it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_KEY_BITS = 63


def suffix_array(tokens: npt.NDArray[np.int32], depth: int) -> tuple[npt.NDArray[np.int32], int]:
    """Positions of `tokens` sorted by the next `depth` tokens or more; returns the order and the depth it is exact to.

    Token ids are >= -1. A text's end sorts before every token. Prefix doubling (Manber and Myers 1993): ranks of
    sequences of length d give those of length 2d by sorting pairs; the first step packs as many tokens as fit into a
    64-bit key, so that depth 32 takes five sorts. Needs about 40 bytes a token.
    """
    n = len(tokens)
    if n == 0:
        return np.empty(0, dtype=np.int32), depth
    bits = max(1, int(tokens.max() + 2).bit_length())
    packed = max(1, _KEY_BITS // bits)
    key = np.zeros(n, dtype=np.int64)
    for offset in range(packed):
        key <<= bits
        if offset < n:
            key[: n - offset] += tokens[offset:].astype(np.int64) + 2  # 0 is the end of the text
    order, rank, n_ranks = _ranked(key)
    reached = packed
    while reached < depth and n_ranks < n:
        np.multiply(rank, n + 1, out=key)
        if reached < n:
            key[: n - reached] += rank[reached:] + 1
        order, rank, n_ranks = _ranked(key)
        reached *= 2
    return order.astype(np.int32), max(reached, depth) if n_ranks == n else reached


def _ranked(key: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    order = np.argsort(key)
    ordered = key[order]
    steps = np.empty(len(key), dtype=np.int64)
    steps[0] = 0
    np.not_equal(ordered[1:], ordered[:-1], out=steps[1:], casting="unsafe")
    np.cumsum(steps, out=steps)
    rank = np.empty_like(steps)
    rank[order] = steps
    return order, rank, int(steps[-1]) + 1
