"""What is said of an arm, column by column, once: tables, `study.arms`, --json with its schema, and docs/data.md."""

from typing import Any

from mlsd.columns import Column, column, row_of
from mlsd.trials.arms import PLAIN
from mlsd.trials.rates import PART_NAMES
from mlsd.trials.results import ArmResult

_PARTS = {
    "draft": "proposing", "verify": "the target's pass", "rollback": "rolling back rejected tokens",
    "sample": "reading tokens and accepting", "other": "everything else",
}  # fmt: skip


def _of_part(part: str) -> Column:
    of = f"ms_per_round.{part}"
    return column(f"{part}_ms", "2", f"ms per round: {_PARTS[part]}", of, label=part, detail=True)


def _setting(arm: ArmResult) -> str:
    return PLAIN if arm.is_plain else arm.setting


def _positions(arm: ArmResult) -> list[dict[str, Any]]:
    return [
        {**place._asdict(), "rate": place.rate.value, "low": place.rate.low, "high": place.rate.high}
        for place in arm.positions
    ]


_OF_PLAIN = "of plain decoding in the same blocks"
SPEEDUP = "tok/s over plain tok/s, block by block, as timed: a value above MGL decides nothing"

ARM: tuple[Column, ...] = (  # of an `ArmResult`
    column("suite", "", "the suite that measured it", "question.suite"),
    column("source", "", "engine: mlsd's own; server: another program, over HTTP", "question.source"),
    column("target", "", "the model that decides every token", "case.target.id"),
    column("arm", "", "ar or sd", "case.arm"),
    column("setting", "", "plain, or method with draft, options and gamma", _setting),
    column("drafter", "", "drafting method", "case.drafter.name"),
    column("draft", "", "id of the draft model", "case.drafter.draft.id"),
    column("options", "object", "options of the method, by name", "case.drafter.options"),
    column("gamma", "n+", "the most tokens proposed in a round", "case.gamma"),
    column("control", "flag", "a bound, no method that can be used"),
    column("text", "", "the prompt, its kind of text, or how many kinds are pooled"),
    column("n_predict", "n+", "most tokens of an answer", "question.n_predict", label="output tokens"),
    column("n_trials", "n", "trials"),
    column("n_valid", "n", "of them valid", label="trials"),
    column("statuses", "object", "how many have each status"),
    column("n_blocks", "n", "blocks in which the arm was measured, with plain decoding beside it",
           lambda a: None if a.is_plain else a.n_blocks, label="blocks", detail=True),
    column("tok_s", "1", "tokens after the first over their time; geometric mean over blocks", label="tok/s"),
    column("plain_tok_s", "1", _OF_PLAIN, label="plain tok/s", detail=True),
    column("spread", "1%", "of tok/s over blocks: half the range, over the median", detail=True),
    column("speedup", "[2]x", SPEEDUP, "ratio", "speedup [95 % CI]"),
    column("effect", "", "faster, slower, no difference, not decided yet", lambda a: None if a.is_plain else a.effect),
    column("decision", "", "the effect in words, or why the arm left the race"),
    column("acceptance_rate", "1%", "accepted over proposed tokens", label="acceptance"),
    column("acceptance_by_position", "3", "accepted over reached proposals, counted"),
    column("positions", "object", "the same at each place of a draft, with counts and 95 % interval", _positions),
    column("accepted_of_output", "1%", "accepted over output tokens, as mlx_lm counts", label="of output", detail=True),
    column("mgl", "2", "tokens added to the output per round, including the target's own", label="MGL", detail=True),
    column("break_even_mgl", "2", "MGL at which it would equal plain decoding: MGL / speedup", label="break-even MGL",
           detail=True),
    column("rounds", "n+", "rounds of all trials that count", "whole.rounds", detail=True),
    *map(_of_part, PART_NAMES),
    column("first_token_ms", "1 ms", "prefill of target and draft, up to the first token", label="first token",
           detail=True),
    column("plain_first_token_ms", "1 ms", _OF_PLAIN, label="plain first token", detail=True),
    column("request_s", "2 s", "the whole request at its length: first token, then the others", label="request",
           detail=True),
    column("plain_request_s", "2 s", _OF_PLAIN, label="plain request", detail=True),
    column("pays_from", "[0] tokens", "output tokens from which the whole request is faster", level=90, detail=True),
    column("memory_bytes", "bytes", "weights of target and draft, and the arm's contexts"),
    column("memory_left_bytes", "bytes", "of the machine's limit for models"),
    column("n_loops", "n", "outputs that repeat themselves to their end"),
    column("verdict", "", "lossless, near_tie, not_judged or diverged: the worst of its trials"),
    column("reason", "", "why it does not count, where it does not", "why_not"),
)  # fmt: skip


def arm_object(arm: ArmResult) -> dict[str, Any]:
    """The arm as commands print it with --json."""
    return row_of(arm, ARM)
