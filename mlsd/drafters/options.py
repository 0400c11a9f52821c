"""What a user may set of a drafting method: typed options, ranges, and the papers' best values as named presets.

A method's module writes `OPTIONS`, a record whose fields are its options with their defaults and ranges, and may
write `PRESETS`, and `SPACE`: what `mlsd tune` searches, gamma included. Options are read before any model is loaded,
so a wrong one costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from mlsd.errors import InputError
from mlsd.records import DrafterSpec, ModelRef, OptionValue, Record

PRESET = "preset"
SMALL_MODEL_STUDY = "small-model study, table 5"  # seed 004

T = TypeVar("T", bound=msgspec.Struct)


class Preset(Record, frozen=True, kw_only=True):
    """Values that a paper found best for one model."""

    gamma: int  # the most tokens proposed a round, where --gamma is not given
    values: Mapping[str, Any]  # of the method's options
    source: str  # where it is printed


class Span(Record, frozen=True, kw_only=True):
    """Whole numbers to search."""

    low: int
    high: int  # included
    log: bool = False  # equal ratios rather than equal steps
    unless: tuple[str, ...] = ()  # not searched where one of these options is given


class Choice(Record, frozen=True, kw_only=True):
    """Values to search that have no order."""

    values: tuple[OptionValue, ...]
    unless: tuple[str, ...] = ()  # not searched where one of these options is given


Space = Mapping[str, Span | Choice]


def read_options(spec: DrafterSpec, kind: type[T], presets: Mapping[str, Preset] | None = None) -> T:
    """The options of `spec` as the record `kind`: defaults, then the preset's values, then what was given.

    Raises: InputError naming the option that is unknown, of the wrong type, out of range or missing.
    """
    preset = find_preset(spec, presets or {})
    given = {name: value for name, value in spec.options.items() if name != PRESET}
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in given:
        if name not in known:
            raise InputError(f"{spec.name} has no option {name!r}.", hint=_help(spec.name, kind, presets))
    for name, field in known.items():
        if field.required and name not in given:
            raise InputError(f"{spec.name} needs the option {name}.", hint=_help(spec.name, kind, presets))
    try:
        return msgspec.convert({**(preset.values if preset else {}), **given}, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        value = f" {name}={given[name]!r}:" if name in given else ""
        raise InputError(f"{spec.name}:{value} {problem}.", hint=_help(spec.name, kind, presets)) from error


def find_preset(spec: DrafterSpec, presets: Mapping[str, Preset]) -> Preset | None:
    """The preset that `spec` names, or None when it names none.

    Raises: InputError for an unknown name.
    """
    name = spec.options.get(PRESET)
    if name is None:
        return None
    if name not in presets:
        known = f"Choose one of {', '.join(presets)}." if presets else f"{spec.name} has no presets."
        raise InputError(f"{spec.name} has no preset {name!r}.", hint=known)
    return presets[str(name)]


def _help(method: str, kind: type[msgspec.Struct], presets: Mapping[str, Preset] | None) -> str:
    fields = [
        field.name if field.required else f"{field.name} ({_plain(field.default)})"
        for field in msgspec.structs.fields(kind)
    ]
    if not fields:
        return f"{method} takes no options."
    tail = f" Presets: {', '.join(presets)}." if presets else ""
    return f"Options of {method}, with their defaults: {', '.join(fields)}.{tail}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_drafter(text: str, draft: ModelRef | None = None) -> DrafterSpec:
    """``NAME`` or ``NAME:option=value,...``; values become bool, int or float where they look like it.

    Raises: InputError for an option without a value.
    """
    name, _, rest = text.partition(":")
    options: dict[str, OptionValue] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if not separator or not key:
            raise InputError(f"{part!r} in --drafter {text!r} is not option=value.", hint="Like pld:ngram=3,length=10.")
        options[key] = _option_value(value)
    return DrafterSpec(name=name, options=options, draft=draft)


def _option_value(text: str) -> OptionValue:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
