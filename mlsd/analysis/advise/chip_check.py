"""How far the bandwidth model can be trusted: figures of chips it was not fitted to, and passes timed here."""

from __future__ import annotations

import functools
import statistics

import msgspec
import numpy as np

from mlsd.analysis.advise.chip_model import chip_model, chip_passes, pass_ratio
from mlsd.analysis.advise.known_model import shape_facts
from mlsd.analysis.predict.arms import Known
from mlsd.analysis.predict.predict import costs_from_points
from mlsd.errors import AnalysisError
from mlsd.folders import asset_path
from mlsd.gguf_tools.shapes import FULL
from mlsd.records import Record

_MOST_ROWS = 33  # wider passes verify nothing


class _Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chip: str
    gb_s: float
    shape: str
    quant: str
    tok_s: float
    source: str


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    figures: list[_Figure]


class CheckedFigure(Record, frozen=True, kw_only=True):
    """One published figure, and what the model says."""

    chip: str
    model: str
    tok_s: float
    predicted_tok_s: float
    inside: bool  # the published figure lies in the predicted range
    source: str

    @property
    def error(self) -> float:
        """Predicted / published - 1."""
        return self.predicted_tok_s / self.tok_s - 1


class ChipCheck(Record, frozen=True, kw_only=True):
    """The model against what it does not know."""

    figures: tuple[CheckedFigure, ...]  # plain decoding on other chips
    median_error: float  # of these, |predicted / published - 1|
    worst_error: float
    n_inside: int
    n_ratios: int  # stored T(k) / T(1), k from 2 to 33, of calibrations in the databases at hand
    n_ratios_inside: int  # of these in the modelled range


@functools.cache
def published_figures() -> tuple[CheckedFigure, ...]:
    """Predict every published figure of a chip that the model was not fitted to."""
    figures = msgspec.toml.decode(asset_path("baselines.toml").read_bytes(), type=_File).figures
    found = []
    for figure in figures:
        facts = shape_facts(figure.shape, FULL[figure.shape], figure.quant)
        span = chip_passes(facts, figure.gb_s, (1,))[1]
        found.append(
            CheckedFigure(
                chip=figure.chip,
                model=f"{figure.shape} {figure.quant}",
                tok_s=figure.tok_s,
                predicted_tok_s=1e3 / span.middle,
                inside=span.low <= 1e3 / figure.tok_s <= span.high,
                source=figure.source,
            )
        )
    return tuple(found)


def check_chip(known: Known) -> ChipCheck:
    """Check plain decoding on published figures and T(k) / T(1) on the stored calibrations."""
    figures = published_figures()
    errors = [abs(figure.error) for figure in figures]
    inside = [low <= ratio <= high for ratio, low, high in _ratios(known)]
    return ChipCheck(
        figures=figures,
        median_error=statistics.median(errors),
        worst_error=max(errors),
        n_inside=sum(figure.inside for figure in figures),
        n_ratios=len(inside),
        n_ratios_inside=sum(inside),
    )


def _ratios(known: Known) -> list[tuple[float, float, float]]:
    """Timed T(k) / T(1) with the ends of the modelled range; models whose bytes are not known are left out."""
    found = []
    for (_, key), points in known.passes.items():
        facts = known.models.get(key)
        if facts is None:
            continue
        try:
            times = costs_from_points(points).verify_ms
            spans = {k: pass_ratio(facts, k, known.coverage.get(key, ())) for k in times if 1 < k <= _MOST_ROWS}
        except AnalysisError:
            continue
        found += [(times[k] / times[1], span.low, span.high) for k, span in spans.items()]
    return found


def sentence(check: ChipCheck) -> str:
    """What was checked, for people."""
    model = chip_model()
    text = (
        f"Modelled from bandwidth alone, not measured. Plain decoding: fitted to {model.n_figures} figures of "
        f"{model.source}, each left out predicted within {_percent(model.median_error)} (median; worst "
        f"{_percent(model.worst_error)}); of {len(check.figures)} public figures of other chips "
        f"{check.n_inside} lie in the range, the median error is {_percent(check.median_error)}, the worst "
        f"{_percent(check.worst_error)}."
    )
    if check.n_ratios:
        text += (
            f" Wider passes: {check.n_ratios_inside} of {check.n_ratios} stored T(k)/T(1) lie in the modelled range."
        )
    else:
        text += " Wider passes: no calibration is stored here to check them on."
    return text + " No public figure of speculation with exact rollback on that chip was found to check drafts on."


def _percent(value: float) -> str:
    return f"{100 * np.round(value, 2):.0f} %"
