"""Tables of what was found: settings by workload, gammas, fits, claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.depths import deep_arms, depth_sentences
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import (
    Cell,
    Table,
    interval,
    number,
    numbers,
    percent,
    table,
    text,
    words,
)
from mlsd.report.tables.columns import PLACE, RESULT, of_arms, of_their_arms
from mlsd.stats import Interval
from mlsd.trials.answers import Answer
from mlsd.trials.results import ArmResult
from mlsd.units import quoted


def best_table(found: Sequence[Answer]) -> Table:
    """What to use for each target and text."""
    return table(
        "Which setting for which text",
        found,
        words("target", lambda a: a.subject),
        words("text", lambda a: a.text),
        numbers("output tokens", lambda a: a.n_predict),
        words("use", lambda a: text(a.setting, "good" if a.use == "on" else "")),
        words("best tried", lambda a: a.best and a.best.setting),
        words("why", lambda a: a.reason or None),
        *of_their_arms(attrgetter("best"), "speedup [95 % CI]", "effect"),
        numbers("of settings", lambda a: len(a.arms), "compared with plain decoding"),
        numbers(
            "more blocks",
            lambda a: a.best.standing.more_blocks if a.best and a.best.standing else None,
            "that would decide it, if it is as it looks",
        ),
        *of_their_arms(attrgetter("best"), "blocks"),
        id="best",
    )


def arms_table(arms: Sequence[ArmResult], title: str) -> Table:
    """Every arm of a database, what is decided of it first."""
    what = [name for name in ("target", "suite") if len({_PLACES[name](one) for one in arms}) > 1]
    head = ("setting", "text", "speedup", "95 % CI", "decision", "tok/s", "plain tok/s", "acceptance", "MGL")
    return table(title, arms, *of_arms(*what, *head, "blocks", "valid trials"))


_PLACES: dict[str, Callable[[ArmResult], str]] = {
    "target": lambda arm: arm.case.target.id,
    "suite": lambda arm: arm.question.suite,
}


def speedup_table(found: Iterable[ArmResult]) -> Table:
    """Every setting on every text."""
    return table(
        "Every setting on every text",
        [one for one in found if not one.is_plain],
        *of_arms(*PLACE, *RESULT),
        id="speedups",
        interactive=True,
    )


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    return table(
        "Speculation over depth",
        deep_arms(study.results),
        *of_their_arms(attrgetter("found"), *PLACE[:2]),
        words("prompt", lambda row: row.prompt),
        numbers("depth", lambda row: row.depth, "tokens of other text before the prompt"),
        numbers("T(1) ms", lambda row: number(row.plain_ms), "mean pass of plain decoding"),
        numbers(
            "T(k)/T(1)",
            lambda row: number(row.verify_ms / row.plain_ms if row.plain_ms else None),
            "mean pass of the arm's verifications over it",
        ),
        *of_their_arms(attrgetter("found"), *RESULT, "verdict"),
        id="depth",
        note=" ".join(depth_sentences(study.results)),
    )


_ERROR = "root mean square of log errors of predictions for rows that the fit did not see"


class _Fitted(NamedTuple):
    of: str
    fit: Fit
    error: HeldOut | None  # held-out gamma or k
    prompt: HeldOut | None
    measured: Mapping[str, float]
    best: str | None  # predicts best
    chosen: str | None


def model_table(pairs: Iterable[PairFit], curves: Iterable[CurveFit]) -> Table:
    """Cost models and curves with their estimates, what was measured of them, and errors of prediction."""
    rows, doubts = list[_Fitted](), list[str]()
    for found in pairs:
        errors, prompts = ({e.model: e for e in own} for own in (found.held_out_gamma, found.held_out_prompt))
        best = found.held_out_gamma[0].model if found.held_out_gamma else None
        doubts += [f"{found.pair}: {found.doubt}."] if found.doubt else []
        for fit in found.fits:
            own = {name: value for name, value in found.measured.items() if name in fit.estimates}
            error, prompt = errors.get(fit.model), prompts.get(fit.model)
            rows.append(_Fitted(found.pair, fit, error, prompt, own, best, found.chosen))
    for curve in curves:
        errors = {e.model: e for e in curve.held_out}
        best = curve.held_out[0].model if curve.held_out else None
        if curve.doubt is not None:
            widths = ",".join(map(str, curve.time_next))
            doubts.append(
                f"T(k) of {curve.target}: {curve.doubt}; mlsd calibrate {quoted(curve.target)} --rows {widths}."
            )
        about = f"T(k) of {curve.target}"
        rows += [_Fitted(about, fit, errors.get(fit.model), None, {}, best, curve.chosen) for fit in curve.fits]
    return table(
        "Fitted models",
        rows,
        words("of", lambda row: row.of),
        words("model", lambda row: Cell(text=row.fit.model, sort=row.fit.model, note=row.fit.formula)),
        words(
            "estimates",
            lambda row: _estimates(row.fit),
            "least squares on log ratios; interval from a jackknife over blocks; not identified: others fit as well",
        ),
        words("measured", lambda row: "; ".join(f"{n} {v:.3f}" for n, v in row.measured.items()) or None, detail=True),
        numbers(
            "held-out error", lambda row: percent(row.error.error if row.error else None), f"of gamma or k; {_ERROR}"
        ),
        numbers("held-out prompt", lambda row: percent(row.prompt.error if row.prompt else None), _ERROR, detail=True),
        words("choice", _choice, "of models that predict as well as the best the simplest is used"),
        id="fits",
        note=" ".join(doubts),
    )


def _choice(row: _Fitted) -> Cell:
    if row.fit.model == row.chosen:
        return text("predicts best" if row.best == row.chosen else "as good within noise, simpler: used", "good")
    return text("predicts best" if row.fit.model == row.best else None)


def _estimates(fit: Fit) -> str:
    def words(name: str, found: Interval) -> str:
        if name in fit.not_identified:
            return f"{name} not identified"
        if name in fit.at_bound:
            most = "" if found.high is None else f", at most {found.high:.3g} {fit.units[name]}".rstrip()
            return f"{name} at its bound, {found.value:g}{most if found.high != found.value else ''}"
        return f"{name} {interval(found, 3).text} {fit.units[name]}".strip()

    return "; ".join(words(name, found) for name, found in fit.estimates.items())
