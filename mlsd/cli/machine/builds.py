"""``mlsd builds``: which builds of llama.cpp are here, which of them can be measured, and why others cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, print_table, say
from mlsd.report.render.table import Table, table, text, words

if TYPE_CHECKING:
    from mlsd.measure.build_gate import BuildVerdict


@click.group()
def builds() -> None:
    """Show the builds of llama.cpp that `--build` takes, and try others.

    A build is `.` (this environment), another environment or its interpreter, a wheel, a folder with libllama, or a
    Homebrew or conda prefix. Whether it fits is decided by trying: names, structures, a known pass, memory saved and
    loaded, rollback.
    """


@builds.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the builds that lie where builds usually lie, with what fits and what does not."""
    from mlsd.measure.build_gate import known_builds, verdict_of

    _show([verdict_of(name) for name in dict.fromkeys(known_builds())], as_json)


@builds.command()
@click.argument("paths", nargs=-1, required=True)
@json_option
@click.pass_context
def check(ctx: click.Context, /, paths: tuple[str, ...], as_json: bool) -> None:
    """Try builds; exit code 1 when one of them does not fit."""
    from mlsd.measure.build_gate import verdict_of

    found = [verdict_of(path) for path in paths]
    _show(found, as_json)
    if any(verdict.fits is None for verdict in found):
        ctx.exit(1)


def _show(found: list[BuildVerdict], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(_table(found))
    for verdict in found:
        if verdict.fits is None:
            say("\n".join(filter(None, (f"{verdict.name}: {verdict.problem}", verdict.hint))))


def _table(found: list[BuildVerdict]) -> Table:
    return table(
        "Builds of llama.cpp",
        found,
        words("build", lambda v: v.name),
        words("fits", lambda v: text("yes", "good") if v.fits else text("NO", "bad")),
        words("llama.cpp", lambda v: v.backend and v.backend.build),
        words("bindings", lambda v: v.backend and v.backend.binding_version),
        words("devices", lambda v: v.backend and ", ".join(device.name for device in v.backend.devices)),
        words("structures as", lambda v: v.fits and v.fits.layout),
        words("memory as", lambda v: v.fits and f"version {v.fits.memory_version}"),
        words("rollback", lambda v: v.fits and v.fits.rollback),
    )
