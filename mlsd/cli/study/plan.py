"""``mlsd plan``: what suites would measure, how long it takes and what it needs, before anything runs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli.options import make_overrides, plan_options
from mlsd.cli.output import print_json, print_table, table
from mlsd.records import DrafterSpec, Record
from mlsd.units import NOT_MEASURED, format_bytes, format_duration

if TYPE_CHECKING:
    from mlsd.models.library import Library
    from mlsd.planning.estimate import Load, TimeEstimate, TokS
    from mlsd.planning.plan import LeftOut, Plan
    from mlsd.planning.suite import DrafterChoice, Part, Suite
    from mlsd.records import Environment, ModelRef


class Forecast(Record, frozen=True, kw_only=True):
    """What a plan needs on this machine."""

    loads: tuple[Load, ...]
    fits: tuple[str, ...]  # one for each load: fits, tight, does not fit, unknown
    time: TimeEstimate
    peak_weight_bytes: int | None  # of the largest load; None where a size is not known
    safe_bytes: int | None  # what this machine can hold with room for contexts
    most_bytes: int | None
    download_bytes: int | None  # models not on this machine; None where a size is not known
    free_disk_bytes: int
    missing: tuple[str, ...]  # models not on this machine


@click.command()
@click.argument("suites", nargs=-1, required=True)
@plan_options
@click.option(
    "--db",
    type=click.Path(path_type=Path),
    help="Earlier results, to estimate the time from [default: results/PROFILE.sqlite].",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: counts, needs and every case.")
def plan(suites: tuple[str, ...], as_json: bool, db: Path | None, **options: Any) -> None:
    """Show what SUITES (A to F, or TOML files) would measure with the models of a profile; measures nothing."""
    from mlsd.cli.study.run import choose_profile, say_default
    from mlsd.measure.run.runner import default_database
    from mlsd.models.library import Library
    from mlsd.planning.plan import expand

    library = Library()
    profile, is_default = choose_profile(options["profile"], library)
    if is_default:
        say_default(profile)
    loaded, overrides = read_suites(suites), make_overrides(options)
    planned = expand(loaded, profile, known_models(library), overrides)
    here = {model: ref for model in planned.models() if (ref := _local_ref(library, model)) is not None}
    planned = expand(loaded, profile, {**known_models(library), **here}, overrides)
    usual = default_database(profile.name)
    show_plan(planned, as_json=as_json, db=db or (usual if usual.exists() else None))


def read_suites(names: Iterable[str]) -> tuple[Suite, ...]:
    """The suites of those names, the presets of their drafters written out: equal settings are then equal cases.

    Raises: SuiteError, and UnsupportedError or InputError for a drafter that cannot be.
    """
    from mlsd.drafters import resolve_spec
    from mlsd.planning.suite import load_suites

    def plain(choice: DrafterChoice) -> DrafterChoice:
        options = resolve_spec(DrafterSpec(name=choice.name, options=choice.options)).options
        return msgspec.structs.replace(choice, options=options)

    def settle(part: Part) -> Part:
        return msgspec.structs.replace(part, drafters=tuple(map(plain, part.drafters)))

    suites = load_suites(names)
    return tuple(msgspec.structs.replace(suite, parts=tuple(map(settle, suite.parts))) for suite in suites)


def known_models(library: Library) -> dict[str, ModelRef]:
    """Every model of the manifest, as the manifest alone knows it."""
    from mlsd.cli.study.run import entry_ref

    return {entry.id: entry_ref(entry) for entry in library.manifest}


def _local_ref(library: Library, model_id: str) -> ModelRef | None:
    """The model as it lies on this machine; its hash is read once and remembered."""
    if library.locate(library.manifest.find(model_id)) is None:
        return None
    return library.resolve(model_id).ref


def show_plan(planned: Plan, *, as_json: bool, db: Path | None = None) -> None:
    """Print a plan with what it needs on this machine: tables for people, or one JSON object."""
    from mlsd.hardware import read_environment
    from mlsd.models.library import Library

    environment = read_environment()
    found = forecast(planned, Library(), environment, _tok_s(planned, environment, db))
    if as_json:
        print_json(_plan_object(planned, found))
    else:
        _print(planned, found)


def forecast(planned: Plan, library: Library, environment: Environment, tok_s: TokS) -> Forecast:
    """Weigh the loads of a plan against the machine."""
    from mlsd.hardware.budget import memory_budget
    from mlsd.measure.run.doctor import weight_bytes
    from mlsd.models.hub import free_bytes
    from mlsd.planning.estimate import estimate_time, plan_loads

    entries = {model: library.manifest.find(model) for model in planned.models()}
    sizes = {model: weight_bytes(entry, library) for model, entry in entries.items()}
    missing = tuple(model for model, entry in entries.items() if library.locate(entry) is None)
    loads = plan_loads(planned, sizes, tok_s)
    weights = [load.weight_bytes for load in loads]
    budget = memory_budget(environment)
    safe, most = (budget.safe_bytes, budget.most_bytes) if budget else (None, None)
    to_get = [sizes[model] for model in missing]
    return Forecast(
        loads=loads,
        fits=tuple(_fit(load.weight_bytes, safe, most) for load in loads),
        time=estimate_time(planned.groups, tok_s),
        peak_weight_bytes=None if None in weights else max((w for w in weights if w is not None), default=None),
        safe_bytes=safe,
        most_bytes=most,
        download_bytes=None if None in to_get else sum(size for size in to_get if size is not None),
        free_disk_bytes=free_bytes(library.hub.cache_dir),
        missing=missing,
    )


def _fit(weights: int | None, safe: int | None, most: int | None) -> str:
    if weights is None or safe is None or most is None:
        return "unknown"
    return "fits" if weights <= safe else "tight" if weights <= most else "does not fit"


def _tok_s(planned: Plan, environment: Environment, db: Path | None) -> TokS:
    """Rates from the database's results and calibration on this machine, then from bytes over bandwidth."""
    from mlsd.models.manifest import load_manifest
    from mlsd.planning.estimate import first_known, rates_from_bandwidth, rates_from_calibration, rates_from_results

    active = {}
    for entry in load_manifest():
        sizes = (entry.n_bytes, entry.parameters, entry.parameters_active)
        n_bytes, total, used = sizes
        active[entry.id] = None if n_bytes is None or not total or not used else round(n_bytes * used / total)
    lookups = [rates_from_bandwidth(active, environment.peak_bandwidth_gb_s)]
    if db is not None:
        from mlsd.measure.store.study import Store

        with Store.open(db, create=False, read_only=True) as store:
            own = {run.id for run in store.runs() if run.environment.host == environment.host}
            columns, rows = store.summary()
            trials = [row for row in (dict(zip(columns, r, strict=True)) for r in rows) if row["run_id"] in own]
            passes: dict[tuple[str, str, int], list[int]] = defaultdict(list)
            for run_id, point in store.calibration():
                if run_id in own:
                    passes[point.model_key, point.kind, point.rows].append(point.span_ns)
            lookups.insert(0, rates_from_calibration({key: statistics.median(ns) for key, ns in passes.items()}))
            lookups.insert(0, rates_from_results(trials, store.cases()))
    return first_known(*lookups)


