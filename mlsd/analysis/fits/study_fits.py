"""All fits of a study: cost models of every target and drafter, and T(k) of every model that was calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.curves import find_steps
from mlsd.analysis.fits.fit import (
    Columns,
    Fit,
    HeldOut,
    Model,
    Observations,
    fit,
    folds,
    held_out,
    observations,
    select,
)
from mlsd.analysis.pairs import PairedTrials, units_of
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, Record
from mlsd.store.rows import CalibrationPoint
from mlsd.trials.acceptance_meanings import mgl_of, rate_of
from mlsd.trials.arms import arm_named
from mlsd.units import counted

if TYPE_CHECKING:
    import pandas as pd


class PairFit(Record, frozen=True, kw_only=True):
    """Cost models of one target with one drafter."""

    target: str
    drafter: str
    draft: str | None
    options: str  # of the drafter, as in `Arm.options`
    n_trials: int
    trials: tuple[int, ...]  # ids, baselines included
    fits: tuple[Fit, ...]
    measured: dict[str, float]  # what the trials say of parameters of these models, without any fit
    chosen: str | None  # the simplest model that predicts held-out gammas as well as the best; None below three gammas
    held_out_gamma: tuple[HeldOut, ...]  # best predictor first
    held_out_prompt: tuple[HeldOut, ...]  # empty below two prompts
    doubt: str | None  # why nothing is fitted, or nothing chosen

    @property
    def pair(self) -> str:
        return f"{self.target} + {arm_named(self.drafter, self.draft, self.options).name}"


class CurveFit(Record, frozen=True, kw_only=True):
    """T(k) of one target."""

    target: str
    fits: tuple[Fit, ...]
    chosen: str | None  # the simplest that predicts held-out k as well as the best; None where none has their shape
    doubt: str | None  # why no curve is chosen
    time_next: tuple[int, ...]  # the widths that would decide
    held_out: tuple[HeldOut, ...]
    bandwidth_gb_s: float | None  # of the chosen curve, where it has one and the times tell it
    peak_fraction: float | None  # of the memory's peak, where that is known


def fit_pairs(paired: PairedTrials) -> list[PairFit]:
    """Fit every target and drafter that was measured. Raises AnalysisError when nothing was."""
    groups = list(paired.pairs.groupby(["target", "drafter", "draft", "options"], dropna=False, sort=False))
    if not groups:
        raise AnalysisError(
            "No valid speculative trial has a valid plain trial in its block.",
            hint="Run a suite that speculates: mlsd run B.",
        )
    return [_fit_group(pairs) for _, pairs in groups]


def _fit_group(pairs: pd.DataFrame) -> PairFit:
    first = pairs.iloc[0]
    data = observations(
        pairs["speedup"].tolist(),
        units_of(pairs).factorize()[0].tolist(),
        gamma=pairs["gamma"].tolist(),
        mgl=pairs["mgl"].tolist(),
        draft_ratio=(pairs["draft_ms"] / pairs["t_one_ms"]).tolist(),
        verify_ratio=(pairs["verify_ms"] / pairs["t_one_ms"]).tolist(),
    )
    gammas = data.columns["gamma"]
    models = [m for m in fit_models.speedup_models() if len(data) > len(m.parameters)]
    doubt: str | None = None if models else f"{counted(len(data), 'trial')} fit nothing"
    selection, by_prompt = None, list[HeldOut]()
    if len(np.unique(gammas)) >= 3:
        try:
            selection = select(models, folds(data, gammas, expected=expected_rounds))
        except AnalysisError as error:  # too few rows are left where some are held out
            doubt = str(error)
    elif models:
        doubt = "below three gammas none can be held out"
    prompts = np.unique(pairs["prompt"].tolist(), return_inverse=True)[1]
    if selection is not None and prompts.max() > 0:
        of_prompts = folds(data, prompts, n_folds=99, expected=expected_rounds)
        by_prompt = [held_out(model, of_prompts) for model in models]
    return PairFit(
        target=first["target"],
        drafter=first["drafter"],
        draft=first["draft"],
        options=first["options"],
        n_trials=len(pairs),
        trials=tuple(sorted({*pairs["trial_id"].tolist(), *pairs["baseline_id"].tolist()})),
        fits=tuple(fit(model, data) for model in models),
        measured=_measured(pairs),
        chosen=selection.chosen if selection else None,
        held_out_gamma=selection.candidates if selection else (),
        held_out_prompt=tuple(sorted(by_prompt, key=lambda e: e.error)),
        doubt=doubt,
    )


def expected_rounds(seen: Observations, unseen: Observations) -> Columns:
    """What rounds of settings or texts that were not measured are expected to take and to commit, by the others.

    MGL by the mean chance of a drafted token after the one before it (Leviathan et al., equation 1), drafting and
    verification by lines over gamma: every model is given gamma, and what other trials say, alone.
    """
    gammas, gamma = seen.columns["gamma"], unseen.columns["gamma"]
    rounds = zip(seen.columns["mgl"].tolist(), gammas.astype(int).tolist(), strict=True)
    rates = [rate_of(mgl, "position", g) for mgl, g in rounds]
    alpha = float(np.mean([rate for rate in rates if rate is not None] or [0.0]))
    degree = min(1, len(np.unique(gammas)) - 1)
    lines = {name: np.polyfit(gammas, seen.columns[name], degree) for name in ("draft_ratio", "verify_ratio")}
    costs = {name: np.maximum(np.polyval(line, gamma), 0.0) for name, line in lines.items()}
    different, index = np.unique(gamma, return_inverse=True)
    mgl = np.array([mgl_of(alpha, "position", int(g)) for g in different], dtype=np.float64)[index]
    return {"gamma": gamma, "mgl": mgl, **costs}


def _measured(pairs: pd.DataFrame) -> dict[str, float]:
    """Parameters of the cost models that need no fit: acceptance, drafting a token and the rest of a round in T(1)."""
    drafted = pairs[pairs["proposed"] > 0]
    if drafted.empty:
        return {}
    step_ms = drafted["draft_ms"] * drafted["rounds"] / drafted["proposed"]
    return {
        "alpha": float(drafted["accepted"].sum() / drafted["proposed"].sum()),
        "draft_cost": float((step_ms / drafted["t_one_ms"]).mean()),
        "rest_cost": float((drafted["rest_ms"] / drafted["t_one_ms"]).mean()),
    }


# --- T(k) --------------------------------------------------------------------------------------------------------


def fit_curves(
    passes: Mapping[str, Sequence[CalibrationPoint]],
    models: Mapping[str, ModelFacts],
    peak_gb_s: float | None = None,
) -> list[CurveFit]:
    """T(k) of each calibrated model, from its timed passes alone: rounds of trials hold too few widths.

    At the smallest depth, as every other reader takes it; a block is a repeat.
    """
    result = []
    for target, points in passes.items():
        timed = [p for p in points if p.kind == "target_pass"]
        chosen = [p for p in timed if p.depth == min(other.depth for other in timed)]
        if chosen:
            times, repeats = [p.span_ns / 1e6 for p in chosen], [p.repeat for p in chosen]
            data = observations(times, repeats, rows=[p.rows for p in chosen])
            result.append(fit_curve(target, data, models.get(target), peak_gb_s))
    return result


def fit_curve(
    target: str, data: Observations, facts: ModelFacts | None = None, peak_gb_s: float | None = None
) -> CurveFit:
    """Fit all curves that the model's facts allow to times of passes of one target (column `rows`)."""
    rows, models = data.columns["rows"], curve_models(data, facts)
    different = np.unique(rows)
    order, errors = list[str](), tuple[HeldOut, ...]()
    doubt = f"{len(different)} widths tell no curve from another"
    if len(different) >= 4:
        predictable = [m for m in models if len(different) > len(m.parameters) + 1]
        selection = select(predictable, folds(data, rows, never=(1.0,)))
        order, errors = [selection.chosen, *(c.model for c in selection.candidates)], selection.candidates
        doubt = f"no curve that {len(different)} widths allow comes near the times: "
        doubt += "it misses them by far more than repeats differ"
    fits = {model.name: fit(model, data) for model in models}
    near = {model.name for model in models if misfit(model, fits[model.name].values, data) <= 1}
    name = next((name for name in order if name in near), None)
    bandwidth = fits[name].values.get("bandwidth_gb_s") if name else None
    if name and "bandwidth_gb_s" in fits[name].not_identified:
        bandwidth = None
    return CurveFit(
        target=target,
        fits=tuple(fits.values()),
        chosen=name,
        doubt=None if name else doubt,
        time_next=() if name else tuple(k for k in _DECIDING if k not in different and k <= max(17.0, max(different))),
        held_out=errors,
        bandwidth_gb_s=bandwidth,
        peak_fraction=bandwidth / peak_gb_s if bandwidth and peak_gb_s else None,
    )


