"""Whether speculation pays for a target, with which draft and gamma: predicted tok/s with intervals, and what decides.

A prediction is acceptance (measured on this target, or a reference) times costs (a calibration, or a chip's bandwidth).
Its interval joins the spread of the passes, of the acceptance, and the error that predictions had on stored studies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from mlsd.analysis.advise.next_steps import Gap, ToTime, next_steps
from mlsd.analysis.advise.reference_acceptance import Acceptance
from mlsd.analysis.fits.calibration import relative_error, target_curve
from mlsd.analysis.fits.costmodel import break_even_alpha
from mlsd.analysis.predict.arms import ArmGroup
from mlsd.analysis.predict.predict import Costs, between, draft_ms, mgl_of, tok_per_s
from mlsd.analysis.predict.prediction_error import Validation
from mlsd.analysis.predict.replay import Outcomes, alphas_of, outcomes_from_alphas, outcomes_of
from mlsd.analysis.results.speedups import Speedup
from mlsd.errors import AnalysisError
from mlsd.measure.store.rows import CalibrationPoint
from mlsd.planning import passes
from mlsd.records import NO_DRAFTER, Record, Round
from mlsd.stats import Interval
from mlsd.trials.arms import PLAIN
from mlsd.units import quoted

Decider = Literal["nothing", "draft time", "expert coverage", "kernel step", "verification", "rollback", "acceptance"]
Basis = Literal["calibration", "trials", "shape", "bandwidth"]
Verdict = Literal["faster", "slower", "measure"]

_Z = 1.96
_SE_OF_MEDIAN_ERROR = 1.4826  # median absolute deviation -> standard deviation of a normal error


class Prospect(Record, frozen=True, kw_only=True):
    """One way to decode."""

    drafter: str  # "none" is plain decoding
    draft: str | None
    gamma: int  # 0: off
    tok_s: Interval
    speedup: Interval
    mgl: float
    break_even_mgl: float  # round time / T(1)
    break_even_alpha: float | None  # acceptance probability of a token for it; None: even full acceptance loses, or off
    decided_by: Decider  # what costs most: without it the speedup would rise furthest
    without_it: float  # that speedup
    acceptance_source: str
    acceptance_assumed: bool = False  # nobody measured it: the interval spans a range of acceptances
    at_middle: Interval | None = None  # the speedup's range were its acceptance known, where it is assumed
    measured: bool = False  # the speedup is not predicted: trials on this machine decide it

    @property
    def name(self) -> str:
        """In words."""
        return PLAIN if self.gamma == 0 else self.draft or self.drafter

    @property
    def option(self) -> str:
        """How commands ask for it."""
        return f"--draft {quoted(self.draft)}" if self.draft else f"--drafter {self.drafter}"


class Recommendation(Record, frozen=True, kw_only=True):
    """What to do for one target."""

    target: str
    workload: str | None
    costs_source: str
    level: float  # of the intervals
    prospects: tuple[Prospect, ...]  # fastest first; "off" is among them
    best: Prospect
    verdict: Verdict  # slower: no setting is faster than plain decoding; measure: the intervals leave it open
    why: str
    to_measure: tuple[Prospect, ...]  # the two settings that would tell most, where it is open
    sure: bool  # the verdict is faster or slower
    next_steps: tuple[str, ...]


class CostRange(Record, frozen=True, kw_only=True):
    """Costs in the best and in the worst case; equal where they were measured."""

    low: Costs
    high: Costs
    relative_error: float  # standard error of a round's time
    source: str
    basis: Basis
    is_mixture: bool
    steps: tuple[int, ...] = ()  # rows at which another kernel takes over
    draft_source: str | None = None  # of the draft's costs, where they come from elsewhere than the target's

    @property
    def measured(self) -> bool:
        """Whether the target itself was timed on the machine."""
        return self.basis in ("calibration", "trials")


def acceptance_of(groups: Iterable[ArmGroup], target_key: str, workload: str | None) -> list[Acceptance]:
    """Acceptance of every drafter measured on a target, rounds of all gammas together.

    Drafters whose proposals depend on the text (prompt lookup) come as they were, by their own rounds: see
    `measured_outcomes`. Other workloads are taken where the wanted one was not measured.
    """
    own = [g for g in groups if key_matches(g, target_key)]
    found = []
    for drafter, draft in dict.fromkeys((g.drafter, None if g.draft is None else g.draft.id) for g in own):
        of_method = [g for g in own if (g.drafter, None if g.draft is None else g.draft.id) == (drafter, draft)]
        wanted = [g for g in of_method if workload is not None and g.workload == workload]
        used = wanted or of_method
        rounds = _rounds(used)
        alphas = alphas_of(rounds)
        if not alphas:
            continue
        found.append(
            Acceptance(
                drafter=drafter,
                draft=draft,
                workload=workload if wanted else None,
                alphas=tuple(alphas),
                relative_error=_mgl_error(used),
                source=f"{len(rounds)} rounds on {', '.join(sorted({g.prompt for g in used}))}",
            )
        )
    return found


def key_matches(group: ArmGroup, target_key: str) -> bool:
    """Whether the group's target has this content hash or id."""
    return target_key in (group.target.sha256, group.target.id)