def _plan_object(planned: Plan, found: Forecast) -> dict[str, Any]:
    repeats: dict[str, int] = defaultdict(int)
    roles = {}
    for trial in planned.trials():
        repeats[trial.case_id] += 1
        roles[trial.case_id] = trial.role
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
    made = table(f"plan of profile {planned.profile}", ["suite", "study trials", "paired baselines"])
    paired: dict[str, int] = defaultdict(int)
    for trial in planned.trials():
        paired[trial.case.suite] += trial.role == "baseline"
    for suite, count in planned.study_trials.items():
        made.add_row(suite, str(count), str(paired[suite]))
    made.add_section()
    made.add_row("all", str(sum(planned.study_trials.values())), str(planned.paired_baselines))
    print_table(made)
    loads = table("loads", ["target", "draft", "blocks", "trials", "weights", "memory", "time", "from"], left=2)
    for load, fit in zip(found.loads, found.fits, strict=True):
        loads.add_row(
            load.target,
            load.draft or NOT_MEASURED,
            str(load.n_blocks),
            str(load.n_trials),
            format_bytes(load.weight_bytes),
            fit,
            format_duration(load.time.seconds),
            ", ".join(load.time.sources) or NOT_MEASURED,
        )
    if planned.groups:
        print_table(loads)
    for line in _needs(planned, found):
        click.echo(line)
    for left in planned.left_out:
        click.echo(left_out_line(left))


def _needs(planned: Plan, found: Forecast) -> list[str]:
    from mlsd.planning.estimate import NO_TOKEN_ACCEPTED

    cases = f"{len(planned.cases())} cases, {found.time.n_trials} trials, {len(found.loads)} loads"
    lines = [cases, f"time: {format_duration(found.time.seconds)} of prefill and decoding"]
    if found.time.seconds is None:
        lines[1] = "time: not known; give --db with earlier results or a calibration of these models"
    else:
        if found.time.n_unknown:
            lines[1] += f", without {found.time.n_unknown} trials whose rate is not known"
        if set(found.time.sources) - {"results"}:
            lines[1] += f"; {NO_TOKEN_ACCEPTED}"
    known = max((load.weight_bytes for load in found.loads if load.weight_bytes is not None), default=None)
    bound = "" if found.peak_weight_bytes is not None else "at least "
    memory = f"memory: {bound}{format_bytes(known)} of weights at once"
    if found.safe_bytes is not None:
        memory += (
            f"; this machine takes {format_bytes(found.safe_bytes)} safely, {format_bytes(found.most_bytes)} at most"
        )
    lines.append(memory)
    for load, fit in zip(found.loads, found.fits, strict=True):
        if fit == "does not fit":
            pair = load.target + (f" with {load.draft}" if load.draft else "")
            lines.append(f"does not fit: {pair}: {format_bytes(load.weight_bytes)} of weights")
    if found.missing:
        size = "of a size not fully known" if found.download_bytes is None else format_bytes(found.download_bytes)
        lines.append(f"disk: {size} to download or make, {format_bytes(found.free_disk_bytes)} free")
        lines.append(f"not on this machine: {', '.join(found.missing)}")
    return lines


def left_out_line(left: LeftOut) -> str:
    """What a profile cannot measure, and why."""
    pair = f" for {left.model}" if left.model else ""
    return f"Left out of suite {left.suite}: {left.role}{pair} ({left.n_trials} trials): {left.reason}"
