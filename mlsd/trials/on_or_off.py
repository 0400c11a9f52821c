"""Which setting to use on which text: on, off, not decided yet, or no usable measurement, each with its reason."""

from collections.abc import Iterable, Sequence
from typing import Literal

from mlsd.records import Record, Source
from mlsd.stats import Interval, grouped
from mlsd.trials.decisions import NOTHING_PROPOSED, times
from mlsd.trials.results import ArmResult, Measured
from mlsd.units import counted

Use = Literal["on", "off", "not decided yet", "no usable measurement"]
DECIDED: tuple[Use, ...] = ("on", "off")  # what there is something to set for


class Answer(Record, frozen=True, kw_only=True):
    """What was measured of one target on one text by one program, of all arms that a user can have."""

    target: str
    source: Source
    text: str  # prompt or workload, in words
    n_predict: int
    arms: tuple[ArmResult, ...]  # controls left out
    best: ArmResult | None  # the fastest decided to be faster, else the fastest open, else tried; None: none is judged
    reason: str = ""  # why nothing could be judged, where nothing could

    @property
    def open(self) -> tuple[ArmResult, ...]:
        """Arms that may still turn out to be faster, the most promising first."""
        return tuple(sorted((arm for arm in self.arms if arm.is_open), key=_speedup, reverse=True))

    @property
    def use(self) -> Use:
        """Whether to switch speculation on."""
        if self.best is None:
            return "no usable measurement"
        if self.best.effect == "faster":
            return "on"
        return "not decided yet" if self.open else "off"

    @property
    def subject(self) -> str:
        """The target; of a server it says so."""
        return self.target if self.source == "engine" else f"{self.target} (server)"

    @property
    def setting(self) -> str:
        return self.best.setting if self.use == "on" and self.best is not None else self.use

    @property
    def ratio(self) -> Interval | None:
        return None if self.best is None else self.best.ratio

    @property
    def sentence(self) -> str:
        """The answer in a sentence without its text."""
        best, use = self.best, self.use
        if best is None or best.ratio is None:
            return f"{use}: {self.reason}"
        if use == "on":
            n_open = len(self.open)
            rest = f"; {n_open} setting{'s are' if n_open > 1 else ' is'} not decided yet" if n_open else ""
            return f"use {best.setting}: {times(best.ratio)}{rest}{self.note}"
        if use == "off":
            failed = _why_unusable([arm for arm in self.arms if arm.never_ran])
            rest = f"; failed each time: {failed}" if failed else ""
            return f"leave speculation off: the best tried, {best.setting}, {_why_off(best)}{rest}{self.around}"
        if not best.is_open:
            return f"{use}: {best.setting} {_why_off(best)}, but {_why_unusable(self.open)}"
        standing = best.standing
        assert standing is not None
        blocks = standing.more_blocks
        more = "" if blocks is None else f"about {counted(blocks, 'more block')} would decide it"
        sentence = "; ".join(filter(None, (f"{use}: {best.setting} {standing.looks}", standing.doubt, more)))
        return f"{sentence}{self.around}"

    @property
    def note(self) -> str:
        """What speaks against switching on all the same: a later first token, another text, and what is `around`."""
        best = self.best
        if best is None or self.use != "on":
            return ""
        pays, notes = best.pays_from, ""
        if pays is not None and (pays.high or pays.value) > self.n_predict:
            longer = "takes" if pays.low is not None and pays.low > self.n_predict else "may take"
            ends = "" if pays.low is None or pays.high is None else f" (90 % {pays.low:.0f} to {pays.high:.0f})"
            comes = "comes" if pays.value > 1 else "may come"
            notes = f"; its first token {comes} later, so a whole request of {self.n_predict} tokens {longer} longer: "
            notes += f"it pays from {pays.value:.0f} output tokens on{ends}"
        if best.verdict == "not_judged" and best.losslessness is not None:
            at = best.losslessness.first_difference
            notes += (
                f"; its text differs from plain decoding's{'' if at is None else f' from token {at} on'}, not judged"
            )
        return f"{notes}{self.around}"

    @property
    def around(self) -> str:
        """What speaks against the best: an output that is a loop, the state of the machine while it was timed."""
        if self.best is None:
            return ""
        pairs = self.best.pairs
        conditions = [one.trial.conditions for pair in pairs for one in pair if one.trial.conditions is not None]
        states = {
            "its output repeats itself to the end: measure another text": self.best.n_loops > 0,
            "measured on battery": any(each.on_battery for each in conditions),
            "measured in low-power mode": any(each.low_power_mode for each in conditions),
            "the system slowed down for heat": any(each.thermal_state not in (None, "nominal") for each in conditions),
        }
        n_waited = sum(pair.waited for pair in pairs)
        if n_waited and not self.best.quiet_blocks_lacking:  # else the doubt says so
            states[f"{n_waited} of {counted(len(pairs), 'block')} waited for the processor"] = True
        return "".join(f"; {words}" for words, holds in states.items() if holds)

    @property
    def to_repeat(self) -> tuple[ArmResult, ...]:
        """Open arms that further blocks may decide: not those that were invalid, or that failed each time."""
        return tuple(arm for arm in self.open if arm.repeat_helps)

    @property
    def more_blocks(self) -> int | None:
        """About so many decide every open arm; None: no scatter is known yet."""
        numbers = [arm.more_blocks for arm in self.to_repeat]
        return None if not numbers or None in numbers else max(n for n in numbers if n is not None)

    @property
    def block_s(self) -> float | None:
        """How long a block of plain decoding and every arm that is to be repeated decodes, all prompts together."""
        arms = [arm for arm in self.to_repeat if arm.pairs]
        if not arms:
            return None
        plain = [pair.plain for arm in arms for pair in arm.pairs]
        return len(arms[0].prompts) * sum(
            map(_decode_s, (plain, *(tuple(p.measured for p in arm.pairs) for arm in arms)))
        )