def _rounds(groups: Sequence[ArmGroup]) -> list[Round]:
    return [r for g in groups for arm in g.arms if arm.gamma for r in arm.rounds[0]]


def _mgl_error(groups: Sequence[ArmGroup]) -> float:
    """Relative standard error of the MGL: over prompts where there are three, else over rounds."""
    by_prompt = [statistics.fmean(r.committed for r in _rounds([g])) for g in groups if _rounds([g])]
    values = by_prompt if len(by_prompt) >= 3 else [float(r.committed) for r in _rounds(groups)]
    if len(values) < 2:
        return 0.5
    return statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


def measured_outcomes(
    groups: Iterable[ArmGroup], target_key: str, drafter: str, draft: str | None, workload: str | None
) -> dict[int, Outcomes]:
    """How rounds really ended, by gamma, on the wanted workload or, where it was not measured, on all."""
    own = [
        g
        for g in groups
        if key_matches(g, target_key) and g.drafter == drafter and (None if g.draft is None else g.draft.id) == draft
    ]
    own = [g for g in own if g.workload == workload] or own
    gammas = sorted({arm.gamma for g in own for arm in g.arms if arm.gamma})
    return {
        gamma: outcomes_of([r for g in own for arm in g.arms if arm.gamma == gamma for r in arm.rounds[0]])
        for gamma in gammas
    }


def calibrated(costs: Costs, target: Sequence[CalibrationPoint], *, is_mixture: bool) -> CostRange:
    """Costs of a calibration, with the spread of its passes and its kernel steps."""
    steps = target_curve(target).steps
    return CostRange(
        low=costs,
        high=costs,
        relative_error=relative_error(target, 0.1),
        source="calibration on this machine",
        basis="calibration",
        is_mixture=is_mixture,
        steps=() if steps is None else steps.edges,
    )


def prospects(
    costs: Mapping[tuple[str, str | None], CostRange],
    plain: CostRange,
    acceptances: Sequence[Acceptance],
    gammas: Sequence[int],
    *,
    measured: Mapping[tuple[str, str | None], Mapping[int, Outcomes]] | None = None,
    validation: Validation | None = None,
) -> list[Prospect]:
    """Every drafter at every gamma, and plain decoding; fastest first.

    `costs` by (drafter, draft id); where a drafter's own rounds at a gamma are in `measured`, those are used.
    """
    model_error = validation.median_error * _SE_OF_MEDIAN_ERROR if validation else 0.0
    off = _prospect(plain, plain, {(0, 0): 1.0}, 0, (NO_DRAFTER, None), 0.0, "", 0.0)
    result = [off]
    for a in acceptances:
        key = (a.drafter, a.draft)
        if key not in costs:
            continue
        known = (measured or {}).get(key, {})
        for gamma in gammas:
            if a.least_alpha is not None:
                result.append(_assumed(costs[key], plain, a, gamma, model_error))
                continue
            outcomes = known.get(gamma) or outcomes_from_alphas(a.alphas, gamma)
            result.append(_prospect(costs[key], plain, outcomes, gamma, key, a.relative_error, a.source, model_error))
    return sorted(result, key=lambda p: -p.tok_s.value)


