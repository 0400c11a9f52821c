"""What passes cost and how rounds end, and the decode tok/s that follow. Times in ms.

``tok/s = (sum of committed) / (sum over rounds of T_draft + T(proposed + 1) + rest)``, the measured-cost form of the
design with the costs of each kind of round instead of their mean.
"""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import grouped
from mlsd.store.rows import CalibrationPoint, PassKind
from mlsd.trials.rates import Sums, total
from mlsd.trials.results import ArmResult

# How far medians lie above the least where passes were interrupted; on an idle machine it is some per cent.
_INTERRUPTED = 0.2

Outcomes = Mapping[tuple[int, int], float]  # (proposed, accepted) -> share of rounds
PLAIN_ROUND: Outcomes = {(0, 0): 1.0}
Basis = Literal["calibration", "trials", "shape", "bandwidth"]


class Costs(Record, frozen=True, kw_only=True):
    """What the parts of a round cost for one target and one drafter; curves are read between their points."""

    verify_ms: dict[int, float]  # T(k) by rows
    # First draft pass of a round, by the rows it takes in; empty: no draft model.
    catch_up_ms: Mapping[int, float] = msgspec.field(default_factory=dict)
    step_ms: float = 0.0  # each further draft token
    pair_ms: float | None = None  # a draft pass of two rows after another of two rows; None: not timed
    # Rollback, sampling and bookkeeping, by rows of the target pass.
    rest_ms: Mapping[int, float] = msgspec.field(default_factory=dict)
    replays: bool = False  # the draft goes back to a checkpoint and takes accepted tokens in again


class CostRange(Record, frozen=True, kw_only=True):
    """Costs in the best and in the worst case, equal where they were measured, and what they were taken from."""

    low: Costs
    high: Costs
    relative_error: float  # standard error of a round's time
    source: str
    basis: Basis
    is_mixture: bool = False
    steps: tuple[int, ...] = ()  # rows at which another kernel takes over
    depths: tuple[int, ...] = ()  # layers of the synthetic models that were timed of a shape
    checkpoint_ms: float = 0.0  # to save and load such a shape's recurrent state
    draft_source: str | None = None  # of the draft's costs, where they come from elsewhere than the target's
    prefill_ms: float | None = None  # of one prompt token, the draft's included; None: not known
    tested_gamma: int | None = None  # the most proposals a round that rows of others test; None: all

    @property
    def measured(self) -> bool:
        return self.basis in ("calibration", "trials")


def known_costs(costs: Costs, relative_error: float, source: str, basis: Basis, **more: Any) -> CostRange:
    """Costs that were measured."""
    return CostRange(low=costs, high=costs, relative_error=relative_error, source=source, basis=basis, **more)


# --- how rounds end -----------------------------------------------------------------------------------------------


def outcomes(alphas: Sequence[float], gamma: int, proposing: float = 1.0) -> dict[tuple[int, int], float]:
    """Shares of rounds with so many of `gamma` accepted, from conditional acceptances; the last one goes on.

    ``P(a) = alpha_1 ... alpha_a (1 - alpha_(a+1))``, and all the rest at a = gamma. A share of `1 - proposing` rounds
    proposes nothing and is a plain pass, as those of a look-up that finds nothing. Raises AnalysisError without any.
    """
    if not alphas:
        raise AnalysisError("No acceptance is known at any position.")
    survival, shares = proposing, {(0, 0): 1 - proposing} if proposing < 1 else {}
    for a in range(gamma):
        alpha = alphas[min(a, len(alphas) - 1)]
        shares[gamma, a] = survival * (1 - alpha)
        survival *= alpha
    shares[gamma, gamma] = survival
    return shares


