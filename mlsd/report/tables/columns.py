"""The columns of tables of arms, by label: fields of an arm (`trials.fields`) and what is made of several."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mlsd.records import ModelFacts
from mlsd.report.render.table import Cell, Column, Tone, interval, number, numbers, percent, text, through, words
from mlsd.trials import fields
from mlsd.trials.acceptance import chance_for
from mlsd.trials.fields import Kind
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import PART_NAMES
from mlsd.units import format_bytes

T = TypeVar("T")
_PLACES = 8  # of a draft that a cell shows

EFFECT_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "", "not decided yet": "caution"}


def bounds(low: float | None, high: float | None, digits: int = 2) -> Cell:
    """An interval without its middle."""
    return text(None if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}")


def times(ratio: float | None) -> Cell:
    """A speedup."""
    return text(None if ratio is None else f"{ratio:.2f}x")


def millions(n: int | None, digits: int = 2) -> Cell:
    """A number of parameters, in 10^6."""
    return number(None if n is None else n / 1e6, digits)


def experts(facts: ModelFacts) -> str | None:
    """Those of a token and of a layer."""
    return f"{facts.n_experts_used} of {facts.n_experts}" if facts.n_experts else None


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


def _options(arm: ArmResult) -> str | None:
    return " ".join(f"{name}={value}" for name, value in arm.case.drafter.options.items()) or None


def _memory(arm: ArmResult) -> str | None:
    shown = (arm.memory_bytes, arm.memory_left_bytes)
    own, left = (None if n is None else format_bytes(n) for n in shown)
    return own if left is None else f"{own}, {left} left"


def _by_position(arm: ArmResult) -> Cell:
    """The first places in few characters, all of them with counts in the note."""
    places = arm.positions
    note = "; ".join(
        f"{p.position}: {p.accepted} of {p.reached} ({100 * (p.rate.low or 0):.0f} to {100 * (p.rate.high or 1):.0f} %)"
        for p in places
    )
    shown = " ".join(f"{100 * p.rate.value:.0f}" for p in places[:_PLACES])
    return text(f"{shown} ..." if len(places) > _PLACES else shown or None, note=note)


def _alpha(arm: ArmResult) -> Cell:
    needed = arm.break_even_mgl
    found = None if needed is None else chance_for(arm.whole.endings, needed)
    return number(found, 3) if found is not None else text(needed and "none suffices", "bad" if needed else "")


REQUEST = ("first token", "plain first token", "request", "plain request", "pays from", "memory")
_DETAILS = {
    *("blocks", "plain tok/s", "client tok/s", "spread", "by position", "of output", "MGL", "break-even MGL", "rounds"),
    *("ms/round", *PART_NAMES),
    *REQUEST,
}
Shown = Callable[[Any], Cell | int | None]
_SHOWN: dict[Kind, Shown] = {"Int64": lambda n: n or None, "float64": number}
_FIELDS = {field.name: field for field in fields.ARM}
Named = tuple[str, Column[ArmResult]]


def _field(label: str, name: str, show: Shown | None = None) -> Named:
    """A field of an arm under that label: its value as its type is shown, or as `show` does."""
    _, meaning, get, dtype = _FIELDS[name]
    detail = label in _DETAILS
    if dtype == "string":
        return label, words(label, get, meaning, detail=detail)
    shown = show or _SHOWN[dtype]
    return label, numbers(label, lambda a: shown(get(a)), meaning, detail=detail)


def _column(label: str, get: Callable[[ArmResult], Cell | int | None], meaning: str, *, numeric: bool = True) -> Named:
    return label, (numbers if numeric else words)(label, get, meaning, detail=label in _DETAILS)


def _in(unit: str, digits: int) -> Callable[[float | None], Cell]:
    return lambda value: number(value, digits, unit)


ARM: dict[str, Column[ArmResult]] = dict((
    _field("target", "target"),
    _field("prompt", "text"),
    _column("arm", lambda a: text(a.arm.name), "plain decoding, or a method with its draft and options", numeric=False),
    _column(
        "target + method", lambda a: text(f"{a.case.target.id} + {a.label}", note=a.fell_back or ""),
        "the target, and a method with its draft and options", numeric=False,
    ),
    _column(
        "setting", lambda a: text(a.setting, note=a.fell_back or ""), "a method with its draft, options and gamma",
        numeric=False,
    ),
    _column("options", lambda a: text(_options(a)), "options of the method", numeric=False),
    _field("text", "text"),
    _field("suite", "suite"),
    _field("decision", "decision"),
    _column("effect", effect_cell, "faster, slower, no difference or not decided yet, by the interval", numeric=False),
    _column(
        "verdict", lambda a: text("INVALID" if a.n_invalid else a.verdict),
        "lossless or near_tie; INVALID: not to be used", numeric=False,
    ),
    _field("output tokens", "n_predict"),
    _field("gamma", "gamma"),
    _field("blocks", "n_blocks", lambda n: n),
    _field("tok/s", "tok_s", _in("", 1)),
    _field("plain tok/s", "plain_tok_s", _in("", 1)),
    _column("client tok/s", lambda a: number(a.client_tok_s, 1), "by the client's clock, where a server has its own"),
    _field("spread", "spread", percent),
    _field("speedup", "speedup", times),
    _column(
        "95 % CI", lambda a: bounds(a.ratio.low, a.ratio.high) if a.ratio else None,
        "interval of the speedup, corrected for the number of arms; one containing 1 is inconclusive",
    ),
    _column(
        "speedup [95 % CI]", lambda a: interval(a.ratio, 2, "x", EFFECT_TONES[a.effect]),
        "the speedup and its interval",
    ),
    _field("acceptance", "acceptance_rate", percent),
    _column(
        "by position", _by_position,
        "accepted over reached, in %, at each place of a draft: the first token, the second after an accepted first",
        numeric=False,
    ),
    _field("of output", "accepted_of_output", percent),
    _field("MGL", "mgl"),
    _field("break-even MGL", "break_even_mgl"),
    _column("break-even alpha", _alpha, "acceptance at each place of as long drafts that gives this MGL"),
    _field("first token", "first_token_ms", _in(" ms", 1)),
    _field("plain first token", "plain_first_token_ms", _in(" ms", 1)),
    _field("request", "request_s", _in(" s", 2)),
    _field("plain request", "plain_request_s", _in(" s", 2)),
    _column(
        "pays from", lambda a: interval(a.pays_from, 0, " tokens"),
        "output tokens from which the whole request is faster; ends of 90 %",
    ),
    _column(
        "memory", lambda a: text(_memory(a)),
        "weights of target and draft with what llama.cpp counts of the arm's contexts, judging left out; and what is "
        "left of the machine's limit for models",
    ),
    _column(
        "loops", lambda a: text(f"{a.n_loops} of {a.n_trials}" if a.n_loops else None, "caution"),
        "outputs that repeat themselves to their end: acceptance of a loop says nothing of text",
    ),
    _field("rounds", "rounds"),
    _column(
        "ms/round", lambda a: number(sum(a.ms_per_round.values()) or None),
        "mean time of a round, the sum of its parts",
    ),
    *(_field(part, f"{part}_ms") for part in PART_NAMES),
    _column("valid trials", _valid, "trials that may be used, of all"),
))  # fmt: skip


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
        *("acceptance", "by position", "of output", "MGL", "break-even MGL", "ms/round", *PART_NAMES),
        *REQUEST,
        *(("loops",) if any(arm.n_loops for arm in arms) else ()),
        "verdict",
    )


RESULT = (
    *("tok/s", "plain tok/s", "speedup [95 % CI]", "effect", "acceptance", "by position"),
    *("of output", "MGL", "break-even MGL"),
    *("break-even alpha", "blocks", "valid trials", *REQUEST, "loops"),
)  # of an arm on a page
PLACE = ("target", "setting", "text", "output tokens", "suite")  # what tells it from the others