def as_measured(found: Iterable[Prospect], decided: Iterable[Speedup]) -> list[Prospect]:
    """The settings at the speed that their trials decide, where they do, in place of a predicted one; fastest first."""
    known = {
        (one.drafter, one.draft, one.gamma): one.ratio
        for one in decided
        if one.effect != "undecided" and one.ratio is not None and not one.options
    }
    settings = list(found)
    plain = next(p.tok_s.value for p in settings if not p.gamma)
    for place, p in enumerate(settings):
        if ratio := known.get((p.drafter, p.draft, p.gamma)):
            low, high = (None if end is None else plain * end for end in (ratio.low, ratio.high))
            speed = Interval(value=plain * ratio.value, low=low, high=high, n=ratio.n)
            settings[place] = msgspec.structs.replace(
                p, tok_s=speed, speedup=ratio, measured=True, acceptance_assumed=False
            )
    return sorted(settings, key=lambda p: -p.tok_s.value)


def _assumed(costs: CostRange, plain: CostRange, a: Acceptance, gamma: int, model_error: float) -> Prospect:
    """One gamma of a drafter whose acceptance is only known to lie in a range.

    What acceptance and costs leave open has nothing to do with each other: their logarithms add up as squares.
    """
    assert a.least_alpha is not None and a.most_alpha is not None
    key = (a.drafter, a.draft)
    worst, middle, best = (
        _prospect(costs, plain, outcomes_from_alphas((alpha,), gamma), gamma, key, 0.0, a.source, model_error)
        for alpha in (a.least_alpha, a.alphas[0], a.most_alpha)
    )
    return msgspec.structs.replace(
        middle,
        tok_s=_joint(worst.tok_s, middle.tok_s, best.tok_s),
        speedup=_joint(worst.speedup, middle.speedup, best.speedup),
        acceptance_assumed=True,
        at_middle=middle.speedup,
    )


def _joint(worst: Interval, middle: Interval, best: Interval) -> Interval:
    value, low, high = middle.value, middle.low or middle.value, middle.high or middle.value
    down, up = passes.joint(worst.value / value, low / value), passes.joint(best.value / value, high / value)
    return msgspec.structs.replace(middle, low=value * down, high=value * up)


def _prospect(
    costs: CostRange,
    plain: CostRange,
    outcomes: Outcomes,
    gamma: int,
    key: tuple[str, str | None],
    mgl_error: float,
    source: str,
    model_error: float,
) -> Prospect:
    fast, slow = tok_per_s(costs.low, outcomes), tok_per_s(costs.high, outcomes)
    alone_fast, alone_slow = (tok_per_s(c, {(0, 0): 1.0}) for c in (plain.low, plain.high))
    middle, alone = math.sqrt(fast * slow), math.sqrt(alone_fast * alone_slow)
    error = _Z * math.hypot(costs.relative_error, mgl_error, model_error)
    both = _Z * math.hypot(costs.relative_error, plain.relative_error, mgl_error, model_error)
    speed = Interval(value=middle, low=slow * math.exp(-error), high=fast * math.exp(error))
    # What a chip's range leaves open of T(1) both ways share; what further rows cost they do not.
    ends = sorted((fast / alone_fast, slow / alone_slow))
    speedup = Interval(
        value=middle / alone,
        low=1.0 if gamma == 0 else ends[0] * math.exp(-both),
        high=1.0 if gamma == 0 else ends[1] * math.exp(both),
    )
    decided, without = _decider(costs, plain, outcomes, gamma)
    needed = mgl_of(outcomes) * alone / middle
    return Prospect(
        drafter=key[0],
        draft=key[1],
        gamma=gamma,
        tok_s=speed,
        speedup=speedup,
        mgl=mgl_of(outcomes),
        break_even_mgl=needed,
        break_even_alpha=break_even_alpha(gamma, needed) if gamma else None,
        decided_by=decided,
        without_it=without,
        acceptance_source=source,
    )


def _decider(costs: CostRange, plain: CostRange, outcomes: Outcomes, gamma: int) -> tuple[Decider, float]:
    """Take away one cost after the other; the one whose absence helps most decides."""
    if gamma == 0:
        return "nothing", 1.0
    c, total = costs.high, sum(outcomes.values())
    t_one = between(plain.high.verify_ms, 1) + between(plain.high.rest_ms, 1)
    parts = {
        "draft": sum(n * draft_ms(c, k, a) for (k, a), n in outcomes.items()) / total,
        "verify": sum(n * between(c.verify_ms, k + 1) for (k, _), n in outcomes.items()) / total,
        "rest": sum(n * between(c.rest_ms, k + 1) for (k, _), n in outcomes.items()) / total,
    }
    round_time, mgl = sum(parts.values()), mgl_of(outcomes)
    ideal: dict[Decider, float] = {
        "draft time": mgl * t_one / (round_time - parts["draft"]),
        _why_verification(costs, gamma): mgl * t_one / (round_time - parts["verify"] + min(t_one, parts["verify"])),
        "rollback": mgl * t_one / max(round_time - parts["rest"], 1e-9),
        "acceptance": (gamma + 1) * t_one / round_time,
    }
    name = max(ideal, key=lambda k: ideal[k])
    return name, ideal[name]


