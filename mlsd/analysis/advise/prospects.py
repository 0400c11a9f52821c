"""Whether speculation pays for a target, with which draft and gamma: predicted tok/s with intervals, and what decides.

A prediction is acceptance (measured on this target, or a reference) times costs (a calibration, or a chip's bandwidth).
Its interval joins the spread of the passes, of the acceptance, and the error that predictions had on stored studies.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import PLAIN_ARM, Acceptance, arm_of, outcomes_rate
from mlsd.analysis.predict.costs import PLAIN_ROUND, CostRange, Outcomes, between, draft_ms, mean_ms, mgl_of, tok_per_s
from mlsd.errors import InputError
from mlsd.hardware import apple_passes as passes
from mlsd.planning.question import drafter_text
from mlsd.records import DRAFT_MODEL, DrafterSpec, OptionValue, Record
from mlsd.stats import Interval, grouped
from mlsd.trials.arms import PLAIN, Arm, arm_named
from mlsd.trials.decisions import Effect, effect_of
from mlsd.trials.rates import break_even_tokens, total
from mlsd.trials.results import ArmResult
from mlsd.units import format_percent, quoted

Decider = Literal["nothing", "draft time", "expert coverage", "kernel step", "verification", "rollback", "acceptance"]
Verdict = Literal["on", "off", "not decided yet"]

_Z = 1.96
_N_TO_MEASURE = 2


class RequestSize(Record, frozen=True, kw_only=True):
    """So many tokens for the model to read and to write."""

    prompt_tokens: int
    n_predict: int

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.n_predict < 1:
            raise InputError("A request has at least one token in and one out: --prompt-tokens, --n-predict.")


class WholeRequest(Record, frozen=True, kw_only=True):
    """What a request takes with one setting; None where prefill is not known."""

    ttft_s: float | None  # time to first token: reading the prompt, the draft's reading included
    whole_s: Interval | None
    pays_from: int | None  # the output token from which on it beats plain decoding; None: never, or plain itself
    pays_from_latest: int | None  # the same at the low end of the speedup; None: there never, or it has none


class Prospect(Record, frozen=True, kw_only=True):
    """One way to decode."""

    drafter: str  # "none" is plain decoding
    draft: str | None
    options: str = ""  # of the drafter, as JSON
    gamma: int  # 0: off
    tok_s: Interval
    speedup: Interval
    mgl: float
    break_even_mgl: float  # round time / T(1)
    break_even_acceptance: float | None  # accepted / proposed for it; None: even full acceptance loses, or off
    # The same where passes cost least and most, as far as anything is known of that; None: even full acceptance loses.
    break_even_range: tuple[float | None, float | None] = (None, None)
    decided_by: Decider  # what costs most: without it the speedup would rise furthest
    without_it: float  # that speedup
    acceptance_source: str
    acceptances: tuple[float, float] | None  # accepted / proposed: equal where it is known; None: nothing is proposed
    acceptance_assumed: bool = False  # nobody measured it: the interval spans a range of acceptances
    at_middle: Interval | None = None  # the speedup's range were its acceptance known, where it is assumed
    effect: Effect | None = None  # what trials of it on this machine and workload decide; None: it is predicted
    out: str | None = None  # why those trials show that it cannot win
    tested: bool = True  # whether anybody's rows test a prediction at so many proposals; else it decides nothing
    request: WholeRequest | None = None  # of the whole request, where one was described

    @property
    def arm(self) -> Arm:
        return PLAIN_ARM if not self.gamma else arm_named(self.drafter, self.draft, self.options)

    @property
    def spec(self) -> DrafterSpec:
        values = msgspec.json.decode(self.options or "{}", type=dict[str, OptionValue])
        return DrafterSpec(name=self.drafter, options=values)

    @property
    def name(self) -> str:
        return PLAIN if self.gamma == 0 else self.arm.name

    def open(self, tried: bool) -> bool:
        """Whether it may still pay. `tried`: only what ran on this machine is decided to."""
        if self.gamma == 0 or self.effect is not None:
            return self.effect == "not decided yet" and self.out is None
        predicted = effect_of(self.speedup)
        return predicted == "not decided yet" or (predicted == "faster" and (tried or not self.tested))

    @property
    def pays(self) -> bool:
        predicted = effect_of(self.speedup) if self.tested else None
        return self.gamma > 0 and (self.effect or predicted) == "faster"

    @property
    def setting(self) -> str:
        return f"{self.name} at gamma {self.gamma}" if self.gamma else self.name

    def option(self, files: Mapping[str, str]) -> str:
        """How a command asks for the drafter; `files`: drafts that go by another name than their ids."""
        if self.drafter == DRAFT_MODEL:
            return f"--draft {quoted(files.get(self.draft or '', self.draft or ''))}"
        return f"--drafter {quoted(self.drafter_text)}"

    @property
    def drafter_text(self) -> str:
        """The method with its options and a draft that it needs, as commands take them."""
        return drafter_text(self.drafter, {**({"draft": self.draft} if self.draft else {}), **self.spec.options})


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
    next_steps: tuple[str, ...] = ()


def prospects(
    costs: Mapping[Arm, CostRange], acceptances: Sequence[Acceptance], gammas: Sequence[int], model_error: float = 0.0
) -> list[Prospect]:
    """Every drafter at every gamma, and those that were measured, and plain decoding; fastest first.

    `costs` hold those of plain decoding. `model_error`: relative standard error of predictions on stored studies.
    """
    plain, nothing = costs[PLAIN_ARM], Acceptance(arm=PLAIN_ARM, alphas=(0.0,), source="")
    result = [_prospect(plain, plain, nothing, 0, 0.0)]
    for a in acceptances:
        tried = {*a.measured} if a.arm.adapts else {*gammas, *a.measured}  # no length of its own to predict
        for gamma in sorted(tried) if a.arm in costs else ():
            if a.assumed is None:
                result.append(_prospect(costs[a.arm], plain, a, gamma, model_error))
                continue
            worst, middle, best = (
                _prospect(costs[a.arm], plain, a, gamma, model_error, alpha)
                for alpha in (a.assumed[0], a.alphas[0], a.assumed[1])
            )
            rates = [outcomes_rate(a.outcomes(gamma, alpha)) for alpha in a.assumed]
            least, most = (a.of_proposed or rates[0], a.of_proposed or rates[1])
            # What acceptance and costs leave open has nothing to do with each other: logarithms add up as squares.
            joined = replace(
                middle,
                tok_s=_joint(worst.tok_s, middle.tok_s, best.tok_s),
                speedup=_joint(worst.speedup, middle.speedup, best.speedup),
                acceptance_assumed=True,
                acceptances=(least, most),
                at_middle=middle.speedup,
            )
            result.append(joined)
    return sorted(result, key=lambda p: -p.tok_s.value)


def with_request(predicted: Iterable[Prospect], request: RequestSize, costs: Mapping[Arm, CostRange]) -> list[Prospect]:
    """What the request takes with each, at the speed that it is shown with."""
    plain = costs[PLAIN_ARM]
    return [
        replace(p, request=_whole_request(p, request, costs.get(p.arm, plain).prefill_ms, plain.prefill_ms))
        for p in predicted
    ]


def _whole_request(p: Prospect, request: RequestSize, prefill_ms: float | None, plain_ms: float | None) -> WholeRequest:
    """By the milliseconds that a token of the prompt takes with a setting, and with plain decoding."""
    if prefill_ms is None or plain_ms is None:
        return WholeRequest(ttft_s=None, whole_s=None, pays_from=None, pays_from_latest=None)
    ttft, later = (request.prompt_tokens * ms / 1e3 for ms in (prefill_ms, prefill_ms - plain_ms))

    def whole_s(tok_s: float) -> float:
        return ttft + (request.n_predict - 1) / tok_s

    def pays_from(speedup: float) -> int | None:
        token = break_even_tokens(later, p.tok_s.value / p.speedup.value, speedup)
        return None if token is None else 1 + int(token)

    return WholeRequest(
        ttft_s=ttft,
        whole_s=Interval(
            value=whole_s(p.tok_s.value),
            low=None if p.tok_s.high is None else whole_s(p.tok_s.high),
            high=None if p.tok_s.low is None else whole_s(p.tok_s.low),
        ),
        pays_from=pays_from(p.speedup.value),
        pays_from_latest=None if p.speedup.low is None else pays_from(p.speedup.low),
    )


def _joint(worst: Interval, middle: Interval, best: Interval) -> Interval:
    """An interval over both; the ends of an assumed acceptance need not lie on the sides that their names say."""
    value, low, high = middle.value, middle.low or middle.value, middle.high or middle.value
    ends = sorted((worst.value, best.value))
    down = passes.joint(min(1.0, ends[0] / value), low / value)
    up = passes.joint(max(1.0, ends[1] / value), high / value)
    return replace(middle, low=value * down, high=value * up)


def as_measured(predicted: Iterable[Prospect], measured: Iterable[ArmResult]) -> list[Prospect]:
    """The settings that ran as their trials show them, decided or not, and plain decoding of the same blocks.

    Of several texts a setting is decided where each decides it alike; its range is then that of all of them.
    """
    timed = [one for one in measured if one.ratio is not None and one.tok_s is not None and one.plain_tok_s is not None]
    texts = {text for one in timed for text in one.workloads}
    by_setting = grouped(timed, lambda one: (arm_of(one), one.case.gamma))
    settings = []
    for p in predicted:
        ran = timed if p.gamma == 0 else by_setting.get((p.arm, p.gamma), [])
        pooled = [one for one in ran if {*one.workloads} == texts]
        ran = [max(pooled, key=lambda one: one.n_blocks)] if pooled else ran
        settings.append(_as_ran(p, ran, {text for one in ran for text in one.workloads} == texts) if ran else p)
    return sorted(settings, key=lambda p: -p.tok_s.value)


def _as_ran(p: Prospect, ran: Sequence[ArmResult], everywhere: bool) -> Prospect:
    """A setting by its trials on one text or several; `everywhere`: on all texts of its target."""
    speeds = [one.tok_s if p.gamma else one.plain_tok_s for one in ran]
    tok_s = Interval(value=_mean([speed for speed in speeds if speed]), n=sum(one.n_blocks for one in ran))
    changed: dict[str, Any] = {"tok_s": tok_s, "effect": "no difference"}
    if p.gamma:
        ratios, whole = [one.ratio for one in ran if one.ratio is not None], total(one.whole for one in ran)
        speedup, mgl = ratios[0], _mean([one.mgl or 1.0 for one in ran])
        if len(ratios) > 1:
            lows, highs = [r.low for r in ratios if r.low is not None], [r.high for r in ratios if r.high is not None]
            complete = len(lows) == len(highs) == len(ratios)
            ends = {"low": min(lows), "high": max(highs)} if complete else {}
            speedup = Interval(value=_mean([r.value for r in ratios]), n=sum(r.n for r in ratios), **ends)
        effects = {one.effect for one in ran}
        outs = [one.standing.out if one.standing else None for one in ran]
        accepted = [rate for one in ran if (rate := one.acceptance_rate) is not None]
        changed |= {
            "speedup": speedup,
            "mgl": mgl,
            **_break_evens(mgl, speedup, whole.proposed / max(1, whole.rounds)),
            "acceptance_assumed": False,
            "acceptances": (min(accepted), max(accepted)) if accepted else None,
            "effect": effects.pop() if len(effects) == 1 and everywhere else "not decided yet",
            "out": outs[0] if all(outs) else None,
        }
    return replace(p, **changed)


def _mean(values: Sequence[float]) -> float:
    return values[0] if len(values) == 1 else math.exp(sum(map(math.log, values)) / len(values))


def _break_evens(mgl: float, speedup: Interval, proposed_a_round: float) -> dict[str, Any]:
    """MGL and accepted / proposed at which a setting is as fast as plain decoding, and the latter's range."""

    def acceptance(ratio: float | None) -> float | None:
        needed = max(0.0, mgl / ratio - 1) / proposed_a_round if ratio and proposed_a_round else math.inf
        return needed if needed <= 1 else None

    return {
        "break_even_mgl": mgl / speedup.value,
        "break_even_acceptance": acceptance(speedup.value),
        "break_even_range": (acceptance(speedup.high), acceptance(speedup.low)),
    }