def answers(results: Iterable[ArmResult]) -> list[Answer]:
    """One answer for each target, program, text and length of output; of two servers neither is plain, so none."""
    settings = [one for one in results if not one.question.rivals and not one.control]
    plain = grouped((one for one in settings if one.is_plain), lambda one: one.question)
    groups = grouped(
        (one for one in settings if not one.is_plain),
        lambda one: (one.question.target, one.question.source, one.text, one.question.n_predict),
    )
    by_text = []
    for (target, source, text, n_predict), arms in groups.items():
        judged = [arm for arm in arms if arm.standing is not None]
        faster = [arm for arm in judged if arm.effect == "faster"]
        best = max(faster or [arm for arm in judged if arm.is_open] or judged, key=_speedup, default=None)
        beside = [one for question in {arm.question for arm in arms} for one in plain.get(question, ())]
        reason = "" if judged else _no_plain(beside) or _why_unusable(arms)
        by_text.append(Answer(target=target, source=source, text=text, n_predict=n_predict, arms=tuple(arms), best=best,
                            reason=reason))  # fmt: skip
    return by_text


def _no_plain(plain: Sequence[ArmResult]) -> str:
    if not plain or any(arm.n_valid for arm in plain):
        return ""
    why = next((arm.why_not for arm in plain if arm.why_not), None)
    return "there is no valid trial of plain decoding" + (f": {_clause_of(why)}" if why else "")


def _why_unusable(arms: Sequence[ArmResult]) -> str:
    """Why nothing could be judged of arms, each reason once."""
    reasons = grouped((arm for arm in arms if arm.standing is None), lambda arm: _clause_of(arm.decision or ""))
    named = [f"{', '.join(arm.setting for arm in own)}: {why}" for why, own in reasons.items()]
    return "; ".join(named[:_MOST_REASONS]) + ("; and others" if len(named) > _MOST_REASONS else "")


