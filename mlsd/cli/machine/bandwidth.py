"""``mlsd bandwidth``: what the memory really gives, read plainly and through llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlsd.cli.database import database_to_fill, db_option
from mlsd.cli.options import IntList, Whole, engine_options, json_option, quant_option, repeats_option
from mlsd.cli.output import note, print_json, print_table


@click.command()
@click.option("--sizes-mb", type=IntList(), default=(100, 200, 400), help="Bytes a token reads [default: 100,200,400].")
@quant_option("May be repeated [default: Q8_0, Q4_0, F16].", multiple=True, default=("Q8_0", "Q4_0", "F16"))
@repeats_option("Passes of every model.", default=5)
@click.option("--read-mb", type=Whole(min=64), default=512, show_default=True, help="Array that numpy reads.")
@db_option()
@json_option
@engine_options
def bandwidth(
    sizes_mb: tuple[int, ...], quant: tuple[str, ...], db: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure memory bandwidth in GB/s (10^9): a streaming read, and single-token passes of models of known bytes.

    A line through bytes against time separates effective bandwidth from the fixed time of a pass. Sizes must be well
    above the caches of the machine. `mlsd report --db` shows what is stored.
    """
    from mlsd.analysis.study.machine_findings import bandwidth_findings
    from mlsd.cli.watch import watching_steps
    from mlsd.hardware.cache import largest_cache_bytes
    from mlsd.measure.run.bandwidth import measure_bandwidth
    from mlsd.report.tables.machine import bandwidth_table

    cache = largest_cache_bytes()
    if cache is not None and min(sizes_mb) * 1_000_000 < 2 * cache:
        note(
            f"Warning: {min(sizes_mb)} MB may stay in a cache of {cache >> 20} MiB, which is then measured in place of "
            f"memory. Give --sizes-mb from {2 * cache // 1_000_000 + 1} on."
        )
    db = database_to_fill(db)
    with watching_steps("Measuring memory bandwidth") as watcher:
        result = measure_bandwidth(db, watcher, sizes_mb=sizes_mb, quants=quant, **options)
    found = bandwidth_findings(result.reads, result.passes, result.n_threads, "just now")
    if as_json:
        print_json(
            {
                "stream_gb_s": found.stream,
                "n_threads": result.n_threads,
                "lines": found.lines,
                "passes": result.passes,
                "verdict": found.verdict,
                "peak_gb_s": result.environment.peak_bandwidth_gb_s,
                "environment": result.environment,
                "database": result.database,
            }
        )
        return
    print_table(bandwidth_table(found, result.environment))
    note(f"Stored in {result.database}.")