def _prospect(
    costs: CostRange, plain: CostRange, a: Acceptance, gamma: int, model_error: float, alpha: float | None = None
) -> Prospect:
    ends = a.outcomes(gamma, alpha) if gamma else PLAIN_ROUND
    fast, slow = tok_per_s(costs.low, ends), tok_per_s(costs.high, ends)
    alone_fast, alone_slow = (tok_per_s(c, PLAIN_ROUND) for c in (plain.low, plain.high))
    middle, alone = math.sqrt(fast * slow), math.sqrt(alone_fast * alone_slow)
    error = _Z * math.hypot(costs.relative_error, a.relative_error, model_error)
    of_passes = _Z * math.hypot(costs.relative_error, plain.relative_error, model_error)
    both = math.hypot(of_passes, _Z * a.relative_error)
    speed = Interval(value=middle, low=slow * math.exp(-error), high=fast * math.exp(error))
    # What a chip's range leaves open of T(1) both ways share; what further rows cost they do not.
    bounds = sorted((fast / alone_fast, slow / alone_slow))
    # No round commits more than its MGL, and a look-up that finds nothing decodes plainly: no more is claimed.
    most = mgl_of(ends)
    speedup = Interval(
        value=min(middle / alone, most),
        low=1.0 if gamma == 0 else min(bounds[0] * math.exp(-both), most),
        high=1.0 if gamma == 0 else min(bounds[1] * math.exp(both), most * math.exp(_Z * a.relative_error)),
    )
    at_this_mgl = Interval(
        value=middle / alone, low=bounds[0] * math.exp(-of_passes), high=bounds[1] * math.exp(of_passes)
    )
    decided, without = _decider(costs, plain, ends, gamma)
    accepted = outcomes_rate(ends)
    return Prospect(
        drafter=a.arm.method,
        draft=a.arm.draft.id if a.arm.draft else None,
        options=a.arm.options,
        gamma=gamma,
        tok_s=speed,
        speedup=speedup,
        mgl=most,
        **_break_evens(most, at_this_mgl, sum(k * n for (k, _), n in ends.items())),
        decided_by=decided,
        without_it=without,
        acceptance_source=a.source,
        acceptances=(accepted, accepted) if gamma else None,
        tested=costs.tested_gamma is None or gamma <= costs.tested_gamma,
    )


