"""Numbers of one trial and of one arm, derived from round records alone; and how arms are named for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlsd.measure.run.checks import DISTURBED
from mlsd.measure.run.study import BenchTrial
from mlsd.records import ArmKind, Case, Record, Trial, Verdict
from mlsd.stats import Interval, grouped, mean_over, median, paired, relative_spread
from mlsd.trials.arms import Arm, arm_of
from mlsd.units import tok_s

PARTS = ("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns")


class TrialNumbers(Record, frozen=True, kw_only=True):
    """What a trial measured; None where it measured nothing."""

    decode_tok_s: float | None
    acceptance_rate: float | None  # accepted / proposed
    mgl: float | None  # committed tokens / round, bonus included
    n_rounds: int
    proposed: int
    accepted: int
    draft_ns: int
    verify_ns: int
    rollback_ns: int
    sample_ns: int
    other_ns: int


def numbers(trial: Trial) -> TrialNumbers:
    """Sums and rates of a trial's rounds. decode tok/s counts the tokens after the first."""
    rounds = trial.rounds
    proposed = sum(r.proposed for r in rounds)
    accepted = sum(r.accepted for r in rounds)
    committed = sum(r.committed for r in rounds)
    return TrialNumbers(
        decode_tok_s=None if trial.decode_ns is None else tok_s(trial.n_tokens - 1, trial.decode_ns),
        acceptance_rate=accepted / proposed if proposed else None,
        mgl=committed / len(rounds) if rounds else None,
        n_rounds=len(rounds),
        proposed=proposed,
        accepted=accepted,
        **{part: sum(getattr(r, part) for r in rounds) for part in PARTS},
    )


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
    each = [numbers(trial) for trial in ok]
    speeds = [speed for _, speed in _timed(ok)]
    n_rounds = sum(n.n_rounds for n in each)
    proposed = sum(n.proposed for n in each)
    accepted = sum(n.accepted for n in each)
    verdicts = [t.losslessness.verdict for t in ok if t.losslessness is not None]
    speedup = paired_speedup(ok, baseline) if trials[0].arm == "sd" else None
    committed = sum(r.committed for t in ok for r in t.rounds)
    timed = [n for n, trial in zip(each, ok, strict=True) if trial.decode_ns is not None]
    n_timed = sum(n.n_rounds for n in timed)
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
        acceptance_rate=accepted / proposed if proposed else None,
        mgl=committed / n_rounds if n_rounds else None,
        rounds=n_rounds,
        ms_per_round={part.removesuffix("_ns"): sum(getattr(n, part) for n in timed) / n_timed / 1e6 for part in PARTS}
        if n_timed
        else {},
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
    trial, derived = row.trial, numbers(row.trial)
    verdict = trial.losslessness
    told = ("arm", "gamma", "block", "repeat", "status", "error")
    checked = ("valid", "invalid_reason", "failed_native_calls")
    times = ("rollback_draft", "timed", "fell_back", "prefill_ns", "draft_prefill_ns", "decode_ns")
    return {
        **arm_object(row.case),
        **{name: getattr(trial, name) for name in told},
        "decode_tok_s": derived.decode_tok_s,
        "acceptance_rate": derived.acceptance_rate,
        "mgl": derived.mgl,
        "rounds": derived.n_rounds,
        "proposed": derived.proposed,
        "accepted": derived.accepted,
        "n_prompt": trial.n_prompt,
        "n_tokens": trial.n_tokens,
        "tokens": trial.tokens,
        "verdict": None if verdict is None else verdict.verdict,
        "losslessness": verdict,
        **{name: getattr(trial, name) for name in checked},
        "rollback": trial.rollback_target,
        **{name: getattr(trial, name) for name in times},
        **{part: None if trial.decode_ns is None else getattr(derived, part) for part in PARTS},
        "stats": trial.stats,
        "round_records": trial.rounds,
    }


def paired_speedup(trials: Sequence[Trial], baseline: Sequence[Trial]) -> Interval | None:
    """Decode throughput over that of the AR trial of the same block; None when no block has both undisturbed."""
    pairs = paired(_timed(baseline), _timed(trials), lambda one: (one[0].block, one[0].repeat))
    return mean_over([sd / ar for (_, ar), (_, sd) in pairs], ratio=True) if pairs else None


def _timed(trials: Sequence[Trial]) -> list[tuple[Trial, float]]:
    """Finished trials that nothing disturbed, with their decode throughput."""
    calm = [t for t in trials if t.status == "ok" and not (t.invalid_reason or "").startswith(DISTURBED)]
    return [(t, speed) for t in calm if (speed := numbers(t).decode_tok_s) is not None]
