"""What is said of an arm, field by field, once: tables, `study.arms`, --json with its schema, and docs/data.md.

A field has its name with the unit in it, the type of its values, what it means, and what fills it; what was not
measured is missing, never 0.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

from mlsd.trials.arms import PLAIN
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import PART_NAMES

Get = Callable[[Any], Any]  # of a row
# As pandas calls the types of columns.
Kind = Literal["string", "Int64", "int64", "float64", "boolean", "bool", "object"]


class Field(NamedTuple):
    """A column of a frame, and a key of an object."""

    name: str
    meaning: str
    get: Get
    dtype: Kind = "float64"


number, text, count = Field, partial(Field, dtype="string"), partial(Field, dtype="Int64")


def ends(name: str, meaning: str, get: Get, level: int = 95) -> tuple[Field, ...]:
    """A value with the ends of its interval, which holds in so many per cent."""

    def end(which: str) -> Get:
        return lambda row: None if (found := get(row)) is None else getattr(found, which)

    words = f"end of its {level} % interval"
    sides = (number(f"{name}_{side}", f"{side} {words}", end(side)) for side in ("low", "high"))
    return number(name, meaning, end("value")), *sides


def row_of(row: Any, fields: Iterable[Field]) -> dict[str, Any]:
    """One row by its fields' names."""
    return {field.name: field.get(row) for field in fields}


_PARTS = {
    "draft": "proposing", "verify": "the target's pass", "rollback": "rolling back rejected tokens",
    "sample": "reading tokens and accepting", "other": "everything else",
}  # fmt: skip


def _of_part(part: str) -> Field:
    return number(f"{part}_ms", f"ms per round: {_PARTS[part]}", lambda a: a.ms_per_round.get(part))


def _positions(arm: ArmResult) -> list[dict[str, Any]]:
    return [
        {**place._asdict(), "rate": place.rate.value, "low": place.rate.low, "high": place.rate.high}
        for place in arm.positions
    ]


ARM: tuple[Field, ...] = (  # of an `ArmResult`
    text("suite", "the suite that measured it", lambda a: a.question.suite),
    text("source", "engine: mlsd's own; server: somebody's, over HTTP", lambda a: a.question.source),
    text("target", "the model that decides every token", lambda a: a.case.target.id),
    text("arm", "ar or sd", lambda a: a.case.arm),
    text("setting", "plain, or method with draft, options and gamma", lambda a: PLAIN if a.is_plain else a.setting),
    text("drafter", "drafting method", lambda a: a.case.drafter.name),
    text("draft", "id of the draft model", lambda a: a.case.drafter.draft and a.case.drafter.draft.id),
    Field("options", "options of the method, by name", lambda a: a.case.drafter.options, "object"),
    count("gamma", "the most tokens proposed in a round", lambda a: a.case.gamma),
    Field("control", "a bound that nobody can use", lambda a: a.control, "boolean"),
    text("text", "the prompt, its kind of text, or how many kinds are pooled", lambda a: a.text),
    count("n_predict", "most tokens of an answer", lambda a: a.question.n_predict),
    count("n_trials", "trials", lambda a: a.n_trials),
    count("n_valid", "of them valid", lambda a: a.n_valid),
    Field("statuses", "how many have each status", lambda a: a.statuses, "object"),
    count(
        "n_blocks",
        "blocks in which the arm was measured, with plain decoding beside it",
        lambda a: None if a.is_plain else a.n_blocks,
    ),
    number("tok_s", "tokens after the first over their time; geometric mean over blocks", lambda a: a.tok_s),
    number("plain_tok_s", "of plain decoding in the same blocks", lambda a: a.plain_tok_s),
    number("spread", "of tok/s over blocks: half the range, over the median", lambda a: a.spread),
    *ends(
        "speedup",
        "tok/s over plain tok/s, block by block, as timed: a value above MGL decides nothing",
        lambda a: a.ratio,
    ),
    text("effect", "faster, slower, no difference, not decided yet", lambda a: None if a.is_plain else a.effect),
    text("decision", "the effect in words, or why the arm left the race", lambda a: a.decision),
    number("acceptance_rate", "accepted over proposed tokens", lambda a: a.acceptance_rate),
    number("acceptance_by_position", "accepted over reached proposals, counted", lambda a: a.acceptance_by_position),
    Field("positions", "the same at each place of a draft, with counts and 95 % interval", _positions, "object"),
    number("accepted_of_output", "accepted over output tokens, as mlx_lm counts", lambda a: a.accepted_of_output),
    number("mgl", "tokens added to the output per round, including the target's own", lambda a: a.mgl),
    number("break_even_mgl", "MGL at which it would equal plain decoding: MGL / speedup", lambda a: a.break_even_mgl),
    count("rounds", "rounds of all trials that count", lambda a: a.whole.rounds),
    *map(_of_part, PART_NAMES),
    number("first_token_ms", "prefill of target and draft, up to the first token", lambda a: a.first_token_ms),
    number("plain_first_token_ms", "of plain decoding in the same blocks", lambda a: a.plain_first_token_ms),
    number("request_s", "the whole request at its length: first token, then the others", lambda a: a.request_s),
    number("plain_request_s", "of plain decoding in the same blocks", lambda a: a.plain_request_s),
    *ends("pays_from", "output tokens from which the whole request is faster", lambda a: a.pays_from, 90),
    count("memory_bytes", "weights of target and draft, and the arm's contexts", lambda a: a.memory_bytes),
    count("memory_left_bytes", "of the machine's limit for models", lambda a: a.memory_left_bytes),
    count("n_loops", "outputs that repeat themselves to their end", lambda a: a.n_loops),
    text("verdict", "lossless, near_tie, not_judged or diverged: the worst of its trials", lambda a: a.verdict),
    text("reason", "why it does not count, where it does not", lambda a: a.why_not),
)


def arm_object(one: ArmResult) -> dict[str, Any]:
    """The arm as commands print it with --json."""
    return row_of(one, ARM)