def _decider(costs: CostRange, plain: CostRange, ends: Outcomes, gamma: int) -> tuple[Decider, float]:
    """Take away one cost after the other; the one whose absence helps most decides."""
    if gamma == 0:
        return "nothing", 1.0
    c, whole = costs.high, sum(ends.values())
    t_one = mean_ms(plain.high, PLAIN_ROUND)
    draft = sum(n * draft_ms(c, k, a) for (k, a), n in ends.items()) / whole
    verify, rest = (
        sum(n * between(curve, k + 1) for (k, _), n in ends.items()) / whole for curve in (c.verify_ms, c.rest_ms)
    )
    round_time, mgl = draft + verify + rest, mgl_of(ends)
    wide: Decider = "expert coverage" if costs.is_mixture else "verification"
    if any(1 < edge <= gamma + 1 for edge in costs.steps):
        wide = "kernel step"
    ideal: dict[Decider, float] = {
        "draft time": mgl * t_one / (round_time - draft),
        wide: mgl * t_one / (round_time - verify + min(t_one, verify)),
        "rollback": mgl * t_one / max(round_time - rest, 1e-9),
        "acceptance": (gamma + 1) * t_one / round_time,
    }
    name = max(ideal, key=lambda k: ideal[k])
    return name, ideal[name]


