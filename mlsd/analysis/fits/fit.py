"""Fit a model to measured times or speedups, with intervals, and ask which model predicts what it has not seen.

Owns the fitting engine; the models are in `fit_models`. Errors are relative: residuals are differences of logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import LEAST_GROUPS, Interval, jackknife

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

_TOLERANCE = 1e-10  # relative, of parameters and sum of squares: where it stops moves no printed digit
_NO_CHANGE = 1e-8  # of the logarithm of a prediction
_NO_SHARE = 1e-4  # of a prediction: no machine times passes so finely
_FLOOR = 1e-12  # keeps the logarithm of a prediction defined while the solver explores


@dataclass(frozen=True)
class Parameter:
    """A free parameter with its physical bounds; no priors."""

    name: str
    unit: str
    low: float = 0.0
    high: float = np.inf


@dataclass(frozen=True)
class Model:
    """A formula to fit: `predict` gives positive values from parameters and columns, `guess` a start from data."""

    name: str
    formula: str
    parameters: tuple[Parameter, ...]
    predict: Callable[[Mapping[str, float], Columns], Floats]
    guess: Callable[[Columns, Floats], Mapping[str, float]]


@dataclass(frozen=True)
class Observations:
    """What was measured: one row an observation, positive values, the block each row was measured in."""

    observed: Floats
    blocks: NDArray[np.generic]
    columns: Columns = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.observed)

    def where(self, mask: NDArray[np.bool_]) -> Observations:
        columns = {name: values[mask] for name, values in self.columns.items()}
        return Observations(self.observed[mask], self.blocks[mask], columns)


def observations(observed: ArrayLike, blocks: ArrayLike, **columns: ArrayLike) -> Observations:
    """Measured rows, as arrays. Raises AnalysisError where there are none, or one is not positive."""
    values = np.asarray(observed, dtype=np.float64)
    if not len(values) or not np.all(np.isfinite(values) & (values > 0)):
        raise AnalysisError("There is nothing to fit: no time or speedup was measured, or one is not positive.")
    arrays = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    return Observations(values, np.asarray(blocks), arrays)


class Fit(Record, frozen=True, kw_only=True):
    """A fitted model."""

    model: str
    formula: str
    estimates: dict[str, Interval]  # by parameter name; bounds are None below three blocks and where not identified
    not_identified: tuple[str, ...]  # these data do not tell them: predictions hold, their values mean nothing
    at_bound: tuple[str, ...]  # as far as physics lets them go: better without bounds
    units: dict[str, str]
    relative_error: float  # root mean square of the log residuals
    n_rows: int
    n_blocks: int

    @property
    def values(self) -> dict[str, float]:
        return {name: estimate.value for name, estimate in self.estimates.items()}


def fit(model: Model, data: Observations) -> Fit:
    """Fit by least squares on relative errors; intervals from a jackknife over blocks, which share heat and load.

    Raises AnalysisError when there are no more rows than parameters.
    """
    values, jacobian = solve(model, data)
    at_bound = _at_bound(model, values, data)
    values |= at_bound
    residuals = _residuals(model, values, data)
    blocks = np.unique(data.blocks)
    without = _without_each(blocks, data.blocks, np.array(list(values.values())), jacobian, residuals)
    flat = _not_told(model, values, jacobian, residuals) | _endless(model, values, data)
    estimates = {
        p.name: Interval(value=values[p.name], n=len(blocks))
        if p.name in flat
        else jackknife(values[p.name], list(without[:, i]), p.low, p.high)
        for i, p in enumerate(model.parameters)
    }
    return Fit(
        model=model.name,
        formula=model.formula,
        estimates=estimates,
        not_identified=tuple(sorted(flat)),
        at_bound=tuple(at_bound),
        units={p.name: p.unit for p in model.parameters},
        relative_error=float(np.sqrt(np.mean(residuals**2))),
        n_rows=len(data),
        n_blocks=len(blocks),
    )


def _without_each(
    groups: NDArray[np.generic], blocks: NDArray[np.generic], estimate: Floats, jacobian: Floats, residuals: Floats
) -> Floats:
    """Estimates without each block, one Gauss-Newton step away: exact where linear. Shape (blocks, parameters)."""
    scale = np.linalg.norm(jacobian, axis=0) + 1e-300
    enough = len(groups) >= LEAST_GROUPS
    rows = [(blocks != group) if enough else np.ones(len(blocks), bool) for group in groups]
    steps = [np.linalg.lstsq(jacobian[row] / scale, residuals[row], rcond=1e-9)[0] / scale for row in rows]
    return np.asarray(estimate - np.array(steps), dtype=np.float64)


def solve(model: Model, data: Observations) -> tuple[dict[str, float], Floats]:
    """Least-squares estimates on relative errors within the physical bounds.

    With them the derivatives of the residuals by them, of shape (rows, parameters).
    """
    if len(data) <= len(model.parameters):
        raise AnalysisError(f"{len(data)} rows cannot fit the {len(model.parameters)} parameters of {model.name}.")
    from scipy.optimize import least_squares  # half a second, which a study that fits nothing need not wait

    first = model.guess(data.columns, data.observed)
    names = [p.name for p in model.parameters]
    start = [min(max(float(first[p.name]), p.low), p.high) for p in model.parameters]

    def residuals(candidate: Floats) -> Floats:
        return _residuals(model, dict(zip(names, candidate, strict=True)), data)

    # A parameter that the data do not hold (a bandwidth where nothing is memory-bound) would drift without end.
    enough = 25 * (len(names) + 1)
    bounds = ([p.low for p in model.parameters], [p.high for p in model.parameters])
    solution = least_squares(
        residuals, start, bounds=bounds, x_scale="jac", ftol=_TOLERANCE, xtol=_TOLERANCE, gtol=None, max_nfev=enough
    )
    return dict(zip(names, map(float, solution.x), strict=True)), np.asarray(solution.jac, dtype=np.float64)


def _at_bound(model: Model, values: Mapping[str, float], data: Observations) -> dict[str, float]:
    """Bounds of the parameters that lie on one, which the solver only comes near, as far as predictions tell."""
    return {
        p.name: bound
        for p in model.parameters
        for bound in (p.low, p.high)
        if np.isfinite(bound) and _change(model, values, {p.name: bound}, data) < _NO_CHANGE
    }


def _endless(model: Model, values: Mapping[str, float], data: Observations) -> set[str]:
    """Parameters without an upper bound that may grow a thousandfold: a bandwidth where no time is spent on bytes."""
    grown = {p.name: 1e3 * values[p.name] for p in model.parameters if p.high == np.inf and values[p.name]}
    return {name for name, value in grown.items() if _change(model, values, {name: value}, data) < _NO_SHARE}


def _change(model: Model, values: Mapping[str, float], others: Mapping[str, float], data: Observations) -> float:
    """The largest change of the logarithm of a prediction where other values stand in place of these."""
    change = _residuals(model, {**values, **others}, data) - _residuals(model, values, data)
    return float(np.max(np.abs(change)))


_MUCH = 0.25  # change of predictions, on their logarithm


def _not_told(model: Model, values: Mapping[str, float], jacobian: Floats, residuals: Floats) -> set[str]:
    """Parameters that the data do not tell: their profile likelihood stays flat where each alone would change much.

    A parameter that moves by d with the others refitted adds ``d^2 / ((J'J)^-1)_ii`` to the sum of squares, linearly;
    flat is below ``SSE F_0.95(1, n - p) / (n - p)`` (Bates and Watts, "Nonlinear Regression Analysis", 1988, 1.3). It
    is moved to where it alone changes predictions by a quarter, else to its bound. Not told: flat at a quarter's
    change, or at both bounds (Raue et al., Bioinformatics 25, 2009: "practically non-identifiable").
    """
    from scipy.special import fdtri  # scipy.stats takes a second to import

    (n, p), lengths = jacobian.shape, np.linalg.norm(jacobian, axis=0)
    limit = float(np.sum(residuals**2)) * float(fdtri(1, n - p, 0.95)) / (n - p)
    names = set()
    for i, parameter in enumerate(model.parameters):
        others = np.delete(jacobian, i, axis=1) / np.maximum(np.delete(lengths, i), 1e-300)
        alone = jacobian[:, i] - others @ np.linalg.lstsq(others, jacobian[:, i], rcond=1e-9)[0]
        far = _MUCH * np.sqrt(n) / max(lengths[i], 1e-300)
        rooms = [values[parameter.name] - parameter.low, parameter.high - values[parameter.name]]
        flat = [float(np.sum((alone * min(far, room)) ** 2)) < limit for room in rooms]
        if all(flat) or any(is_flat and room >= far for is_flat, room in zip(flat, rooms, strict=True)):
            names.add(parameter.name)
    return names


def _residuals(model: Model, values: Mapping[str, float], data: Observations) -> Floats:
    predicted = np.maximum(model.predict(values, data.columns), _FLOOR)
    return np.asarray(np.log(predicted) - np.log(data.observed), dtype=np.float64)


# --- prediction of what was held out -----------------------------------------------------------------------------


Expected = Callable[[Observations, Observations], Columns]  # of rows that were seen, and of rows that were not


class HeldOut(Record, frozen=True, kw_only=True):
    """Errors of predictions for rows that the fit did not see. Errors are |predicted / observed - 1|."""

    model: str
    n_parameters: int
    error: float  # root mean square of the log errors, blocks weighing the same: by it candidates are ranked
    median_error: float
    n_rows: int
    predicted: tuple[float, ...]  # in the order of the held-out rows
    observed: tuple[float, ...]
    block_errors: tuple[float, ...]  # mean squared log error of each block
    label_errors: tuple[float, ...]  # and of each held-out label


@dataclass(frozen=True)
class Folds:
    """Rows that are held out together, by label, and what a model is given of them."""

    data: Observations
    label: NDArray[np.generic]
    judged: NDArray[np.bool_]  # rows that are held out at all
    each: tuple[tuple[NDArray[np.bool_], Observations, Columns], ...]  # rows held out; seen; columns of the others


def folds(
    data: Observations,
    labels: ArrayLike,
    *,
    never: Sequence[float] = (),
    n_folds: int = 5,
    expected: Expected | None = None,
) -> Folds:
    """The folds of these rows.

    `labels` (gamma, rows, prompt or model number) decide the folds: rows with one label are held out together, labels
    are dealt to `n_folds` folds in turn. Labels in `never` stay in every fit and are not judged (the AR arm, k = 1).
    `expected` gives the columns of rows that were held out by what the others say: a model that was given what was
    measured in them would be asked for what it was told.
    """
    label = np.asarray(labels)
    judged = ~np.isin(label, np.asarray(never, dtype=label.dtype))
    names = np.unique(label[judged])
    if len(names) < 2:
        raise AnalysisError("Holding out needs at least two different labels.")
    fold = np.searchsorted(names, label) % min(n_folds, len(names))
    each = []
    for i in range(min(n_folds, len(names))):
        out = judged & (fold == i)
        seen, unseen = data.where(~out), data.where(out)
        each.append((out, seen, unseen.columns if expected is None else expected(seen, unseen)))
    return Folds(data, label, judged, tuple(each))


def held_out(model: Model, rows: Folds) -> HeldOut:
    """Predict each row from a fit without the rows of its fold."""
    data, judged = rows.data, rows.judged
    predicted = np.full(len(data), np.nan)
    for out, seen, columns in rows.each:
        values, _ = solve(model, seen)
        predicted[out] = model.predict(values, columns)
    ratio = np.maximum(predicted[judged], _FLOOR) / data.observed[judged]
    squares = np.log(ratio) ** 2
    return HeldOut(
        model=model.name,
        n_parameters=len(model.parameters),
        error=float(np.sqrt(np.mean(_group_means(squares, data.blocks[judged])))),
        median_error=float(np.median(np.abs(ratio - 1))),
        n_rows=int(judged.sum()),
        predicted=tuple(float(v) for v in predicted[judged]),
        observed=tuple(float(v) for v in data.observed[judged]),
        block_errors=_group_means(squares, data.blocks[judged]),
        label_errors=_group_means(squares, rows.label[judged]),
    )


def _group_means(values: Floats, groups: NDArray[np.generic]) -> tuple[float, ...]:
    index = np.unique(groups, return_inverse=True)[1].reshape(-1)
    return tuple(float(v) for v in np.bincount(index, values) / np.bincount(index))


class Selection(Record, frozen=True, kw_only=True):
    """Which model predicts: candidates with the best predictor first, and the simplest that predicts as well."""

    chosen: str
    candidates: tuple[HeldOut, ...]


def select(models: Sequence[Model], rows: Folds) -> Selection:
    """The simplest model whose held-out error is not worse than the best.

    Not worse: by at most 1.5 standard errors over labels or 2 over blocks, after the one-standard-error rule of Breiman
    et al., "Classification and Regression Trees" (1984). Differences are taken on the same blocks and labels, which
    removes what models share, the noise of the measurement. Labels count too, where there are five or more, as one
    fit predicts all blocks.
    """
    ranked = sorted((held_out(model, rows) for model in models), key=lambda e: e.error)
    best = ranked[0]
    as_good = []
    for candidate in ranked:
        by_block = np.subtract(candidate.block_errors, best.block_errors)
        by_label = np.subtract(candidate.label_errors, best.label_errors)
        allowed = 2.0 * _standard_error(by_block)
        if len(by_label) >= 5:
            allowed = max(allowed, 1.5 * _standard_error(by_label))
        if float(np.mean(by_block)) <= allowed:
            as_good.append(candidate)
    chosen = min(as_good, key=lambda e: (e.n_parameters, e.error))
    return Selection(chosen=chosen.model, candidates=tuple(ranked))


def _standard_error(values: Floats) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
