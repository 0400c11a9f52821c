"""Distil the draft further, on what both targets say about code and text from far more places than their corpus.

Learns from the rows of `speech.py`: most towards the target's odds, the rest towards its likeliest token, since greedy
acceptance asks for that one alone. A target's own words count in full, those it was given in part. The last rows of
each target are kept aside; on them greedy rounds are counted as the engine would play them.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import checkpoint
from optim import descend, optimisers, rate, set_rate
from train import ROWS, TARGETS, WIDTH, budget, held_out_nats, load

NAME = "tiny-draft-wide"
GAMMA = 4
STEPS = 2000
_SEED = 6
_RATE = 0.5
_ODDS_SHARE, _GIVEN_WEIGHT = 0.7, 0.3
_READ_EVERY = 6
_ASIDE = 96

Rows = dict[str, np.ndarray]


def lesson(model: Any, rows: Rows) -> torch.Tensor:
    """Loss of one batch of rows, see the head of this file."""
    tokens, ids = (torch.from_numpy(rows[key].astype(np.int64)) for key in ("tokens", "ids"))
    odds = torch.from_numpy(rows["odds"].astype(np.float32))
    found = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
    kept = found.gather(-1, ids)
    # What the target's kept tokens leave over is one more outcome.
    rest = torch.log1p(-kept.exp().sum(-1).clamp(max=1 - 1e-6))
    towards_odds = -(odds * kept).sum(-1) - (1 - odds.sum(-1)).clamp(min=0) * rest
    loss = _ODDS_SHARE * towards_odds - (1 - _ODDS_SHARE) * kept[..., 0]
    own = torch.arange(tokens.shape[1]) >= torch.from_numpy(rows["starts"])[:, None] - 1
    weight = torch.where(own, 1.0, _GIVEN_WEIGHT)
    return (loss * weight).sum() / weight.sum()


def take(rows: Rows, chosen: Any) -> Rows:
    """The rows at `chosen`."""
    return {key: value[chosen] for key, value in rows.items()}


@torch.no_grad()
def rounds_accepted(model: Any, rows: Rows) -> float:
    """Accepted over proposed tokens at `GAMMA` on the greedy ones of `rows`, played from the draft's likeliest tokens.

    The draft sees accepted tokens alone, which are the target's own, so its guesses on the finished text decide.
    """
    model.eval()
    accepted = proposed = 0
    for start in range(0, len(rows["tokens"]), ROWS):
        part = take(rows, slice(start, start + ROWS))
        tokens = part["tokens"].astype(np.int64)
        guesses = model(input_ids=torch.from_numpy(tokens), use_cache=False).logits.argmax(-1).numpy()
        for text, best, guess, first in zip(tokens, part["ids"][..., 0], guesses, part["starts"], strict=True):
            own = slice(first - 1, -1)
            if (text[first:] != best[own]).any():
                continue
            right = (guess[own] == text[first:]).tolist()
            at = 1  # the first token comes with the prompt
            while at + GAMMA < len(right):
                n = [*right[at : at + GAMMA], False].index(False)
                accepted, proposed, at = accepted + n, proposed + GAMMA, at + n + 1
    model.train()
    return accepted / max(proposed, 1)


def train(run: Path) -> None:
    """Train the newest draft to the end of the budget; leaves `tiny-draft-wide.pt` and its curve in `run`."""
    torch.manual_seed(_SEED)
    rng = np.random.default_rng(_SEED)
    held = np.load(run / "held_out.npy")
    taught: dict[tuple[str, str], Rows] = {}
    for target in TARGETS:
        for kind in ("spoken", "read"):
            with np.load(run / f"{target}.{kind}.npz") as stored:
                taught[target, kind] = dict(stored)
    aside = {target: take(taught[target, "spoken"], slice(-_ASIDE, None)) for target in TARGETS}
    for target in TARGETS:
        taught[target, "spoken"] = take(taught[target, "spoken"], slice(-_ASIDE))
    model = load("tiny-draft", run, checkpoint("tiny-draft", run)).train()
    found = optimisers(model)
    curve: list[dict[str, Any]] = []
    recent: list[float] = []
    started, step = time.monotonic(), 0
    print(NAME, "starts at", {name: round(rounds_accepted(model, rows), 4) for name, rows in aside.items()}, flush=True)
    while step < (steps := budget(NAME, run, STEPS)):
        set_rate(found, _RATE * rate(step, steps))
        rows = taught[TARGETS[step % 2], "read" if step // 2 % _READ_EVERY == 0 else "spoken"]
        n = ROWS * WIDTH // rows["tokens"].shape[1]
        loss = lesson(model, take(rows, rng.integers(0, len(rows["tokens"]), n)))
        descend(model, found, loss)
        recent.append(loss.item())
        step += 1
        if step % 200 == 0 or step >= steps:
            point: dict[str, Any] = {"step": step, "tokens": step * ROWS * WIDTH, "train_loss": np.mean(recent).item()}
            point["held_out_nats"] = held_out_nats(model, held)
            point["acceptance_aside"] = {name: round(rounds_accepted(model, rows), 4) for name, rows in aside.items()}
            point["wall_s"] = round(time.monotonic() - started, 1)
            curve.append(point)
            recent = []
            print(NAME, steps, json.dumps(point), flush=True)
            (run / f"{NAME}.curve.json").write_text(json.dumps(curve))
            torch.save(model.state_dict(), run / f"{NAME}.pt")
            if not math.isfinite(point["train_loss"]):
                raise SystemExit(f"{NAME}: the loss is no longer finite at step {step}; lower the rate in wide.py")
