"""Intervals from resampled blocks.

Rows of one block share the machine's heat and load, so blocks are resampled, never rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from mlsd.errors import AnalysisError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_MOST_CELLS = 2_000_000
LEAST_BLOCKS = 3  # fewer cannot show a spread


def multiplicities(n_blocks: int, n_resamples: int, seed: int = 0) -> Floats:
    """How often each block is drawn in each resample with replacement. Shape (resamples, n_blocks).

    Fewer resamples than asked for, and at least 200, where there are so many blocks that memory would grow with them.
    """
    n_resamples = min(n_resamples, max(200, _MOST_CELLS // n_blocks))
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n_blocks, np.full(n_blocks, 1.0 / n_blocks), size=n_resamples)
    return drawn.astype(np.float64)


def interval(estimate: Floats, samples: Floats, n_blocks: int) -> tuple[Floats, Floats]:
    """95 % bounds around estimates from their bootstrap samples; the first axis of `samples` is the resample.

    ``estimate -+ t_{0.975, n - 1} sqrt(n / (n - 1)) sd(samples)``: Student's t and the factor make up for how
    little few blocks show of the spread, which plain percentiles do not (Hesterberg, "What Teachers Should Know About
    the Bootstrap", 2015). Give logarithms of quantities that are ratios. Raises AnalysisError below three blocks.
    """
    if n_blocks < LEAST_BLOCKS:
        raise AnalysisError(f"An interval needs at least {LEAST_BLOCKS} blocks, not {n_blocks}.")
    reach = float(t.ppf(0.975, n_blocks - 1)) * np.sqrt(n_blocks / (n_blocks - 1))
    half = np.asarray(reach * np.std(samples, axis=0, ddof=1), dtype=np.float64)
    return estimate - half, estimate + half


def block_index(blocks: NDArray[np.generic]) -> tuple[Ints, int]:
    """Number the blocks 0..n-1; returns the number of each row and n."""
    labels, index = np.unique(blocks, return_inverse=True)
    return index.reshape(-1).astype(np.intp), len(labels)


def one_step(estimate: Floats, jacobian: Floats, residuals: Floats, blocks: Ints, weights: Floats) -> Floats:
    """Bootstrap samples of a least-squares estimate, each by one Gauss-Newton step from it.

    ``theta* = theta - (sum m_b J_b'J_b)^-1 sum m_b J_b' r_b`` with m_b the multiplicity of block b (the one-step
    bootstrap of Shao and Tu, "The Jackknife and Bootstrap", 1995). Exact for linear models, at the price of one small
    solve a resample instead of a fit. `jacobian` (rows, parameters) of the residuals; `weights` (resamples, blocks).
    Resamples that leave the parameters unidentified are dropped. Returns shape (resamples, parameters).
    """
    n_blocks, n_parameters = weights.shape[1], jacobian.shape[1]
    products = np.zeros((n_blocks, n_parameters, n_parameters))
    gradients = np.zeros((n_blocks, n_parameters))
    np.add.at(products, blocks, jacobian[:, :, None] * jacobian[:, None, :])
    np.add.at(gradients, blocks, jacobian * residuals[:, None])
    scale = np.sqrt(np.einsum("bii->i", products)) + 1e-300
    systems = np.einsum("sb,bij->sij", weights, products) / scale[:, None] / scale[None, :]
    sides = weights @ gradients / scale
    whole = products.sum(axis=0) / scale[:, None] / scale[None, :]
    # `whole` has ones on its diagonal, so that a determinant near rounding means parameters that nothing tells apart.
    solvable = np.linalg.det(systems) > max(1e-9 * np.linalg.det(whole), 1e-14)
    steps = np.linalg.solve(systems[solvable], sides[solvable][:, :, None])[:, :, 0]
    return np.asarray(estimate - steps / scale, dtype=np.float64)
