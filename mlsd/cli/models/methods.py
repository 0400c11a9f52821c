"""``mlsd models methods``: what there is to draft with."""

import click

from mlsd.cli import complete
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.drafters.method import MethodInfo
from mlsd.report.tables.catalogue import methods_table, options_table, presets_table


@click.command()
@click.argument("name", required=False, shell_complete=complete.methods)
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
    print_table(methods_table(known))
    for other in missing:
        note(f"Not available: {other.name}: {other.reason}. {other.instead}")
    note("Options and presets of one: mlsd models methods NAME")


def _print_method(method: MethodInfo) -> None:
    say(f"{method.name}: {method.summary}")
    say(f"Source: {method.source}.")
    if method.options:
        print_table(options_table(method))
    else:
        say("It takes no options.")
    if method.presets:
        print_table(presets_table(method))
    say(f"`mlsd bench --search` searches {', '.join(method.searched)}.")
