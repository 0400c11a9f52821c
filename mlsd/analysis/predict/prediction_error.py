"""How far predictions can be trusted: every gamma of every stored study predicted without its own trials."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import numpy as np

from mlsd.analysis.predict.arms import ArmGroup, Known
from mlsd.analysis.predict.predict import GammaPrediction, costs_from_arms, leave_one_gamma_out
from mlsd.records import Record


class Checked(Record, frozen=True, kw_only=True):
    """One configuration that was left out and predicted."""

    target: str
    drafter: str
    draft: str | None
    prompt: str
    calibrated: bool  # costs from timed passes; else from the other gammas' rounds alone
    prediction: GammaPrediction


class Validation(Record, frozen=True, kw_only=True):
    """Errors over all stored configurations. Errors are |predicted / measured - 1|."""

    n: int
    median_error: float
    p95_error: float
    median_spread: float | None  # of the measurements: half the range over the median; None with single repeats
    n_calibrated: int
    checked: tuple[Checked, ...]


def validate(known: Known) -> Validation | None:
    """Leave each gamma out of each group that has others; None when no study has plain decoding and two gammas."""
    return summarize([row for group in known.groups for row in check_group(group, known)])


def check_group(group: ArmGroup, known: Known) -> list[Checked]:
    """Predictions of one group's gammas; empty below two gammas."""
    if len([arm for arm in group.arms if arm.gamma]) < 2:
        return []
    costs = known.costs(group.environment_key, group.target, group.draft)
    found = leave_one_gamma_out(group.arms, costs if costs is not None else costs_from_arms)
    return [
        Checked(
            target=group.target.id,
            drafter=group.drafter,
            draft=None if group.draft is None else group.draft.id,
            prompt=group.prompt,
            calibrated=costs is not None,
            prediction=prediction,
        )
        for prediction in found
    ]


def summarize(rows: Iterable[Checked]) -> Validation | None:
    """Median and 95th percentile of the errors; None of nothing."""
    checked = tuple(rows)
    if not checked:
        return None
    errors = [abs(row.prediction.error) for row in checked]
    spreads = [row.prediction.spread for row in checked if row.prediction.spread is not None]
    return Validation(
        n=len(checked),
        median_error=statistics.median(errors),
        p95_error=float(np.quantile(errors, 0.95)),
        median_spread=statistics.median(spreads) if spreads else None,
        n_calibrated=sum(row.calibrated for row in checked),
        checked=checked,
    )