def _why_off(best: ArmResult) -> str:
    """Why the best tried is no reason to switch drafting on."""
    assert best.ratio is not None
    standing = best.standing
    if standing is not None and standing.out == NOTHING_PROPOSED:
        return "proposed nothing, so it decoded plainly"
    if standing is None or standing.effect == "not decided yet":
        return f"cannot win: {times(best.ratio)}"
    return standing.finding


def _clause_of(reason: str) -> str:
    return reason.strip().removesuffix(".")


_MOST_REASONS = 3
_MOST_WORDS = 15  # of the first line
_STARTS: dict[Use, str] = {  # of the first line; what stands first matters most
    "on": "Faster", "not decided yet": "Not decided yet", "off": "Leave speculation off",
    "no usable measurement": "No usable measurement",
}  # fmt: skip


def first_line(every_answer: Sequence[Answer]) -> str:
    """All answers at a glance, with one number: in how many cases something is faster, and the best."""
    if not every_answer:
        return "No speculative decoding was measured here, so there is no setting to choose."
    groups = grouped(every_answer, lambda answer: answer.use)
    use = next(use for use in _STARTS if use in groups)
    of_use = groups[use]
    start = _STARTS[use] + ("" if len(of_use) == len(every_answer) else f" in {len(of_use)} of {len(every_answer)}")
    shown = max(of_use, key=_value)
    if shown.best is None or shown.ratio is None:
        return f"{start}: no pair of trials is valid, so nothing is decided."
    several = len({answer.subject for answer in every_answer}) > 1
    setting = f"{shown.subject} + {shown.best.setting}" if several else shown.best.setting
    number = f"{shown.ratio.value:.2f}x"
    if use == "on":
        ways = [f"{setting} gives {number} on {shown.text}", f"{setting} gives {number}"]
        ways, joint = [*ways, f"{shown.best.arm.name} gives {number}"], ":"
    else:
        ways, joint = [f"{setting}, {number} on {shown.text}", f"{setting}, {number}", number], "; best tried:"
    lines = [f"{start}{joint} {way}." for way in ways]
    return next((line for line in lines if len(line.split()) <= _MOST_WORDS), lines[-1])


def by_target(every_answer: Sequence[Answer]) -> list[str]:
    """The answer for each target; what is the same for several texts stands once."""
    sentences = []
    for subject, of_subject in grouped(every_answer, lambda answer: answer.subject).items():
        groups = grouped(of_subject, lambda a: (a.setting, a.best and a.best.effect, a.reason, a.note))
        sentences.append(f"{subject}: {'; '.join(_clause(group, len(of_subject)) for group in groups.values())}.")
    return sentences


def _decode_s(trials: Sequence[Measured]) -> float:
    return sum(one.trial.decode_ns or 0 for one in trials) / len(trials) / 1e9


def _speedup(arm: ArmResult) -> float:
    return arm.ratio.value if arm.ratio is not None and arm.standing is not None else 0.0


def _value(answer: Answer) -> float:
    return answer.ratio.value if answer.ratio is not None else 0.0


def _clause(group: Sequence[Answer], n_texts: int = 0) -> str:
    lengths = len({answer.n_predict for answer in group}) > 1
    names = ", ".join(f"{a.text} ({a.n_predict} tokens)" if lengths else a.text for a in group)
    names = f"all {n_texts} texts ({names})" if len(group) == n_texts > 1 else names
    shown = max(group, key=_value)
    on = f" on {shown.text}" if len(group) > 1 and shown.best is not None else ""
    if shown.use == "on" and shown.ratio is not None and len(group) > 1:
        worst = min((a.ratio for a in group if a.ratio), key=lambda r: r.value)
        return f"{names}: use {shown.setting}: {times(worst)} to {times(shown.ratio)}{shown.note}"
    return f"{names}: {shown.sentence}{on}"
