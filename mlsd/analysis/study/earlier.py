"""A study beside one's own earlier one: arm by arm the ratio of what was measured apart, which decides nothing."""

from __future__ import annotations

import datetime
from statistics import median

from mlsd.analysis.results.comparability import settings_key
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.records import Environment, Record
from mlsd.stats import Interval
from mlsd.trials.arms import PLAIN
from mlsd.trials.results import ArmResult
from mlsd.units import counted, quoted

_HOUR_S, _DAY_S = 3_600.0, 86_400.0
# A field of the machine, and what a reader calls it.
_MACHINE = {
    "host": "host", "chip": "chip", "backend": "backend", "device": "device", "memory_bytes": "memory in bytes",
    "os": "system", "speed_settings": "speed settings", "power_source": "power", "low_power_mode": "low-power mode",
    "llama_cpp_build": "llama.cpp build", "llama_cpp_python_version": "llama-cpp-python", "mlsd_version": "mlsd",
}  # fmt: skip


class ArmChange(Record, frozen=True, kw_only=True):
    """An arm of both studies on one question. Ratios are new over old, without intervals: no block holds both."""

    suite: str
    target: str
    setting: str  # plain, or method with draft, options and gamma
    text: str
    n_predict: int
    tok_s: float | None
    tok_s_before: float | None
    tok_s_ratio: float | None
    plain_tok_s: float | None  # in the same blocks
    plain_tok_s_before: float | None
    plain_ratio: float | None
    speedup: Interval | None
    speedup_before: Interval | None
    speedup_ratio: float | None  # None for plain decoding
    apart_s: float  # between the middles of its trials; negative: the study called earlier is the later one
    other: tuple[str, ...]  # file, settings or text that were not the same


class EarlierStudy(Record, frozen=True, kw_only=True):
    """What became of the arms that both studies measured."""

    source: str
    earlier: str
    sentence: str  # how far apart they were measured, and what the ratios cannot say
    other_machine: tuple[str, ...]  # facts of machine and build that were not the same
    arms: tuple[ArmChange, ...]
    n_only_here: int  # arms without a counterpart
    n_only_earlier: int


def against_earlier(study: Study, earlier: Study, suite: str | None = None) -> EarlierStudy:
    """The arms that both measured, of one suite or all: same target's id, setting, text and output tokens.

    Raises: AnalysisError where they share no arm.
    """
    here, before = (
        {_question(one): one for one in of.results if suite is None or one.question.suite.lower() == suite.lower()}
        for of in (study, earlier)
    )
    arms = tuple(_change(one, before[key]) for key, one in here.items() if key in before)
    if not arms:
        raise AnalysisError(
            f"{study.source} and {earlier.source} have no arm in common: a target with its setting, text and output "
            "tokens.",
            hint=f"See what it holds: mlsd results --db {quoted(earlier.source)}.",
        )
    return EarlierStudy(
        source=study.source,
        earlier=earlier.source,
        sentence=_sentence(arms),
        other_machine=tuple(_other_machine(study.environment, earlier.environment)),
        arms=arms,
        n_only_here=len(here) - len(arms),
        n_only_earlier=len(before) - len(arms),
    )


def _question(arm: ArmResult) -> tuple[str, str, str, str, str, int]:
    asked = arm.question
    return asked.suite, asked.source, arm.case.target.id, _setting(arm), arm.text, asked.n_predict


def _setting(arm: ArmResult) -> str:
    return PLAIN if arm.is_plain else arm.setting


def _change(new: ArmResult, old: ArmResult) -> ArmChange:
    return ArmChange(
        suite=new.question.suite,
        target=new.case.target.id,
        setting=_setting(new),
        text=new.text,
        n_predict=new.question.n_predict,
        tok_s=new.tok_s,
        tok_s_before=old.tok_s,
        tok_s_ratio=_over(new.tok_s, old.tok_s),
        plain_tok_s=new.plain_tok_s,
        plain_tok_s_before=old.plain_tok_s,
        plain_ratio=_over(new.plain_tok_s, old.plain_tok_s),
        speedup=new.ratio,
        speedup_before=old.ratio,
        speedup_ratio=_over(_value(new.ratio), _value(old.ratio)),
        apart_s=_middle_s(new) - _middle_s(old),
        other=tuple(_other(new, old)),
    )


def _over(new: float | None, old: float | None) -> float | None:
    return new / old if new and old else None


def _value(interval: Interval | None) -> float | None:
    return None if interval is None else interval.value


def _middle_s(arm: ArmResult) -> float:
    return median([datetime.datetime.fromisoformat(one.trial.started_at).timestamp() for one in arm.trials])


def _other(new: ArmResult, old: ArmResult) -> list[str]:
    """What of the question was not the same in both."""
    drafts = [one.case.drafter.draft for one in (new, old)]
    prompts = [{(one.case.prompt.sha256, one.case.prompt.n_tokens) for one in arm.trials} for arm in (new, old)]
    same = {
        "another file of the target": new.case.target.key == old.case.target.key,
        "another file of the draft": len({draft and draft.key for draft in drafts}) == 1,
        "other settings": settings_key(new.case) == settings_key(old.case),
        "another text of that name": prompts[0] == prompts[1],
    }
    return [name for name, is_same in same.items() if not is_same]


def _other_machine(new: Environment, old: Environment) -> list[str]:
    pairs = ((name, getattr(new, field), getattr(old, field)) for field, name in _MACHINE.items())
    return [
        f"another {name}" if name == "host" else f"{name} {_shown(ours)} instead of {_shown(theirs)}"
        for name, ours, theirs in pairs
        if ours != theirs
    ]


def _shown(value: object) -> str:
    return "not known" if value is None else str(value)


def _sentence(arms: tuple[ArmChange, ...]) -> str:
    apart = sorted(abs(one.apart_s) for one in arms)
    span = _time(apart[-1]) if _time(apart[0]) == _time(apart[-1]) else f"{_time(apart[0])} to {_time(apart[-1])}"
    turned = sum(one.apart_s < 0 for one in arms)
    order = "" if not turned else f" Of {counted(turned, 'arm')} the earlier study has the later trials."
    return (
        f"Measured apart, {span} between the two: a ratio holds what the machine did in between, and no interval can "
        f"be given. Plain decoding shows how far the machine itself moved; `mlsd compare` measures two builds or "
        f"settings side by side.{order}"
    )


def _time(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.1f} days"
    if seconds >= 2 * _HOUR_S:
        return f"{seconds / _HOUR_S:.1f} hours"
    return f"{seconds / 60:.1f} minutes"
