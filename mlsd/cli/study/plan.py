"""``mlsd plan``: what suites would measure, how long it takes and what it needs, before anything runs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import complete
from mlsd.cli.database import db_option
from mlsd.cli.options import json_option, plan_options
from mlsd.cli.output import columns, print_json, print_table, say, working
from mlsd.cli.watch import say_default
from mlsd.measure.cool_down import MOST_S
from mlsd.report.tables.catalogue import load_table, memory_table, plan_table
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.measure.run.forecast import Forecast
    from mlsd.planning.plan import Plan
    from mlsd.planning.request import StudyRequest


@click.command()
@click.argument("suites", nargs=-1, required=True, shell_complete=complete.suites)
@plan_options
@db_option("results/PROFILE.sqlite")
@json_option
def plan(suites: tuple[str, ...], as_json: bool, db: Path | None, **asked: Any) -> None:
    """Show what SUITES (A to G, or TOML files) would measure with the models of a profile; measures nothing.

    `mlsd run SUITES --dry-run` shows the same, also of tasks.
    """
    from mlsd.planning.request import study_request

    show_plan(study_request(suites, **asked), db, as_json=as_json)


def show_plan(request: StudyRequest, db: Path | None, cool_down_s: float | None = None, *, as_json: bool) -> None:
    """Print a plan with what it needs on this machine: tables for people, or one JSON object."""
    from mlsd.measure.run.forecast import plan_study

    with working("Planning"):
        prepared, found = plan_study(request, db, cool_down_s=cool_down_s)
    say_default(request)
    if as_json:
        print_json(_plan_object(prepared.plan, found))
    else:
        _print(prepared.plan, found)


def _plan_object(planned: Plan, found: Forecast) -> dict[str, Any]:
    repeats: dict[str, int] = defaultdict(int)
    roles = {}
    for slot in planned.slots():
        repeats[slot.case_id] += 1
        roles[slot.case_id] = slot.role
    cases = [
        {"id": case_id, "arm": case.arm, "role": roles[case_id], "trials": repeats[case_id], "case": case}
        for case_id, case in planned.cases().items()
    ]
    return {
        "profile": planned.profile,
        "suites": planned.study_trials,
        "study_trials": sum(planned.study_trials.values()),
        "paired_baselines": planned.paired_baselines,
        "seed": planned.seed,
        "needs": found,
        "left_out": planned.left_out,
        "cases": cases,
    }


def _print(planned: Plan, found: Forecast) -> None:
    print_table(plan_table(planned))
    if planned.loads:
        print_table(load_table(found))
        print_table(memory_table(found.memory, arms=columns() is None))
    for line in _needs(planned, found):
        say(line)
    for left in planned.left_out:
        say(left.words)


def _needs(planned: Plan, found: Forecast) -> list[str]:
    n_paired = planned.paired_baselines
    kinds = f" ({sum(planned.study_trials.values())} study trials, {n_paired} paired baselines)" if n_paired else ""
    cases = f"{len(planned.cases())} cases, {found.time.n_trials} trials{kinds}, {len(found.memory)} loads"
    lines = [cases, f"time: {found.time.words}"]
    if not found.time.n_trials:
        lines[1] = "nothing to measure: take other suites, a larger profile, or models of your own (--model ROLE=MODEL)"
    elif found.time.seconds is None:
        lines[1] = "time: not known; give --db with earlier results of these models"
    else:
        if found.time.n_unknown:
            lines[1] += f", without {found.time.n_unknown} trials whose rate is not known"
        if "public rows" in found.time.sources:
            lines[1] += f"; by public rows of {found.chips}, with acceptance as wide as it was seen"
        if found.rest_s is None:
            lines[1] += f"; rests until it is cool come on top, {MOST_S / 60:.0f} min behind each block at most"
    if found.budget is not None:
        lines.append(f"memory: {format_bytes(found.budget.limit_bytes)} may be used ({found.budget.basis})")
    lines += [f"{load.verdict}: {load.why}" for load in found.memory if load.verdict != "fits"]
    if found.missing:
        size = "of a size not fully known" if found.download_bytes is None else format_bytes(found.download_bytes)
        lines.append(f"disk: {size} to download or make, {format_bytes(found.free_disk_bytes)} free")
        lines.append(f"not on this machine: {', '.join(found.missing)}")
    lines += [f"with another program, and used from there: {id_}: {path}" for id_, path in found.elsewhere.items()]
    return lines
