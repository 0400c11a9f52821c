"""Which setting to use on which text: on, off, or not decided yet, with the one setting that stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from mlsd.records import Record
from mlsd.stats import Interval, grouped
from mlsd.trials.decisions import Effect
from mlsd.trials.results import ArmResult

Use = Literal["on", "off", "not decided yet"]


class Answer(Record, frozen=True, kw_only=True):
    """What was measured to be best for one target on one text, of all arms that answer it."""

    target: str
    text: str  # prompt or workload, in words
    n_predict: int
    arms: tuple[ArmResult, ...]  # that something can be decided of, controls left out
    best: ArmResult | None  # the fastest decided to be faster, else the best tried; None: nothing could be paired

    @property
    def n_open(self) -> int:
        return sum(arm.is_open for arm in self.arms)

    @property
    def use(self) -> Use:
        """Whether to switch speculation on."""
        if self.best is not None and self.best.effect == "faster":
            return "on"
        return "not decided yet" if self.n_open else "off"

    @property
    def effect(self) -> Effect:
        """The same as an effect: undecided while nothing is faster and some setting may be."""
        own: Effect = "undecided" if self.best is None else self.best.effect
        return "undecided" if self.use == "not decided yet" else own

    @property
    def setting(self) -> str:
        return self.best.setting if self.use == "on" and self.best is not None else self.use

    @property
    def ratio(self) -> Interval | None:
        return None if self.best is None else self.best.ratio

    @property
    def words(self) -> str:
        """The answer in a sentence without its text."""
        best = self.best
        if best is None or best.ratio is None:
            return "leave speculation off: no valid pair of trials to judge by"
        if self.use == "on":
            rest = f"; {self.n_open} settings are not decided yet" if self.n_open else ""
            return f"use {best.setting}: {times(best.ratio)}{rest}"
        if self.use == "off":
            why = {"slower": "is slower", "no difference": "makes no difference"}.get(best.effect, "cannot win")
            return f"leave speculation off: the best tried, {best.setting}, {why}: {times(best.ratio)}"
        more = best.standing.more_blocks if best.standing is not None else None
        blocks = "" if more is None else f"; about {more} more block{'s' if more > 1 else ''} would decide it"
        return f"not decided yet: {best.setting} looks like {times(best.ratio)}{blocks}"

    @property
    def block_s(self) -> float | None:
        """How long a block of plain decoding and the best decodes, all prompts together."""
        best = self.best
        if best is None or not best.pairs:
            return None
        spans = [(p.plain.trial.decode_ns or 0) + (p.own.trial.decode_ns or 0) for p in best.pairs]
        return len(best.prompts) * sum(spans) / len(spans) / 1e9

    @property
    def seconds(self) -> float | None:
        """About how long it takes to decide it: further blocks of plain decoding and the best."""
        more = self.best.standing.more_blocks if self.best is not None and self.best.standing is not None else None
        return None if more is None or self.block_s is None else more * self.block_s


def answers(results: Iterable[ArmResult]) -> list[Answer]:
    """One answer for each target, text and length of output."""
    own = [one for one in results if not one.is_plain and not one.control]
    groups = grouped(own, lambda one: (one.question.target, one.text, one.question.n_predict))
    return [_answer(*key, arms) for key, arms in groups.items()]


def _answer(target: str, text: str, n_predict: int, arms: Sequence[ArmResult]) -> Answer:
    found = [arm for arm in arms if arm.standing is not None]
    faster = [arm for arm in found if arm.effect == "faster"]
    best = max(faster or found, key=lambda arm: arm.ratio.value if arm.ratio else 0.0, default=None)
    return Answer(target=target, text=text, n_predict=n_predict, arms=tuple(found), best=best)


_MOST_WORDS = 15  # of the first line


def first_line(found: Sequence[Answer]) -> str:
    """All answers at a glance, with one number: in how many cases something is faster, and the best."""
    if not found:
        return "No speculative decoding was measured here, so there is no setting to choose."
    tried = [answer for answer in found if answer.best is not None]
    if not tried:
        return "Leave speculation off: no pair of trials is valid."
    on = [answer for answer in tried if answer.use == "on"]
    is_open = any(answer.use == "not decided yet" for answer in tried)
    shown = max(on or tried, key=_value)
    assert shown.best is not None and shown.ratio is not None
    several = len({answer.target for answer in found}) > 1
    setting = f"{shown.target} + {shown.setting if on else shown.best.setting}" if several else shown.best.setting
    number = f"{shown.ratio.value:.2f}x"
    if on:
        start = "Faster" if len(on) == len(found) else f"Faster in {len(on)} of {len(found)}"
        ways = [f"{start}: {setting} gives {number} on {shown.text}.", f"{start}: {setting} gives {number}."]
        ways.append(f"{start}: {shown.best.arm.name} gives {number}.")
    else:
        start = "Not decided yet" if is_open else "Leave speculation off"
        ways = [
            f"{start}; best tried: {setting}, {number} on {shown.text}.",
            f"{start}; best tried: {setting}, {number}.",
        ]
        ways.append(f"{start}; the best tried gives {number}.")
    return next((way for way in ways if len(way.split()) <= _MOST_WORDS), ways[-1])


def by_target(found: Sequence[Answer]) -> list[str]:
    """The answer for each target; what is the same for several texts stands once."""
    sentences = []
    for target, own in grouped(found, lambda answer: answer.target).items():
        groups = grouped(own, lambda answer: (answer.setting, answer.effect, answer.best is None))
        sentences.append(f"{target}: {'; '.join(_clause(group, len(own)) for group in groups.values())}.")
    return sentences


def _value(answer: Answer) -> float:
    return answer.ratio.value if answer.ratio is not None else 0.0


def _clause(group: Sequence[Answer], n_texts: int = 0) -> str:
    lengths = len({answer.n_predict for answer in group}) > 1
    names = ", ".join(f"{a.text} ({a.n_predict} tokens)" if lengths else a.text for a in group)
    names = f"all {n_texts} texts ({names})" if len(group) == n_texts > 1 else names
    shown = max(group, key=_value)
    on = f" on {shown.text}" if len(group) > 1 else ""
    if shown.use == "on" and shown.ratio is not None:
        worst = min((a.ratio for a in group if a.ratio), key=lambda r: r.value)
        span = times(shown.ratio) if len(group) == 1 else f"{times(worst)} to {times(shown.ratio)}"
        return f"use {shown.setting} for {names}: {span}"
    return f"{names}: {shown.words}{on}"


def times(ratio: Interval) -> str:
    """A speedup in words: ``1.21x (95 % 1.15 to 1.27)``."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x (no interval from {ratio.n} block{'s' if ratio.n > 1 else ''})"
    if ratio.too_wide:
        return f"{ratio.value:.2f}x (too few blocks for an interval: {ratio.n})"
    return f"{ratio.value:.2f}x (95 % {ratio.low:.2f} to {ratio.high:.2f})"
