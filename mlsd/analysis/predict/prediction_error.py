"""How far predictions can be trusted: stored gammas predicted without their own times, or their text's trials.

With its own rounds a prediction shows how good the costs are. Another text has another acceptance: without the trials
of its text it shows what it is worth there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from mlsd.analysis.predict.costs import Costs, Outcomes, costs_like, mgl_of, outcomes_of, tok_per_s
from mlsd.analysis.predict.known import Known, predictable
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import grouped
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import total
from mlsd.units import format_percent


class Prediction(Record, frozen=True, kw_only=True):
    """One configuration that was left out, predicted and as it was measured."""

    target: str
    setting: str  # of the draft or method, without its gamma
    prompt: str  # or workload
    gamma: int
    calibrated: bool  # costs from timed passes; else from the other gammas' rounds alone
    predicted_tok_s: float
    measured_tok_s: float
    spread: float | None  # of the measurement: half the range over the median
    predicted_mgl: float
    measured_mgl: float

    @property
    def error(self) -> float:
        return self.predicted_tok_s / self.measured_tok_s - 1


class Errors(Record, frozen=True, kw_only=True):
    """|predicted / measured - 1| over some predictions."""

    n: int
    median: float
    p95: float

    @property
    def words(self) -> str:
        return f"median {format_percent(self.median)}, 95th percentile {format_percent(self.p95)}"


class Validation(Record, frozen=True, kw_only=True):
    """Errors of tok/s over all stored configurations, each with its own rounds; and on texts that were left out."""

    errors: Errors
    median_spread: float | None  # of the measurements: half the range over the median; None with single repeats
    checked: tuple[Prediction, ...]
    other_text: Errors | None  # None: no drafter was measured on two texts
    other_mgl: Errors | None  # of the MGL there

    @property
    def words(self) -> str:
        same = f"Each of {self.errors.n} stored settings predicted from its other gammas: {self.errors.words}"
        if self.median_spread is not None:
            same += f" (the measurements themselves spread by {format_percent(self.median_spread)})"
        if self.other_text is None or self.other_mgl is None:
            return f"{same}; on other texts nothing was checked, as no drafter was measured on two."
        return f"{same}; on a text that was left out: {self.other_text.words} (MGL: {self.other_mgl.words})."


def validate(known: Known) -> Validation | None:
    """Leave each gamma, then each text out; None when no study has plain decoding and two gammas."""
    checked: list[Prediction] = []
    other: list[Prediction] = []
    for environment, arms in known.arms.items():
        own = predictable(arms)
        plain = grouped((arm for arm in own if arm.is_plain), lambda arm: arm.question)
        drafting = [arm for arm in own if not arm.is_plain and arm.question in plain and arm.whole.proposed]
        for drafter in grouped(drafting, _drafter).values():
            case = drafter[0].case
            costs = known.costs(environment, case.target, case.drafter.draft)
            texts = grouped(drafter, lambda arm: arm.question)
            for question, gammas in texts.items():
                if len(gammas) > 1:
                    checked += leave_one_gamma_out([*plain[question], *gammas], costs)
                rest = [arm for q, some in texts.items() if q != question for arm in (*plain[q], *some)]
                other += _without_its_text(gammas, rest, costs)
    if not checked:
        return None
    spreads = [one.spread for one in checked if one.spread is not None]
    return Validation(
        errors=_errors(one.error for one in checked),
        median_spread=statistics.median(spreads) if spreads else None,
        checked=tuple(checked),
        other_text=_errors(one.error for one in other) if other else None,
        other_mgl=_errors(one.predicted_mgl / one.measured_mgl - 1 for one in other) if other else None,
    )


def _drafter(arm: ArmResult) -> tuple[object, ...]:
    return arm.case.target, arm.arm.name, arm.case.drafter.draft, arm.case.rollback


def leave_one_gamma_out(arms: Sequence[ArmResult], calibrated: Costs | None = None) -> list[Prediction]:
    """Predict each gamma, its rounds ending as they did, from the times of plain decoding and of the other gammas.

    The shape of costs is that of a calibration, scaled by what the other arms' passes really took (a machine is seldom
    equally loaded twice); without one the other arms' rounds give it. Needs plain decoding and two gammas.
    """
    speculative = [arm for arm in arms if arm.case.gamma]
    if len(speculative) < 2 or len(arms) == len(speculative):
        raise AnalysisError("Leaving a gamma out needs plain decoding and at least two gammas.")
    return [
        _predicted(
            held,
            costs_like([arm for arm in arms if arm is not held], calibrated),
            outcomes_of(held.whole, held.case.gamma),
            calibrated=calibrated is not None,
        )
        for held in speculative
    ]


def _without_its_text(
    gammas: Sequence[ArmResult], rest: Sequence[ArmResult], calibrated: Costs | None
) -> Iterator[Prediction]:
    """Predictions of a text's gammas from the same drafter's trials on other texts; none where there are none."""
    for held in gammas:
        same = total(arm.whole for arm in rest if arm.case.gamma == held.case.gamma)
        if same.proposed:
            ends = outcomes_of(same, held.case.gamma)
            yield _predicted(held, costs_like(rest, calibrated), ends, calibrated=calibrated is not None)


def _predicted(held: ArmResult, costs: Costs, ends: Outcomes, *, calibrated: bool) -> Prediction:
    assert held.tok_s is not None and held.mgl is not None
    return Prediction(
        target=held.case.target.id,
        setting=held.arm.name,
        prompt=held.text,
        gamma=held.case.gamma,
        calibrated=calibrated,
        predicted_tok_s=tok_per_s(costs, ends),
        measured_tok_s=held.tok_s,
        spread=held.spread,
        predicted_mgl=mgl_of(ends),
        measured_mgl=held.mgl,
    )


def _errors(signed: Iterable[float]) -> Errors:
    ordered = sorted(map(abs, signed))
    place = 0.95 * (len(ordered) - 1)
    low = int(place)
    high = ordered[min(low + 1, len(ordered) - 1)]
    return Errors(
        n=len(ordered), median=statistics.median(ordered), p95=ordered[low] + (place - low) * (high - ordered[low])
    )
