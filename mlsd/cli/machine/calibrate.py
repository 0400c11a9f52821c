"""``mlsd calibrate``: what a pass of a model costs at every width, and which experts it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.database import database_to_fill, db_option
from mlsd.cli.options import Real
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.hardware import read_conditions
from mlsd.records import ModelFacts
from mlsd.units import as_ranges, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.experts.amortization import Mixture
    from mlsd.analysis.fits.curves import Steps
    from mlsd.analysis.study.machine_findings import CalibrationFindings
    from mlsd.measure.run.calibration import CalibrationResult


_MOST_DOUBT = 0.25  # half width of the widest interval, relative, up to which kernel steps are looked for
_OWN_LOAD = 1.5  # of a machine on which only this runs, at most


@click.command()
@shared.model_argument("target", metavar="MODEL")
@shared.draft_option("Also time a draft, and count the experts that its proposals choose.")
@click.option(
    "--depth", "depths", type=shared.IntList(), default=(128,), help="Positions in the context [default: 128]."
)
@shared.rows_option("k of T(k) [default: 1 to 33, 48, 64].", default=(*range(1, 34), 48, 64))
@click.option("--budget-s", type=Real(), default=120.0, show_default=True, help="Seconds, without loading.")
@click.option("--precision", type=Real(), default=0.02, show_default=True, help="Stop when all intervals are narrower.")
@shared.text_option("Real text to use [default: a shipped one].")
@shared.output_option("Draw experts, or T(k), into this .png or .svg.", required=False)
@db_option()
@shared.seed_option("Seed of the order of passes.")
@shared.json_option
@shared.build_option
@shared.engine_options
def calibrate(
    target: str, draft: str | None, output: Path | None, db: Path | None, as_json: bool, **options: Any
) -> None:
    """Time passes of MODEL over k tokens for many k, in random order, and store them with a study's trials.

    For a mixture, the experts are counted as well, which shows whether verification amortizes.
    """
    shared.check_models(target, draft)
    from mlsd.cli.watch import watching_steps
    from mlsd.measure.run.calibration import calibrate as run_calibration

    if output is not None:
        from mlsd.report.write import check_figure_path

        check_figure_path(output)
    db, budget_s = database_to_fill(db), options["budget_s"]
    with watching_steps(f"Timing passes of {target}", budget_s) as watcher:
        result = run_calibration(target, draft, db, watcher, **options)
    from mlsd.analysis.study.machine_findings import calibration_findings
    from mlsd.report.tables.machine import costs_table, timed_table

    facts, found = result.models, calibration_findings(result, options["rows"], options["depths"])
    if output is not None:
        _draw(output, facts[0], found)
    if as_json:
        print_json(
            {
                "database": result.database,
                "model": facts[0],
                "draft": facts[1] if draft else None,
                "half_width": result.half_width,
                "not_timed": found.not_timed,
                "spent": result.spent,
                "curves": found.curves,
                "costs": found.costs,
                "experts": found.mixture and found.mixture.coverage,
                "time_a_token": found.mixture and found.mixture.time_a_token,
                "figure": output and str(output),
            }
        )
        return
    doubt = _doubt(result.half_width, read_conditions().load_1min)
    for curve in found.curves:
        print_table(timed_table(facts[0].ref.id, curve))
        if curve.steps is not None and not doubt:
            _say_steps(curve.steps)
    for depth, widths in found.not_timed.items():
        if widths:
            say(f"Not timed at depth {depth} within {budget_s:g} s: k = {as_ranges(widths)}.")
    print_table(costs_table(found.costs))
    if found.mixture is not None:
        _print_experts(found.mixture)
    say(_summary(result))
    if doubt:
        note(doubt)
    note(f"Stored in {result.database}." if output is None else f"Stored in {result.database}, drawn in {output}.")


def _summary(result: CalibrationResult) -> str:
    if result.half_width is None:
        width = "an interval needs three repeats of every pass; a longer --budget-s gives them"
    else:
        width = f"the widest 95 % interval is +-{format_percent(result.half_width)}"
    repeats = "repeat" if result.n_repeats == 1 else "repeats"
    text = f"{result.n_repeats} {repeats}; {width}."
    if result.spent is None:
        return text
    seconds = dict(result.spent.seconds)
    load = seconds.pop("load", 0.0)
    parts = ", ".join(f"{part} {value:.1f} s" for part, value in seconds.items())
    text += f" Measuring took {sum(seconds.values()):.1f} s ({parts}), loading {load:.1f} s."
    if result.spent.rollback_assumed:
        text += " How states are rolled back was assumed, not tested: `mlsd probe MODEL` tests it."
    return text


def _doubt(half_width: float | None, load: float | None) -> str:
    """Why times with this widest interval are not to be trusted; empty where they are."""
    if half_width is not None and half_width <= _MOST_DOUBT:
        return ""
    width = "not known" if half_width is None else f"+-{format_percent(half_width)}"
    busy = f" Other programs use the machine (load {load:.1f})." if (load or 0) > _OWN_LOAD else ""
    return (
        f"Warning: the widest 95 % interval is {width}. Above +-{format_percent(_MOST_DOUBT, 0)} kernel steps "
        f"are not searched for, and the figures are unreliable.{busy} Repeat on a quiet machine, or raise --budget-s."
    )


def _say_steps(steps: Steps) -> None:
    jumps = [f"{edge} rows ({jump:+.2f} ms)" for edge, jump in zip(steps.edges, steps.jumps_ms, strict=True)]
    line = f"{steps.fixed_ms:.3f} + {steps.per_row_ms:.3f} k ms"
    say(f"Kernel steps found: {', '.join(jumps) or 'none'}; between them T(k) = {line}.")


def _print_experts(found: Mixture) -> None:
    from mlsd.analysis.experts.amortization import sentences
    from mlsd.report.tables.machine import share_table

    experts = found.coverage
    print_table(share_table(found))
    say(
        f"Of {experts.n_experts} experts a token uses {experts.n_used}; neighbours share "
        f"{format_number(experts.overlap)} of them. The busiest expert of a layer is chosen "
        f"{format_number(experts.imbalance, 1)} times as often as the mean."
    )
    for text in sentences(found):
        say(f"- {text}")


def _draw(path: Path, facts: ModelFacts, found: CalibrationFindings) -> None:
    from mlsd.report.figures.machine import expert_shares, pass_curves
    from mlsd.report.write import write_figure

    known = found.mixture
    if known is not None:
        write_figure(lambda: expert_shares([known]), path)
    else:
        write_figure(lambda: pass_curves({f"{facts.ref.id}, depth {c.depth}": c for c in found.curves}), path)