def recommend(
    target: str, workload: str | None, settings: Sequence[Prospect], costs: CostRange, *, served: bool = False
) -> Recommendation:
    """Choose; `costs` are those of plain decoding, `served` by a program that no command of ours can time.

    On a machine where the target was timed only a setting that ran on this workload is recommended; elsewhere one that
    is faster at every acceptance and cost that was seen.
    """
    modelled, tried = costs.basis == "bandwidth", costs.measured
    speculative = [p for p in settings if p.gamma]
    faster = [p for p in speculative if p.pays and (p.effect or not tried)]
    could = sorted((p for p in speculative if p.open(tried)), key=lambda p: (not p.tested, -p.speedup.value))
    verdict: Verdict = "on" if faster else "not decided yet" if could or not speculative else "off"
    best = next(p for p in settings if not p.gamma)
    if faster:  # by its measured speedup, or by what a predicted one gives at least
        best = max(faster, key=lambda p: p.speedup.value if p.effect else p.speedup.low or 0.0)
    is_open = verdict == "not decided yet"
    return Recommendation(
        target=target,
        workload=workload,
        costs_source=costs.source,
        level=passes.constants().level if modelled else 0.95,
        prospects=tuple(settings),
        best=best,
        verdict=verdict,
        why=_why(best, speculative),
        settles=_settles(could[0], modelled, served=served) if is_open and could else None,
        to_measure=tuple(could[:_N_TO_MEASURE]) if is_open else (),
    )


