"""Do 95 % intervals cover in 95 %? Simulated, with known truths.

A part of ``python -m benchmarks truth``. Each simulation draws whole studies and asks the library's own functions, so
that what is judged is what is printed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import Result, percent
from mlsd.analysis import frames
from mlsd.analysis.claims.claim_tests import TESTS
from mlsd.analysis.fits import fit_models
from mlsd.analysis.fits.fit import fit, observations
from mlsd.analysis.fits.study_fits import fit_curve
from mlsd.analysis.pairs import PairedTrials
from mlsd.records import DRAFT_MODEL, ModelFacts, ModelRef
from mlsd.stats import Interval, mean_over, smallest_effect

BLOCK_NOISE = 0.05  # of the logarithm of one arm's throughput
PROMPT_NOISE = 0.15  # how much the log speedup of a setting differs by text


def _covers(results: Interval, truth: float) -> bool:
    return results.decided(truth) is False


def single_prompt(n_blocks: int, n_studies: int = 4000, seed: int = 0) -> float:
    """Coverage of a speedup's interval over the blocks of one prompt."""
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, BLOCK_NOISE, (n_studies, n_blocks)) - rng.normal(0, BLOCK_NOISE, (n_studies, n_blocks))
    return float(np.mean([_covers(mean_over(list(row)), 0.0) for row in logs]))


def pooled(n_prompts: int, n_repeats: int, n_studies: int = 4000, seed: int = 0) -> float:
    """Coverage of a workload's mean where blocks of one prompt share its text."""
    rng = np.random.default_rng(seed)
    prompts = np.repeat(np.arange(n_prompts), n_repeats)
    hits = 0
    for _ in range(n_studies):
        text = rng.normal(0, PROMPT_NOISE, n_prompts)[prompts]
        hits += _covers(mean_over(list(text + rng.normal(0, 1.4 * BLOCK_NOISE, len(prompts))), list(prompts)), 0.0)
    return hits / n_studies


def claimed_effect(n: int, n_studies: int = 3000, seed: int = 0) -> float:
    """How often an effect of the claimed smallest size is decided; 0.8 is promised."""
    rng = np.random.default_rng(seed)
    claimed = [smallest_effect(mean_over(list(row))) for row in rng.normal(0, 0.1, (n_studies, n))]
    size = float(np.mean([claim.up for claim in claimed if claim is not None]))
    return float(np.mean([(mean_over(list(row)).low or 0) > 0 for row in rng.normal(size, 0.1, (n_studies, n))]))


# --- claims -------------------------------------------------------------------------------------------------------


