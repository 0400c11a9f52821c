"""The models that are fitted: curves of T(k) over the column `rows`, and cost models of speedup over `gamma`.

Each is its formula with bounds and a start. Times are ms, speedups ratios; costs in a speedup model are in units of
T(1); bytes are bytes, bandwidths GB/s (10^9 bytes a second), compute rates GFLOP/s (10^9 a second).

Sources: the roofline is Williams, Waterman, Patterson (CACM 2009); uniform expert coverage is MoESD (arXiv 2505.19645);
kernel steps are where llama.cpp's Metal backend changes its kernels (`hardware/metal_kernels`). Speedup models:
Leviathan, Kalman, Matias (ICML 2023), theorem 3.8; AtomGradient, "Does Speculative Decoding Help Mixture-of-Experts?"
(2026), equation 2; Mainardi, Sandikci, Vanschoren, "An Empirical Study of Speculative Decoding for Small Language
Models", equation 1.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mlsd.analysis.fits.curves import distinct_experts, step_columns
from mlsd.analysis.fits.fit import Columns, Floats, Model, Parameter
from mlsd.records import Record

_FIXED = Parameter("fixed_ms", "ms")
_PER_ROW = Parameter("per_row_ms", "ms")
_MS_PER_BYTE_AT_1_GB_S = 1e-6  # one byte at 1 GB/s takes 1e-9 s


def constant() -> Model:
    """T(k) is the same at every k."""
    return Model(
        "constant",
        "T(k) = t_one",
        (Parameter("t_one_ms", "ms"),),
        ("rows",),
        lambda p, c: np.full_like(c["rows"], p["t_one_ms"]),
        lambda c, y: {"t_one_ms": float(np.exp(np.mean(np.log(y))))},
    )


def linear() -> Model:
    """T(k) rises by the same amount with every row."""

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        intercept, slope = _line(columns["rows"], times)
        return {"fixed_ms": intercept, "per_row_ms": slope}

    return Model(
        "linear",
        "T(k) = fixed + per_row k",
        (_FIXED, _PER_ROW),
        ("rows",),
        lambda p, c: p["fixed_ms"] + p["per_row_ms"] * c["rows"],
        guess,
    )


def roofline(n_bytes: float, gflop_per_row: float) -> Model:
    """T(k) is bound by memory up to the ridge, by compute after it. Bytes of a pass and work of a row are known."""

    def predict(p: Mapping[str, float], columns: Columns) -> Floats:
        memory = n_bytes * _MS_PER_BYTE_AT_1_GB_S / p["bandwidth_gb_s"]
        compute = 1e3 * gflop_per_row * columns["rows"] / p["rate_gflop_s"]
        return p["fixed_ms"] + np.maximum(memory, compute)

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        k = columns["rows"]
        best: tuple[float, float, float, float] | None = None
        for ridge in np.unique(k)[1:-2]:
            flat = float(np.mean(times[k <= ridge]))
            intercept, slope = _line(k[k > ridge], times[k > ridge])
            error = float(np.sum((np.maximum(flat, intercept + slope * k) / times - 1) ** 2))
            if slope > 0 and (best is None or error < best[0]):
                best = (error, flat, intercept, slope)
        _, flat, intercept, slope = best or (0.0, float(np.mean(times)), 0.0, float(np.mean(times) / np.max(k)))
        fixed = max(intercept, 0.0)
        memory_ms = max(flat - fixed, 1e-3 * flat)
        return {
            "fixed_ms": fixed,
            "bandwidth_gb_s": n_bytes / memory_ms / 1e6,
            "rate_gflop_s": 1e3 * gflop_per_row / slope,
        }

    return Model(
        "roofline",
        "T(k) = fixed + max(bytes / BW, k flops / F)",
        (_FIXED, Parameter("bandwidth_gb_s", "GB/s", 1e-6), Parameter("rate_gflop_s", "GFLOP/s", 1e-6)),
        ("rows",),
        predict,
        guess,
    )


def stepped(edges: Sequence[int]) -> Model:
    """A line with a jump where another kernel takes over, at given or found (`curves.find_steps`) row counts."""
    places = tuple(edges)
    jumps = tuple(Parameter(f"jump_{edge}_ms", "ms") for edge in places)

    def predict(p: Mapping[str, float], columns: Columns) -> Floats:
        raised: Floats = step_columns(columns["rows"], places) @ np.array([p[jump.name] for jump in jumps])
        return p["fixed_ms"] + p["per_row_ms"] * columns["rows"] + raised

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        k = columns["rows"]
        design = np.column_stack([np.ones_like(k), k, step_columns(k, places)])
        answer = np.linalg.lstsq(design / times[:, None], np.ones_like(times), rcond=None)[0]
        return dict(zip(("fixed_ms", "per_row_ms", *(j.name for j in jumps)), map(float, answer), strict=True))

    return Model(
        "stepped",
        f"T(k) = fixed + per_row k + jumps at {', '.join(map(str, places))} rows",
        (_FIXED, _PER_ROW, *jumps),
        ("rows",),
        predict,
        guess,
    )


class ExpertShape(Record, frozen=True, kw_only=True):
    """What a mixture of experts reads in a pass."""

    n_experts: int  # routed experts of a layer
    n_used: int  # of them a token
    always_bytes: float  # read by every pass: attention, shared experts, output layer
    expert_bytes: float  # of one routed expert, summed over layers

    def pass_bytes(self, distinct: ArrayLike) -> Floats:
        """Bytes of passes that touch so many experts of a layer, modelled or measured."""
        return self.always_bytes + np.asarray(distinct, dtype=float) * self.expert_bytes


def moe(shape: ExpertShape, *, correlated: bool) -> Model:
    """T(k) from the experts that k tokens touch: independent uniform routing, or with one fitted correlation."""
    free = (Parameter("correlation", "", 0.0, 1.0),) if correlated else ()

    def n_bytes(k: Floats, correlation: float) -> Floats:
        return shape.pass_bytes(distinct_experts(k, shape.n_experts, shape.n_used, correlation))

    def predict(p: Mapping[str, float], columns: Columns) -> Floats:
        memory = n_bytes(columns["rows"], p.get("correlation", 0.0)) * _MS_PER_BYTE_AT_1_GB_S / p["bandwidth_gb_s"]
        return p["fixed_ms"] + memory + p["per_row_ms"] * columns["rows"]

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        k, start = columns["rows"], 0.3 if correlated else 0.0
        gigabytes = n_bytes(k, start) / 1e9
        design = np.column_stack([np.ones_like(k), gigabytes, k]) / times[:, None]
        fixed, per_gb, per_row = np.linalg.lstsq(design, np.ones_like(times), rcond=None)[0]
        return {
            "fixed_ms": max(0.0, float(fixed)),
            "bandwidth_gb_s": 1e3 / float(per_gb) if per_gb > 0 else float(2e3 * np.max(gigabytes) / np.mean(times)),
            "per_row_ms": max(0.0, float(per_row)),
            **({"correlation": start} if correlated else {}),
        }

    name, routing = ("moe-correlated", "E(1-(1-K/E)^(k^(1-r)))") if correlated else ("moe-uniform", "E(1-(1-K/E)^k)")
    return Model(
        name,
        f"T(k) = fixed + (b_always + L N(k) b_expert) / BW + per_row k, N(k) = {routing}",
        (_FIXED, Parameter("bandwidth_gb_s", "GB/s", 1e-6), _PER_ROW, *free),
        ("rows",),
        predict,
        guess,
    )


def bytes_line() -> Model:
    """Time of a single-token pass over the bytes it reads: fixed time and effective bandwidth (column `pass_bytes`)."""

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        intercept, slope = _line(columns["pass_bytes"], times)
        return {"fixed_ms": intercept, "bandwidth_gb_s": 1e-6 / max(slope, 1e-15)}

    return Model(
        "bytes-line",
        "T = fixed + bytes / BW",
        (_FIXED, Parameter("bandwidth_gb_s", "GB/s", 1e-6)),
        ("pass_bytes",),
        lambda p, c: p["fixed_ms"] + 1e-6 * c["pass_bytes"] / p["bandwidth_gb_s"],
        guess,
    )


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Intercept and slope by least squares on relative errors, the slope not negative."""
    design = np.column_stack([np.ones_like(x), x]) / y[:, None]
    intercept, slope = np.linalg.lstsq(design, np.ones_like(y), rcond=None)[0]
    return (float(intercept), float(slope)) if slope >= 0 else (float(np.mean(y)), 0.0)


