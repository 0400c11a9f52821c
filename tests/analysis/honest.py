"""Honest tables for the audit: simulated loops whose every figure follows from the same rounds and times."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, field
from pathlib import Path

from mlsd.analysis.audit.csv_table import COLUMNS


@dataclass(frozen=True)
class World:
    """A machine, a pair of models and a way of printing."""

    t_one_ms: float = 20.0
    draft_ms: float = 3.0
    per_row: float = 0.05  # T(k) = t_one (1 + per_row (k - 1))
    rollback_ms: float = 0.5
    acceptance: tuple[float, ...] = (0.8, 0.4)  # one a prompt
    gammas: tuple[int, ...] = (2, 4)
    n_predict: int = 128
    repeats: int = 3
    noise: float = 0.01
    digits: int = 3  # decimals of tok/s
    full_drafts: bool = True
    trims: bool = True  # proposes no more than the output can take
    own_baselines: bool = True  # a baseline for each prompt, else one for all
    seed: int = 0
    n_prompts: list[int] = field(default_factory=lambda: [16, 400, 64, 900])


def simulate(world: World) -> list[dict[str, str]]:
    """Rows in the column layout of the study."""
    rng = random.Random(world.seed)
    rows = []
    for prompt, alpha in enumerate(world.acceptance):
        depth = 1.0 + rng.uniform(0.0, 0.08)  # a deeper context slows a pass
        n_prompt = world.n_prompts[prompt % 4]
        if world.own_baselines or prompt == 0:
            decode_ms = (world.n_predict - 1) * world.t_one_ms * depth
            rows += _repeats(world, rng, prompt, n_prompt, 0, decode_ms, None)
        for gamma in world.gammas:
            decode_ms, rate = _decode(world, rng, alpha, gamma, depth)
            rows += _repeats(world, rng, prompt, n_prompt, gamma, decode_ms, rate)
    return rows


def _decode(world: World, rng: random.Random, alpha: float, gamma: int, depth: float) -> tuple[float, float]:
    """Decode time and acceptance rate of one greedy output, the same in every repeat."""
    left, total, proposed, accepted = world.n_predict - 1, 0.0, 0, 0
    while left > 0:
        k = gamma if world.full_drafts else rng.randint(0, gamma)
        if world.trims:
            k = min(k, left - 1)
        hits = 0
        while hits < k and rng.random() < alpha:
            hits += 1
        total += k * world.draft_ms + depth * world.t_one_ms * (1 + world.per_row * k) + world.rollback_ms
        proposed, accepted, left = proposed + k, accepted + hits, left - hits - 1
    overshoot = -left  # a loop that does not trim counts what it made
    return total * (world.n_predict - 1) / (world.n_predict - 1 + overshoot), accepted / max(1, proposed)


def _repeats(
    world: World, rng: random.Random, prompt: int, n_prompt: int, gamma: int, decode_ms: float, rate: float | None
) -> list[dict[str, str]]:
    rows = []
    for repeat in range(world.repeats):
        measured_ms = decode_ms * rng.lognormvariate(0.0, world.noise)
        tok_s = 1e3 * (world.n_predict - 1) / measured_ms
        row = dict.fromkeys(COLUMNS, "")
        row |= {
            "job_id": f"p{prompt}_g{gamma}_r{repeat}",
            "chip": "a chip",
            "target_model": "target",
            "draft_model": "draft" if gamma else "none",
            "draft_len": str(gamma),
            "n_prompt": str(n_prompt),
            "n_predict": str(world.n_predict),
            "repeat": str(repeat),
            "prompt_key": f"prompt{prompt}",
            "tokens_per_sec": f"{tok_s:.{world.digits}f}",
            "eval_ms_per_token": f"{measured_ms / (world.n_predict - 1):.5f}",
            "draft_acceptance_rate": "" if rate is None else f"{rate:.5f}",
            "status": "ok",
        }
        rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path
