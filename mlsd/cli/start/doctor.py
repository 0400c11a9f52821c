"""``mlsd doctor``: what this machine is, in what state, and which profiles fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, print_table, table
from mlsd.units import GIB, format_bytes

if TYPE_CHECKING:
    from mlsd.measure.run.doctor import Diagnosis, ProfileFit

_COLORS = {"fits": "green", "tight": "yellow", "does not fit": "red", "unknown": "bright_black"}
_LABELS = {
    "os": "system",
    "gpu_cores": "GPU cores",
    "memory_bytes": "memory",
    "wired_limit_bytes": "GPU memory limit (wired)",
    "peak_bandwidth_gb_s": "peak bandwidth",
    "peak_bandwidth_source": "peak bandwidth from",
    "mlsd_version": "mlsd",
    "llama_cpp_python_version": "llama-cpp-python",
    "llama_cpp_build": "llama.cpp build",
    "python_version": "Python",
}


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Show this machine and the build, what could not be read and why, and which profiles fit.

    Nothing is measured and nothing is downloaded.
    """
    found = _examine()
    if as_json:
        print_json(found)
        return
    _print_card(found)
    _print_profiles(found.profiles)
    for warning in found.warnings:
        click.echo(f"Warning: {warning.message} {warning.advice}")


def _examine() -> Diagnosis:
    from mlsd.engine.llama.native import backend_info
    from mlsd.hardware import read_conditions, read_machine
    from mlsd.measure.run.doctor import examine
    from mlsd.models.library import Library
    from mlsd.planning.suite import load_profiles, load_suites, suite_names

    suites = load_suites(suite_names())
    return examine(read_machine(backend_info()), read_conditions(), Library(), load_profiles().values(), suites)


def _print_card(found: Diagnosis) -> None:
    card = table("This machine", ["field", "value"], left=2)
    for field in found.environment.__struct_fields__:
        value = getattr(found.environment, field)
        label = _LABELS.get(field, field.replace("_", " "))
        if value is None:
            card.add_row(label, _dim(f"not known: {found.missing[field]}"))
        else:
            card.add_row(label, _text(field, value))
    now = found.conditions
    load = "not known" if now.load_1min is None else f"{now.load_1min:.2f}"
    card.add_row("load (1 min)", load)
    card.add_row("memory free", format_bytes(now.available_bytes))
    card.add_row("swap used", format_bytes(now.swap_used_bytes))
    card.add_row("disk free for models", format_bytes(found.free_disk_bytes))
    if found.budget:
        safe, most = format_bytes(found.budget.safe_bytes), format_bytes(found.budget.most_bytes)
        card.add_row("models may take", f"{safe} safely, {most} at most (from {found.budget.basis})")
    print_table(card)


def _print_profiles(profiles: tuple[ProfileFit, ...]) -> None:
    from rich.text import Text

    made = table("Profiles", ["profile", "verdict", "here", "to get", "why"], left=5)
    for fit in profiles:
        made.add_row(
            fit.profile,
            Text(fit.verdict, style=_COLORS[fit.verdict]),
            f"{fit.n_downloaded} of {fit.n_models}",
            _to_get(fit),
            fit.why,
        )
    print_table(made)


def _to_get(fit: ProfileFit) -> str:
    if fit.missing_bytes is None:
        return "not known"
    return f"{'about ' if fit.estimated else ''}{format_bytes(fit.missing_bytes)}"


def _text(field: str, value: Any) -> str:
    if field == "memory_bytes":
        return f"{format_bytes(value)} ({value / GIB:.1f} GiB)"
    if field.endswith("_bytes"):
        return format_bytes(value)
    if field.endswith("_gb_s"):
        return f"{value:g} GB/s"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _dim(text: str) -> Any:
    from rich.text import Text

    return Text(text, style="bright_black")