def outcomes_cut(rate: float, p_min: float, alpha: float, gamma: int) -> dict[tuple[int, int], float]:
    """Shares of rounds whose drafts end at a token less likely than `p_min`, of which `rate` of the proposed is right.

    A token is sure with a chance s and then right with a; an unsure one is right as often as it says, from never to
    `p_min`. So ``s a + (1 - s) p_min / 2 = alpha``, and of all (s, a) those whose accepted over proposed,
    ``sum (s a)^i / sum s^i`` over i = 1 .. gamma, is nearest to `rate`.
    """

    def off(pair: tuple[float, float]) -> float:
        accepted, proposed = (sum(chance**i for i in range(1, gamma + 1)) for chance in (pair[0] * pair[1], pair[0]))
        return abs(accepted / proposed - rate)

    sure = [i / 100 for i in range(1, 101)]
    s, a = min(((s, min(1.0, max(0.0, (alpha - (1 - s) * p_min / 2) / s))) for s in sure), key=off)
    shares = {(0, 0): 1 - s}
    for length in range(1, gamma + 1):
        stood = s**length * (1 - s if length < gamma else 1.0)
        shares |= {end: stood * share for end, share in outcomes((a,), length).items()}
    return shares


def outcomes_of(whole: Sums) -> dict[tuple[int, int], float]:
    """Shares of rounds by how these ended. Raises AnalysisError where single rounds are not known."""
    if not whole.endings:
        raise AnalysisError("How single rounds ended is not known.")
    return {(proposed, accepted): n / whole.rounds for proposed, accepted, n in whole.endings}


def nearest(gammas: Iterable[int], wanted: int) -> int:
    """Whose rounds tell most of `wanted`: the least that is not below it, else the largest."""
    measured = sorted(gammas)
    return next((gamma for gamma in measured if gamma >= wanted), measured[-1])


def at_gamma(ends: Outcomes, gamma: int, wanted: int) -> dict[tuple[int, int], float]:
    """How rounds would end with another gamma; drafts that were shorter than theirs stay as long as they were.

    Fewer proposals cut drafts, which is exact. More go on behind those that stood whole, with the chance of a token
    after the first, at all its positions together.
    """
    shares = defaultdict[tuple[int, int], float](float)
    full = {a: n for (k, a), n in ends.items() if k == gamma}
    reached = sum(n * (min(gamma, a + 1) - 1) for a, n in full.items() if a) if gamma > 1 else sum(full.values())
    stood = sum(n * (a - 1) for a, n in full.items() if a) if gamma > 1 else full.get(1, 0.0)
    chance = stood / reached if reached else 0.0
    for (proposed, accepted), n in ends.items():
        length = min(proposed, wanted) if proposed < gamma or wanted < gamma else wanted
        if accepted < gamma or length <= gamma:
            shares[length, min(accepted, length)] += n
            continue
        for more, share in outcomes((chance,), wanted - gamma).items():
            shares[wanted, gamma + more[1]] += n * share
    return dict(shares)


def mgl_of(ends: Outcomes) -> float:
    """Committed tokens a round."""
    return sum(n * (a + 1) for (_, a), n in ends.items()) / sum(ends.values())


# --- what rounds take ---------------------------------------------------------------------------------------------


def round_ms(costs: Costs, proposed: int, accepted: int) -> float:
    """One round; the catch-up that its outcome makes the next round pay is counted here."""
    rows = proposed + 1
    return draft_ms(costs, proposed, accepted) + between(costs.verify_ms, rows) + between(costs.rest_ms, rows)


def draft_ms(costs: Costs, proposed: int, accepted: int) -> float:
    """Drafting of a round with that outcome, its catch-up counted as `round_ms` says."""
    if not costs.catch_up_ms or not proposed:
        return 0.0
    rows = catch_up_rows(proposed, accepted, replays=costs.replays)
    catch_up = between(costs.catch_up_ms, rows)
    if proposed == 1 and rows == 2 and costs.pair_ms is not None:
        # Passes of one and two rows follow each other at random: about half of them change the width, which costs.
        catch_up = (catch_up + costs.pair_ms) / 2
    return catch_up + (proposed - 1) * costs.step_ms


def catch_up_rows(proposed: int, accepted: int, *, replays: bool) -> int:
    """Tokens a draft model has yet to take in after a round: the bonus token, and what its rollback threw away.

    The last proposal was never decoded by the draft, so full acceptance leaves two.
    """
    if accepted == proposed:
        return 2
    return accepted + 1 if replays and accepted < proposed - 1 else 1


