"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, times from the passes that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from mlsd.analysis.experts.coverage import CoverageTable
from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.calibration import median_interval
from mlsd.analysis.fits.fit import Fit, HeldOut, Model, fit, observations, select
from mlsd.analysis.fits.study_fits import expert_shape
from mlsd.measure.store.rows import CalibrationPoint
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval, grouped
from mlsd.units import format_percent, quoted

SATURATED = 0.95  # share of the experts that MoESD calls all of them
STUDY_FORM = "linear"  # name of the theory in which every pass reads everything
_LEAST_WIDTHS = 8  # different k below which a theory's parameters are not told apart

_K = 5  # a draft of 4, the least of the study, and the target's own token
_AGREES = 0.05  # relative; counts that differ by less are called equal
_ALL, _NOTHING = 0.9, 0.1  # of what a dense model saves


class PassShare(Record, frozen=True, kw_only=True):
    """A token of a pass over k tokens against a plain pass: 1 saves nothing, 1/k is what a dense model would need."""

    k: int
    experts: float  # distinct, of a layer, as counted
    text_bytes: float | None  # bytes(k) / (k bytes(1)) with the experts counted; None: the file's bytes are not known
    uniform_bytes: float | None  # the same with independent uniform routing (MoESD)
    correlated_bytes: float | None  # the same with one correlation
    of_weights: float | None  # bytes(k) / all weights
    time: Interval | None  # T(k) / (k T(1)); None: not timed

    @property
    def claimed(self) -> float:
        """What the study says: every pass reads everything."""
        return 1.0 / self.k

    @property
    def passes(self) -> float | None:
        """T(k) / T(1): the tokens that a round must commit to gain, drafting not counted."""
        return None if self.time is None else self.k * self.time.value


class Theory(Record, frozen=True, kw_only=True):
    """A form of T(k), fitted to timed passes of one mixture."""

    name: str
    says: str  # which experts a pass reads
    fitted: Fit
    held_out: HeldOut  # each k predicted without its own times
    curve: tuple[tuple[int, float], ...]  # (k, fitted ms)


class Mixture(Record, frozen=True, kw_only=True):
    """What was measured of one mixture of experts."""

    name: str
    coverage: CoverageTable
    shares: tuple[PassShare, ...]  # by k
    plain_of_weights: float | None  # bytes of a plain pass over all weights
    plain_bytes: int | None
    weight_bytes: int | None
    synthetic: bool  # random weights: bytes and times are real, the routing is a random router's
    depth: int | None  # context of the timed passes
    timed: tuple[tuple[int, Interval], ...]  # (k, T(k) in ms), of the same k
    theories: tuple[Theory, ...]  # best predictor first; empty where too few k were timed
    chosen: str | None  # the simplest theory that predicts as well as the best

    @property
    def saturation(self) -> int:
        """Tokens from which MoESD expects 95 % of the experts in use: ``ceil(log_(1-K/E)(1 - 0.95))``."""
        table = self.coverage
        if table.n_used >= table.n_experts:
            return 1
        return math.ceil(math.log(1 - SATURATED) / math.log(1 - table.n_used / table.n_experts))


def mixture(name: str, table: CoverageTable, facts: ModelFacts, points: Sequence[CalibrationPoint] = ()) -> Mixture:
    """Bytes and times of a token of each pass whose experts were counted; times at the smallest depth timed."""
    passes = [p for p in points if p.kind == "target_pass"]
    depth = min((p.depth for p in passes), default=None)
    passes = [p for p in passes if p.depth == depth]
    times = time_shares(passes)
    counted = {row.window: row for row in table.rows}
    shares = tuple(
        PassShare(
            k=k,
            experts=row.text,
            text_bytes=row.amortization,
            uniform_bytes=_bytes_a_token(row.uniform, k, facts),
            correlated_bytes=_bytes_a_token(row.correlated, k, facts),
            of_weights=row.against_all,
            time=times.get(k),
        )
        for k, row in counted.items()
    )
    own = [p for p in passes if p.rows in counted]
    forms, chosen = theories(own, {k: row.text for k, row in counted.items()}, facts)
    return Mixture(
        name=name,
        coverage=table,
        shares=shares,
        plain_of_weights=facts.active_bytes / facts.weight_bytes if facts.active_bytes and facts.weight_bytes else None,
        plain_bytes=facts.active_bytes,
        weight_bytes=facts.weight_bytes,
        synthetic=facts.synthetic,
        depth=depth,
        timed=tuple((k, median_interval([p.span_ns / 1e6 for p in own if p.rows == k])) for k in _widths(own)),
        theories=forms,
        chosen=chosen,
    )


def time_shares(passes: Sequence[CalibrationPoint]) -> dict[int, Interval]:
    """T(k) / (k T(1)) by k: the median over repeats of ratios within a repeat, where what slows the machine cancels."""
    plain = {p.repeat: p.span_ns for p in passes if p.rows == 1}
    paired = sorted(grouped((p for p in passes if p.repeat in plain), lambda p: p.rows).items())
    return {k: median_interval([p.span_ns / (k * plain[p.repeat]) for p in own]) for k, own in paired}


