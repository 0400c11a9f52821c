"""What a user may set of a drafting method: typed options, ranges, and the papers' best values as named presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, LiteralType, Metadata, StrType, UnionType, type_info

from mlsd.errors import InputError, choose, did_you_mean
from mlsd.records import GAMMA, DrafterSpec, ModelRef, OptionValue, Record

PRESET = "preset"

T = TypeVar("T", bound=msgspec.Struct)


class NoOptions(Record, frozen=True, kw_only=True):
    """A method that takes no options."""


class Preset(Record, frozen=True, kw_only=True):
    """Values that a paper found best for one model: what `--drafter METHOD:preset=NAME` means."""

    name: str
    gamma: int  # the most tokens proposed a round, where --gamma is not given
    options: Mapping[str, Any]
    source: str  # where it is printed


def small_model_study(name: str, gamma: int, *, method: str = "", **options: OptionValue) -> Preset:
    """A preset out of table 5 of the small-model study (seed 004)."""
    printed_as = f" ({method})" if method else ""
    return Preset(name=name, gamma=gamma, options=options, source=f"small-model study, table 5{printed_as}")


class Range(Record, frozen=True, kw_only=True):
    """Whole numbers to search."""

    low: int
    high: int  # included
    unless: tuple[str, ...] = ()  # not searched where one of these options is given


class Values(Record, frozen=True, kw_only=True):
    """Values to search that have no order."""

    values: tuple[OptionValue, ...]
    unless: tuple[str, ...] = ()  # not searched where one of these options is given


Space = Mapping[str, Range | Values]


def read_options(spec: DrafterSpec, kind: type[T], presets: Sequence[Preset] = ()) -> T:
    """The options of `spec` as `kind`: defaults, then the preset's values, then the given. Raises: InputError."""
    preset = find_preset(spec, presets)
    general = (PRESET, GAMMA) if spec.adaptive else (PRESET,)
    given = {name: value for name, value in spec.options.items() if name not in general}
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) + _help(spec.name, kind, presets)
            raise InputError(f"{spec.name} has no option {name!r}.", hint=hint)
    for name, field in known.items():
        if field.required and name not in given:
            raise InputError(f"{spec.name} needs the option {name}.", hint=_help(spec.name, kind, presets))
    try:
        return msgspec.convert({**(preset.options if preset else {}), **given}, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        value = f" {name}={given[name]!r}:" if name in given else ""
        raise InputError(f"{spec.name}:{value} {problem}.", hint=_help(spec.name, kind, presets)) from error


def find_preset(spec: DrafterSpec, presets: Sequence[Preset]) -> Preset | None:
    """The preset that `spec` names, or None when it names none. Raises: InputError for an unknown name."""
    name = spec.options.get(PRESET)
    found = next((preset for preset in presets if preset.name == name), None)
    if found is None and name is not None:
        known = [preset.name for preset in presets]
        hint = choose(str(name), known) if known else f"{spec.name} has no presets."
        raise InputError(f"{spec.name} has no preset {name!r}.", hint=hint)
    return found


def _names(presets: Sequence[Preset]) -> str:
    return ", ".join(preset.name for preset in presets)


def _help(method: str, kind: type[msgspec.Struct], presets: Sequence[Preset]) -> str:
    fields = [
        field.name if field.required else f"{field.name} ({_plain(field.default)})"
        for field in msgspec.structs.fields(kind)
    ]
    if not fields:
        return f"{method} takes no options."
    tail = f" Presets: {_names(presets)}." if presets else ""
    return f"Options of {method}, with their defaults: {', '.join(fields)}.{tail}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class OptionInfo(Record, frozen=True, kw_only=True):
    """One option of a method, for people."""

    name: str
    meaning: str
    values: str  # what may be given: "1 .. 64", "first, last", "text"
    default: OptionValue | None  # None: nothing, or the option must be given
    required: bool


def describe_options(kind: type[msgspec.Struct]) -> tuple[OptionInfo, ...]:
    """Every option of a record of options, as its fields say."""
    found = []
    for field in getattr(type_info(kind), "fields", ()):
        meta = field.type if isinstance(field.type, Metadata) else Metadata(field.type)
        found.append(
            OptionInfo(
                name=field.name,
                meaning=(meta.extra_json_schema or {}).get("description", ""),
                values=_values(meta.type),
                default=None if field.required else field.default,
                required=field.required,
            )
        )
    return tuple(found)


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


def parse_drafter(text: str, draft: ModelRef | None = None) -> DrafterSpec:
    """``NAME`` or ``NAME:option=value,...``; values become bool, int or float if they can. Raises: InputError."""
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
