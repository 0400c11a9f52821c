"""``mlsd methods``: what there is to draft with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, print_table, table
from mlsd.units import NOT_MEASURED

if TYPE_CHECKING:
    from mlsd.drafters.method import MethodInfo
    from mlsd.records import OptionValue


@click.command()
@click.argument("name", required=False)
@json_option
def methods(name: str | None, as_json: bool) -> None:
    """List the drafting methods, or the options and presets of the method NAME.

    What is listed is what `mlsd bench TARGET --drafter NAME:option=value,...` takes; `NAME:preset=PRESET` stands for
    the values that a paper found best.
    """
    from mlsd.drafters import METHODS, UNAVAILABLE, find_method

    if name is not None:
        method = find_method(name).info()
        if as_json:
            print_json(method)
        else:
            _print_method(method)
        return
    known, missing = [find_method(each).info() for each in sorted(METHODS)], list(UNAVAILABLE.values())
    if as_json:
        print_json({"methods": known, "unavailable": missing})
        return
    made = table("Drafting methods", ["method", "what it does", "presets"], left=3)
    for method in known:
        made.add_row(method.name, method.summary, ", ".join(preset.name for preset in method.presets) or NOT_MEASURED)
    print_table(made)
    for other in missing:
        note(f"Not available: {other.name}: {other.reason}. {other.instead}")
    note("Options and presets of one: mlsd methods NAME")


def _print_method(method: MethodInfo) -> None:
    click.echo(f"{method.name}: {method.summary}")
    click.echo(f"Source: {method.source}.")
    if method.options:
        options = table("Options", ["option", "default", "values", "meaning"], left=4)
        for option in method.options:
            default = "must be given" if option.required else _text(option.default)
            options.add_row(option.name, default, option.values, option.meaning)
        print_table(options)
    else:
        click.echo("It takes no options.")
    if method.presets:
        presets = table("Presets", ["preset", "gamma", "options", "source"], left=4)
        for preset in method.presets:
            values = ", ".join(f"{key}={_text(value)}" for key, value in preset.options.items())
            presets.add_row(preset.name, str(preset.gamma), values or NOT_MEASURED, preset.source)
        print_table(presets)
    click.echo(f"`mlsd tune` searches {', '.join(method.searched)}.")


def _text(value: OptionValue | None) -> str:
    if value is None or value == "":
        return NOT_MEASURED
    return str(value).lower() if isinstance(value, bool) else str(value)