def between(curve: Mapping[int, float], rows: int) -> float:
    """The curve at `rows`: measured, between its neighbours, or by its last slope beyond its end; 0 of an empty one."""
    if rows in curve or not curve:
        return curve.get(rows, 0.0)
    widths = sorted(curve)
    if rows < widths[0] or len(widths) == 1:
        return curve[widths[0]]
    at = min(bisect_left(widths, rows), len(widths) - 1)
    left, right = widths[at - 1], widths[at]
    slope = (curve[right] - curve[left]) / (right - left)
    return curve[left] + (rows - left) * slope if rows < right else curve[right] + (rows - right) * max(0.0, slope)


def mean_ms(costs: Costs, ends: Outcomes) -> float:
    """A round, on average over how rounds end."""
    return sum(n * round_ms(costs, k, a) for (k, a), n in ends.items()) / sum(ends.values())


def tok_per_s(costs: Costs, ends: Outcomes) -> float:
    """Predicted decode tok/s of rounds that end so."""
    return 1e3 * mgl_of(ends) / mean_ms(costs, ends)


# --- costs from calibrations and from trials ----------------------------------------------------------------------


def costs_from_points(target: Sequence[CalibrationPoint], draft: Sequence[CalibrationPoint] = ()) -> Costs:
    """Costs from a calibration at its smallest depth: the median over repeats of each kind of pass.

    On a machine so busy that passes were interrupted, the least instead: long passes are interrupted more often than
    short ones, so medians would bend T(k). Raises AnalysisError when T(1) was not timed.
    """
    depths = {p.depth for p in target if p.kind == "target_pass"}
    if not depths:
        raise AnalysisError("No target pass was timed.", hint="Measure T(k) with `mlsd calibrate MODEL`.")
    depth = min(depths)
    ours, theirs = _times(target, depth), _times(draft, depth)
    verify = {rows: ms for (kind, rows), ms in ours.items() if kind == "target_pass"}
    if 1 not in verify:
        raise AnalysisError(f"T(1) was not timed at depth {depth}.", hint="Include 1 in --rows.")
    drafting = {rows: ms for (kind, rows), ms in theirs.items() if kind == "draft_step"}
    draft_rollback = next((ms for (kind, _), ms in theirs.items() if kind == "rollback"), 0.0)
    # A short calibration does not time every rollback: widths between are read off the line.
    samples, rollbacks = ({rows: ms for (kind, rows), ms in ours.items() if kind == k} for k in ("sample", "rollback"))
    rest = {
        # With one proposal nothing but confirmed tokens enters the draft's memory, so nothing is rolled back.
        rows: between(samples, rows)
        + (between(rollbacks, rows) if rows > 1 else 0.0)
        + (draft_rollback if rows > 2 else 0)
        for rows in verify
    }
    return Costs(
        verify_ms=verify,
        catch_up_ms=drafting,
        step_ms=drafting.get(1, 0.0),
        pair_ms=theirs.get(("target_pass", 2)),
        rest_ms=rest,
        replays=any(kind == "checkpoint" for kind, _ in theirs),
    )


def _times(points: Sequence[CalibrationPoint], depth: int) -> dict[tuple[PassKind, int], float]:
    """Times of each kind and width in ms: medians, or the least of each where the machine was interrupted."""
    timed = grouped((p for p in points if p.depth == depth), lambda p: (p.kind, p.rows))
    cells = {place: [p.span_ns / 1e6 for p in same] for place, same in timed.items()}
    passes = [values for (kind, _), values in cells.items() if kind in ("target_pass", "draft_step")]
    excess = [statistics.median(values) / min(values) - 1 for values in passes]
    typical = min if excess and statistics.median(excess) > _INTERRUPTED else statistics.median
    return {key: float(typical(values)) for key, values in cells.items()}