def claim(name: str, n_studies: int = 1000, seed: int = 0) -> float:
    """Coverage of the effect of one claim's test; see `CLAIMS`. Where one text decides, its own truth is asked for."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(n_studies):
        outcome = TESTS[name](CLAIMS[name](rng))
        assert outcome is not None
        _, of_text, text = outcome.meaning.partition("speedup on ")
        hits += _covers(outcome.effect, math.exp(float(text)) if of_text else TRUTHS.get(name, 1.0))
    return hits / n_studies


def _lengths(rng: np.random.Generator) -> PairedTrials:
    """Six lengths, each one text that all repeats and gammas read; no trend."""
    pairs = []
    for n in (32, 64, 128, 256, 512, 1024):
        text = rng.normal(0, PROMPT_NOISE)
        for repeat in range(3):
            for gamma in (4, 8):
                pairs.append(_pair(rng, text, prompt=f"length-{n}", n_prompt=n, repeat=repeat, gamma=gamma))
    return _paired(pairs)


def _four_prompts(rng: np.random.Generator, arms: Sequence[dict[str, object]]) -> PairedTrials:
    """Settings that differ by text and gain nothing on average."""
    pairs = []
    for prompt in range(4):
        for arm in arms:
            text, angle = rng.normal(0, PROMPT_NOISE), math.asin(math.sqrt(ACCEPTANCE)) + rng.normal(0, 0.05)
            accepted = round(PROPOSED * math.sin(angle) ** 2)
            for repeat in range(3):
                counts = {"proposed": PROPOSED, "accepted": accepted, "rounds": PROPOSED // 4}
                pairs.append(_pair(rng, text, prompt=str(prompt), repeat=repeat, **{**counts, **arm}))
    return _paired(pairs, FACTS)


def _look_ups(rng: np.random.Generator) -> PairedTrials:
    """Four prompts, named by what they gain."""
    texts = rng.normal(0, PROMPT_NOISE, 4)
    results = {"drafter": "pld", "draft": None}
    pairs = [_pair(rng, text, prompt=f"{text:.9f}", repeat=i, **results) for text in texts for i in range(3)]
    return _paired(pairs)


def _parts(rng: np.random.Generator) -> PairedTrials:
    """Ten parts of a target whose perplexity tells nothing of their acceptance."""
    pairs = [
        _pair(rng, 0.0, trial_id=i, drafter="layer-skip", draft=None, accepted=int(rng.integers(0, PROPOSED)),
              proposed=PROPOSED)
        for i in range(10)
    ]  # fmt: skip
    return _paired(pairs, ratios={i: float(rng.uniform(1, 9)) for i in range(10)})


def _paired(
    rows: Sequence[dict[str, Any]],
    models: Mapping[str, ModelFacts] | None = None,
    ratios: Mapping[int, float] | None = None,
) -> PairedTrials:
    facts = models or {}

    def complete(row: dict[str, Any]) -> dict[str, Any]:
        target, draft = facts.get(row["target"]), facts.get(row["draft"] or "")
        return {
            **row,
            "round_ms": row["draft_ms"] + row["verify_ms"] + row["rest_ms"],
            "mixture": bool(target and target.n_experts),
            "parameters": target.n_parameters if target else 0,
            "active": target.n_parameters_active if target else 0,
            "weight_bytes": target.weight_bytes if target else 0,
            "architecture": target.architecture if target else "",
            "shape": target.architecture if target else "",
            "draft_parameters": draft.n_parameters if draft else None,
            "perplexity_ratio": (ratios or {}).get(row["trial_id"]),
        }

    by_name = [field._replace(get=itemgetter(field.name)) for field in frames.PAIRS]
    pairs = frames.frame_of(map(complete, rows), by_name)
    return PairedTrials(pairs=pairs, plain=pairs.iloc[:0], models=facts)


def _pair(rng: np.random.Generator, text: float, **changes: Any) -> dict[str, Any]:
    return {
        "trial_id": 0, "baseline_id": 0, "target": "target", "drafter": DRAFT_MODEL, "draft": "small", "options": "",
        "component": None, "gamma": 4, "prompt": "", "n_prompt": 32, "block": 0, "repeat": 0, "started_s": 0.0,
        "loops": False, "speedup": math.exp(text + rng.normal(0, 1.4 * BLOCK_NOISE)), "t_one_ms": 1.0, "mgl": 1.0,
        "proposed": 4, "accepted": 1, "rounds": 1, "draft_ms": 1.0, "verify_ms": 1.0, "rest_ms": 0.0, **changes,
    }  # fmt: skip


def _facts(name: str, size: int, *, n_experts: int | None = None, architecture: str = "a") -> ModelFacts:
    return ModelFacts(
        ref=ModelRef(id=name), architecture=architecture, n_parameters=size, n_parameters_active=size,
        n_experts=n_experts, weight_bytes=size,
    )  # fmt: skip


FACTS = {
    **{name: _facts(name, size) for name, size in (("small", 100), ("large", 400), ("half", 2_000), ("twice", 16_000))},
    "target": _facts("target", 8_000, n_experts=16),
    "q4": msgspec.structs.replace(_facts("q4", 8_000), weight_bytes=4_500),
    "q8": msgspec.structs.replace(_facts("q8", 8_000), weight_bytes=8_500),
    "parallel": _facts("parallel", 8_000, architecture="falcon-h1"),
    "sequential": _facts("sequential", 8_000, architecture="qwen35"),
}
ACCEPTANCE, PROPOSED = 0.4, 2_000
TRUTHS = {"acceptance_below": ACCEPTANCE, "parallel_hybrids": 0.0, "perplexity_predicts": 0.0}
_GAMMAS: list[dict[str, object]] = [{"gamma": gamma} for gamma in (2, 4, 8)]
_DRAFTS: list[dict[str, object]] = [{"draft": draft} for draft in ("small", "large")]
_TARGETS: list[dict[str, object]] = [{"target": name} for name in ("half", "target", "twice")]
_QUANTS: list[dict[str, object]] = [{"target": name} for name in ("q4", "q8")]
_HYBRIDS: list[dict[str, object]] = [
    {"target": name, "drafter": "layer-skip", "draft": None, "component": "attention"}
    for name in ("parallel", "sequential")
]
_TREES: list[dict[str, object]] = [{"drafter": name, "gamma": 8} for name in ("draft-tree", DRAFT_MODEL)]

CLAIMS: dict[str, Callable[[np.random.Generator], PairedTrials]] = {
    "prompt_length": _lengths,
    "smaller_draft": lambda rng: _four_prompts(rng, _DRAFTS),
    "gamma_slope": lambda rng: _four_prompts(rng, _GAMMAS),
    "moe_speedup": lambda rng: _four_prompts(rng, _GAMMAS),
    "total_parameters": lambda rng: _four_prompts(rng, _TARGETS),
    "more_bits": lambda rng: _four_prompts(rng, _QUANTS),
    "overhead_decides": lambda rng: _four_prompts(rng, [{"draft_ms": 0.0}]),
    "retrieval_steady": _look_ups,
    "tree_helps": lambda rng: _four_prompts(rng, _TREES),
    "acceptance_below": lambda rng: _four_prompts(rng, [{}]),
    "parallel_hybrids": lambda rng: _four_prompts(rng, _HYBRIDS),
    "perplexity_predicts": _parts,
}


# --- fits ---------------------------------------------------------------------------------------------------------


def fitted_line(n_blocks: int, n_studies: int = 600, seed: int = 0) -> float:
    """Coverage of both parameters of a line T(k), with noise of rows and of blocks."""
    rng = np.random.default_rng(seed)
    k = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32], dtype=float)
    hits = 0
    for _ in range(n_studies):
        noise = np.repeat(rng.normal(0, 0.01, n_blocks), len(k)) + rng.normal(0, 0.02, n_blocks * len(k))
        times = (10 + 0.4 * np.tile(k, n_blocks)) * np.exp(noise)
        data = observations(times, np.repeat(np.arange(n_blocks), len(k)), rows=np.tile(k, n_blocks))
        results = fit(fit_models.linear(), data).estimates
        hits += _covers(results["fixed_ms"], 10.0) + _covers(results["per_row_ms"], 0.4)
    return hits / n_studies / 2


def constant_chosen(n_studies: int = 75, seed: int = 0) -> float:
    """How often T(k) is called constant from six widths of a roofline with T(17) = 2.15 T(1)."""
    rng = np.random.default_rng(seed)
    k = np.array([1, 2, 3, 5, 9, 17], dtype=float)
    truth = np.maximum(10.0, 21.5 * k / 17)
    chosen = 0
    for _ in range(n_studies):
        times = np.concatenate([truth * np.exp(rng.normal(0, 0.01, len(k))) for _ in range(6)])
        data = observations(times, np.repeat(np.arange(6), len(k)), rows=np.tile(k, 6))
        chosen += fit_curve("m", data).chosen == "constant"
    return chosen / n_studies


def run() -> Iterator[Result]:
    """Every simulation; a bar may be missed by half a per cent, as shares of some thousand studies scatter."""
    shares = {f"one prompt, {n} blocks": single_prompt(n) for n in (3, 6, 12)}
    shares |= {f"{p} prompts x {r} blocks": pooled(p, r) for p, r in ((3, 3), (3, 10), (8, 3), (2, 3))}
    shares |= {f"claim {name}": claim(name) for name in CLAIMS}
    shares |= {f"fitted line, {n} repeats": fitted_line(n) for n in (4, 6, 16)}
    for name, share in shares.items():
        yield percent(f"coverage: {name}", share, at_least=93, at_most=97, margin=0.5)
    for n in (4, 6, 12):
        seen = claimed_effect(n)
        yield percent(f"claimed smallest effect seen, {n} groups", seen, at_least=77, at_most=83, margin=0.5)
    yield percent("roofline called constant, six widths", constant_chosen(), at_most=0, margin=0.5)