def theories(
    passes: Sequence[CalibrationPoint], distinct: dict[int, float], facts: ModelFacts
) -> tuple[tuple[Theory, ...], str | None]:
    """Forms of T(k), each judged by k that it was not fitted to, and the one to choose; none below eight different k.

    All are ``fixed + bytes(k) / BW + per_row k`` and differ in the experts that they let a pass read; where that is all
    of them the bytes are part of `fixed`. Of MoESD's time model this holds the bias and the loading of experts; its
    ramps for compute are the term ``per_row k``.
    """
    shape = expert_shape(facts)
    widths = _widths(passes)
    if shape is None or len(widths) < _LEAST_WIDTHS:
        return (), None
    rows = [p.rows for p in passes]
    data = observations(
        [p.span_ns / 1e6 for p in passes], [p.repeat for p in passes], rows=rows, distinct=[distinct[k] for k in rows]
    )
    forms: dict[str, tuple[Model, str]] = {
        STUDY_FORM: (fit_models.linear(), "all weights, in every pass (the study)"),
        "moe-uniform": (fit_models.moe(shape, correlated=False), "independent uniform routing (MoESD)"),
        "moe-correlated": (fit_models.moe(shape, correlated=True), "one correlation, fitted to the times"),
        "moe-measured": (fit_models.moe_measured(shape), "the experts counted"),
    }
    judged = select([model for model, _ in forms.values()], data, data.columns["rows"], never=(1.0,))
    grid = {"rows": np.array(widths, dtype=float), "distinct": np.array([distinct[k] for k in widths])}
    result = []
    for error in judged.candidates:
        model, says = forms[error.model]
        fitted = fit(model, data)
        curve = model.predict(fitted.values, grid)
        points = tuple((k, float(ms)) for k, ms in zip(widths, curve, strict=True))
        result.append(Theory(name=model.name, says=says, fitted=fitted, held_out=error, curve=points))
    return tuple(result), judged.chosen


def _widths(passes: Sequence[CalibrationPoint]) -> list[int]:
    return sorted({p.rows for p in passes})


def _bytes_a_token(distinct: float, k: int, facts: ModelFacts) -> float | None:
    shape = expert_shape(facts)
    if shape is None or not facts.active_bytes:
        return None
    return float(shape.pass_bytes(distinct)) / (k * facts.active_bytes)


# --- the answer in sentences --------------------------------------------------------------------------------------


def sentences(found: Mixture) -> tuple[str, ...]:
    """Bytes, time, the study's claim, MoESD, and which theory of T(k) holds; only what was measured."""
    many = [share for share in found.shares if share.k > 1]
    if not many:
        return (f"{found.name}: experts were counted for single tokens only, which cannot amortize.",)
    near = max((s for s in many if s.k <= _K), key=lambda s: (s.time is not None, s.k), default=many[0])
    made = (_bytes(found, near, many[-1]), _time(found, near, many), _claim(found, near), _routing(found, near))
    return tuple(text for text in (*made, _theory(found, near)) if text)


def _bytes(found: Mixture, near: PassShare, far: PassShare) -> str:
    if near.text_bytes is None or far.text_bytes is None:
        return (
            f"{found.name}: {near.k} tokens choose {near.experts:.1f} experts of a layer, where as many plain passes "
            f"read {near.k * found.coverage.n_used}; how many bytes they have is not known of this file."
        )
    saved = 1 - near.text_bytes
    of_dense = saved / (1 - near.claimed)
    verdict = "amortizes as on a dense model" if of_dense >= _ALL else "amortizes in part"
    verdict = "hardly amortizes" if of_dense <= _NOTHING else verdict
    more = f", over {far.k} tokens {_percent(1 - far.text_bytes)}" if far is not near else ""
    return (
        f"{found.name}, bytes at batch one: verification {verdict}. A pass over {near.k} tokens (gamma {near.k - 1}) "
        f"reads {_percent(saved)} less than {near.k} plain passes{more}; a dense model would save "
        f"{_percent(1 - near.claimed)}."
    )


def _time(found: Mixture, near: PassShare, many: Sequence[PassShare]) -> str:
    timed = [(s, s.time) for s in many if s.time is not None]
    if not timed:
        return f"Passes over several tokens were not timed: mlsd calibrate {quoted(found.name)}."
    ks = [s.k for s, _ in timed]
    cheaper = [s.k for s, time in timed if time.high is not None and time.high < 1]
    dearer = [s.k for s, time in timed if time.low is not None and time.low > 1]
    decided = [(s, time) for s, time in timed if s.k in cheaper] or timed
    best, shortest = min(decided, key=lambda row: row[1].value)
    parts = []
    if cheaper:
        where = "every k timed" if len(cheaper) == len(timed) else f"k = {_ks(cheaper, ks)}"
        parts.append(
            f"Measured time amortizes at {where}, most at k = {best.k}: {_times(shortest)} of the time a token"
        )
    if dearer:
        parts.append(f"{'a' if cheaper else 'A'} pass costs more than as many plain ones at k = {_ks(dearer, ks)}")
    if not parts:
        parts.append(f"No time is decided: the least, at k = {best.k}, is {_times(shortest)} of the time a token")
    text = "; ".join(parts) + "."
    if near.time is not None and near.passes is not None:
        text += (
            f" T({near.k}) is {near.passes:.2f} T(1): a round over {near.k} tokens gains only if it commits more than "
            f"{near.passes:.2f} of them, drafting not counted."
        )
    return text


