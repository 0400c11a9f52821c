"""Tables of what was found: settings by workload, gammas, fits, claims."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.depths import deep_arms, depth_sentences
from mlsd.analysis.study.earlier import EarlierStudy
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
from mlsd.trials.on_or_off import Answer
from mlsd.trials.results import ArmResult
from mlsd.units import quoted


def best_table(found: Sequence[Answer]) -> Table:
    """What to use for each target and text."""

    def more_blocks(a: Answer) -> int | None:
        return a.best.standing.more_blocks if a.best and a.best.standing else None

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
        numbers("more blocks", more_blocks, "that would decide it, if it is as it looks"),
        *of_their_arms(attrgetter("best"), "blocks"),
        id="best",
    )


def arms_table(arms: Sequence[ArmResult], title: str) -> Table:
    """Every arm of a database, what is decided of it first."""
    places = {"target": {one.case.target.id for one in arms}, "suite": {one.question.suite for one in arms}}
    what = [name for name, found in places.items() if len(found) > 1]
    head = ("setting", "text", "speedup", "95 % CI", "decision", "tok/s", "plain tok/s", "acceptance", "MGL")
    return table(title, arms, *of_arms(*what, *head, "blocks", "valid trials"))


def earlier_table(found: EarlierStudy) -> Table:
    """The arms of two studies that were measured apart."""
    return table(
        f"{found.source} against {found.earlier}",
        found.arms,
        words("suite", lambda a: a.suite, detail=True),
        words("target", lambda a: a.target),
        words("setting", lambda a: a.setting),
        words("text", lambda a: a.text),
        numbers("speedup", lambda a: interval(a.speedup, 2, "x")),
        numbers("before", lambda a: interval(a.speedup_before, 2, "x"), "the earlier study's"),
        numbers("new/old", lambda a: number(a.speedup_ratio), "of the speedup"),
        numbers("tok/s", lambda a: number(a.tok_s, 1), detail=True),
        numbers("tok/s before", lambda a: number(a.tok_s_before, 1), detail=True),
        numbers("tok/s new/old", lambda a: number(a.tok_s_ratio), detail=True),
        numbers("plain tok/s", lambda a: number(a.plain_tok_s, 1)),
        numbers("plain before", lambda a: number(a.plain_tok_s_before, 1)),
        numbers("plain new/old", lambda a: number(a.plain_ratio)),
        words("not the same", lambda a: "; ".join(a.other) or None),
    )


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
        numbers("T(k)/T(1)", lambda row: number(row.of_plain), "mean pass of the arm's verifications over it"),
        *of_their_arms(attrgetter("found"), *RESULT, "verdict"),
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

    def error(self, of: Sequence[HeldOut]) -> Cell:
        return percent(next((one.error for one in of if one.model == self.fit.model), None))

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
    estimated = "least squares on log ratios; interval from a jackknife over blocks; not identified: others fit as well"
    return table(
        "Fitted models",
        rows,
        words("of", lambda row: row.of),
        words("model", lambda row: Cell(text=row.fit.model, sort=row.fit.model, note=row.fit.formula)),
        words("estimates", lambda row: _estimates(row.fit), estimated),
        words("measured", lambda row: row.known, detail=True),
        numbers("held-out error", lambda row: row.error(row.held_out), f"of gamma or k; {_ERROR}"),
        numbers("held-out prompt", lambda row: row.error(row.prompts), _ERROR, detail=True),
        words("choice", lambda row: row.choice, "of models that predict as well as the best the simplest is used"),
        id="fits",
        note=" ".join(notes),
    )


def _estimates(fit: Fit) -> str:
    def words(name: str, found: Interval) -> str:
        if name in fit.not_identified:
            return f"{name} not identified"
        if name in fit.at_bound:
            most = "" if found.high is None else f", at most {found.high:.3g} {fit.units[name]}".rstrip()
            return f"{name} at its bound, {found.value:g}{most if found.high != found.value else ''}"
        return f"{name} {interval(found, 3).text} {fit.units[name]}".strip()

    return "; ".join(words(name, found) for name, found in fit.estimates.items())
