"""The study's two equations with measured inputs, beside the form that counts what is committed: predicted, measured.

Nothing is fitted here. Equation 1 (Leviathan, Kalman, Matias, ICML 2023) takes acceptance and the cost of drafting,
equation 2 (the mixture-of-experts study, section 2.2) the times of a round; the corrected form takes the same times and
the tokens that a round commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

from mlsd.analysis.pairs import units_of
from mlsd.analysis.predict.costs import Costs
from mlsd.records import DRAFT_MODEL, Record
from mlsd.stats import Interval, mean_over
from mlsd.trials.results import ArmResult

if TYPE_CHECKING:
    import pandas as pd

Inputs = Literal["rounds", "calibration"]


class EquationSpeedup(Record, frozen=True, kw_only=True):
    """A speedup that an equation gives, and how far it is off."""

    speedup: float  # geometric mean over trials
    off: Interval  # predicted over measured; 1 is right


class Equations(Record, frozen=True, kw_only=True):
    """Both equations for one target, draft and gamma. Times are means of a round, in ms."""

    arm: ArmResult
    inputs: Inputs  # where the times are from: the rounds of these trials, or passes timed without them
    alpha: float  # accepted / proposed, as the study counts
    mgl: float
    proposed_per_round: float  # gamma, less what short last rounds leave out
    c: float  # drafting a token, in plain passes
    t_seq_ms: float
    t_draft_ms: float
    t_verify_ms: float
    t_rest_ms: float  # rollback, sampling, bookkeeping: in neither equation
    eq1: EquationSpeedup
    eq2: EquationSpeedup
    corrected: EquationSpeedup | None  # None from rounds: there it is the measured speedup by definition, an account

    @property
    def measured(self) -> Interval:
        assert self.arm.ratio is not None
        return self.arm.ratio

    @property
    def credited(self) -> float:
        """Tokens that equation 2 counts for each one committed: it takes rejected tokens for output."""
        return self.proposed_per_round / self.mgl


def equation_1(alpha: float, c: float, gamma: float) -> float:
    """``S = (1 - a^(g+1)) / ((1 - a)(c g + 1))``: verification takes one plain pass whatever gamma is."""
    tokens = gamma + 1 if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    return tokens / (c * gamma + 1)


def equation_2(t_seq_ms: float, t_draft_ms: float, t_verify_ms: float, gamma: float) -> float:
    """``S = g T_seq / (T_draft(g) + T_verify(g))``: all g proposed tokens count as output, rejected ones too."""
    return gamma * t_seq_ms / (t_draft_ms + t_verify_ms)


def corrected(t_seq_ms: float, round_ms: float, mgl: float) -> float:
    """``S = MGL T_seq / (T_draft + T_verify + rest)``: the tokens that a round commits, over its whole time."""
    return mgl * t_seq_ms / round_ms


def equations(
    arms: Iterable[ArmResult], pairs: pd.DataFrame, costs_of: Callable[[ArmResult], Costs | None]
) -> list[Equations]:
    """Every chain of a draft model: times from its own rounds, then from timed passes where there are any.

    Of our own engine alone: what a round of a server cost is not known in its parts. `pairs` hold those of the arms.
    """
    chains = [
        (arm, drafted)
        for arm in arms
        if arm.question.source == "engine" and arm.case.drafter.name == DRAFT_MODEL
        if arm.n_valid
        and arm.ratio is not None
        and (drafted := [pair for pair in arm.pairs if pair.measured.whole.proposed])
    ]
    by_trial, every_equation = pairs.set_index("trial_id", drop=False), []
    for arm, drafted in chains:
        of_arm = by_trial.loc[[pair.measured.id for pair in drafted]]
        every_equation.append(_of_times(arm, of_arm, "rounds"))
        costs, gamma = costs_of(arm), arm.case.gamma
        if costs is not None and costs.step_ms and gamma + 1 in costs.verify_ms:
            timed = of_arm.assign(
                t_one_ms=costs.verify_ms[1], draft_ms=gamma * costs.step_ms, verify_ms=costs.verify_ms[gamma + 1],
                rest_ms=costs.rest_ms.get(gamma + 1, 0.0),
            )  # fmt: skip
            every_equation.append(_of_times(arm, timed, "calibration"))
    return every_equation


def _of_times(arm: ArmResult, pairs: pd.DataFrame, inputs: Inputs) -> Equations:
    """Of pairs whose times are T_seq, T_draft, T_verify and the rest, in ms."""
    whole, account, units = arm.whole, inputs == "rounds", units_of(pairs).tolist()
    n = pairs["proposed"] / pairs["rounds"] if account else pairs["gamma"].astype(float)
    t_seq, t_draft, t_verify, t_rest = (pairs[name] for name in ("t_one_ms", "draft_ms", "verify_ms", "rest_ms"))
    alpha, c = pairs["accepted"] / pairs["proposed"], t_draft / n / t_seq

    def prediction(values: Iterable[float]) -> EquationSpeedup:
        predicted = list(values)
        off = [value / speedup for value, speedup in zip(predicted, pairs["speedup"], strict=True)]
        speedup = mean_over(predicted, units, ratio=True).value
        return EquationSpeedup(speedup=speedup, off=mean_over(off, units, ratio=True))

    a_round = whole.proposed / whole.rounds if account else float(arm.case.gamma)
    return Equations(
        arm=arm,
        inputs=inputs,
        alpha=whole.accepted / whole.proposed,
        mgl=whole.mgl or 1.0,
        proposed_per_round=a_round,
        c=float(t_draft.mean() / a_round / t_seq.mean()),
        t_seq_ms=float(t_seq.mean()),
        t_draft_ms=float(t_draft.mean()),
        t_verify_ms=float(t_verify.mean()),
        t_rest_ms=float(t_rest.mean()),
        eq1=prediction(map(equation_1, alpha, c, n)),
        eq2=prediction(map(equation_2, t_seq, t_draft, t_verify, n)),
        corrected=None if account else prediction(map(corrected, t_seq, t_draft + t_verify + t_rest, pairs["mgl"])),
    )
