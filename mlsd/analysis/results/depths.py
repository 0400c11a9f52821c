"""Arms behind some depth of other text: what a wider context does to passes and speedup."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from mlsd.trials.results import ArmResult


class DeepArm(NamedTuple):
    """An arm behind some depth of other text."""

    arm: ArmResult
    prompt: str  # without its depth
    depth: int  # tokens before the prompt
    plain_ms: float | None  # mean pass of plain decoding
    verify_ms: float  # mean verification of the arm

    @property
    def of_plain(self) -> float | None:
        return self.verify_ms / self.plain_ms if self.plain_ms else None


def deep_arms(results: Iterable[ArmResult]) -> list[DeepArm]:
    """Every arm of prompts that were also measured behind other text (``code@1024``), by depth; none where none was."""
    arms = list(results)
    deep = {arm.question.text.partition("@")[0] for arm in arms if "@" in arm.question.text}
    of_texts = [arm for arm in arms if arm.question.text.partition("@")[0] in deep]
    plain = {(arm.question, arm.session): arm.ms_per_round.get("verify") for arm in of_texts if arm.is_plain}
    rows = []
    for arm in of_texts:
        if arm.is_plain or not (arm.n_valid or arm.n_invalid):
            continue
        prompt, _, depth = arm.question.text.partition("@")
        verify_ms = arm.ms_per_round.get("verify", 0.0)
        rows.append(DeepArm(arm, prompt, int(depth or 0), plain.get((arm.question, arm.session)), verify_ms))
    return sorted(rows, key=lambda row: (row.arm.case.target.id, row.arm.setting, row.prompt, row.depth))


def depth_sentences(results: Iterable[ArmResult]) -> list[str]:
    """What was decided of each setting at every depth that was measured, and up to where it pays."""
    sentences = []
    for (target, setting, prompt), group in groupby(
        deep_arms(results), key=lambda row: (row.arm.case.target.id, row.arm.setting, row.prompt)
    ):
        judged = [row for row in group if row.arm.standing is not None or row.arm.n_invalid]
        decisions = [(row.depth, _word(row.arm)) for row in judged]
        if len({depth for depth, _ in decisions}) > 1:
            by_word = groupby(decisions, key=lambda pair: pair[1])
            said = "; ".join(f"{word} behind {', '.join(str(depth) for depth, _ in own)}" for word, own in by_word)
            sentences.append(f"{target}, {setting}, {prompt}: {said} tokens of other text{_reach(judged)}.")
    return sentences


def _word(arm: ArmResult) -> str:
    if arm.n_invalid or arm.standing is None:
        return "INVALID"
    # Of one that cannot win the reason says more than that its speedup is open.
    return (arm.effect == "not decided yet" and arm.standing.out) or arm.effect


def _reach(rows: Sequence[DeepArm]) -> str:
    """Up to which depth a setting pays: from the last at which it is faster on, as log speedup falls in a line.

    Nothing of one that is not faster at first, or faster again behind a depth at which it was not.
    """
    n_faster = sum(row.arm.effect == "faster" for row in rows)
    if not n_faster or any(row.arm.effect != "faster" for row in rows[:n_faster]):
        return ""
    last, after = rows[n_faster - 1], rows[n_faster] if n_faster < len(rows) else None
    if after is None or _word(after.arm) != "slower" or last.arm.ratio is None or after.arm.ratio is None:
        return f": it pays up to {last.depth} tokens of context at least" if last.depth else ""
    high, low = math.log(last.arm.ratio.value), math.log(after.arm.ratio.value)
    about = last.depth + (after.depth - last.depth) * high / (high - low)
    return f": it pays up to about {float(f'{about:.2g}'):.0f} tokens of context"
