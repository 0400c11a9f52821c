"""The columns of tables of arms: those of `trials.fields` as they are shown, and what is made of several."""

from collections.abc import Sequence
from typing import Any

from mlsd.columns import Column, Get, chosen, column, inside, path
from mlsd.records import ModelFacts
from mlsd.report.render.table import TONES, Cell, interval
from mlsd.trials import fields
from mlsd.trials.acceptance_meanings import chance_for
from mlsd.trials.rates import PART_NAMES
from mlsd.trials.results import ArmResult
from mlsd.units import format_bytes

_MOST_POSITIONS = 8  # of a draft that a cell shows


def experts(facts: ModelFacts | None) -> str | None:
    """Those of a token and of a layer."""
    return f"{facts.n_experts_used} of {facts.n_experts}" if facts is not None and facts.n_experts else None


def effect_of(arm: ArmResult | None) -> str:
    """What is decided of an arm, or why nothing can be."""
    if arm is None:
        return "not measured"
    if not arm.timed:
        return "not timed"
    return "a control" if arm.control else "not valid" if arm.standing is None else arm.effect


def _speedup(arm: ArmResult) -> Cell | str:
    if not arm.timed:
        return "not timed"
    return interval(arm.ratio, 2, "x", TONES.get(arm.effect, ""), units="texts" if len(arm.prompts) > 1 else "blocks")


def _memory(arm: ArmResult) -> str | None:
    used, left = (None if n is None else format_bytes(n) for n in (arm.memory_bytes, arm.memory_left_bytes))
    return used if left is None else f"{used}, {left} left"


def _by_position(arm: ArmResult) -> str | None:
    shown = " ".join(f"{100 * position.rate.value:.0f}" for position in arm.positions[:_MOST_POSITIONS])
    return f"{shown} ..." if len(arm.positions) > _MOST_POSITIONS else shown or None


def _alpha(arm: ArmResult) -> float | str | None:
    needed = arm.break_even_mgl
    chance = None if needed is None else chance_for(arm.whole.endings, needed)
    return "none suffices" if chance is None and needed else chance


def _options(arm: ArmResult) -> str | None:
    return " ".join(f"{name}={value}" for name, value in arm.case.drafter.options.items()) or None


_SHOWN: dict[str, dict[str, Any]] = {  # of columns of an arm that show more than their value
    "arm": {"get": path("arm.name"), "meaning": "plain decoding, or a method with its draft and options"},
    "setting": {"get": path("setting"), "meaning": "a method with its draft, options and gamma"},
    "options": {"get": _options, "format": ""},
    "speedup": {"get": _speedup},
    "effect": {"get": effect_of},
    "verdict": {
        "get": lambda a: "INVALID" if a.n_invalid else a.verdict,
        "meaning": "lossless or near_tie; INVALID: not to be used",
    },
}
ARM: tuple[Column, ...] = (
    *(arm_column._replace(**_SHOWN.get(arm_column.name, {})) for arm_column in fields.ARM),
    column("client_tok_s", "1", "by the client's clock, where a server has its own", None, "client tok/s", detail=True),
    column("times", "2x", fields.SPEEDUP, "ratio.value", "speedup"),
    column("ci", "2..", "interval of the speedup, corrected for the number of arms; one containing 1 is inconclusive",
           "ratio", "95 % CI"),
    column("by_position", "", "accepted over reached, in %, at each place of a draft: the first token, the second "
           "after an accepted first", _by_position, detail=True),
    column("break_even_alpha", "3", "acceptance at each place of as long drafts that gives this MGL", _alpha,
           "break-even alpha"),
    column("memory", "n", "weights of target and draft with what llama.cpp counts of the arm's contexts, judging left "
           "out; and what is left of the machine's limit for models", _memory, detail=True),
    column("loops", "n", "outputs that repeat themselves to their end: acceptance of a loop says nothing of text",
           lambda a: f"{a.n_loops} of {a.n_trials}" if a.n_loops else None),
    column("round_ms", "2", "mean time of a round, the sum of its parts",
           lambda a: sum(a.ms_per_round.values()) or None, "ms/round", detail=True),
    column("valid_trials", "n", "trials that may be used, of all", lambda a: f"{a.n_valid} of {a.n_trials}"),
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
SHOWN_OF_QUESTION = "target setting text n_predict suite"  # what tells it from the others
