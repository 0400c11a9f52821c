"""What commands print with --json of an arm, of an answer and of a trial: one shape of each for every command."""

from __future__ import annotations

from typing import Any

from mlsd.records import ArmKind, Case, OptionValue, Record, Source, Verdict
from mlsd.trials.answers import Answer, Use
from mlsd.trials.decisions import Effect
from mlsd.trials.results import ArmResult, Measured
from mlsd.trials.sums import PARTS, speed


class ArmObject(Record, frozen=True, kw_only=True):
    """One arm over its trials on one question, beside plain decoding in the same blocks."""

    suite: str
    source: Source
    target: str
    prompt: str  # key of the prompt, its workload, or how many of them are pooled
    n_predict: int
    arm: ArmKind
    drafter: str
    draft: str | None
    options: dict[str, OptionValue]
    gamma: int
    control: bool  # a bound that nobody can use
    n_trials: int
    n_valid: int
    n_blocks: int  # pairs that the speedup is made of
    decode_tok_s: float | None  # geometric mean
    plain_tok_s: float | None  # of plain decoding in the same blocks
    spread: float | None  # half the range over the median
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    effect: Effect
    decision: str | None
    acceptance_rate: float | None
    acceptance_by_position: float | None
    accepted_of_output: float | None
    mgl: float | None
    break_even_mgl: float | None  # MGL over speedup
    first_token_ms: float | None  # prefill of target and draft, up to the first token
    plain_first_token_ms: float | None  # of plain decoding in the same blocks
    request_s: float | None  # the whole request at its length
    plain_request_s: float | None
    pays_from_tokens: float | None  # output tokens from which the whole request is faster
    pays_from_low: float | None  # ends that hold in 90 %
    pays_from_high: float | None
    memory_bytes: int | None  # weights of target and draft, and what the arm's contexts take
    n_loops: int  # outputs that repeat themselves to their end
    rounds: int
    ms_per_round: dict[str, float]  # mean of each part
    verdict: Verdict | None  # the worst of the repeats
    reason: str | None  # why it is not valid: the first, of those whose output is not right where there are some
    statuses: dict[str, int]  # how many trials have each


class AnswerObject(Record, frozen=True, kw_only=True):
    """Which setting to use for one target on one text."""

    target: str
    source: Source
    prompt: str
    n_predict: int
    use: Use
    setting: str | None  # the fastest decided to be faster, else the best tried
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    words: str
    reason: str | None  # why nothing could be judged, where nothing could
    next: str | None  # the command that decides it, where nothing is decided
    flags: tuple[str, ...] = ()  # what to set, where it is


def arm_object(one: ArmResult) -> ArmObject:
    """The arm as it is printed."""
    ratio, pays = one.ratio, one.pays_from
    same = (
        "first_token_ms", "plain_first_token_ms", "request_s", "plain_request_s", "memory_bytes", "n_loops",
        "n_trials", "n_valid", "n_blocks", "plain_tok_s", "spread", "effect", "decision", "acceptance_rate", "control",
        "acceptance_by_position", "accepted_of_output", "mgl", "break_even_mgl", "ms_per_round", "verdict",
        "statuses",
    )  # fmt: skip
    return ArmObject(
        suite=one.question.suite,
        source=one.question.source,
        target=one.case.target.id,
        prompt=one.text,
        n_predict=one.question.n_predict,
        arm=one.case.arm,
        **_of_method(one.case),
        gamma=one.case.gamma,
        decode_tok_s=one.tok_s,
        speedup=None if ratio is None else ratio.value,
        ci_low=None if ratio is None else ratio.low,
        ci_high=None if ratio is None else ratio.high,
        pays_from_tokens=None if pays is None else pays.value,
        pays_from_low=None if pays is None else pays.low,
        pays_from_high=None if pays is None else pays.high,
        rounds=one.whole.rounds,
        reason=one.why_not,
        **{name: getattr(one, name) for name in same},
    )


def answer_object(found: Answer, flags: tuple[str, ...] = (), next_step: str | None = None) -> AnswerObject:
    """The answer as it is printed."""
    ratio = found.ratio
    return AnswerObject(
        target=found.target,
        source=found.source,
        prompt=found.text,
        n_predict=found.n_predict,
        use=found.use,
        setting=None if found.best is None else found.best.setting,
        speedup=None if ratio is None else ratio.value,
        ci_low=None if ratio is None else ratio.low,
        ci_high=None if ratio is None else ratio.high,
        words=found.words,
        reason=found.reason or None,
        next=next_step,
        flags=flags,
    )


def trial_object(row: Measured) -> dict[str, Any]:
    """A trial: counts and total times, then each round."""
    trial, whole = row.trial, row.whole
    verdict = trial.losslessness
    place = ("arm", "gamma", "block", "repeat", "status", "reason")
    times = ("rollback_draft", "timed", "fell_back", "prefill_ns", "draft_prefill_ns", "decode_ns")
    return {
        "prompt": row.case.prompt.key,
        **_of_method(row.case),
        **{name: getattr(trial, name) for name in place},
        "decode_tok_s": speed(trial),
        "acceptance_rate": whole.acceptance_rate,
        "mgl": whole.mgl,
        **{name: getattr(whole, name) for name in ("rounds", "proposed", "accepted")},
        "n_prompt": trial.n_prompt,
        "n_tokens": trial.n_tokens,
        "tokens": trial.tokens,
        "verdict": None if verdict is None else verdict.verdict,
        "losslessness": verdict,
        "valid": trial.valid,
        "failed_native_calls": trial.failed_native_calls,
        "rollback": trial.rollback_target,
        **{name: getattr(trial, name) for name in times},
        **{part: None if trial.decode_ns is None else getattr(whole, part) for part in PARTS},
        "stats": trial.stats,
        "round_records": trial.rounds,
    }


def _of_method(case: Case) -> dict[str, Any]:
    spec = case.drafter
    return {"drafter": spec.name, "draft": spec.draft.id if spec.draft else None, "options": spec.options}
