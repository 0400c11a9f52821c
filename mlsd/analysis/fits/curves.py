"""How many experts a pass over k rows touches, and the kernel steps that measured T(k) show."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsd.errors import AnalysisError
from mlsd.records import Record

Floats = NDArray[np.float64]


def step_columns(rows: ArrayLike, edges: Sequence[int]) -> Floats:
    """One column an edge: 1 where the row count has reached it, else 0. Shape (rows, edges)."""
    return (_rows(rows)[:, None] >= np.asarray(edges, dtype=float)[None, :]).astype(np.float64)


def distinct_experts(rows: ArrayLike, n_experts: int, n_used: int, correlation: float = 0.0) -> Floats:
    """Experts of one layer that k consecutive tokens touch: ``N(k) = E (1 - (1 - K/E)^(k^(1 - r)))``.

    `n_experts` E, `n_used` K a token. `correlation` r = 0 is independent uniform routing (MoESD, arXiv 2505.19645); at
    r = 1 all tokens share their experts. In between, k tokens count as k^(1 - r) independent ones, because neighbours
    repeat experts the more of them there are. N(1) = K for every r.
    """
    effective = _rows(rows) ** (1.0 - correlation)
    return n_experts * (1.0 - (1.0 - n_used / n_experts) ** effective)


def shared_experts(rows: ArrayLike, n_experts: int, n_used: int, power: float = 0.72) -> Floats:
    """The same where nobody counted them: ``N(k) = min(E, K k^b)``.

    Neighbouring tokens share experts, so independent draws are too many: real mixtures show b from 0.65 to 0.80 (Cohere
    0.66 at 4 tokens; GLM-4.7-Flash 0.80 at 2, mlx-lm issue 1485; Laguna 0.77 at 8 and 0.74 at 15). The default is the
    geometric mean of both ends.
    """
    return np.minimum(n_experts, n_used * _rows(rows) ** power)


class Steps(Record, frozen=True, kw_only=True):
    """Kernel steps found in measured times."""

    edges: tuple[int, ...]  # first row count of each new kernel
    jumps_ms: tuple[float, ...]
    fixed_ms: float
    per_row_ms: float


def find_steps(rows: ArrayLike, times_ms: ArrayLike, max_steps: int = 5) -> Steps:
    """Find kernel steps, all upwards, by forward selection: add the edge that explains most while BIC falls.

    Least squares on relative errors. Edges are at measured row counts; the BIC counts two parameters a step, its place
    and its height. Raises AnalysisError below four different row counts.
    """
    k, times = _rows(rows), np.asarray(times_ms, dtype=float)
    if len(np.unique(k)) < 4:
        raise AnalysisError("Kernel steps need times at four or more row counts.")
    edges: list[int] = []
    best = _step_fit(k, times, edges)
    while len(edges) < max_steps:
        free = [int(edge) for edge in np.unique(k)[1:] if int(edge) not in edges]
        trials = [(_step_fit(k, times, [*edges, edge]), edge) for edge in free]
        if not trials:
            break
        (candidate, edge) = min(trials, key=lambda trial: trial[0][0])
        if candidate[0] >= best[0]:
            break
        best, edges = candidate, [*edges, edge]
    order = np.argsort(edges)
    solution = best[1]
    return Steps(
        edges=tuple(int(edges[i]) for i in order),
        jumps_ms=tuple(float(solution[2 + i]) for i in order),
        fixed_ms=float(solution[0]),
        per_row_ms=float(solution[1]),
    )


def _step_fit(k: Floats, times: Floats, edges: Sequence[int]) -> tuple[float, Floats]:
    """BIC and least-squares solution (fixed, per_row, jumps) of the stepped line on relative errors."""
    design = np.column_stack([np.ones_like(k), k, step_columns(k, edges)]) / times[:, None]
    answer, _, rank, _ = np.linalg.lstsq(design, np.ones_like(times), rcond=None)
    solution = answer.astype(np.float64)
    if rank < design.shape[1] or np.any(solution[2:] <= 0):  # a kernel that takes over at more rows is never faster
        return np.inf, solution
    n = len(times)
    variance = max(float(np.mean((design @ solution - 1.0) ** 2)), 1e-18)
    return n * np.log(variance) + (2 + 2 * len(edges)) * np.log(n), solution


def _rows(rows: ArrayLike) -> Floats:
    return np.atleast_1d(np.asarray(rows, dtype=float))