def _why(best: Prospect, speculative: Sequence[Prospect]) -> str:
    """The setting that decides, with its range and what it costs most by."""
    if not speculative:
        return "nothing is known of any draft or method"
    fastest = max(speculative, key=lambda p: p.speedup.value)
    shown = best if best.gamma else max(speculative, key=lambda p: (p.tested, p.speedup.value))
    sentence = (
        f"{shown.setting} {'is predicted' if shown.effect is None else 'was measured'} at {shown.speedup.text()} times"
    )
    sentence += " plain decoding, " + (
        f"and {shown.decided_by} decides" if shown.effect is None else f"{shown.speedup.n} blocks or prompts"
    )
    if shown is not fastest:
        missing = "may be slower than plain decoding"
        if fastest.effect or shown.effect:
            missing = "is not decided yet"
        elif not fastest.tested:
            missing = "is tested by no public row"
        elif fastest.pays:
            missing = "may give less"
        return f"{sentence}; {fastest.setting}, at {fastest.speedup.text()}, {missing}"
    return sentence


def _settles(prospect: Prospect, modelled: bool, *, served: bool = False) -> str:
    """The acceptance that breaks even beside what was seen, and what, once known, leaves least of the range open."""
    needed, (least, most) = prospect.break_even_acceptance, prospect.break_even_range
    if needed is None:
        pays = "loses even if all is accepted, in the middle of its range"
    elif needed <= 0:
        pays = "pays whatever is accepted"
    else:
        pays = f"pays from an acceptance of {format_percent(needed, 0)} of what is proposed on"
    if least is not None and (most is None or most - least >= 0.01):
        dearest = "at no acceptance" if most is None else f"from {format_percent(most, 0)} on"
        pays += f" (where passes cost least from {format_percent(least, 0)} on, where they cost most {dearest})"
    low, high = prospect.acceptances or (0.0, 0.0)
    unsaid = prospect.acceptance_assumed and prospect.effect is None
    ranged = unsaid and low < high  # else only the length of drafts that end early is assumed
    span = format_percent(low, 0) if f"{low:.2f}" == f"{high:.2f}" else f"{100 * low:.0f} to {100 * high:.0f} %"
    of_people = "assumed are" if prospect.acceptance_source.startswith("assumed") else "people measured"
    line = f"{prospect.setting} {pays}; {of_people if ranged else 'it has'} {span}"
    if prospect.effect is not None:
        return f"{line}. More blocks decide it"
    if not prospect.tested:
        line += "; no public row tests so long a draft, so its range decides nothing"
    unknown = "the cost of a pass"
    if unsaid and (not modelled or not _passes_weigh_most(prospect)):
        unknown = "the acceptance" if ranged else "the length of drafts"
    how = {
        "the length of drafts": "give --output-tokens with --accepted, or --mgl",
        "the acceptance": f"give --accepted N/M from a log, or measure it with mlsd {'server' if served else 'bench'}",
        "the cost of a pass": f"measure it with mlsd {'server' if served else 'calibrate'} on that machine",
    }
    return f"{line}. The biggest unknown is {unknown}: {how[unknown] if modelled else 'measure it with mlsd bench'}"


def _passes_weigh_most(prospect: Prospect) -> bool:
    at_middle = prospect.at_middle
    if at_middle is None or at_middle.low is None or at_middle.high is None:
        return True
    whole = math.log((prospect.speedup.high or 1.0) / (prospect.speedup.low or 1.0))
    return math.log(at_middle.high / at_middle.low) >= whole / math.sqrt(2)
