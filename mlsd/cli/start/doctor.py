"""``mlsd doctor``: what this machine is, in what state, and which profiles fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.options import build_option, json_option, output_option
from mlsd.cli.output import note, print_json, print_table, say, working
from mlsd.errors import InputError
from mlsd.hardware import darwin
from mlsd.models.library import Library
from mlsd.planning.suite import load_profiles, load_suites, suite_names
from mlsd.report.render.table import Table, Tone, table, text, words
from mlsd.report.tables.records import checks_table, machine_rows
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.measure.run.doctor import Diagnosis, ProfileFit

_TONES: dict[str, Tone] = {
    "fits": "good",
    "tight": "doubt",
    "raise the limit": "doubt",
    "does not fit": "bad",
    "unknown": "quiet",
}


@click.command()
@click.option("--self-check", "checks", is_flag=True, help="Check this machine, build and device; two minutes.")
@output_option("Write the self-check as JSON; it contains no names and no paths.", required=False)
@build_option
@json_option
def doctor(checks: bool, output: Path | None, as_json: bool) -> None:
    """Show this machine, the build, what could not be read and why, and which profiles fit.

    Downloads nothing, and measures nothing without --self-check. Exits with 1 if a check fails.
    """
    if checks:
        _self_check(output, as_json)
        return
    if output is not None:
        raise InputError("--output needs --self-check.", hint="Add --self-check.")
    with working("Examining this machine"):
        found = _examine()
    if as_json:
        print_json(found)
        return
    print_table(_card(found))
    print_table(_profiles(found.profiles))
    for sentence in darwin.advice(found.environment):
        say(f"Warning: {sentence}")
    for warning in found.warnings:
        say(f"Warning: {warning.message} {warning.advice}")


def _self_check(output: Path | None, as_json: bool) -> None:
    from mlsd.measure.run.runner import machine_lock
    from mlsd.measure.run.self_check import check_machine, write_self_check

    with machine_lock(), working("Checking this machine, about two minutes"):
        found = check_machine()
    if output is not None:
        write_self_check(output, found)
    if as_json:
        print_json(found)
    else:
        print_table(checks_table("Self-check", found.checks))
        say("Everything holds." if not found.failed else f"{len(found.failed)} of {len(found.checks)} checks failed.")
        if output is not None:
            note(f"Written: {output}. You can attach it to a report.")
    if found.failed:
        click.get_current_context().exit(1)


def _examine() -> Diagnosis:
    from mlsd.hardware import read_conditions, read_machine
    from mlsd.measure.process import run_info
    from mlsd.measure.run.doctor import examine
    from mlsd.records import EngineOptions

    suites = load_suites(suite_names())
    backend = run_info(EngineOptions())
    profiles = load_profiles().values()
    return examine(read_machine(backend), read_conditions(), Library(), profiles, suites, backend.memory_bytes)


def _card(found: Diagnosis) -> Table:
    now, load = found.conditions, found.conditions.load_1min
    state = {
        "load (1 min)": "not known" if load is None else f"{load:.2f}",
        "memory free": format_bytes(now.available_bytes),
        "swap used": format_bytes(now.swap_used_bytes),
        "disk free for models": format_bytes(found.free_disk_bytes),
    }
    if found.budget:
        state["models may take"] = f"{format_bytes(found.budget.limit_bytes)} ({found.budget.basis})"
    rows = [*machine_rows(found.environment, found.missing).values(), *((text(k), text(v)) for k, v in state.items())]
    return table("This machine", rows, words("field", lambda row: row[0]), words("value", lambda row: row[1]))


def _profiles(profiles: tuple[ProfileFit, ...]) -> Table:
    return table(
        "Profiles",
        profiles,
        words("profile", lambda fit: fit.profile),
        words("verdict", lambda fit: text(fit.verdict, _TONES[fit.verdict])),
        words("here", lambda fit: f"{fit.n_downloaded} of {fit.n_models}"),
        words("to get", _to_get),
        words("why", lambda fit: fit.why),
    )


def _to_get(fit: ProfileFit) -> str:
    if fit.missing_bytes is None:
        return "not known"
    return f"{'about ' if fit.estimated else ''}{format_bytes(fit.missing_bytes)}"
