"""Routers whose choices agree between tokens as much as asked for, in a model of random weights.

The first channel of every embedding row holds the same number C, and no block changes the hidden state by much; so a
router of any block sees, with random e of standard deviation sigma,

    x = (C, e_1, ..., e_{n-1}) / rms,    rms^2 = (C^2 + (n - 1) sigma^2) / n

With W_j0 = gain sqrt(rho) g_j rms / C and W_jk = gain sqrt((1 - rho) / (n - 1)) w_jk rms / sigma, its logits have
standard deviation `gain`, and those of two different tokens correlation rho, near or far.
"""

from collections.abc import Iterator
from math import sqrt

import gguf
import numpy as np

from mlsd.errors import InputError
from mlsd.gguf_tools.source import Bytes, Floats
from mlsd.gguf_tools.synthetic.blocks import Pool
from mlsd.gguf_tools.tensor import Tensor

EMBEDDING_STD = 50.0  # against block outputs of about one
_GAIN = 3.0  # logits spread enough that the chosen experts have unequal weights
_PIECE_BYTES = 1 << 23


def shared_experts(correlation: float, n_experts: int, n_used: int) -> float:
    """Fraction of its K experts that a token shares with another, when their E logits have that correlation.

    With normal logits X and Y of correlation rho, and the threshold t that K of E exceed, P(X > t) = K / E:
    ``P(Y > t | X > t)``, which is K / E at rho = 0 and 1 at rho = 1. Taking t as fixed is exact for many experts.
    """
    from scipy import stats

    if correlation >= 1 or n_used >= n_experts:
        return 1.0
    below = 1 - n_used / n_experts
    t = float(stats.norm.ppf(below))
    both_below = float(stats.multivariate_normal.cdf([t, t], mean=[0, 0], cov=[[1, correlation], [correlation, 1]]))
    return (1 - 2 * below + both_below) / (n_used / n_experts)


def correlation_for(shared: float, n_experts: int, n_used: int) -> float:
    """The inverse of `shared_experts`. Raises: InputError for a fraction below chance (K / E) or above 1."""
    from scipy import optimize

    chance = n_used / n_experts
    if not chance <= shared <= 1:
        raise InputError(
            f"Tokens cannot be made to share {shared:g} of their experts.",
            hint=f"Give a number from {chance:.3g} (chance: {n_used} of {n_experts}) to 1.",
        )
    if shared == chance or shared == 1:
        return 0.0 if shared == chance else 1.0
    return float(optimize.brentq(lambda rho: shared_experts(rho, n_experts, n_used) - shared, 0.0, 1.0, xtol=1e-6))


class SharedChannel:
    """The embedding channel that is the same for every token, and the routers that read it."""

    def __init__(self, correlation: float, embedding: Pool) -> None:
        """`correlation` is from 0 to 1; `embedding` has the spread `EMBEDDING_STD`."""
        self.correlation = correlation
        self._pool = embedding
        self._blocks, self._largest = embedding.equal_first()

    def embedding(self, table: Tensor, rng: np.random.Generator) -> Iterator[Bytes]:
        """The embedding table: random rows that all begin with the same weight, in pieces of whole rows."""
        n_rows = table.n_weights // table.dims[0]
        _, block_bytes = gguf.GGML_QUANT_SIZES[table.type]
        row_bytes = table.n_bytes // n_rows
        step = max(1, _PIECE_BYTES // row_bytes)
        for start in range(0, n_rows, step):
            count = min(step, n_rows - start)
            rows = np.concatenate([piece.copy() for piece in self._pool.pieces(count * row_bytes, rng)])
            rows = rows.reshape(count, row_bytes)
            chosen = self._blocks[rng.integers(len(self._blocks), size=count)]
            rows[:, :block_bytes] = chosen[:, :block_bytes]
            yield rows

    def router(self, spec: Tensor, rng: np.random.Generator) -> Floats:
        """A router's weights: shape (experts, embedding width)."""
        n = spec.dims[0]
        constant, sigma = self._largest, EMBEDDING_STD
        rms = sqrt((constant**2 + (n - 1) * sigma**2) / n)
        weights = rng.standard_normal(spec.dims[::-1], dtype=np.float32)
        weights[:, 0] *= np.float32(_GAIN * sqrt(self.correlation) * rms / constant)
        weights[:, 1:] *= np.float32(_GAIN * sqrt((1 - self.correlation) / (n - 1)) * rms / sigma)
        return weights
