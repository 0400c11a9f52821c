"""``mlsd doctor``: this machine, its builds of llama.cpp, and which rollbacks are exact for a model on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli import options as shared
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, print_table, say, working
from mlsd.columns import column
from mlsd.hardware import darwin
from mlsd.planning.options import Overrides
from mlsd.records import GAMMAS, EngineOptions
from mlsd.report.render.table import Table, table
from mlsd.report.tables.records import checks_table, machine_rows
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.engine.rollback_choice import Role
    from mlsd.measure.messages import Probed
    from mlsd.measure.parent.builds import BuildVerdict
    from mlsd.measure.parent.doctor import Diagnosis, ProfileFit


@click.group(cls=CommandGroup)
def doctor() -> None:
    """Print this machine, the build, what could not be read and why, and which profiles fit; or the parts below."""


# --- this machine -------------------------------------------------------------------------------------------------


@doctor.command("machine", default=True)
@shared.build_option
@json_option
def show_machine(as_json: bool) -> None:
    """Print this machine, the build, what could not be read and why, and which profiles fit."""
    from mlsd.measure.parent.doctor import examine

    with working("Examining this machine"):
        diagnosis = examine()
    if as_json:
        print_json(diagnosis)
        return
    print_table(_card(diagnosis))
    print_table(_profiles(diagnosis.profiles))
    for sentence in darwin.advice(diagnosis.environment):
        say(f"Warning: {sentence}")
    for warning in diagnosis.warnings:
        say(f"Warning: {warning.message} {warning.advice}")


@doctor.command("self-check")
@shared.output_option("Write it as JSON as well; it contains no names and no paths.", required=False)
@shared.build_option
@json_option
def self_check(output: Path | None, as_json: bool) -> None:
    """Print whether this machine, build and device decode exactly, in two minutes; exits with 1 where a check fails."""
    from mlsd.measure.parent.blocks import machine_lock
    from mlsd.measure.parent.doctor import check_machine, write_self_check

    with machine_lock(), working("Checking this machine, about two minutes"):
        check = check_machine()
    if output is not None:
        write_self_check(output, check)
    if as_json:
        print_json(check)
    else:
        print_table(checks_table("Self-check", check.checks))
        say("Everything holds." if not check.failed else f"{len(check.failed)} of {len(check.checks)} checks failed.")
        if output is not None:
            note(f"Written: {output}. You can attach it to a report.")
    if check.failed:
        click.get_current_context().exit(1)


def _card(diagnosis: Diagnosis) -> Table:
    now, load = diagnosis.conditions, diagnosis.conditions.load_1min
    state = {
        "load (1 min)": "not known" if load is None else f"{load:.2f}",
        "memory free": format_bytes(now.available_bytes),
        "swap used": format_bytes(now.swap_used_bytes),
        "disk free for models": format_bytes(diagnosis.free_disk_bytes),
    }
    if diagnosis.budget:
        state["models may take"] = f"{format_bytes(diagnosis.budget.limit_bytes)} ({diagnosis.budget.basis})"
    rows = [*machine_rows(diagnosis.environment, diagnosis.missing).values(), *state.items()]
    return table("This machine", rows, column("field", of="0"), column("value", of="1"))


def _profiles(profiles: tuple[ProfileFit, ...]) -> Table:
    return table(
        "Profiles",
        profiles,
        column("profile"),
        column("verdict"),
        column("here", of=lambda fit: f"{fit.n_downloaded} of {fit.n_models}"),
        column("to get", of=_to_get),
        column("why"),
    )


def _to_get(fit: ProfileFit) -> str:
    if fit.missing_bytes is None:
        return "not known"
    return f"{'about ' if fit.estimated else ''}{format_bytes(fit.missing_bytes)}"


# --- a model's rollbacks ------------------------------------------------------------------------------------------


@doctor.command("model")
@shared.model_argument("target", metavar="MODEL")
@shared.declared_option(Overrides, "gammas", "Draft lengths [default: as bench, 1,2,4,8,16].", default=GAMMAS)
@shared.build_option
@json_option
@shared.engine_options
def probe(target: str, engine: EngineOptions, gammas: tuple[int, ...], as_json: bool) -> None:
    """Print which rollbacks are exact for MODEL, a path or an id, and which of them arms of bench get at each gamma.

    The model is rolled back in every way, and its logits are compared with those of the same tokens from which nothing
    was taken back.
    """
    shared.check_models(target)
    from mlsd.engine.rollback_choice import NOISE_WIDTHS
    from mlsd.measure.process import call
    from mlsd.measure.worker.serve import probe_model
    from mlsd.report.tables.records import probe_table

    with working(f"Rolling {target} back in every way"):
        result = call(partial(probe_model, shared.model_file(target), engine, gammas), doing="probing a model")
    if as_json:
        print_json(result)
        return
    print_table(probe_table(result))
    reasons = (
        f"{check.strategy} as a {check.role}: {check.reason}" for check in result.checks if check.reason is not None
    )
    for reason in dict.fromkeys(reasons):
        say(reason)
    say(
        f"Kernel noise of passes up to {max(NOISE_WIDTHS)} wide (largest logit difference from single-token passes): "
        f"{result.kernel_noise:.3g}"
    )
    say(f"As a target: {_chosen(result, 'target')}.  As a draft: {_chosen(result, 'draft')}.")


def _chosen(result: Probed, role: Role) -> str:
    """What arms get, once where it is the same at every gamma."""
    by_gamma = {each.gamma: each.strategy or "nothing is exact" for each in result.chosen if each.role == role}
    if len(set(by_gamma.values())) == 1:
        return next(iter(by_gamma.values()))
    return ", ".join(f"{name} at gamma {gamma}" for gamma, name in by_gamma.items())


# --- builds of llama.cpp ------------------------------------------------------------------------------------------


@doctor.command("builds")
@click.argument("names", nargs=-1, metavar="[BUILD]...")
@json_option
@click.pass_context
def list_builds(ctx: click.Context, /, names: tuple[str, ...], as_json: bool) -> None:
    """Print the builds of llama.cpp that are here, or those named, and which of them fit.

    A BUILD is what --build takes: `.` (this environment), another environment or its interpreter, a wheel, a folder
    with libllama, or a Homebrew or conda prefix. Whether one fits is decided by trying: names, structures, a known
    pass, memory saved and loaded, rollback. Exits with 1 if one of those named does not.
    """
    from mlsd.measure.parent.builds import known_builds, verdict_of

    verdicts = [verdict_of(name) for name in names or dict.fromkeys(known_builds())]
    if as_json:
        print_json(verdicts)
    else:
        print_table(_builds_table(verdicts))
        for verdict in verdicts:
            if verdict.fits is None:
                say("\n".join(filter(None, (f"{verdict.name}: {verdict.problem}", verdict.hint))))
    if names and any(verdict.fits is None for verdict in verdicts):
        ctx.exit(1)


def _builds_table(verdicts: list[BuildVerdict]) -> Table:
    return table(
        "Builds of llama.cpp",
        verdicts,
        column("build", of="name"),
        column("fits", of=lambda v: "yes" if v.fits else "NO"),
        column("llama.cpp", of="backend.build"),
        column("bindings", of="backend.binding_version"),
        column("devices", of=lambda v: v.backend and ", ".join(device.name for device in v.backend.devices)),
        column("structures as", of="fits.layout"),
        column("memory as", of=lambda v: v.fits and f"version {v.fits.memory_version}"),
        column("rollback", of="fits.rollback"),
    )
