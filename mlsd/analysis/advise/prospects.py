"""Whether speculation pays for a target, with which draft and gamma: predicted tok/s with intervals, and what decides.

A prediction is acceptance (measured on this target, or a reference) times costs (a calibration, or a chip's bandwidth).
Its interval joins the spread of the passes, of the acceptance, and the error that predictions had on stored studies.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from mlsd.analysis.advise.next_steps import Gap, next_steps
from mlsd.analysis.advise.reference_acceptance import Acceptance
from mlsd.analysis.fits.calibration import relative_error, target_curve
from mlsd.analysis.predict.arms import ArmGroup
from mlsd.analysis.predict.outcomes import Outcomes, alphas_of, mgl_of, outcomes_from_alphas, outcomes_of
from mlsd.analysis.predict.predict import Costs, between, draft_ms, tok_per_s
from mlsd.analysis.predict.prediction_error import Validation
from mlsd.errors import AnalysisError
from mlsd.planning import passes
from mlsd.records import NO_DRAFTER, Record, Round
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint
from mlsd.trials.acceptance import mgl_of as mgl_at
from mlsd.trials.acceptance import rate_of
from mlsd.trials.arms import PLAIN
from mlsd.trials.decisions import NO_DIFFERENCE, Effect
from mlsd.trials.results import ArmResult
from mlsd.units import format_percent, quoted

Decider = Literal["nothing", "draft time", "expert coverage", "kernel step", "verification", "rollback", "acceptance"]
Basis = Literal["calibration", "trials", "shape", "bandwidth"]
Verdict = Literal["on", "off", "not decided yet"]

_Z = 1.96
_WORTH = 1 + NO_DIFFERENCE  # a prediction nearer to 1 decides nothing
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
    break_even_acceptance: float | None  # accepted / proposed for it; None: even full acceptance loses, or off
    decided_by: Decider  # what costs most: without it the speedup would rise furthest
    without_it: float  # that speedup
    acceptance_source: str
    acceptance_assumed: bool = False  # nobody measured it: the interval spans a range of acceptances
    acceptances: tuple[float, float] | None = None  # accepted / proposed, where it is assumed to lie in a range
    at_middle: Interval | None = None  # the speedup's range were its acceptance known, where it is assumed
    effect: Effect | None = None  # what trials of it on this machine and workload decide; None: it is predicted
    out: str | None = None  # why those trials show that it cannot win

    @property
    def name(self) -> str:
        return PLAIN if self.gamma == 0 else self.draft or self.drafter

    def open(self, tried: bool) -> bool:
        """Whether it may still pay. `tried`: only what ran on this machine is decided to."""
        if self.gamma == 0:
            return False
        if self.effect is not None:
            return self.effect == "not decided yet" and self.out is None
        return (self.speedup.high or 0.0) >= 1 / _WORTH and (tried or not self.pays)

    @property
    def pays(self) -> bool:
        return self.gamma > 0 and (self.effect == "faster" if self.effect else (self.speedup.low or 0.0) > _WORTH)

    @property
    def setting(self) -> str:
        return f"{self.name} at gamma {self.gamma}" if self.gamma else self.name

    @property
    def option(self) -> str:
        return f"--draft {quoted(self.draft)}" if self.draft else f"--drafter {self.drafter}"


class Recommendation(Record, frozen=True, kw_only=True):
    """What to do for one target."""

    target: str
    workload: str | None
    costs_source: str
    level: float  # of the intervals
    prospects: tuple[Prospect, ...]  # fastest first; "off" is among them
    best: Prospect
    verdict: Verdict
    why: str
    settles: str | None  # where it is not decided: the acceptance that breaks even, and the biggest unknown
    to_measure: tuple[Prospect, ...]  # the two settings that would tell most, where it is open
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
        return self.basis in ("calibration", "trials")


def acceptance_of(groups: Iterable[ArmGroup], target_key: str, workload: str | None) -> list[Acceptance]:
    """Acceptance of every drafter measured on a target and workload (None: on any), rounds of all gammas together.

    Drafters whose proposals depend on the text (prompt lookup) come as they were, by their own rounds: see
    `measured_outcomes`.
    """
    own = grouped(_of(groups, target_key, workload), lambda g: (g.drafter, g.draft_id))
    return [
        Acceptance(
            drafter=drafter,
            draft=draft,
            workload=workload,
            alphas=tuple(alphas),
            relative_error=_mgl_error(used),
            source=f"{len(_rounds(used))} rounds on {', '.join(sorted({g.prompt for g in used}))}",
        )
        for (drafter, draft), used in own.items()
        if (alphas := alphas_of(_rounds(used)))
    ]


def _of(groups: Iterable[ArmGroup], target_key: str, workload: str | None) -> list[ArmGroup]:
    """What was measured of a target on a workload: another text is no evidence, other options are another method."""
    return [g for g in groups if key_matches(g, target_key) and workload in (None, g.workload) and not g.options]


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
    """How rounds really ended, by gamma, on the wanted workload."""
    own = [g for g in _of(groups, target_key, workload) if (g.drafter, g.draft_id) == (drafter, draft)]
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


def as_measured(found: Iterable[Prospect], measured: Iterable[ArmResult]) -> list[Prospect]:
    """The settings that ran as their trials show them, decided or not, and plain decoding of the same blocks."""
    known = {
        (one.case.drafter.name, one.case.drafter.draft.id if one.case.drafter.draft else None, one.case.gamma): one
        for one in sorted(measured, key=lambda one: one.n_blocks)
    }
    plain = max(known.values(), key=lambda one: one.n_blocks, default=None)
    settings = []
    for p in found:
        one = plain if p.gamma == 0 else known.get((p.drafter, p.draft, p.gamma))
        speed = None if one is None else one.plain_tok_s if p.gamma == 0 else one.tok_s
        if one is None or one.ratio is None or speed is None:
            settings.append(p)
            continue
        changed: dict[str, Any] = {"tok_s": Interval(value=speed, n=one.n_blocks), "effect": "no difference"}
        if p.gamma:
            mgl = one.mgl or p.mgl
            changed |= {
                "speedup": one.ratio,
                "mgl": mgl,
                "break_even_mgl": mgl / one.ratio.value,
                "break_even_acceptance": rate_of(mgl / one.ratio.value, "proposed", p.gamma),
                "acceptance_assumed": False,
                "effect": one.effect,
                "out": None if one.standing is None else one.standing.out,
            }
        settings.append(msgspec.structs.replace(p, **changed))
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
        acceptances=(_accepted(a.least_alpha, gamma), _accepted(a.most_alpha, gamma)),
        at_middle=middle.speedup,
    )


def _accepted(alpha: float, gamma: int) -> float:
    """Accepted / proposed at a gamma, where each token is accepted with this chance after the one before it."""
    return ((mgl_at(alpha, "position", gamma) or 1.0) - 1) / gamma


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
        break_even_acceptance=rate_of(max(1.0, needed), "proposed", gamma),
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
    to_time: Sequence[str] = (),
    fetch: Sequence[str] = (),
    called: str = "",
) -> Recommendation:
    """Choose, and say what to measure next; `gaps`, `to_time` and `fetch` as `next_steps` takes them.
    `called` is how commands call the target, where that is not its id.

    On a machine where the target was timed only a setting that ran on this workload is recommended; elsewhere one that
    is faster at every acceptance and cost that was seen.
    """
    if not found:
        raise AnalysisError(f"There is no data on {target}.")
    modelled = costs.basis == "bandwidth"
    speculative = [p for p in found if p.gamma]
    faster = [p for p in speculative if p.pays and (p.effect or not costs.measured)]
    could = sorted((p for p in speculative if p.open(costs.measured)), key=lambda p: -p.speedup.value)
    verdict: Verdict = "on" if faster else "not decided yet" if could or not speculative else "off"
    best = max(faster, key=lambda p: p.speedup.value) if faster else next(p for p in found if not p.gamma)
    is_open = verdict == "not decided yet"
    more: dict[Gap, bool] = {"machine": modelled, "decision": is_open}
    steps = next_steps(
        called or target,
        workload,
        list(dict.fromkeys(p.option for p in (*could, *speculative))),
        [p.gamma for p in could],
        {*gaps, *(gap for gap, is_open in more.items() if is_open)},
        to_time,
        fetch,
    )
    return Recommendation(
        target=target,
        workload=workload,
        costs_source=costs.source,
        level=passes.constants().level if modelled else 0.95,
        prospects=tuple(found),
        best=best,
        verdict=verdict,
        why=_why(best, speculative),
        settles=_settles(could[0], modelled) if is_open and could else None,
        to_measure=tuple(could[:2]) if is_open else (),
        next_steps=tuple(steps),
    )


def _why(best: Prospect, speculative: Sequence[Prospect]) -> str:
    """The setting that decides, with its range and what it costs most by."""
    if not speculative:
        return "nothing is known of any draft or method"
    fastest = max(speculative, key=lambda p: p.speedup.value)
    one = best if best.gamma else fastest
    if one.effect is not None:
        words = f"{one.setting} was measured at {_times(one)} times plain decoding, {one.speedup.n} blocks or prompts"
    else:
        words = f"{one.setting} is predicted at {_times(one)} times plain decoding, and {one.decided_by} decides"
    if one is fastest:
        return words
    missing = "not decided yet" if fastest.effect else "not measured" if one.effect else "not surely faster than plain"
    return f"{words}; {fastest.setting}, at {_times(fastest)}, is {missing}"


def _times(one: Prospect) -> str:
    ends = "" if one.speedup.low is None else f" ({one.speedup.low:.2f} to {one.speedup.high or 0.0:.2f})"
    return f"{one.speedup.value:.2f}{ends}"


def _settles(one: Prospect, modelled: bool) -> str:
    """The acceptance that breaks even beside what was seen, and what, once known, leaves least of the range open."""
    needed = one.break_even_acceptance
    pays = "pays at no acceptance" if needed is None else f"pays above {format_percent(needed, 0)} accepted"
    ranged = one.acceptances is not None and one.effect is None
    if one.acceptances is not None and ranged:
        low, high = (f"{100 * end:.0f}" for end in one.acceptances)
        who = "assumed are" if one.acceptance_source.startswith("assumed") else "people measured"
        known = f"{who} {low} to {high} %"
    else:
        known = f"it has {format_percent((one.mgl - 1) / one.gamma, 0)}"
    line = f"{one.setting} {pays}; {known}"
    if one.effect is not None:
        return f"{line}. More blocks decide it"
    unknown = "the acceptance" if ranged and (not modelled or not _passes_weigh_most(one)) else "the cost of a pass"
    how = {
        "the acceptance": "give --accepted N/M from a log, or measure it with mlsd bench",
        "the cost of a pass": "measure it with mlsd calibrate on that machine",
    }
    return f"{line}. The biggest unknown is {unknown}: {how[unknown] if modelled else 'measure it with mlsd bench'}"


def _passes_weigh_most(one: Prospect) -> bool:
    known = one.at_middle
    if known is None or known.low is None or known.high is None:
        return True
    whole = math.log((one.speedup.high or 1.0) / (one.speedup.low or 1.0))
    return math.log(known.high / known.low) >= whole / math.sqrt(2)
