"""Arms behind some depth of other text: what a wider context does to passes and speedup."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from mlsd.trials.results import ArmResult


class DeepArm(NamedTuple):
    """An arm behind some depth of other text."""

    found: ArmResult
    prompt: str  # without its depth
    depth: int  # tokens before the prompt
    plain_ms: float | None  # mean pass of plain decoding
    verify_ms: float  # mean verification of the arm

    @property
    def of_plain(self) -> float | None:
        return self.verify_ms / self.plain_ms if self.plain_ms else None


def deep_arms(results: Iterable[ArmResult]) -> list[DeepArm]:
    """Every arm of prompts that were also measured behind other text (``code@1024``), by depth; none where none was."""
    found = list(results)
    deep = {one.question.text.partition("@")[0] for one in found if "@" in one.question.text}
    own = [one for one in found if one.question.text.partition("@")[0] in deep]
    plain = {(one.question, one.session): one.ms_per_round.get("verify") for one in own if one.is_plain}
    rows = []
    for one in own:
        if one.is_plain or not (one.n_valid or one.n_invalid):
            continue
        prompt, _, depth = one.question.text.partition("@")
        verify_ms = one.ms_per_round.get("verify", 0.0)
        rows.append(DeepArm(one, prompt, int(depth or 0), plain.get((one.question, one.session)), verify_ms))
    return sorted(rows, key=lambda row: (row.found.case.target.id, row.found.setting, row.prompt, row.depth))


def depth_sentences(results: Iterable[ArmResult]) -> list[str]:
    """What was decided of each setting at every depth that was measured, and up to where it pays."""
    sentences = []
    for (target, setting, prompt), group in groupby(
        deep_arms(results), key=lambda row: (row.found.case.target.id, row.found.setting, row.prompt)
    ):
        known = [row for row in group if row.found.standing is not None or row.found.n_invalid]
        words = [(row.depth, _word(row.found)) for row in known]
        if len({depth for depth, _ in words}) > 1:
            by_word = groupby(words, key=lambda pair: pair[1])
            said = "; ".join(f"{word} behind {', '.join(str(depth) for depth, _ in own)}" for word, own in by_word)
            sentences.append(f"{target}, {setting}, {prompt}: {said} tokens of other text{_reach(known)}.")
    return sentences


def _word(one: ArmResult) -> str:
    if one.n_invalid or one.standing is None:
        return "INVALID"
    # Of one that cannot win the reason says more than that its speedup is open.
    return (one.effect == "not decided yet" and one.standing.out) or one.effect


def _reach(known: Sequence[DeepArm]) -> str:
    """Up to which depth a setting pays: from the last at which it is faster on, as log speedup falls in a line.

    Nothing of one that is not faster at first, or faster again behind a depth at which it was not.
    """
    n_faster = sum(row.found.effect == "faster" for row in known)
    if not n_faster or any(row.found.effect != "faster" for row in known[:n_faster]):
        return ""
    last, after = known[n_faster - 1], known[n_faster] if n_faster < len(known) else None
    if after is None or _word(after.found) != "slower" or last.found.ratio is None or after.found.ratio is None:
        return f": it pays up to {last.depth} tokens of context at least" if last.depth else ""
    high, low = math.log(last.found.ratio.value), math.log(after.found.ratio.value)
    about = last.depth + (after.depth - last.depth) * high / (high - low)
    return f": it pays up to about {float(f'{about:.2g}'):.0f} tokens of context"
