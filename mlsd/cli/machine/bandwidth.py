"""``mlsd bandwidth``: what the memory really gives, read plainly and through llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlsd.cli.database import db_option
from mlsd.cli.options import IntList, engine_options, json_option, quant_option, repeats_option
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.errors import InputError


@click.command()
@click.option("--sizes-mb", type=IntList(), default=(100, 200, 400), help="Bytes a token reads [default: 100,200,400].")
@quant_option("May be repeated [default: Q8_0, Q4_0, F16].", multiple=True, default=("Q8_0", "Q4_0", "F16"))
@repeats_option("Passes of every model.", default=5)
@click.option("--read-mb", type=click.IntRange(min=64), default=512, show_default=True, help="Array that numpy reads.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Where models are written meanwhile.")
@db_option
@json_option
@engine_options
def bandwidth(
    sizes_mb: tuple[int, ...],
    quant: tuple[str, ...],
    repeats: int,
    read_mb: int,
    folder: Path | None,
    db: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure memory bandwidth in GB/s (10^9): a streaming read, and single-token passes of models of known bytes.

    A line through bytes against time separates effective bandwidth from the fixed time of a pass. Sizes must be well
    above the caches of the machine. `mlsd report --db` shows what is stored.
    """
    from mlsd.analysis.fits.bandwidth import bytes_lines, compare
    from mlsd.analysis.fits.calibration import median_interval
    from mlsd.analysis.study.machine_findings import Bandwidth
    from mlsd.hardware import read_environment
    from mlsd.measure.process import run_info
    from mlsd.measure.run.bandwidth import BandwidthPlan, run_and_store
    from mlsd.measure.store.newest import newest_or_new
    from mlsd.measure.store.study import Store
    from mlsd.report.tables.machine import bandwidth_table

    db = db or newest_or_new()
    if len(set(sizes_mb)) < 2:
        raise InputError("One size cannot tell bandwidth from fixed time.", hint="Like --sizes-mb 100,200,400.")
    engine = options["engine"]
    backend = run_info(engine)
    environment = read_environment(backend)
    n_all = environment.logical_cores or 1
    n_passes = engine.n_threads or environment.performance_cores or n_all
    threads = tuple(sorted({1, n_passes, n_all}))
    plan = BandwidthPlan(
        sizes_bytes=tuple(mb * 1_000_000 for mb in sizes_mb),
        quants=quant,
        blocks=repeats,
        read_bytes=read_mb << 20,
        threads=threads,
        engine=engine,
        n_threads=n_passes,
    )
    with Store.open(db) as store:
        result = run_and_store(plan, store, environment, folder, _say_writing)
    lines = bytes_lines(result.passes)
    verdict = compare(lines, result.stream_gb_s(n_passes))
    found = Bandwidth(
        stream={n: median_interval(result.stream_gb_s(n)) for n in threads},
        n_threads=n_passes,
        passes=tuple(result.passes),
        lines=tuple(lines),
        verdict=verdict,
        measured_at="just now",
    )
    if as_json:
        print_json(
            {
                "stream_gb_s": found.stream,
                "n_threads": n_passes,
                "lines": lines,
                "passes": result.passes,
                "verdict": verdict,
                "peak_gb_s": environment.peak_bandwidth_gb_s,
                "environment": environment,
                "database": str(db),
            }
        )
        return
    print_table(bandwidth_table(found, environment))
    say(verdict.reason)
    note(f"Stored in {db}.")


def _say_writing(plan: Any) -> None:
    note(f"writing {plan.name}")