# Every width where a kernel changes somewhere, and enough between for a ridge: they tell every curve from the others.
_DECIDING = (1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 17, 20, 24, 31, 32, 33)
_BEYOND_NOISE, _LEAST_MISFIT = 3.0, 0.02


def misfit(model: Model, values: Mapping[str, float], data: Observations) -> float:
    """How far a curve misses the mean T(k) of widths, over what it may: 3 times the noise of such a mean, at least 2 %.

    Noise is the spread of the repeats of a width. Above 1 the curve has another shape than the times, however well it
    predicts beside others that have it too.
    """
    errors = np.log(model.predict(values, data.columns)) - np.log(data.observed)
    widths, index = np.unique(data.columns["rows"], return_inverse=True)
    counts = np.bincount(index)
    means = np.bincount(index, errors) / counts
    within = errors - means[index]
    freedom = len(errors) - len(widths)
    noise = np.sqrt(np.sum(within**2) / freedom * np.mean(1 / counts)) if freedom > 0 else 0.0
    return float(np.sqrt(np.mean(means**2)) / max(_BEYOND_NOISE * noise, _LEAST_MISFIT))


def curve_models(data: Observations, facts: ModelFacts | None) -> list[Model]:
    """Constant and line; from eight different k on also kernel steps, and roofline or experts where facts allow."""
    rows = data.columns["rows"]
    different = len(np.unique(rows))
    models = [fit_models.constant()]
    if different >= 3:
        models.append(fit_models.linear())
    if different >= 8:
        edges = find_steps(rows, data.observed, max_steps=4).edges
        models += [fit_models.stepped(edges)] if edges else []
    if facts is None or not facts.active_bytes or different < 8:
        return models
    shape = expert_shape(facts)
    if shape is not None:
        return [*models, fit_models.moe(shape, correlated=False), fit_models.moe(shape, correlated=True)]
    if facts.n_parameters_active:
        # Two operations a weight and row.
        models.append(fit_models.roofline(facts.active_bytes, 2e-9 * facts.n_parameters_active))
    return models


def expert_shape(facts: ModelFacts) -> fit_models.ExpertShape | None:
    """Bytes of experts from a model's facts: ``weights - active = (E - K) b`` with b one expert of every layer.

    None for dense models. An input embedding that is not read counts as expert bytes here, a few per cent.
    """
    if not facts.n_experts or not facts.n_experts_used or not facts.weight_bytes or not facts.active_bytes:
        return None
    unused = facts.n_experts - facts.n_experts_used
    if unused <= 0:
        return None
    per_expert = (facts.weight_bytes - facts.active_bytes) / unused
    return fit_models.ExpertShape(
        n_experts=facts.n_experts,
        n_used=facts.n_experts_used,
        always_bytes=max(0.0, facts.active_bytes - facts.n_experts_used * per_expert),
        expert_bytes=per_expert,
    )