def _claim(found: Mixture, near: PassShare) -> str:
    if found.plain_of_weights is None or near.of_weights is None or near.text_bytes is None:
        return ""
    start = (
        f"The study says (sections 2.3, 5.1, 5.2) that every pass loads all weights whatever is routed: a token "
        f"of {near.k} costs 1/{near.k} = {near.claimed:.2f}."
    )
    if found.plain_of_weights >= _ALL:
        return f"{start} That is nearly so here: a plain pass reads {_percent(found.plain_of_weights)} of the weights."
    cost = f"{near.text_bytes:.2f} in bytes"
    if near.time is not None:
        cost += f" and {near.time.value:.2f} in time"
    return (
        f"{start} Counted, a plain pass reads {_percent(found.plain_of_weights)} of the weights "
        f"({1 / found.plain_of_weights:.1f} times less than that), a pass over {near.k} tokens "
        f"{_percent(near.of_weights)}, and a token costs {cost}."
    )


def _routing(found: Mixture, near: PassShare) -> str:
    table = found.coverage
    r = table.correlation_interval
    row = next(row for row in table.rows if row.window == near.k)
    off = row.uniform / row.text - 1
    if table.uniform_error <= _AGREES:
        text = (
            f"Independent uniform routing (MoESD) is right here within {_percent(table.uniform_error)}: "
            f"{row.uniform:.1f} experts expected in {near.k} tokens, {row.text:.1f} counted."
        )
    else:
        word = "too many" if off > 0 else "too few"
        text = (
            f"Independent uniform routing (MoESD) expects {row.uniform:.1f} experts in {near.k} tokens, {row.text:.1f} "
            f"were counted ({_percent(abs(off))} {word}, up to {_percent(table.uniform_error)} at other k); one "
            f"correlation, r = {_times(r)}, misses by at most {_percent(table.correlated_error)}."
        )
    last = table.rows[-1]
    if last.window >= found.saturation > 1:
        text += (
            f" From {found.saturation} tokens on MoESD expects 95 % of the experts in use; in {last.window} tokens "
            f"{_percent(last.text / table.n_experts)} were."
        )
    if found.synthetic:
        text += (
            " The weights are random, so this is a random router's choice; a trained one chooses otherwise. In a model "
            "cut in depth, embedding and head are a larger share of the bytes, which flatters it (mlsd advise scales "
            "them)."
        )
    return text


def _theory(found: Mixture, near: PassShare) -> str:
    if not found.theories:
        return ""
    chosen = next(t for t in found.theories if t.name == found.chosen)
    study = next(t for t in found.theories if t.name == STUDY_FORM)
    others = [t.held_out.median_error for t in found.theories if t is not study]
    span = (
        _percent(min(others))
        if _percent(min(others)) == _percent(max(others))
        else (f"{100 * min(others):.0f} to {_percent(max(others))}")
    )
    if chosen is study:
        text = (
            f"The times alone do not decide between the forms of T(k): those that follow the experts miss k they were "
            f"not fitted to by {span} (median), a line, as if all weights were read, by "
            f"{_percent(study.held_out.median_error)}."
        )
    else:
        text = (
            f"The times agree with the counts: '{chosen.says}' misses k it was not fitted to by "
            f"{_percent(chosen.held_out.median_error)} (median), a line, as if all weights were read, by "
            f"{_percent(study.held_out.median_error)}."
        )
    return f"{text} {_what_decides(near)}".strip()


def _what_decides(near: PassShare) -> str:
    if near.text_bytes is None or near.time is None or near.time.low is None or near.time.high is None:
        return ""
    if near.time.low > near.text_bytes:
        return f"At k = {near.k} a token costs more time than bytes: arithmetic, not memory, decides here."
    if near.time.high < near.text_bytes:
        return f"At k = {near.k} a token costs less time than bytes: a fixed time of each pass is shared too."
    return f"At k = {near.k} time follows bytes as far as the measurement can tell."


_percent = partial(format_percent, digits=0)


def _times(estimate: Interval) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} (95 % {estimate.low:.2f} to {estimate.high:.2f})"


def _ks(widths: Sequence[int], timed: Sequence[int]) -> str:
    """Widths for people, runs of what was timed joined: ``2 to 9, 16``."""
    runs: list[list[int]] = []
    for k in widths:
        if runs and timed.index(k) == timed.index(runs[-1][-1]) + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
