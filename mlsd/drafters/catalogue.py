"""What there is to draft with: every method with its options, presets and search space, read from the methods' modules.

Nothing is listed by hand: the names are those of `METHODS` and `UNAVAILABLE`, the rest stands in each module.
"""

from __future__ import annotations

import inspect
import io
import tokenize
from typing import Any

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, StrType, UnionType, type_info

from mlsd.drafters import METHODS, UNAVAILABLE, method_module
from mlsd.drafters.options import Preset, Space
from mlsd.records import OptionValue, Record


class OptionInfo(Record, frozen=True, kw_only=True):
    """One option of a method."""

    name: str
    meaning: str
    values: str  # what may be given: "1 .. 64", "first, last", "text"
    default: OptionValue | None  # None: nothing, or the option must be given
    required: bool


class PresetInfo(Record, frozen=True, kw_only=True):
    """A preset under its name: what `--drafter METHOD:preset=NAME` means."""

    name: str
    gamma: int  # where --gamma is not given
    options: dict[str, OptionValue]
    source: str


class MethodInfo(Record, frozen=True, kw_only=True):
    """A drafting method."""

    name: str
    summary: str
    options: tuple[OptionInfo, ...]
    presets: tuple[PresetInfo, ...]
    searched: tuple[str, ...]  # what `mlsd tune` searches


class Unavailable(Record, frozen=True, kw_only=True):
    """A method of the literature that cannot run here."""

    name: str
    reason: str
    instead: str


def methods() -> tuple[MethodInfo, ...]:
    """Every method that can draft, in the order of their names."""
    return tuple(describe(name) for name in sorted(METHODS))


def unavailable() -> tuple[Unavailable, ...]:
    """Every method that is known by name only, and why."""
    return tuple(Unavailable(name=name, reason=why, instead=what) for name, (why, what) in UNAVAILABLE.items())


def describe(name: str) -> MethodInfo:
    """One method. Raises: UnsupportedError for a name that is none, saying why where that is known."""
    module = method_module(name)
    presets: dict[str, Preset] = getattr(module, "PRESETS", {})
    space: Space = getattr(module, "SPACE", {})
    return MethodInfo(
        name=name,
        summary=(module.__doc__ or "").partition("\n")[0],
        options=_options(getattr(module, "OPTIONS", None)),
        presets=tuple(
            PresetInfo(name=key, gamma=preset.gamma, options=dict(preset.values), source=preset.source)
            for key, preset in presets.items()
        ),
        searched=tuple(dict.fromkeys(("gamma", *space))),
    )


def _options(kind: type[msgspec.Struct] | None) -> tuple[OptionInfo, ...]:
    if kind is None:
        return ()
    meanings = _comments(kind)
    info = type_info(kind)
    return tuple(
        OptionInfo(
            name=field.name,
            meaning=meanings.get(field.name, ""),
            values=_values(field.type),
            default=None if field.required else field.default,
            required=field.required,
        )
        for field in getattr(info, "fields", ())
    )


def _values(kind: Any) -> str:
    """What an option takes, in words."""
    if isinstance(kind, UnionType):
        return " or ".join(dict.fromkeys(filter(None, map(_values, kind.types))))
    if isinstance(kind, LiteralType):
        return ", ".join(map(str, kind.values))
    if isinstance(kind, BoolType):
        return "true, false"
    if isinstance(kind, StrType):
        return "text"
    if isinstance(kind, IntType | FloatType):
        low, high = _bound(kind.ge, kind.gt), _bound(kind.le, kind.lt)
        number = "number" if isinstance(kind, FloatType) else "whole number"
        return f"{low} .. {high}" if low and high else f"{number} from {low}" if low else number
    return ""


def _bound(included: float | None, excluded: float | None) -> str:
    return f"{included:g}" if included is not None else f"{excluded:g} (not itself)" if excluded is not None else ""


def _comments(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The comment behind each field of a record, by field: there the options are explained. Empty without source."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name, colon, _ = token.line.partition(":")
        if token.type == tokenize.COMMENT and colon and name.strip().isidentifier():
            found[name.strip()] = token.string.removeprefix("#").strip()
    return found
