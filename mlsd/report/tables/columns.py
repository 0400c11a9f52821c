"""The columns of tables of arms, each with its label, meaning and getter once; tables pick them by label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from mlsd.report.render.table import Cell, Column, Tone, interval, number, numbers, percent, text, through, words
from mlsd.trials.acceptance import rate_of
from mlsd.trials.sums import PART_NAMES
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.trials.results import ArmResult

T = TypeVar("T")

EFFECT_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "", "not decided yet": "doubt"}


def bounds(low: float | None, high: float | None, digits: int = 2) -> Cell:
    """An interval without its middle."""
    return text(None if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}")


def times(ratio: float | None) -> Cell:
    """A speedup."""
    return text(None if ratio is None else f"{ratio:.2f}x")


def effect_cell(arm: ArmResult | None) -> Cell:
    """What is decided of an arm, and what it would take to decide it."""
    if arm is None:
        return text("not measured", "quiet")
    if not arm.timed:
        return text("not timed", "quiet", "it drafted inside the target: what is accepted counts, its times do not")
    if arm.control:
        return text("a control", "quiet", "a bound that nobody can use")
    if arm.standing is None:
        return text("not valid", "bad", arm.decision or "")
    return text(arm.effect, EFFECT_TONES[arm.effect], arm.decision or "")


def _valid(arm: ArmResult) -> Cell:
    return Cell(text=f"{arm.n_valid} of {arm.n_trials}", sort=arm.n_valid / arm.n_trials, note=arm.why_not or "")


def _pair(arm: ArmResult) -> Cell:
    return text(f"{arm.case.target.id} + {arm.label}", note=arm.fell_back or "")


def _options(arm: ArmResult) -> str | None:
    return " ".join(f"{name}={value}" for name, value in arm.case.drafter.options.items()) or None


def _share(arm: ArmResult, part: str) -> Cell:
    return percent(arm.ms_per_round.get(part, 0.0) / (sum(arm.ms_per_round.values()) or 1.0), 0)


def _alpha(arm: ArmResult) -> Cell:
    needed = arm.break_even_mgl
    found = None if needed is None else rate_of(max(needed, 1.0), "position", arm.case.gamma)
    return number(found, 3) if found is not None else text(needed and "none suffices", "bad" if needed else "")


_WORDS: dict[str, tuple[Callable[[ArmResult], object], str]] = {
    "target": (lambda a: a.case.target.id, "the model that decides every token"),
    "prompt": (lambda a: a.text, "a shipped prompt or a text file"),
    "arm": (lambda a: a.arm.name, "plain decoding, or a method with its draft and options"),
    "target + method": (_pair, "the target, and a method with its draft and options"),
    "setting": (lambda a: text(a.setting, note=a.fell_back or ""), "a method with its draft, options and gamma"),
    "options": (_options, "options of the method"),
    "text": (lambda a: a.text, "the prompt, its kind of text, or how many kinds are pooled"),
    "suite": (lambda a: a.question.suite, "the suite that measured it"),
    "decision": (lambda a: a.decision, "the effect in words, or why the arm left the race"),
    "effect": (effect_cell, "faster, slower, no difference or not decided yet, by the interval"),
    "verdict": (lambda a: "INVALID" if a.wrong else a.verdict, "lossless or near_tie; INVALID: not to be used"),
}
_NUMBERS: dict[str, tuple[Callable[[ArmResult], Cell | int | None], str]] = {
    "output tokens": (lambda a: a.question.n_predict, "most tokens of an answer"),
    "gamma": (lambda a: a.case.gamma or None, "the most tokens proposed in a round"),
    "blocks": (lambda a: a.n_blocks, "blocks in which the arm was measured"),
    "tok/s": (lambda a: number(a.tok_s, 1), "tokens after the first over their time; geometric mean over blocks"),
    "plain tok/s": (lambda a: number(a.plain_tok_s, 1), "of plain decoding in the same blocks"),
    "client tok/s": (lambda a: number(a.client_tok_s, 1), "by the client's clock, where a server has its own"),
    "spread": (lambda a: percent(a.spread), "of tok/s over blocks: half the range, over the median"),
    "speedup": (lambda a: times(a.ratio.value if a.ratio else None), "tok/s over plain tok/s, block by block"),
    "95 % CI": (
        lambda a: bounds(a.ratio.low, a.ratio.high) if a.ratio else None,
        "interval of the speedup, corrected for the number of arms; one containing 1 is inconclusive",
    ),
    "speedup [95 % CI]": (lambda a: interval(a.ratio, 2, "x", EFFECT_TONES[a.effect]), "the speedup and its interval"),
    "acceptance": (lambda a: percent(a.acceptance_rate), "accepted over proposed tokens"),
    "of output": (lambda a: percent(a.accepted_of_output), "accepted over output tokens, as mlx_lm counts"),
    "MGL": (lambda a: number(a.mgl), "tokens added to the output per round, including the target's own"),
    "break-even MGL": (lambda a: number(a.break_even_mgl), "MGL at which it would equal plain decoding: MGL / speedup"),
    "break-even alpha": (_alpha, "acceptance of each position that gives this MGL"),
    "first token": (lambda a: number(a.first_token_ms, 1, " ms"), "prefill of target and draft, up to the first token"),
    "plain first token": (lambda a: number(a.plain_first_token_ms, 1, " ms"), "of plain decoding in the same blocks"),
    "request": (
        lambda a: number(a.request_s, 2, " s"),
        "the whole request at its length: first token, then the others",
    ),
    "plain request": (lambda a: number(a.plain_request_s, 2, " s"), "of plain decoding in the same blocks"),
    "pays from": (
        lambda a: interval(a.pays_from, 0, " tokens"),
        "output tokens from which the whole request is faster; ends of 90 %",
    ),
    "memory": (
        lambda a: text(a.memory_bytes and format_bytes(a.memory_bytes)),
        "weights of target and draft with what llama.cpp counts of the arm's contexts; judging left out",
    ),
    "loops": (
        lambda a: text(f"{a.n_loops} of {a.n_trials}" if a.n_loops else None, "doubt"),
        "outputs that repeat themselves to their end: acceptance of a loop says nothing of text",
    ),
    "rounds": (lambda a: a.whole.rounds or None, "rounds of all trials that count"),
    "ms/round": (lambda a: number(sum(a.ms_per_round.values()) or None), "mean time of a round, the sum of its parts"),
    "draft": (lambda a: number(a.ms_per_round.get("draft")), "ms per round: proposing"),
    "verify": (lambda a: number(a.ms_per_round.get("verify")), "ms per round: the target's pass"),
    "rollback": (lambda a: number(a.ms_per_round.get("rollback")), "ms per round: rolling back rejected tokens"),
    "sample": (lambda a: number(a.ms_per_round.get("sample")), "ms per round: reading tokens and accepting"),
    "other": (lambda a: number(a.ms_per_round.get("other")), "ms per round: everything else"),
    "drafting": (lambda a: _share(a, "draft"), "share of a round's time"),
    "verifying": (lambda a: _share(a, "verify"), "share of a round's time"),
    "valid trials": (_valid, "trials that may be used, of all"),
}
REQUEST = ("first token", "plain first token", "request", "plain request", "pays from", "memory")
_DETAILS = {
    *("blocks", "plain tok/s", "client tok/s", "spread", "of output", "MGL", "break-even MGL", "rounds"),
    *("ms/round", *PART_NAMES),
    *REQUEST,
}
ARM: dict[str, Column[ArmResult]] = {
    **{label: words(label, get, of, detail=label in _DETAILS) for label, (get, of) in _WORDS.items()},
    **{label: numbers(label, get, of, detail=label in _DETAILS) for label, (get, of) in _NUMBERS.items()},
}


def of_arms(*labels: str) -> tuple[Column[ArmResult], ...]:
    """The columns of these labels."""
    return tuple(ARM[label] for label in labels)


def of_their_arms(arm: Callable[[T], ArmResult | None], *labels: str) -> tuple[Column[T], ...]:
    """The same of tables whose rows hold an arm, or none."""
    return through(arm, of_arms(*labels))


def like(label: str, value: Callable[[T], Cell | int | None]) -> Column[T]:
    """The column of that label for rows that are no arms."""
    head, _ = ARM[label]
    return numbers(label, value, head.trace, detail=head.detail)


def measured_columns(arms: Sequence[ArmResult]) -> tuple[Column[ArmResult], ...]:
    """What a terminal shows of arms just measured, beside their names."""
    return of_arms(
        *("gamma", "tok/s", "plain tok/s", "spread", "speedup", "95 % CI"),
        *(("decision",) if any(arm.decision for arm in arms) else ()),
        *("acceptance", "of output", "MGL", "break-even MGL", "ms/round", *PART_NAMES),
        *REQUEST,
        *(("loops",) if any(arm.n_loops for arm in arms) else ()),
        "verdict",
    )


RESULT = (
    *("tok/s", "plain tok/s", "speedup [95 % CI]", "effect", "acceptance", "of output", "MGL", "break-even MGL"),
    *("blocks", "valid trials", *REQUEST, "loops"),
)  # of an arm on a page
PLACE = ("target", "setting", "text", "output tokens", "suite")  # what tells it from the others
