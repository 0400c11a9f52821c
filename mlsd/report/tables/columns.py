"""The columns of tables of arms: those of `trials.fields` as they are shown, and what is made of several."""

from collections.abc import Sequence
from typing import Any

from mlsd.columns import Column, Get, chosen, column, inside
from mlsd.records import ModelFacts
from mlsd.report.render.table import Cell, Tone, interval, number, text
from mlsd.trials import fields
from mlsd.trials.acceptance_meanings import chance_for
from mlsd.trials.rates import PART_NAMES
from mlsd.trials.results import ArmResult
from mlsd.units import format_bytes

_PLACES = 8  # of a draft that a cell shows

EFFECT_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "", "not decided yet": "caution"}


def bounds(low: float | None, high: float | None, digits: int = 2) -> Cell:
    """An interval without its middle."""
    return text(None if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}")


def millions(n: int | None) -> float | None:
    """A number of parameters, in 10^6."""
    return None if n is None else n / 1e6


def experts(facts: ModelFacts | None) -> str | None:
    """Those of a token and of a layer."""
    return f"{facts.n_experts_used} of {facts.n_experts}" if facts is not None and facts.n_experts else None


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


def speedup_cell(arm: ArmResult) -> Cell:
    """The speedup with its interval, or why there is none."""
    if not arm.timed:
        return text("not timed", "quiet")
    if arm.ratio is None:
        return text(None, note=arm.why_not or "no valid pair")
    units = "texts" if len(arm.prompts) > 1 else "blocks"
    return interval(arm.ratio, 2, "x", EFFECT_TONES[arm.effect], units=units)


def _memory(arm: ArmResult) -> str | None:
    used, left = (None if n is None else format_bytes(n) for n in (arm.memory_bytes, arm.memory_left_bytes))
    return used if left is None else f"{used}, {left} left"


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
    chance = None if needed is None else chance_for(arm.whole.endings, needed)
    return number(chance, 3) if chance is not None else text(needed and "none suffices", "bad" if needed else "")


def _valid(arm: ArmResult) -> Cell:
    return Cell(text=f"{arm.n_valid} of {arm.n_trials}", sort=arm.n_valid / arm.n_trials, note=arm.why_not or "")


def _round_ms(arm: ArmResult) -> float | None:
    return sum(arm.ms_per_round.values()) or None


def _options(arm: ArmResult) -> str | None:
    return " ".join(f"{name}={value}" for name, value in arm.case.drafter.options.items()) or None


_NAMED = "a method with its draft, options and gamma"
_SHOWN: dict[str, dict[str, Any]] = {  # of columns of an arm that show more than their value
    "arm": {"get": lambda a: text(a.arm.name), "meaning": "plain decoding, or a method with its draft and options"},
    "setting": {"get": lambda a: text(a.setting, note=a.fell_back or ""), "meaning": _NAMED},
    "options": {"get": _options, "format": ""},
    "speedup": {"get": speedup_cell},
    "effect": {"get": effect_cell},
    "verdict": {
        "get": lambda a: text("INVALID" if a.n_invalid else a.verdict),
        "meaning": "lossless or near_tie; INVALID: not to be used",
    },
}
_BY_POSITION = (
    "accepted over reached, in %, at each place of a draft: the first token, the second after an accepted first"
)
_CI = "interval of the speedup, corrected for the number of arms; one containing 1 is inconclusive"
_LOOPS = "outputs that repeat themselves to their end: acceptance of a loop says nothing of text"
ARM: tuple[Column, ...] = (
    *(one._replace(**_SHOWN.get(one.name, {})) for one in fields.ARM),
    column("client_tok_s", "1", "by the client's clock, where a server has its own", None, "client tok/s", detail=True),
    column("times", "2x", fields.SPEEDUP, "ratio.value", "speedup"),
    column("ci", "2", _CI, lambda a: bounds(a.ratio.low, a.ratio.high) if a.ratio else None, "95 % CI"),
    column("by_position", "", _BY_POSITION, _by_position, detail=True),
    column("break_even_alpha", "2", "acceptance at each place of as long drafts that gives this MGL", _alpha,
           "break-even alpha"),
    column("memory", "n", "weights of target and draft with what llama.cpp counts of the arm's contexts, judging left "
           "out; and what is left of the machine's limit for models", lambda a: text(_memory(a)), detail=True),
    column("loops", "n", _LOOPS, lambda a: text(f"{a.n_loops} of {a.n_trials}" if a.n_loops else None, "caution")),
    column("round_ms", "2", "mean time of a round, the sum of its parts", _round_ms, "ms/round",
           detail=True),
    column("valid_trials", "n", "trials that may be used, of all", _valid),
)  # fmt: skip


def of_arms(names: str, **labels: str) -> tuple[Column, ...]:
    """The columns of these names."""
    return chosen(ARM, names, **labels)


def of_their_arms(arm: str | Get, names: str, **labels: str) -> tuple[Column, ...]:
    """The same of tables whose rows hold an arm, or none."""
    return inside(arm, of_arms(names, **labels))


_PARTS = " ".join(f"{part}_ms" for part in PART_NAMES)
_REQUEST = "first_token_ms plain_first_token_ms request_s plain_request_s pays_from memory"


def measured_columns(arms: Sequence[ArmResult]) -> tuple[Column, ...]:
    """What a terminal shows of arms just measured, beside their names."""
    decision = "decision" if any(arm.decision for arm in arms) else ""
    loops = "loops" if any(arm.n_loops for arm in arms) else ""
    return of_arms(
        f"gamma tok_s plain_tok_s spread times ci {decision} acceptance_rate by_position accepted_of_output mgl "
        f"break_even_mgl round_ms {_PARTS} {_REQUEST} {loops} verdict"
    )


RESULT = (  # of an arm on a page
    "tok_s plain_tok_s speedup effect acceptance_rate by_position accepted_of_output mgl break_even_mgl "
    f"break_even_alpha n_blocks valid_trials {_REQUEST} loops"
)
TERMINAL = f"times ci decision spread client_tok_s arm options rounds round_ms {_PARTS} verdict"
PLACE = "target setting text n_predict suite"  # what tells it from the others
