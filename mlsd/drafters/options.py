"""What a user may set of a drafting method: typed options, ranges, and the papers' best values as named presets."""

from collections.abc import Mapping
from typing import Any

import msgspec

from mlsd.records import OptionValue, Record

PRESET = "preset"


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


class OptionInfo(Record, frozen=True, kw_only=True):
    """One option of a method, for people."""

    name: str
    meaning: str
    values: str  # what may be given: "1 .. 64", "first, last", "text"
    default: OptionValue | None  # None: nothing, or the option must be given
    required: bool


def describe_options(kind: type[msgspec.Struct]) -> tuple[OptionInfo, ...]:
    """Every option of a record of options, as its schema says."""
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]
    return tuple(
        OptionInfo(
            name=name,
            meaning=option.get("description", ""),
            values=_values(option),
            default=option.get("default"),
            required=name in schema["required"],
        )
        for name, option in schema["properties"].items()
    )


def _values(option: Mapping[str, Any]) -> str:
    """What an option takes, in words, from its JSON schema."""
    if "anyOf" in option:
        return " or ".join(filter(None, map(_values, option["anyOf"])))
    if "enum" in option:
        return ", ".join(option["enum"])
    low, high = (
        f"{option[side]:g}" if side in option else f"{option[beyond]:g} (not itself)" if beyond in option else ""
        for side, beyond in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    if low and high:
        return f"{low} .. {high}"
    kinds = {"boolean": "true, false", "string": "text", "integer": "whole number", "number": "number", "null": ""}
    return kinds[option["type"]] + (f" from {low}" if low else "")
