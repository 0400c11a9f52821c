"""Predicted decode tok/s from what passes cost and how rounds end. Times in ms.

``tok/s = (sum of committed) / (sum over rounds of T_draft + T(proposed + 1) + rest)``, the measured-cost form of the
design with the costs of each kind of round instead of their mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from mlsd.analysis.predict.outcomes import Outcomes, mgl_of, outcomes_of
from mlsd.errors import AnalysisError
from mlsd.records import Record, Round
from mlsd.stats import grouped, relative_spread
from mlsd.store.rows import CalibrationPoint, PassKind

# How far medians lie above the least where passes were interrupted; on an idle machine it is some per cent.
_INTERRUPTED = 0.2


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
    own = grouped((p for p in points if p.depth == depth), lambda p: (p.kind, p.rows))
    cells = {place: [p.span_ns / 1e6 for p in same] for place, same in own.items()}
    passes = [values for (kind, _), values in cells.items() if kind in ("target_pass", "draft_step")]
    excess = [statistics.median(values) / min(values) - 1 for values in passes]
    typical = min if excess and statistics.median(excess) > _INTERRUPTED else statistics.median
    return {key: float(typical(values)) for key, values in cells.items()}


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
    known = sorted(curve)
    if rows > known[-1] and len(known) > 1:
        a, b = known[-2:]
        return curve[b] + (rows - b) * max(0.0, (curve[b] - curve[a]) / (b - a))
    return float(np.interp(rows, known, [curve[k] for k in known]))


def tok_per_s(costs: Costs, outcomes: Outcomes) -> float:
    """Predicted decode tok/s of rounds that end so."""
    total = sum(n * round_ms(costs, k, a) for (k, a), n in outcomes.items())
    committed = sum(n * (a + 1) for (_, a), n in outcomes.items())
    return 1e3 * committed / total


# --- another gamma, from trials and a calibration ----------------------------------------------------------------


class MeasuredGamma(Record, frozen=True, kw_only=True):
    """The trials of one gamma on one prompt."""

    gamma: int  # 0: plain decoding
    rounds: tuple[tuple[Round, ...], ...]  # by trial; equal outcomes when greedy, different times
    tok_s: tuple[float, ...]  # measured decode tok/s, by trial


class GammaPrediction(Record, frozen=True, kw_only=True):
    """One gamma predicted without its own times."""

    gamma: int
    predicted_tok_s: float
    measured_tok_s: float  # median over trials
    spread: float | None  # of the measurement: half the range over the median
    predicted_mgl: float
    measured_mgl: float

    @property
    def error(self) -> float:
        return self.predicted_tok_s / self.measured_tok_s - 1


def leave_one_gamma_out(arms: Sequence[MeasuredGamma], calibrated: Costs | None = None) -> list[GammaPrediction]:
    """Predict each gamma, its rounds ending as they did, from the times of plain decoding and of the other gammas.

    The shape of costs is that of a calibration, scaled by what the other arms' passes really took (a machine is seldom
    equally loaded twice); without one the other arms' rounds give it. Needs plain decoding and two gammas.
    """
    speculative = [arm for arm in arms if arm.gamma > 0]
    if len(speculative) < 2 or len(arms) == len(speculative):
        raise AnalysisError("Leaving a gamma out needs plain decoding and at least two gammas.")
    result = []
    for held in speculative:
        others = [arm for arm in arms if arm is not held]
        result.append(judged(held, costs_like(others, calibrated), outcomes_of(held.rounds[0])))
    return result


def costs_like(arms: Sequence[MeasuredGamma], calibrated: Costs | None) -> Costs:
    """A calibration's costs scaled to these arms, or those that they show themselves."""
    return costs_from_arms(arms) if calibrated is None else scale_to(calibrated, arms)


def judged(held: MeasuredGamma, costs: Costs, ends: Outcomes) -> GammaPrediction:
    """The prediction for an arm, from costs and rounds of others, beside what it measured."""
    own = held.rounds[0]
    return GammaPrediction(
        gamma=held.gamma,
        predicted_tok_s=tok_per_s(costs, ends),
        measured_tok_s=statistics.median(held.tok_s),
        spread=relative_spread(held.tok_s),
        predicted_mgl=mgl_of(ends),
        measured_mgl=sum(r.committed for r in own) / len(own),
    )


def costs_from_arms(arms: Sequence[MeasuredGamma]) -> Costs:
    """Costs from rounds alone, where no pass was timed: T(k) at the widths that occurred, drafting as a line.

    ``T_draft(k) = fixed + step k`` by least squares over the rounds' means at each k.
    """
    rounds = grouped((r for arm in arms for trial in arm.rounds for r in trial), lambda r: r.proposed)
    widths = sorted(k for k in rounds if k)
    means = [statistics.fmean(r.draft_ns for r in rounds[k]) / 1e6 for k in widths]
    weights = np.sqrt([len(rounds[k]) for k in widths]) / np.maximum(means, 1e-9)
    if len(widths) > 1:
        design = np.column_stack([np.ones(len(widths)), widths]) * weights[:, None]
        fixed, step = np.linalg.lstsq(design, np.array(means) * weights, rcond=None)[0]
    else:
        fixed, step = 0.0, means[0] / widths[0] if widths else 0.0
    first = max(0.0, float(fixed + step))
    return Costs(
        verify_ms={k + 1: statistics.fmean(r.verify_ns for r in own) / 1e6 for k, own in rounds.items()},
        catch_up_ms={1: first} if first else {},
        step_ms=max(0.0, float(step)),
        rest_ms={
            k + 1: statistics.fmean(r.rollback_ns + r.sample_ns + r.other_ns for r in own) / 1e6
            for k, own in rounds.items()
        },
    )


def scale_to(costs: Costs, arms: Sequence[MeasuredGamma]) -> Costs:
    """The calibration's curves times what passes and drafts of these arms took over what they should have taken.

    One factor for target passes and one for drafting, geometric means over arms; what the rest of a round took beyond
    the calibration is a constant, the mean over arms.
    """
    verify, drafting, beyond = [], [], []
    for arm in arms:
        rounds = [r for trial in arm.rounds for r in trial]
        expected = sum(between(costs.verify_ms, r.proposed + 1) for r in rounds)
        verify.append(sum(r.verify_ns for r in rounds) / 1e6 / expected)
        spent = [r.rollback_ns + r.sample_ns + r.other_ns for r in rounds]
        known = [between(costs.rest_ms, r.proposed + 1) for r in rounds]
        beyond.append(statistics.fmean(spent) / 1e6 - statistics.fmean(known))
        if arm.gamma and costs.catch_up_ms:
            should = sum(draft_ms(costs, r.proposed, r.accepted) for r in rounds)
            drafting.append(sum(r.draft_ns for r in rounds) / 1e6 / should)
    target = statistics.geometric_mean(verify)
    draft = statistics.geometric_mean(drafting) if drafting else 1.0
    return msgspec.structs.replace(
        costs,
        verify_ms={rows: ms * target for rows, ms in costs.verify_ms.items()},
        catch_up_ms={rows: ms * draft for rows, ms in costs.catch_up_ms.items()},
        step_ms=costs.step_ms * draft,
        pair_ms=None if costs.pair_ms is None else costs.pair_ms * draft,
        rest_ms={rows: max(0.0, between(costs.rest_ms, rows) + statistics.fmean(beyond)) for rows in costs.verify_ms},
    )
