"""The models that are fitted: curves of T(k) over the column `rows`, and cost models of speedup over `gamma`.

Each is its formula with bounds and a start. Times are ms, speedups ratios; costs in a speedup model are in units of
T(1); bytes are bytes, bandwidths GB/s (10^9 bytes a second), compute rates GFLOP/s (10^9 a second).

Sources: the roofline is Williams, Waterman, Patterson (CACM 2009); uniform expert coverage is MoESD (arXiv 2505.19645);
kernel steps are where llama.cpp's Metal backend changes its kernels (`hardware/metal_kernels`). Speedup models:
Leviathan, Kalman, Matias (ICML 2023), theorem 3.8; AtomGradient, "Does Speculative Decoding Help Mixture-of-Experts?"
(2026), equation 2; Mainardi, Sandikci, Vanschoren, "An Empirical Study of Speculative Decoding for Small Language
Models", equation 1.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from mlsd.analysis.fits.curves import distinct_experts, step_columns
from mlsd.analysis.fits.fit import Columns, Floats, Model, Parameter
from mlsd.records import Record

_FIXED = Parameter("fixed_ms", "ms")
_PER_ROW = Parameter("per_row_ms", "ms")
_BANDWIDTH = Parameter("bandwidth_gb_s", "GB/s", 1e-6)
_DRAFT_COST = Parameter("draft_cost", "T(1)")
_MS_AT_1_GB_S = 1e-6  # of a byte
_LEAST_SHARE = 0.01  # of the mean that a rate's term has where a fit starts, so that the solver sees which way to move

Values = Mapping[str, float]
Terms = Callable[[Columns, Values], Sequence[ArrayLike]]


def _sum_of_terms(
    name: str,
    formula: str,
    parameters: Sequence[Parameter],
    terms: Terms,
    *,
    starts: Values | None = None,
    given_cost: Callable[[Columns, Values], Floats] | None = None,
) -> Model:
    """A time that is the sum of `terms`, each times its parameter, or over it where that is a bandwidth.

    Terms belong to the parameters that are not in `starts`; those are given to `terms` as they are, and a fit begins at
    their values. With `given_cost` the sum and what is known give the cost of a token of a speedup, ``1 / S``.
    """
    free, given = [p for p in parameters if p.name not in (starts or {})], starts or {}

    def predict(values: Values, columns: Columns) -> Floats:
        factors = [1 / values[p.name] if p is _BANDWIDTH else values[p.name] for p in free]
        total = sum(factor * np.asarray(term) for factor, term in zip(factors, terms(columns, values), strict=True))
        # The search may try a round that costs nothing.
        return np.asarray(total if given_cost is None else 1 / np.maximum(given_cost(columns, values) + total, 1e-12))

    def guess(columns: Columns, observed: Floats) -> dict[str, float]:
        """Least squares on relative errors, which are linear here."""
        weight = 1 / observed if given_cost is None else observed
        rest = np.ones_like(observed) if given_cost is None else 1 - given_cost(columns, given) * observed
        design = [np.broadcast_to(term, observed.shape) * weight for term in terms(columns, given)]
        factors = _not_negative(design, rest)
        least = [_LEAST_SHARE / max(float(np.mean(term)), 1e-300) for term in design]
        start = {p.name: 1 / max(f, n) if p is _BANDWIDTH else f for p, f, n in zip(free, factors, least, strict=True)}
        return {**start, **given}

    return Model(name, formula, tuple(parameters), predict, guess)


def _not_negative(columns: Sequence[Floats], wanted: Floats) -> list[float]:
    from scipy.optimize import nnls

    return [float(factor) for factor in nnls(np.column_stack(columns), wanted)[0]]


def constant() -> Model:
    """T(k) is the same at every k."""
    return _sum_of_terms(
        "constant", "T(k) = t_one", [Parameter("t_one_ms", "ms")], lambda c, _: [np.ones_like(c["rows"])]
    )


def linear() -> Model:
    """T(k) rises by the same amount with every row."""
    return _sum_of_terms("linear", "T(k) = fixed + per_row k", [_FIXED, _PER_ROW], lambda c, _: [1.0, c["rows"]])


def stepped(edges: Sequence[int]) -> Model:
    """A line with a jump where another kernel takes over, at given or found (`curves.find_steps`) row counts."""
    return _sum_of_terms(
        "stepped",
        "T(k) = fixed + per_row k + jump_r of each r up to k",
        [_FIXED, _PER_ROW, *(Parameter(f"jump_{edge}_ms", "ms") for edge in edges)],
        lambda c, _: [1.0, c["rows"], *step_columns(c["rows"], edges).T],
    )


def bytes_line() -> Model:
    """Time of a single-token pass over the bytes it reads: fixed time and effective bandwidth (column `pass_bytes`)."""
    return _sum_of_terms(
        "bytes-line",
        "T = fixed + bytes / BW",
        [_FIXED, _BANDWIDTH],
        lambda c, _: [1.0, _MS_AT_1_GB_S * c["pass_bytes"]],
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
    name, routing = ("moe-correlated", "E(1-(1-K/E)^(k^(1-r)))") if correlated else ("moe-uniform", "E(1-(1-K/E)^k)")

    def terms(columns: Columns, values: Values) -> list[ArrayLike]:
        k = columns["rows"]
        distinct = distinct_experts(k, shape.n_experts, shape.n_used, values.get("correlation", 0.0))
        return [1.0, _MS_AT_1_GB_S * shape.pass_bytes(distinct), k]

    return _sum_of_terms(
        name,
        f"T(k) = fixed + (b_always + L N(k) b_expert) / BW + per_row k, N(k) = {routing}",
        [_FIXED, _BANDWIDTH, _PER_ROW, *([Parameter("correlation", "", 0.0, 1.0)] if correlated else [])],
        terms,
        starts={"correlation": 0.3} if correlated else None,
    )


def roofline(n_bytes: float, gflop_per_row: float) -> Model:
    """T(k) is bound by memory up to the ridge, by compute after it. Bytes of a pass and work of a row are known."""
    memory_ms, row_ms = n_bytes * _MS_AT_1_GB_S, 1e3 * gflop_per_row  # at 1 GB/s, at 1 GFLOP/s

    def predict(p: Values, columns: Columns) -> Floats:
        compute = row_ms * columns["rows"] / p["rate_gflop_s"]
        return p["fixed_ms"] + np.maximum(memory_ms / p["bandwidth_gb_s"], compute)

    def guess(columns: Columns, times: Floats) -> dict[str, float]:
        """Flat up to some k and a line from there on, at the k where that comes nearest."""
        k, starts = columns["rows"], list[dict[str, float]]()
        for ridge in np.unique(k)[1:-2]:
            flat, beyond = float(np.mean(times[k <= ridge])), k > ridge
            line = [np.ones_like(k[beyond]) / times[beyond], k[beyond] / times[beyond]]
            fixed, slope = _not_negative(line, np.ones_like(k[beyond]))
            memory, slope = max(flat - fixed, 1e-3 * flat), slope or 1e-3 * flat
            rates = {"bandwidth_gb_s": memory_ms / memory, "rate_gflop_s": row_ms / slope}
            starts.append({"fixed_ms": fixed, **rates})
        return min(starts, key=lambda p: float(np.sum((predict(p, columns) / times - 1) ** 2)))

    parameters = (_FIXED, _BANDWIDTH, Parameter("rate_gflop_s", "GFLOP/s", 1e-6))
    return Model("roofline", "T(k) = fixed + max(bytes / BW, k flops / F)", parameters, predict, guess)


# --- speedup -----------------------------------------------------------------------------------------------------


def classical() -> Model:
    """Leviathan's form: i.i.d. acceptance a, drafting c of a token, free verification; column `gamma`."""

    def a_token(columns: Columns, values: Values) -> Floats:
        alpha = min(values["alpha"], 1.0 - 1e-9)  # where a fit still sees which way it should move
        return np.asarray((1.0 - alpha) / (1.0 - alpha ** (columns["gamma"] + 1.0)))

    return _sum_of_terms(
        "equation 1",
        "S = (1 - a^(g+1)) / ((1 - a)(c g + 1))",
        [Parameter("alpha", "", 0.0, 1.0), _DRAFT_COST],
        lambda c, values: [c["gamma"] * a_token(c, values)],
        starts={"alpha": 0.5},
        given_cost=a_token,
    )