def _why_verification(costs: CostRange, gamma: int) -> Decider:
    """What makes a wide pass dearer than a narrow one: a kernel step below its width, else experts, else arithmetic."""
    if any(1 < edge <= gamma + 1 for edge in costs.steps):
        return "kernel step"
    return "expert coverage" if costs.is_mixture else "verification"


def recommend(
    target: str,
    workload: str | None,
    found: Sequence[Prospect],
    costs: CostRange,
    gaps: Collection[Gap] = (),
    to_time: Sequence[ToTime] = (),
    fetch: Sequence[str] = (),
) -> Recommendation:
    """Choose, and say what to measure next; `gaps`, `to_time` and `fetch` as `next_steps` takes them.

    A drafter whose acceptance nobody measured is the choice only where it is faster at every acceptance that was seen.
    """
    speculative = [p for p in found if p.gamma]
    faster = [p for p in speculative if (p.speedup.low or 0.0) > 1]
    certain = [p for p in found if not p.acceptance_assumed]
    if not certain:
        raise AnalysisError(f"Nothing is known of {target}.")
    best = (faster or certain)[0]
    could = [p for p in speculative if not p.measured and (p.speedup.high or 0.0) >= 1 >= (p.speedup.low or 0.0)]
    verdict: Verdict = "faster" if faster else "measure" if could or not speculative else "slower"
    more: dict[Gap, bool] = {"machine": costs.basis == "bandwidth", "decision": verdict == "measure"}
    told = next_steps(
        target,
        workload,
        list(dict.fromkeys(p.option for p in (*could, *speculative))),
        [p.gamma for p in could],
        {*gaps, *(gap for gap, is_open in more.items() if is_open)},
        to_time,
        fetch,
    )
    to_measure = sorted(could, key=lambda p: -p.speedup.value)[:2] if verdict == "measure" else []
    return Recommendation(
        target=target,
        workload=workload,
        costs_source=costs.source,
        level=passes.constants().level if costs.basis == "bandwidth" else 0.95,
        prospects=tuple(found),
        best=best,
        verdict=verdict,
        why=_why(verdict, best, speculative, modelled=costs.basis == "bandwidth"),
        to_measure=tuple(to_measure),
        sure=verdict != "measure",
        next_steps=tuple(told),
    )


def _why(verdict: Verdict, best: Prospect, speculative: Sequence[Prospect], *, modelled: bool) -> str:
    """What decides, in the setting that decides it."""
    if not speculative:
        return "nothing is known of any draft or method"
    if verdict == "faster":
        low, high = best.speedup.low or 0.0, best.speedup.high or 0.0
        return f"{low:.2f} to {high:.2f} times plain decoding; {best.break_even_mgl:.2f} tokens a round are needed"
    one = max(speculative, key=lambda p: p.speedup.value)
    low, high = one.speedup.low or 0.0, one.speedup.high or 0.0
    said = (
        f"the best of all, {one.name} at gamma {one.gamma}, has {low:.2f} to {high:.2f} times plain decoding; "
        f"it needs {one.break_even_mgl:.2f} tokens a round, and {one.decided_by} decides"
    )
    return f"{said}. {_what_narrows(one)}" if verdict == "measure" and modelled else said


def _what_narrows(one: Prospect) -> str:
    """What, once known, leaves least of a setting's range open."""
    known = one.at_middle
    if known is None or known.low is None or known.high is None:
        return "Acceptance is known, so what passes cost leaves it open: mlsd calibrate on that machine narrows it"
    of_passes = math.log(known.high / known.low)
    whole = math.log((one.speedup.high or 1.0) / (one.speedup.low or 1.0))
    of_acceptance = math.sqrt(max(0.0, whole**2 - of_passes**2))
    if of_passes >= of_acceptance:
        return "What passes cost leaves most of it open: mlsd calibrate on that machine narrows it most"
    return (
        f"Acceptance leaves most of it open ({known.low:.2f} to {known.high:.2f} at {one.mgl:.2f} tokens a round): "
        "--workload, --acceptance or mlsd bench narrows it most"
    )
