"""Numbers of one trial and of one arm, derived from round records alone; and how arms are named for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlsd.measure.run.study import BenchTrial
from mlsd.records import ArmKind, Case, Record, Trial, Verdict
from mlsd.stats import Interval, grouped, mean_over, median, paired, relative_spread
from mlsd.trials.arms import Arm, arm_of
from mlsd.trials.sums import PARTS, speed, sums, sums_of


class ArmSummary(Record, frozen=True, kw_only=True):
    """One arm over its repeats, compared with the AR arm of the same blocks."""

    arm: ArmKind
    gamma: int
    drafter: str
    n_trials: int
    n_valid: int
    decode_tok_s: float | None  # median
    spread: float | None  # half the range over the median
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    acceptance_rate: float | None
    mgl: float | None
    rounds: int
    ms_per_round: dict[str, float]  # mean of each part
    verdict: Verdict | None  # the worst of the repeats
    invalid_reason: str | None


_SEVERITY: tuple[Verdict, ...] = ("lossless", "near_tie", "diverged")


def summarize(trials: Sequence[Trial], baseline: Sequence[Trial], drafter: str) -> ArmSummary:
    """Summary of one arm's trials; `baseline` are the AR trials of the same prompt, paired by block."""
    ok = [trial for trial in trials if trial.status == "ok"]
    speeds = [own for _, own in _timed(ok)]
    whole = sums_of(ok)
    verdicts = [t.losslessness.verdict for t in ok if t.losslessness is not None]
    speedup = paired_speedup(ok, baseline) if trials[0].arm == "sd" else None
    return ArmSummary(
        arm=trials[0].arm,
        gamma=trials[0].gamma,
        drafter=drafter,
        n_trials=len(trials),
        n_valid=sum(trial.valid for trial in ok),
        decode_tok_s=median(speeds),
        spread=relative_spread(speeds),
        speedup=None if speedup is None else speedup.value,
        ci_low=None if speedup is None else speedup.low,
        ci_high=None if speedup is None else speedup.high,
        acceptance_rate=whole.acceptance_rate,
        mgl=whole.mgl,
        rounds=whole.rounds,
        ms_per_round=sums_of(trial for trial in ok if trial.decode_ns is not None).ms_per_round,
        verdict=max(verdicts, key=_SEVERITY.index) if verdicts else None,
        invalid_reason=next((t.error or t.invalid_reason for t in trials if t.invalid_reason), None),
    )


class BenchArm(Record, frozen=True, kw_only=True):
    """One arm of a bench on one prompt."""

    trials: tuple[BenchTrial, ...]
    summary: ArmSummary

    @property
    def case(self) -> Case:
        """What was measured."""
        return self.trials[0].case

    @property
    def prompt(self) -> str:
        """The prompt's key."""
        return self.case.prompt.key

    @property
    def arm(self) -> Arm:
        """What was measured."""
        return arm_of(self.case)


def bench_arms(trials: Sequence[BenchTrial]) -> list[BenchArm]:
    """Every arm of every prompt; plain decoding first, then by method and gamma."""

    def place(row: BenchTrial) -> tuple[Any, ...]:
        case, spec = row.case, row.case.drafter
        draft = spec.draft.id if spec.draft else ""
        return (case.prompt.key, case.gamma > 0, spec.name, draft, str(spec.options), case.gamma)

    by_case = grouped(sorted(trials, key=place), lambda row: row.trial.case_id)
    plain = {own[0].case.prompt.key: [row.trial for row in own] for own in by_case.values() if own[0].case.arm == "ar"}
    found = []
    for own in by_case.values():
        case = own[0].case
        summary = summarize([row.trial for row in own], plain.get(case.prompt.key, []), case.drafter.name)
        found.append(BenchArm(trials=tuple(own), summary=summary))
    return found


def arm_object(case: Case) -> dict[str, Any]:
    """What tells an arm from others beside its gamma, in the words of the JSON contract."""
    spec = case.drafter
    return {
        "prompt": case.prompt.key,
        "drafter": spec.name,
        "draft": spec.draft.id if spec.draft else None,
        "options": spec.options,
    }


def trial_object(row: BenchTrial) -> dict[str, Any]:
    """A trial in the words of the JSON contract: counts and total times, then each round."""
    trial, counted = row.trial, sums(row.trial.rounds)
    verdict = trial.losslessness
    told = ("arm", "gamma", "block", "repeat", "status", "error")
    checked = ("valid", "invalid_reason", "disturbed", "failed_native_calls")
    times = ("rollback_draft", "timed", "fell_back", "prefill_ns", "draft_prefill_ns", "decode_ns")
    return {
        **arm_object(row.case),
        **{name: getattr(trial, name) for name in told},
        "decode_tok_s": speed(trial),
        "acceptance_rate": counted.acceptance_rate,
        "mgl": counted.mgl,
        **{name: getattr(counted, name) for name in ("rounds", "proposed", "accepted")},
        "n_prompt": trial.n_prompt,
        "n_tokens": trial.n_tokens,
        "tokens": trial.tokens,
        "verdict": None if verdict is None else verdict.verdict,
        "losslessness": verdict,
        **{name: getattr(trial, name) for name in checked},
        "rollback": trial.rollback_target,
        **{name: getattr(trial, name) for name in times},
        **{part: None if trial.decode_ns is None else getattr(counted, part) for part in PARTS},
        "stats": trial.stats,
        "round_records": trial.rounds,
    }


def paired_speedup(trials: Sequence[Trial], baseline: Sequence[Trial]) -> Interval | None:
    """Decode throughput over that of the AR trial of the same block; None when no block has both undisturbed."""
    pairs = paired(_timed(baseline), _timed(trials), lambda one: (one[0].block, one[0].repeat))
    return mean_over([sd / ar for (_, ar), (_, sd) in pairs], ratio=True) if pairs else None


def _timed(trials: Sequence[Trial]) -> list[tuple[Trial, float]]:
    """Finished trials that nothing disturbed, with their decode throughput."""
    calm = [t for t in trials if t.status == "ok" and not t.disturbed]
    return [(t, own) for t in calm if (own := speed(t)) is not None]
