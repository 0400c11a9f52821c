"""How far predictions can be trusted: stored gammas predicted from the times and the acceptance of the others."""

import math
import statistics
from collections.abc import Sequence

from mlsd.analysis.predict.costs import Costs, at_gamma, costs_from_arms, nearest, outcomes_of, scale_to, tok_per_s
from mlsd.analysis.predict.evidence import Evidence, predictable
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import grouped
from mlsd.trials.rates import total
from mlsd.trials.results import ArmResult
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
    mgl: float

    @property
    def error(self) -> float:
        return self.predicted_tok_s / self.measured_tok_s - 1


class Validation(Record, frozen=True, kw_only=True):
    """Errors of tok/s, |predicted / measured - 1|, over all stored configurations, nothing of each known."""

    n: int
    median_error: float
    p95_error: float
    median_spread: float | None  # of the measurements: half the range over the median; None with single repeats
    checked: tuple[Prediction, ...]

    @property
    def sentence(self) -> str:
        spread = self.median_spread
        of_measurement = "" if spread is None else f" (the measurements themselves spread by {format_percent(spread)})"
        return (
            f"Each of {self.n} stored settings predicted from other gammas' acceptance and times: median error "
            f"{format_percent(self.median_error)}, 95th percentile {format_percent(self.p95_error)}{of_measurement}."
        )


def validate(evidence: Evidence) -> Validation | None:
    """Leave each gamma out; None when no study has plain decoding and two gammas of a drafter on one text."""
    checked: list[Prediction] = []
    for environment, arms in evidence.arms.items():
        usable = predictable(arms)
        plain = grouped((arm for arm in usable if arm.is_plain), lambda arm: arm.question)
        drafting = [arm for arm in usable if not arm.is_plain and arm.question in plain and arm.whole.proposed]
        for (question, *_), gammas in grouped(
            drafting, lambda arm: (arm.question, arm.arm.name, arm.case.drafter.draft, arm.case.rollback)
        ).items():
            if len(gammas) > 1:
                case = gammas[0].case
                costs = evidence.costs(environment, case.target, case.drafter.draft)
                checked += leave_one_gamma_out([*plain[question], *gammas], costs)
    if not checked:
        return None
    errors = sorted(abs(one.error) for one in checked)
    spreads = [one.spread for one in checked if one.spread is not None]
    return Validation(
        n=len(errors),
        median_error=statistics.median(errors),
        p95_error=errors[math.ceil(0.95 * len(errors)) - 1],
        median_spread=statistics.median(spreads) if spreads else None,
        checked=tuple(checked),
    )


def leave_one_gamma_out(arms: Sequence[ArmResult], calibrated: Costs | None = None) -> list[Prediction]:
    """Predict each gamma from plain decoding and the other gammas: their times, and the acceptance of the nearest.

    The shape of costs is that of a calibration, scaled by what the other arms' passes really took (a machine is seldom
    equally loaded twice); without one the other arms' rounds give it. Needs plain decoding and two gammas.
    """
    speculative = [arm for arm in arms if arm.case.gamma]
    if len(speculative) < 2 or len(arms) == len(speculative):
        raise AnalysisError("Leaving a gamma out needs plain decoding and at least two gammas.")
    predictions = []
    for held in speculative:
        assert held.tok_s is not None and held.mgl is not None
        others = [arm for arm in arms if arm is not held]
        costs = costs_from_arms(others) if calibrated is None else scale_to(calibrated, others)
        near = nearest((arm.case.gamma for arm in speculative if arm is not held), held.case.gamma)
        ends = outcomes_of(total(arm.whole for arm in speculative if arm.case.gamma == near))
        predictions.append(
            Prediction(
                target=held.case.target.id,
                setting=held.arm.name,
                prompt=held.text,
                gamma=held.case.gamma,
                calibrated=calibrated is not None,
                predicted_tok_s=tok_per_s(costs, at_gamma(ends, near, held.case.gamma)),
                measured_tok_s=held.tok_s,
                spread=held.spread,
                mgl=held.mgl,
            )
        )
    return predictions