def batch_published() -> Model:
    """The mixture-of-experts study's form, ``g T_seq / (T_draft(g) + T_verify(g))``; column `gamma`.

    It counts every proposed token as output, rejected ones too, so it holds only at an acceptance rate of one (and then
    forgets the bonus token). Kept to be fitted, compared and shown to fail.
    """
    return _sum_of_terms(
        "equation 2",
        "S = g / (pass_cost + token_cost g)",
        [Parameter("pass_cost", "T(1)"), Parameter("token_cost", "T(1)")],
        lambda c, _: [1 / c["gamma"], 1.0],
        given_cost=lambda c, _: np.zeros_like(c["gamma"]),
    )


def overhead() -> Model:
    """The small-model study's form, ``MGL / (1 + C_d / C_v)``: drafting cost by the token, free verification."""
    return _sum_of_terms(
        "overhead",
        "S = MGL / (1 + c g)",
        [_DRAFT_COST],
        lambda c, _: [c["gamma"] / c["mgl"]],
        given_cost=lambda c, _: 1 / c["mgl"],
    )


def measured_cost() -> Model:
    """The form mlsd uses: MGL, drafting and verification given; the rest of a round (rollback, sync) is fitted.

    Of rows that are held out the three are what other rows lead to expect (`study_fits.expected_rounds`).

    Columns `mgl`, `draft_ratio` = T_draft / T(1), `verify_ratio` = T(gamma + 1) / T(1).
    """
    return _sum_of_terms(
        "corrected",
        "S = MGL / (T_draft + T(g+1) + rest) T(1)",
        [Parameter("rest_cost", "T(1)")],
        lambda c, _: [1 / c["mgl"]],
        given_cost=lambda c, _: (c["draft_ratio"] + c["verify_ratio"]) / c["mgl"],
    )


def speedup_models() -> tuple[Model, ...]:
    """The four cost models, to be compared on the same rows."""
    return classical(), batch_published(), overhead(), measured_cost()
