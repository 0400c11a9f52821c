"""What commands print with --json of an answer and of a trial: one shape of each for every command."""

from typing import Any

from mlsd.records import Case, Record, Source
from mlsd.trials.answers import Answer, Use
from mlsd.trials.results import Measured
from mlsd.trials.sums import PARTS, speed


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
