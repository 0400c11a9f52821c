"""The arms of one bench, each on one prompt: for its table, and in the words of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlsd.measure.run.runs import BenchTrial
from mlsd.records import ArmKind, Case, Record, Trial, Verdict
from mlsd.stats import grouped, median, relative_spread
from mlsd.trials.arms import Arm, arm_of
from mlsd.trials.decisions import Decision, Standing
from mlsd.trials.fates import Fate, fate_of, fates
from mlsd.trials.pairs import counted, pair_up, speedup
from mlsd.trials.sums import PARTS, speed, sums, sums_of


class ArmSummary(Record, frozen=True, kw_only=True):
    """One arm over its repeats, compared with plain decoding in the same blocks; numbers are of the trials that count.

    Which count is `trials.pairs.counted`: what a report says of the same trials is the same.
    """

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
    invalid_reason: str | None  # the first, of those whose output is not right where there are some
    fates: dict[str, int]  # how many trials came to each end

    @property
    def wrong(self) -> int:
        """Trials whose output is not what it should be, or not known to be."""
        return sum(n for fate, n in self.fates.items() if not Fate(fate).right)


_SEVERITY: tuple[Verdict, ...] = ("lossless", "near_tie", "diverged")


def summarize(trials: Sequence[Trial], baseline: Sequence[Trial], drafter: str) -> ArmSummary:
    """Summary of one arm's trials; `baseline` are the AR trials of the same prompt, paired by block."""
    own, ends = counted(trials), fates(trials)
    pairs = pair_up(baseline, trials) if trials[0].arm == "sd" else []
    speeds = [mine.tok_s for _, mine in pairs] or [tok_s for t in own if (tok_s := speed(t)) is not None]
    whole, ratio = sums_of(own), speedup(pairs)
    verdicts = [t.losslessness.verdict for t in trials if t.losslessness is not None]
    worst_first = sorted(trials, key=lambda trial: fate_of(trial).right)
    return ArmSummary(
        arm=trials[0].arm,
        gamma=trials[0].gamma,
        drafter=drafter,
        n_trials=len(trials),
        n_valid=ends[Fate.VALID],
        decode_tok_s=median(speeds),
        spread=relative_spread(speeds),
        speedup=None if ratio is None else ratio.value,
        ci_low=None if ratio is None else ratio.low,
        ci_high=None if ratio is None else ratio.high,
        acceptance_rate=whole.acceptance_rate,
        mgl=whole.mgl,
        rounds=whole.rounds,
        ms_per_round=sums_of(trial for trial in own if trial.decode_ns is not None).ms_per_round,
        verdict=max(verdicts, key=_SEVERITY.index) if verdicts else None,
        invalid_reason=next((t.error or t.invalid_reason for t in worst_first if t.invalid_reason), None),
        fates={fate.value: ends[fate] for fate in Fate if ends[fate]},
    )


class BenchArm(Record, frozen=True, kw_only=True):
    """One arm of a bench on one prompt."""

    trials: tuple[BenchTrial, ...]
    summary: ArmSummary
    standing: Standing | None = None  # where all arms of the prompt were decided together, and this one is sound

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


def bench_arms(trials: Sequence[BenchTrial], decisions: Mapping[str, Decision] | None = None) -> list[BenchArm]:
    """Every arm of every prompt; plain decoding first, then by method and gamma.

    With `decisions` speedups are those that hold together, and at every look.
    """

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
        decision = (decisions or {}).get(case.prompt.key)
        standing = None if decision is None else decision.of(arm_of(case).setting)
        if standing is not None:
            ratio = standing.ratio
            summary = msgspec.structs.replace(summary, speedup=ratio.value, ci_low=ratio.low, ci_high=ratio.high)
        elif decision is not None:
            summary = msgspec.structs.replace(summary, ci_low=None, ci_high=None)
        found.append(BenchArm(trials=tuple(own), summary=summary, standing=standing))
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
    trial, whole = row.trial, sums(row.trial.rounds)
    verdict = trial.losslessness
    told = ("arm", "gamma", "block", "repeat", "status", "error")
    checked = ("valid", "invalid_reason", "disturbed", "failed_native_calls")
    times = ("rollback_draft", "timed", "fell_back", "prefill_ns", "draft_prefill_ns", "decode_ns")
    return {
        **arm_object(row.case),
        **{name: getattr(trial, name) for name in told},
        "decode_tok_s": speed(trial),
        "acceptance_rate": whole.acceptance_rate,
        "mgl": whole.mgl,
        **{name: getattr(whole, name) for name in ("rounds", "proposed", "accepted")},
        "n_prompt": trial.n_prompt,
        "n_tokens": trial.n_tokens,
        "tokens": trial.tokens,
        "verdict": None if verdict is None else verdict.verdict,
        "losslessness": verdict,
        **{name: getattr(trial, name) for name in checked},
        "rollback": trial.rollback_target,
        **{name: getattr(trial, name) for name in times},
        **{part: None if trial.decode_ns is None else getattr(whole, part) for part in PARTS},
        "stats": trial.stats,
        "round_records": trial.rounds,
    }