# --- speedup -----------------------------------------------------------------------------------------------------


def classical() -> Model:
    """Leviathan's form: i.i.d. acceptance a, drafting c of a token, free verification; column `gamma`."""

    def predict(p: Mapping[str, float], columns: Columns) -> Floats:
        gamma, alpha = columns["gamma"], min(p["alpha"], 1.0 - 1e-9)  # where a fit still sees which way it should move
        return (1.0 - alpha ** (gamma + 1.0)) / (1.0 - alpha) / (p["draft_cost"] * gamma + 1.0)

    return Model(
        "equation 1",
        "S = (1 - a^(g+1)) / ((1 - a)(c g + 1))",
        (Parameter("alpha", "", 0.0, 1.0), Parameter("draft_cost", "T(1)")),
        ("gamma",),
        predict,
        lambda c, y: {"alpha": 0.5, "draft_cost": 0.1},
    )


def batch_published() -> Model:
    """The mixture-of-experts study's form, ``g T_seq / (T_draft(g) + T_verify(g))``; column `gamma`.

    It counts every proposed token as output, rejected ones too, so it holds only at an acceptance rate of one (and then
    forgets the bonus token). Kept to be fitted, compared and shown to fail.
    """

    def predict(p: Mapping[str, float], columns: Columns) -> Floats:
        gamma = columns["gamma"]
        cost = np.maximum(p["token_cost"] * gamma, 1e-12)  # the search may try a round that costs nothing
        return gamma / (cost + p["pass_cost"])

    def guess(columns: Columns, speedups: Floats) -> dict[str, float]:
        intercept, slope = _line(columns["gamma"], columns["gamma"] / speedups)
        return {"pass_cost": intercept, "token_cost": slope}

    return Model(
        "equation 2",
        "S = g / (pass_cost + token_cost g)",
        (Parameter("pass_cost", "T(1)"), Parameter("token_cost", "T(1)")),
        ("gamma",),
        predict,
        guess,
    )