def costs_from_arms(arms: Sequence[ArmResult]) -> Costs:
    """Costs from rounds alone, where no pass was timed: T(k) at the widths that occurred, drafting as a line.

    ``T_draft(k) = fixed + step k`` by least squares over the means at each k. Raises AnalysisError without plain.
    """
    by_gamma = {gamma: total(one.timed_whole for one in own) for gamma, own in grouped(arms, _gamma).items()}
    by_gamma = {gamma: whole for gamma, whole in by_gamma.items() if gamma == 0 or whole.proposed}
    if 0 not in by_gamma or not by_gamma[0].rounds:
        raise AnalysisError("No round of plain decoding was timed.")
    alone = by_gamma[0].ms_per_round
    verify, rest, drafting = {1: alone["verify"]}, {1: _rest(alone)}, dict[int, float]()
    for gamma, whole in sorted(by_gamma.items()):
        if gamma:
            n_proposing, ms = sum(n for proposed, _, n in whole.endings if proposed), whole.ms_per_round
            share, length = n_proposing / whole.rounds, round(whole.proposed / n_proposing)
            verify[length + 1] = _of_proposing(ms["verify"], alone["verify"], share)
            rest[length + 1] = _of_proposing(_rest(ms), _rest(alone), share)
            drafting[length] = ms["draft"] / share
    fixed, step = _line(drafting)
    return Costs(
        verify_ms=verify,
        catch_up_ms={1: max(0.0, fixed + step)} if fixed + step > 0 else {},
        step_ms=max(0.0, step),
        rest_ms=rest,
    )


def _gamma(arm: ArmResult) -> int:
    return arm.case.gamma


def _rest(ms: Mapping[str, float]) -> float:
    return ms["rollback"] + ms["sample"] + ms["other"]


def _of_proposing(mean: float, plain: float, share: float) -> float:
    """The mean of rounds that propose, where the others take as long as plain ones; never less than half of theirs."""
    return max(plain + (mean - plain) / share, plain / 2)


def _line(points: Mapping[int, float]) -> tuple[float, float]:
    """Fixed and step of a line through times by k, each with the same relative error."""
    if len(points) < 2:
        return 0.0, next((ms / k for k, ms in points.items()), 0.0)
    weights = {k: max(ms, 1e-9) ** -2 for k, ms in points.items()}
    whole = sum(weights.values())
    k_mean = sum(w * k for k, w in weights.items()) / whole
    ms_mean = sum(w * points[k] for k, w in weights.items()) / whole
    spread = sum(w * (k - k_mean) ** 2 for k, w in weights.items())
    step = sum(w * (k - k_mean) * (points[k] - ms_mean) for k, w in weights.items()) / spread
    return ms_mean - step * k_mean, step


def scale_to(costs: Costs, arms: Sequence[ArmResult]) -> Costs:
    """The calibration's curves times what passes and drafts of these arms took over what they should have taken.

    One factor for target passes and one for drafting, geometric means over arms; what the rest of a round took beyond
    the calibration is a constant, the mean over arms.
    """
    verify, drafting, beyond = [], [], []
    for arm in arms:
        gamma, ms = arm.case.gamma, arm.timed_whole.ms_per_round
        if not ms:
            continue
        ends = outcomes_of(arm.timed_whole) if gamma else PLAIN_ROUND
        verify.append(ms["verify"] / sum(n * between(costs.verify_ms, k + 1) for (k, _), n in ends.items()))
        beyond.append(_rest(ms) - sum(n * between(costs.rest_ms, k + 1) for (k, _), n in ends.items()))
        should = sum(n * draft_ms(costs, k, a) for (k, a), n in ends.items())
        if should and ms["draft"]:
            drafting.append(ms["draft"] / should)
    target, draft = (statistics.geometric_mean(found) if found else 1.0 for found in (verify, drafting))
    more = statistics.fmean(beyond) if beyond else 0.0
    return replace(
        costs,
        verify_ms={rows: ms * target for rows, ms in costs.verify_ms.items()},
        catch_up_ms={rows: ms * draft for rows, ms in costs.catch_up_ms.items()},
        step_ms=costs.step_ms * draft,
        pair_ms=None if costs.pair_ms is None else costs.pair_ms * draft,
        rest_ms={rows: max(0.0, between(costs.rest_ms, rows) + more) for rows in costs.verify_ms},
    )


def spread_of_mgl(ends: Outcomes) -> float:
    """Standard deviation of what a round commits, over its mean."""
    whole, mean = sum(ends.values()), mgl_of(ends)
    return math.sqrt(sum(n * (a + 1 - mean) ** 2 for (_, a), n in ends.items()) / whole) / mean
