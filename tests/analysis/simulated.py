"""Data simulated from known models: what a fit must give back."""

from dataclasses import dataclass

import numpy as np

from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.fit import Model, Observations, observations

ROWS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 31, 32, 33, 40, 48, 56, 64], dtype=float)
GAMMAS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16], dtype=float)
EDGES = (2, 9, 32)
N_BLOCKS = 16
ROW_NOISE, BLOCK_NOISE = 0.02, 0.01

SHAPE = fit_models.ExpertShape(n_experts=256, n_used=8, always_bytes=2.06e9, expert_bytes=40 * 3.34e6)


@dataclass(frozen=True)
class Truth:
    """A model with the parameters that the data are made with."""

    model: Model
    values: dict[str, float]


CURVES = [
    Truth(fit_models.constant(), {"t_one_ms": 12.0}),
    Truth(fit_models.linear(), {"fixed_ms": 10.0, "per_row_ms": 0.4}),
    Truth(fit_models.roofline(4e9, 8.0), {"fixed_ms": 3.0, "bandwidth_gb_s": 400.0, "rate_gflop_s": 10_000.0}),
    Truth(
        fit_models.stepped(EDGES),
        {"fixed_ms": 8.0, "per_row_ms": 0.15, "jump_2_ms": 3.0, "jump_9_ms": 4.0, "jump_32_ms": 2.0},
    ),
    Truth(fit_models.moe(SHAPE, correlated=False), {"fixed_ms": 6.0, "bandwidth_gb_s": 500.0, "per_row_ms": 0.1}),
    Truth(
        fit_models.moe(SHAPE, correlated=True),
        {"fixed_ms": 6.0, "bandwidth_gb_s": 500.0, "per_row_ms": 0.1, "correlation": 0.4},
    ),
]

SPEEDUPS = [
    Truth(fit_models.classical(), {"alpha": 0.7, "draft_cost": 0.12}),
    Truth(fit_models.batch_published(), {"pass_cost": 1.5, "token_cost": 0.6}),
    Truth(fit_models.overhead(), {"draft_cost": 0.2}),
    Truth(fit_models.measured_cost(), {"rest_cost": 0.15}),
]


def curve_data(truth: Truth, seed: int, n_blocks: int = N_BLOCKS) -> Observations:
    """T(k) of every k in every block, with noise of rows and of blocks."""
    rng = np.random.default_rng(seed)
    rows, blocks = np.tile(ROWS, n_blocks), np.repeat(np.arange(n_blocks), len(ROWS))
    times = truth.model.predict(truth.values, {"rows": rows}) * _noise(rng, blocks)
    return observations(times, blocks, rows=rows)


def speedup_data(truth: Truth, seed: int) -> Observations:
    """Speedups of every gamma in every block that follow one model, beside the costs and counts of a real loop."""
    rng = np.random.default_rng(seed)
    loop = honest_loop(rng)
    gamma, blocks = np.tile(GAMMAS, N_BLOCKS), np.repeat(np.arange(N_BLOCKS), len(GAMMAS))
    speedups = truth.model.predict(truth.values, {"gamma": gamma, **loop}) * _noise(rng, blocks)
    return observations(speedups, blocks, gamma=gamma, **loop)


def honest_loop(rng: np.random.Generator, n_rounds: int = 120) -> dict[str, np.ndarray]:
    """MGL counted over simulated rounds, drafting and verification timed with noise, for every gamma and block.

    Acceptance falls with the position in the draft; T(k) has a kernel step, so no smooth form describes it.
    """
    mgl, draft, verify = [], [], []
    for _ in range(N_BLOCKS):
        for gamma in GAMMAS.astype(int):
            alphas = 0.85 * 0.97 ** np.arange(gamma)
            accepted = np.cumprod(rng.random((n_rounds, gamma)) < alphas, axis=1).sum(axis=1)
            mgl.append(1.0 + accepted.mean())
            draft.append(0.06 * gamma * rng.lognormal(0, 0.01))
            verify.append((1.0 + 0.03 * gamma + 0.5 * (gamma + 1 >= 9)) * rng.lognormal(0, 0.01))
    return {"mgl": np.array(mgl), "draft_ratio": np.array(draft), "verify_ratio": np.array(verify)}


def _noise(rng: np.random.Generator, blocks: np.ndarray) -> np.ndarray:
    of_block = rng.normal(0, BLOCK_NOISE, N_BLOCKS)[blocks]
    return np.exp(of_block + rng.normal(0, ROW_NOISE, len(blocks)))