def overhead() -> Model:
    """The small-model study's form, ``MGL / (1 + C_d / C_v)``: drafting cost by the token, free verification."""
    return Model(
        "overhead",
        "S = MGL / (1 + c g)",
        (Parameter("draft_cost", "T(1)"),),
        ("gamma", "mgl"),
        lambda p, c: c["mgl"] / (1.0 + p["draft_cost"] * c["gamma"]),
        lambda c, y: {"draft_cost": max(1e-3, float(np.median((c["mgl"] / y - 1) / c["gamma"])))},
    )


def measured_cost() -> Model:
    """The form mlsd uses: MGL, drafting and verification as measured; the rest of a round (rollback, sync) is fitted.

    Columns `mgl`, `draft_ratio` = T_draft / T(1), `verify_ratio` = T(gamma + 1) / T(1).
    """
    return Model(
        "corrected",
        "S = MGL / (T_draft + T(g+1) + rest) T(1)",
        (Parameter("rest_cost", "T(1)"),),
        ("mgl", "draft_ratio", "verify_ratio"),
        lambda p, c: c["mgl"] / (c["draft_ratio"] + c["verify_ratio"] + p["rest_cost"]),
        lambda c, y: {"rest_cost": max(1e-3, float(np.median(c["mgl"] / y - c["draft_ratio"] - c["verify_ratio"])))},
    )


def speedup_models() -> tuple[Model, ...]:
    """The four cost models, to be compared on the same rows."""
    return classical(), batch_published(), overhead(), measured_cost()
