"""Tables of results: settings by workload, gammas, fits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.depths import deep_arms, depth_sentences
from mlsd.analysis.study.earlier import EarlierStudy
from mlsd.analysis.study.study import Study
from mlsd.columns import column, columns
from mlsd.report.render.table import Table, interval, table
from mlsd.report.tables.columns import RESULT, SHOWN_OF_QUESTION, of_arms, of_their_arms
from mlsd.stats import Interval
from mlsd.trials.results import ArmResult
from mlsd.units import quoted


def arms_table(arms: Sequence[ArmResult], title: str) -> Table:
    """Every arm of a database, what is decided of it first."""
    values = {"target": {arm.case.target.id for arm in arms}, "suite": {arm.question.suite for arm in arms}}
    differ = " ".join(name for name, several in values.items() if len(several) > 1)
    names = "setting text times ci decision tok_s plain_tok_s acceptance_rate mgl n_blocks valid_trials"
    return table(title, arms, *of_arms(f"{differ} {names}"))


def earlier_table(study: EarlierStudy) -> Table:
    """The arms of two studies that were measured apart."""
    return table(
        f"{study.source} against {study.earlier}",
        study.arms,
        *columns("suite*; target; setting; text; speedup:[2]x; before:[2]x=speedup_before; new/old:2=speedup_ratio"),
        *columns("tok/s:1=tok_s*; tok/s before:1=tok_s_before*; tok/s new/old:2=tok_s_ratio*"),
        *columns("plain tok/s:1=plain_tok_s; plain before:1=plain_tok_s_before; plain new/old:2=plain_ratio"),
        *columns("not the same=other"),
    )


def speedup_table(arms: Iterable[ArmResult]) -> Table:
    """Every setting on every text."""
    drafting, columns = [arm for arm in arms if not arm.is_plain], of_arms(f"{SHOWN_OF_QUESTION} {RESULT}")
    return table("Every setting on every text", drafting, *columns, id="speedups")


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    return table(
        "Speculation over depth",
        deep_arms(study.results),
        *of_their_arms("arm", "target setting"),
        column("prompt"),
        column("depth", "n", "tokens of other text before the prompt"),
        column("T(1) ms", "2", "mean pass of plain decoding", "plain_ms"),
        column("T(k)/T(1)", "2", "mean pass of the arm's verifications over it", "of_plain"),
        *of_their_arms("arm", f"{RESULT} verdict"),
        id="depth",
        note=" ".join(depth_sentences(study.results)),
    )


def model_table(pairs: Iterable[PairFit], curves: Iterable[CurveFit]) -> Table:
    """Cost models and curves with their estimates, what was measured of them, and errors of prediction."""
    rows, notes = list[dict[str, Any]](), list[str]()
    for pair in pairs:
        errors = pair.held_out_gamma, pair.held_out_prompt
        rows += [_fit_row(pair.pair, fit, pair.chosen, *errors, pair.measured) for fit in pair.fits]
        notes += [f"{pair.pair}: {pair.doubt}."] if pair.doubt else []
    for curve in curves:
        about = f"T(k) of {curve.target}"
        rows += [_fit_row(about, fit, curve.chosen, curve.held_out) for fit in curve.fits]
        if curve.doubt is not None:
            widths = ",".join(map(str, curve.time_next))
            notes.append(f"{about}: {curve.doubt}; mlsd calibrate {quoted(curve.target)} --rows {widths}.")
    unseen = "root mean square of log errors of predictions from gamma and other rows alone, for rows not seen"
    return table(
        "Fitted models",
        rows,
        column("of"),
        column("model"),
        column("estimates", "", "least squares on log ratios; interval from a jackknife over blocks; not identified: "
               "others fit as well"),
        column("measured", detail=True),
        column("held-out error", "1%", f"of gamma or k; {unseen}"),
        column("held-out prompt", "1%", unseen, detail=True),
        column("choice", "", "of models that predict as well as the best the simplest is used"),
        id="fits",
        note=" ".join(notes),
    )  # fmt: skip


def _fit_row(
    of: str,
    fit: Fit,
    chosen: str | None,
    held_out: Sequence[HeldOut],
    prompts: Sequence[HeldOut] = (),
    measured: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """`held_out` are rows of a gamma or k, the best predictor first."""

    def error(rows: Sequence[HeldOut]) -> float | None:
        return next((row.error for row in rows if row.model == fit.model), None)

    def beside(name: str, value: float) -> str:
        """A word on an estimate that excludes what was measured: the model lacks something that it takes over."""
        outside = " (outside the estimate's interval)" if fit.estimates[name].decided(value) else ""
        return f"{name} {value:.3f}{outside}"

    best = held_out[0].model if held_out else None
    used = "as good within noise, simpler: used" if fit.model == chosen else None
    return {
        "of": of,
        "model": fit.model,
        "estimates": "; ".join(_estimate(fit, name, value) for name, value in fit.estimates.items()),
        "measured": "; ".join(beside(n, v) for n, v in (measured or {}).items() if n in fit.estimates) or None,
        "held-out error": error(held_out),
        "held-out prompt": error(prompts),
        "choice": "predicts best" if fit.model == best else used,
    }


def _estimate(fit: Fit, name: str, value: Interval) -> str:
    if name in fit.not_identified:
        return f"{name} not identified"
    if name in fit.at_bound:
        most = "" if value.high is None else f", at most {value.high:.3g} {fit.units[name]}".rstrip()
        return f"{name} at its bound, {value.value:g}{most if value.high != value.value else ''}"
    return f"{name} {interval(value, 3).text} {fit.units[name]}".strip()
