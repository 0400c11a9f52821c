"""Tables of what was found: settings by workload, gammas, fits, claims."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.depths import deep_arms, depth_sentences
from mlsd.analysis.study.earlier import EarlierStudy
from mlsd.analysis.study.study import Study
from mlsd.columns import column
from mlsd.report.render.table import Cell, Table, interval, table, text
from mlsd.report.tables.columns import PLACE, RESULT, of_arms, of_their_arms
from mlsd.stats import Interval
from mlsd.trials.on_or_off import Answer
from mlsd.trials.results import ArmResult
from mlsd.units import quoted


def best_table(found: Sequence[Answer]) -> Table:
    """What to use for each target and text."""
    return table(
        "Which setting for which text",
        found,
        column("target", of="subject"),
        column("text"),
        column("output tokens", "n", "", "n_predict"),
        column("use", of=lambda a: text(a.setting, "good" if a.use == "on" else "")),
        column("best tried", of="best.setting"),
        column("why", of=lambda a: a.reason or None),
        *of_their_arms("best", "speedup effect"),
        column("of settings", "n", "compared with plain decoding", lambda a: len(a.arms)),
        column("more blocks", "n", "that would decide it, if it is as it looks", "best.more_blocks"),
        *of_their_arms("best", "n_blocks"),
        id="best",
    )


def arms_table(arms: Sequence[ArmResult], title: str) -> Table:
    """Every arm of a database, what is decided of it first."""
    places = {"target": {one.case.target.id for one in arms}, "suite": {one.question.suite for one in arms}}
    differ = " ".join(name for name, held in places.items() if len(held) > 1)
    names = "setting text times ci decision tok_s plain_tok_s acceptance_rate mgl n_blocks valid_trials"
    return table(title, arms, *of_arms(f"{differ} {names}"))


def earlier_table(found: EarlierStudy) -> Table:
    """The arms of two studies that were measured apart."""
    return table(
        f"{found.source} against {found.earlier}",
        found.arms,
        column("suite", detail=True),
        column("target"),
        column("setting"),
        column("text"),
        column("speedup", "[2]x"),
        column("before", "[2]x", "the earlier study's", "speedup_before"),
        column("new/old", "2", "of the speedup", "speedup_ratio"),
        column("tok/s", "1", "", "tok_s", detail=True),
        column("tok/s before", "1", "", "tok_s_before", detail=True),
        column("tok/s new/old", "2", "", "tok_s_ratio", detail=True),
        column("plain tok/s", "1", "", "plain_tok_s"),
        column("plain before", "1", "", "plain_tok_s_before"),
        column("plain new/old", "2", "", "plain_ratio"),
        column("not the same", of=lambda a: "; ".join(a.other) or None),
    )


def speedup_table(found: Iterable[ArmResult]) -> Table:
    """Every setting on every text."""
    drafting = [one for one in found if not one.is_plain]
    return table(
        "Every setting on every text", drafting, *of_arms(f"{PLACE} {RESULT}"), id="speedups", interactive=True
    )


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    return table(
        "Speculation over depth",
        deep_arms(study.results),
        *of_their_arms("found", "target setting"),
        column("prompt"),
        column("depth", "n", "tokens of other text before the prompt"),
        column("T(1) ms", "2", "mean pass of plain decoding", "plain_ms"),
        column("T(k)/T(1)", "2", "mean pass of the arm's verifications over it", "of_plain"),
        *of_their_arms("found", f"{RESULT} verdict"),
        id="depth",
        note=" ".join(depth_sentences(study.results)),
    )


_ERROR = "root mean square of log errors of predictions from gamma and other rows alone, for rows not seen"


class _Fitted(NamedTuple):
    of: str
    fit: Fit
    chosen: str | None
    held_out: Sequence[HeldOut]  # gamma or k, best predictor first
    prompts: Sequence[HeldOut] = ()
    measured: Mapping[str, float] = {}

    def error(self, of: Sequence[HeldOut]) -> float | None:
        return next((one.error for one in of if one.model == self.fit.model), None)

    @property
    def choice(self) -> Cell:
        best = self.held_out[0].model if self.held_out else None
        if self.fit.model == self.chosen:
            return text("predicts best" if best == self.chosen else "as good within noise, simpler: used", "good")
        return text("predicts best" if self.fit.model == best else None)

    @property
    def known(self) -> str | None:
        known = {name: value for name, value in self.measured.items() if name in self.fit.estimates}
        return "; ".join(f"{n} {v:.3f}{self._beside(n, v)}" for n, v in known.items()) or None

    def _beside(self, name: str, value: float) -> str:
        """A word on an estimate that excludes what was measured: the model lacks something that it takes over."""
        return " (outside the estimate's interval)" if self.fit.estimates[name].decided(value) else ""


def model_table(pairs: Iterable[PairFit], curves: Iterable[CurveFit]) -> Table:
    """Cost models and curves with their estimates, what was measured of them, and errors of prediction."""
    rows, notes = list[_Fitted](), list[str]()
    for pair in pairs:
        errors = pair.held_out_gamma, pair.held_out_prompt
        rows += [_Fitted(pair.pair, fit, pair.chosen, *errors, pair.measured) for fit in pair.fits]
        notes += [f"{pair.pair}: {pair.doubt}."] if pair.doubt else []
    for curve in curves:
        about = f"T(k) of {curve.target}"
        rows += [_Fitted(about, fit, curve.chosen, curve.held_out) for fit in curve.fits]
        if curve.doubt is not None:
            widths = ",".join(map(str, curve.time_next))
            notes.append(f"{about}: {curve.doubt}; mlsd calibrate {quoted(curve.target)} --rows {widths}.")
    return table("Fitted models", rows, *_FITS, id="fits", note=" ".join(notes))


def _estimates(fit: Fit) -> str:
    def words(name: str, found: Interval) -> str:
        if name in fit.not_identified:
            return f"{name} not identified"
        if name in fit.at_bound:
            most = "" if found.high is None else f", at most {found.high:.3g} {fit.units[name]}".rstrip()
            return f"{name} at its bound, {found.value:g}{most if found.high != found.value else ''}"
        return f"{name} {interval(found, 3).text} {fit.units[name]}".strip()

    return "; ".join(words(name, found) for name, found in fit.estimates.items())


_ESTIMATED = "least squares on log ratios; interval from a jackknife over blocks; not identified: others fit as well"
_FITS = (  # of a `_Fitted`
    column("of"),
    column("model", of=lambda row: text(row.fit.model, note=row.fit.formula)),
    column("estimates", "", _ESTIMATED, lambda row: _estimates(row.fit)),
    column("measured", of="known", detail=True),
    column("held-out error", "1%", f"of gamma or k; {_ERROR}", lambda row: row.error(row.held_out)),
    column("held-out prompt", "1%", _ERROR, lambda row: row.error(row.prompts), detail=True),
    column("choice", "", "of models that predict as well as the best the simplest is used"),
)
