"""`mlsd fit`: cost models and T(k) fitted to a study, with intervals and errors of prediction."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, print_table, say
from mlsd.errors import AnalysisError


@click.command()
@study_options
@click.option("--target", help="Only this target.")
@json_option
def fit(db: Path | None, machine: str | None, settings: str | None, target: str | None, as_json: bool) -> None:
    """Predict each speedup by the study's equations with measured inputs, then fit cost models and curves of T(k).

    Fits show which model predicts held-out data best.
    """
    study = open_study(db, machine, settings)
    from mlsd.analysis.study.study_frames import EQUATIONS, row_of
    from mlsd.report.objects import arm_object
    from mlsd.report.tables.equations import equation_table
    from mlsd.report.tables.results import gamma_table, model_table

    targets = list(dict.fromkeys(pair.target for pair in study.paired.pairs))
    if target is not None and target not in targets:
        raise AnalysisError(f"The study has no pairs of {target}.", hint=f"It has: {', '.join(targets) or 'none'}.")
    wanted = [target] if target is not None else targets
    pairs = [found for found in study.pair_fits if found.target in wanted]
    curves = [found for found in study.curve_fits if found.target in wanted]
    predictions = [found for found in study.predictions if found.arm.case.target.id in wanted]
    arms = [one for one in study.pooled if one.case.target.id in wanted and not one.is_plain]
    if as_json:
        shown = [arm_object(one) for one in arms]
        print_json(
            {
                "pairs": pairs,
                "arms": shown,
                "curves": curves,
                "equations": [row_of(one, EQUATIONS) for one in predictions],
            }
        )
        return
    print_table(gamma_table(arms))
    print_table(equation_table(predictions))
    print_table(model_table(pairs, curves))
    fits = [fit for pair in pairs for fit in pair.fits] + [fit for curve in curves for fit in curve.fits]
    for name, formula in {fit.model: fit.formula for fit in fits}.items():
        say(f"{name}: {formula}")
    for curve in curves:
        if curve.bandwidth_gb_s is not None:
            peak = "" if curve.peak_fraction is None else f", {100 * curve.peak_fraction:.0f} % of the peak"
            say(f"Effective bandwidth of {curve.target}: {curve.bandwidth_gb_s:.1f} GB/s{peak}")
