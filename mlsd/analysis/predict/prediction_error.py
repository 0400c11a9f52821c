"""How far predictions can be trusted: stored gammas predicted without their own times, or their prompt's trials.

With its own rounds a prediction shows how good the costs are. Another text has another acceptance: without the trials
of its prompt it shows what it is worth there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import numpy as np

from mlsd.analysis.predict.arms import ArmGroup, Known
from mlsd.analysis.predict.outcomes import outcomes_of
from mlsd.analysis.predict.predict import GammaPrediction, costs_like, judged, leave_one_gamma_out
from mlsd.records import Record
from mlsd.units import format_percent


class Checked(Record, frozen=True, kw_only=True):
    """One configuration that was left out and predicted."""

    target: str
    drafter: str
    draft: str | None
    prompt: str
    calibrated: bool  # costs from timed passes; else from the other gammas' rounds alone
    prediction: GammaPrediction


class OtherText(Record, frozen=True, kw_only=True):
    """Errors where all trials of the prompt were left out."""

    n: int
    median_error: float  # of tok/s
    p95_error: float
    median_mgl_error: float
    p95_mgl_error: float


class Validation(Record, frozen=True, kw_only=True):
    """Errors over all stored configurations, each with its own rounds. Errors are |predicted / measured - 1|."""

    n: int
    median_error: float
    p95_error: float
    median_spread: float | None  # of the measurements: half the range over the median; None with single repeats
    checked: tuple[Checked, ...]
    other_text: OtherText | None  # None: no drafter was measured on two prompts

    @property
    def words(self) -> str:
        same = (
            f"Each of {self.n} stored settings predicted from its other gammas, rounds as they were: median error "
            f"{format_percent(self.median_error)}, 95th percentile {format_percent(self.p95_error)}"
        )
        if self.median_spread is not None:
            same += f" (the measurements themselves spread by {format_percent(self.median_spread)})"
        other = self.other_text
        if other is None:
            return f"{same}; on other texts nothing was checked, as no drafter was measured on two prompts."
        return (
            f"{same}; on a text that was left out: median {format_percent(other.median_error)}, 95th percentile "
            f"{format_percent(other.p95_error)} (MGL {format_percent(other.median_mgl_error)} and "
            f"{format_percent(other.p95_mgl_error)})."
        )


def validate(known: Known) -> Validation | None:
    """Leave each gamma, then each prompt out; None when no study has plain decoding and two gammas."""
    checked = tuple(row for group in known.groups for row in _without_each_gamma(group, known))
    if not checked:
        return None
    errors = [abs(row.prediction.error) for row in checked]
    spreads = [row.prediction.spread for row in checked if row.prediction.spread is not None]
    return Validation(
        n=len(checked),
        median_error=statistics.median(errors),
        p95_error=float(np.quantile(errors, 0.95)),
        median_spread=statistics.median(spreads) if spreads else None,
        checked=checked,
        other_text=_on_other_text([one for group in known.groups for one in _without_its_prompt(group, known)]),
    )


def _without_each_gamma(group: ArmGroup, known: Known) -> list[Checked]:
    if len([arm for arm in group.arms if arm.gamma]) < 2:
        return []
    costs = known.costs(group.environment_key, group.target, group.draft)
    return [
        Checked(
            target=group.target.id,
            drafter=group.drafter,
            draft=group.draft_id,
            prompt=group.prompt,
            calibrated=costs is not None,
            prediction=prediction,
        )
        for prediction in leave_one_gamma_out(group.arms, costs)
    ]


def _without_its_prompt(group: ArmGroup, known: Known) -> Iterator[GammaPrediction]:
    """Predictions of a group's gammas from the same drafter's trials on other prompts; none where there are none."""

    def drafter_of(one: ArmGroup) -> tuple[object, ...]:
        return (one.environment_key, one.target, one.drafter, one.draft, one.options)

    same = [g for g in known.groups if drafter_of(g) == drafter_of(group) and g.prompt != group.prompt]
    others = [arm for other in same for arm in other.arms]
    costs = known.costs(group.environment_key, group.target, group.draft)
    for arm in (arm for arm in group.arms if arm.gamma):
        same_gamma = [other for other in others if other.gamma == arm.gamma]
        if same_gamma:
            ends = outcomes_of(r for other in same_gamma for r in other.rounds[0])
            yield judged(arm, costs_like(others, costs), ends)


def _on_other_text(found: Sequence[GammaPrediction]) -> OtherText | None:
    if not found:
        return None
    speeds = [abs(one.error) for one in found]
    lengths = [abs(one.predicted_mgl / one.measured_mgl - 1) for one in found]
    return OtherText(
        n=len(found),
        median_error=statistics.median(speeds),
        p95_error=float(np.quantile(speeds, 0.95)),
        median_mgl_error=statistics.median(lengths),
        p95_mgl_error=float(np.quantile(lengths, 0.95)),
    )
