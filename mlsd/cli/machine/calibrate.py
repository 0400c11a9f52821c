"""``mlsd calibrate``: what a pass of a model costs at every width, and which experts it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.database import db_option
from mlsd.cli.options import (
    IntList,
    draft_option,
    engine_options,
    json_option,
    output_option,
    rows_option,
    seed_option,
    text_option,
)
from mlsd.cli.output import note, print_json, print_table, say, shows_progress, table
from mlsd.units import NOT_MEASURED, as_ranges, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.experts.amortization import Mixture
    from mlsd.analysis.fits.calibration import PassTime, TargetCurve
    from mlsd.measure.run.calibration import CalibrationResult
    from mlsd.records import ModelFacts

_SHOWN = (1, 2, 5, 9, 17, 33)


@click.command()
@click.argument("model")
@draft_option("Time a draft beside it, and see the experts that its proposals choose.")
@click.option("--depth", "depths", type=IntList(), default=(128,), help="Positions in the context [default: 128].")
@rows_option("k of T(k) [default: 1 to 33, 48, 64].", default=(*range(1, 34), 48, 64))
@click.option("--budget-s", type=float, default=120.0, show_default=True, help="Seconds, loading apart.")
@click.option("--precision", type=float, default=0.02, show_default=True, help="End when all intervals are narrower.")
@text_option("Real text to use [default: a shipped one].")
@click.option("--no-coverage", is_flag=True, help="Do not ask a mixture for its experts.")
@output_option("Draw experts, or T(k), into this .png or .svg.", required=False)
@db_option
@seed_option("Of the order of passes.")
@json_option
@engine_options
def calibrate(
    model: str, draft: str | None, output: Path | None, db: Path | None, as_json: bool, **options: Any
) -> None:
    """Time passes of MODEL over k tokens for many k, in random order, and store them beside a study's trials.

    MODEL and the draft are GGUF paths or ids that `mlsd models list` shows. Of a mixture the experts are counted, which
    answers whether verification amortizes; `mlsd report --db` shows all of it.
    """
    from mlsd.analysis.fits.calibration import not_timed, target_curve
    from mlsd.measure.run.calibration import CalibrationRequest
    from mlsd.measure.run.calibration import calibrate as run_calibration
    from mlsd.report.write import check_figure_path

    if output is not None:
        check_figure_path(output)
    request = CalibrationRequest(model=model, draft=draft, coverage=not options.pop("no_coverage"), **options)
    result = run_calibration(request, db, _say)
    facts = result.models
    timed = {p.depth for p in result.target_points if p.kind == "target_pass" and p.rows == 1}
    curves = [target_curve(result.target_points, depth) for depth in sorted(set(request.depths)) if depth in timed]
    costs = _costs(result)
    found = _mixture(result, facts[0])
    if output is not None:
        _draw(output, facts[0], curves, found)
    missing = {depth: not_timed(curves, depth, request.rows) for depth in sorted(set(request.depths))}
    if as_json:
        print_json(
            {
                "database": result.database,
                "model": facts[0],
                "draft": facts[1] if draft else None,
                "half_width": result.half_width,
                "not_timed": missing,
                "spent": result.spent,
                "curves": curves,
                "costs": costs,
                "experts": found and found.coverage,
                "shares": found and found.shares,
                "figure": output and str(output),
            }
        )
        return
    for curve in curves:
        _print_curve(facts[0], curve)
    for depth, widths in missing.items():
        if widths:
            say(f"Not timed at depth {depth} within {request.budget_s:g} s: k = {as_ranges(widths)}.")
    _print_costs(costs)
    if found is not None:
        _print_experts(found)
    say(_summary(result))
    note(f"Stored in {result.database}." if output is None else f"Stored in {result.database}, drawn in {output}.")


def _costs(result: CalibrationResult) -> dict[str, list[PassTime]]:
    """Everything timed but T(k), by model."""
    from mlsd.analysis.fits.calibration import pass_times

    by_model = {"target": result.target_points, "draft": result.draft_points}
    return {name: [p for p in pass_times(points) if p.kind != "target_pass"] for name, points in by_model.items()}


def _mixture(result: CalibrationResult, facts: ModelFacts) -> Mixture | None:
    """What verification saves on experts; None where none were counted."""
    from mlsd.analysis.experts.amortization import mixture
    from mlsd.analysis.experts.coverage import coverage_table

    if not result.coverage:
        return None
    experts = coverage_table(result.coverage, facts, result.loads)
    return mixture(facts.ref.id, experts, facts, result.target_points)


def _summary(result: CalibrationResult) -> str:
    """Repeats, the worst interval, and where the time went."""
    if result.half_width is None:
        told = "an interval needs three repeats of every pass; a longer --budget-s gives them"
    else:
        told = f"the widest 95 % interval is +-{format_percent(result.half_width)}"
    repeats = "repeat" if result.n_repeats == 1 else "repeats"
    text = f"{result.n_repeats} {repeats}; {told}."
    if result.spent is None:
        return text
    seconds = dict(result.spent.seconds)
    load = seconds.pop("load", 0.0)
    parts = ", ".join(f"{part} {value:.1f} s" for part, value in seconds.items())
    text += f" Measuring took {sum(seconds.values()):.1f} s ({parts}), loading {load:.1f} s."
    if result.spent.rollback_assumed:
        text += " How states are rolled back was assumed, not tested: `mlsd probe MODEL` tests it."
    return text


def _say(n_repeats: int, half_width: float | None) -> None:
    if shows_progress():
        note(f"repeat {n_repeats}: widest interval +-{format_percent(half_width)}")


def _print_curve(facts: ModelFacts, curve: TargetCurve) -> None:
    made = table(
        f"T(k) of {facts.ref.id} at depth {curve.depth}",
        ["k", "T(k), ms", "95 % interval", "T(1)/T(k)", "T(k)/(k T(1))"],
    )
    for row in curve.passes:
        made.add_row(
            str(row.rows),
            format_number(row.ms.value, 3),
            _bounds(row),
            format_number(curve.efficiency[row.rows], 3),
            format_number(curve.per_row[row.rows], 3),
        )
    print_table(made)
    if curve.steps is not None:
        jumps = [
            f"{edge} rows ({jump:+.2f} ms)" for edge, jump in zip(curve.steps.edges, curve.steps.jumps_ms, strict=True)
        ]
        found = ", ".join(jumps) if jumps else "none"
        line = f"{curve.steps.fixed_ms:.3f} + {curve.steps.per_row_ms:.3f} k ms"
        say(f"Kernel steps found: {found}; between them T(k) = {line}.")


def _bounds(row: PassTime) -> str:
    return NOT_MEASURED if row.ms.low is None else f"{row.ms.low:.3f} .. {row.ms.high:.3f}"


def _print_costs(costs: dict[str, list[PassTime]]) -> None:
    made = table("Other costs", ["model", "kind", "rows", "depth", "ms", "95 % interval"], left=2)
    many = ("sample", "rollback")  # one for every width: a few tell the story, --json has all
    shown = [(name, row) for name, rows in costs.items() for row in rows if row.kind not in many or row.rows in _SHOWN]
    for name, row in shown:
        made.add_row(
            name,
            row.kind,
            str(row.rows),
            str(row.depth),
            format_number(row.ms.value, 3 if row.ms.value > 0.1 else 4),
            _bounds(row),
        )
    print_table(made)


def _print_experts(found: Mixture) -> None:
    from mlsd.analysis.experts.amortization_words import sentences
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


def _draw(path: Path, facts: ModelFacts, curves: Sequence[TargetCurve], found: Mixture | None) -> None:
    """Experts and what they save; T(k) of a model that has none."""
    from mlsd.report.figures.machine import expert_shares, pass_curves
    from mlsd.report.write import write_figure

    if found is not None:
        write_figure(lambda: expert_shares([found]), path)
    else:
        write_figure(lambda: pass_curves({f"{facts.ref.id}, depth {c.depth}": c for c in curves}), path)
