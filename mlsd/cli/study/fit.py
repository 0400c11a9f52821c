"""`mlsd fit`: cost models and T(k) fitted to a study, with intervals and errors of prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, print_table, table
from mlsd.errors import AnalysisError

if TYPE_CHECKING:
    from mlsd.analysis.fits.fit import Fit, HeldOut
    from mlsd.analysis.fits.study_fits import CurveFit, PairFit
    from mlsd.stats import Interval


@click.command()
@study_options
@click.option("--target", help="Only this target.")
@json_option
def fit(db: Path | None, machine: str | None, settings: str | None, target: str | None, as_json: bool) -> None:
    """Fit cost models and curves of T(k), and say which predict what they have not seen."""
    from mlsd.analysis.fits.study_fits import held_out_targets

    study = open_study(db, machine, settings)
    targets = list(dict.fromkeys(pair.target for pair in study.paired.pairs))
    if target is not None and target not in targets:
        raise AnalysisError(f"The study has no pairs of {target}.", hint=f"It has: {', '.join(targets) or 'none'}.")
    wanted = [target] if target is not None else targets
    pairs = [found for found in study.pair_fits if found.target in wanted]
    curves = [found for found in study.curve_fits if found.target in wanted]
    whole = held_out_targets(study.paired)
    if as_json:
        document = {"pairs": pairs, "curves": curves, "held_out_target": whole}
        print_json(document)
        return
    for found in pairs:
        _print_pair(found)
    for curve in curves:
        _print_curve(curve)
    _print_errors("A whole target held out", whole, None)


def _print_pair(found: PairFit) -> None:
    drafter = " ".join(filter(None, [found.draft or found.drafter, found.options]))
    made = table(f"{found.target} with {drafter}: {found.n_trials} trials", _GAMMA_COLUMNS)
    for g in found.gammas:
        alpha = "none" if g.break_even_alpha is None else f"{g.break_even_alpha:.3f}"
        made.add_row(
            str(g.gamma),
            _text(g.speedup),
            _text(g.mgl),
            _text(g.break_even_mgl),
            alpha,
            f"{100 * g.draft_share:.0f} %",
            f"{100 * g.verify_share:.0f} %",
        )
    print_table(made)
    best = found.best
    sure = "" if best.share is None else f" ({best.low} to {best.high}, {100 * best.share:.0f} % of resamples)"
    click.echo(f"Best gamma: {best.gamma if best.gamma else 'off'}{sure}")
    _print_errors("Predicting held-out gammas", found.held_out_gamma, found.chosen)
    _print_errors("Predicting held-out prompts", found.held_out_prompt, None)
    _print_fits(found.fits)
    click.echo("")


_GAMMA_COLUMNS = ["gamma", "speedup", "MGL", "MGL to break even", "alpha to break even", "drafting", "verifying"]


def _print_curve(curve: CurveFit) -> None:
    click.echo(f"T(k) of {curve.target}, from {curve.source}")
    _print_errors("Predicting held-out k", curve.held_out, curve.chosen)
    if curve.doubt is not None:
        widths = ",".join(map(str, curve.time_next))
        click.echo(f"No curve is chosen: {curve.doubt}. Time more: mlsd calibrate {curve.target} --rows {widths}")
    _print_fits(curve.fits)
    if curve.bandwidth_gb_s is not None:
        peak = "" if curve.peak_fraction is None else f", {100 * curve.peak_fraction:.0f} % of the peak"
        click.echo(f"Effective bandwidth {curve.bandwidth_gb_s:.1f} GB/s{peak}")
    click.echo("")


def _print_errors(title: str, errors: tuple[HeldOut, ...] | list[HeldOut], chosen: str | None) -> None:
    for error in errors:
        mark = " <- chosen" if error.model == chosen else ""
        share = f"median error {100 * error.median_error:.1f} %, 95th percentile {100 * error.p95_error:.1f} %"
        click.echo(f"{title}: {error.model} {share}{mark}")


def _print_fits(fits: tuple[Fit, ...]) -> None:
    for found in fits:
        values = ", ".join(
            f"{name} {_text(estimate)} {found.units[name]}".rstrip() for name, estimate in found.estimates.items()
        )
        click.echo(f"  {found.model}: {values}; AICc {found.aicc:.1f}; {found.formula}")


def _text(estimate: Interval) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g}"
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"
