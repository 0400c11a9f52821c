"""Train one model of the family on the corpus, or distil the draft from finished targets.

Distillation follows each target in turn, half of the time over the corpus and half over text the target wrote itself:
a draft is asked about its target's words, not about the corpus.

`run/budget.json` (name -> steps) is read again every 20 steps, so a slow machine's run can be shortened while it runs;
the rate falls linearly over the last 60 % of whatever the budget then says. Checkpoints and the loss curve land in the
run folder; the number of steps really done is in the curve.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from optim import descend, optimisers, rate, set_rate
from shapes import new_model
from torch.nn import functional as F

ROWS, WIDTH = 8, 512
STEPS = {"tiny-dense": 680, "tiny-moe": 585, "tiny-draft": 600, "tiny-draft-distilled": 360}
SEEDS = {"tiny-dense": 1, "tiny-moe": 2, "tiny-draft": 3, "tiny-draft-distilled": 4}
TARGETS = ("tiny-dense", "tiny-moe")
_BALANCE_WEIGHT = 0.01
_HARD_SHARE = 0.2
_PROMPT, _SPEECH, _SPEECHES = 64, 256, 192


def batch(data: np.ndarray, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`ROWS` random windows of `WIDTH` tokens and their next tokens, both int64 [ROWS, WIDTH]."""
    starts = rng.integers(0, len(data) - WIDTH - 1, ROWS)
    rows = torch.from_numpy(np.stack([data[s : s + WIDTH + 1] for s in starts]).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def own_words(teacher: Any, data: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Continuations by `teacher` of random training excerpts, one after the other as uint16 tokens.

    Half of them are greedy, half are drawn at temperature 1.
    """
    written = []
    for sampled in (False, True):
        starts = rng.integers(0, len(data) - _PROMPT, _SPEECHES)
        prompts = torch.from_numpy(np.stack([data[s : s + _PROMPT] for s in starts]).astype(np.int64))
        written.append(
            teacher.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=_SPEECH - _PROMPT,
                min_new_tokens=_SPEECH - _PROMPT,
                do_sample=sampled,
                top_k=0,
                pad_token_id=0,
            )
        )
    return np.asarray(torch.cat(written)[torch.randperm(2 * _SPEECHES)].flatten().numpy().astype(np.uint16))


def balance_loss(router_logits: tuple[torch.Tensor, ...], top_k: int) -> torch.Tensor:
    """Switch Transformer's load-balancing loss (arXiv 2101.03961, eq. 4), per layer, averaged; 1 is perfect balance."""
    losses = []
    for logits in router_logits:
        probs = logits.softmax(-1)
        used = F.one_hot(probs.topk(top_k, -1).indices, probs.size(-1)).float().sum(1).mean(0) / top_k
        losses.append(probs.size(-1) * (used * probs.mean(0)).sum())
    return torch.stack(losses).mean()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood in nats."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def lesson(model: Any, teacher: Any | None, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss to descend, plain cross entropy) of one batch."""
    moe = getattr(model.config, "num_experts", 0) > 0
    out = model(input_ids=x, use_cache=False, **({"output_router_logits": True} if moe else {}))
    plain = cross_entropy(out.logits, y)
    if moe:
        return plain + _BALANCE_WEIGHT * balance_loss(out.router_logits, model.config.num_experts_per_tok), plain
    if teacher is None:
        return plain, plain
    with torch.no_grad():
        soft = teacher(input_ids=x, use_cache=False).logits.softmax(-1)
    distance = -(soft * out.logits.log_softmax(-1)).sum(-1).mean()
    return (1 - _HARD_SHARE) * distance + _HARD_SHARE * plain, plain


@torch.no_grad()
def held_out_nats(model: Any, data: np.ndarray, windows: int = 40) -> float:
    """Mean cross entropy in nats a token over the first `windows` windows of the held-out tokens."""
    model.eval()
    total = [
        cross_entropy(model(input_ids=x[None, :-1], use_cache=False).logits, x[None, 1:]).item()
        for x in (torch.from_numpy(data[i * WIDTH : (i + 1) * WIDTH + 1].astype(np.int64)) for i in range(windows))
    ]
    model.train()
    return sum(total) / len(total)


def load(name: str, run: Path, checkpoint: str | None = None) -> Any:
    """The trained model `name` of the run folder, in evaluation mode; from another file than its own if told."""
    model = new_model(name)
    model.load_state_dict(torch.load(run / (checkpoint or f"{name}.pt")))
    return model.eval()


def stages(name: str) -> tuple[str, ...]:
    """The stages a model may go through, in their order."""
    return (name, f"{name}-distilled", f"{name}-wide")


def budget(name: str, run: Path, steps: int) -> int:
    """How much `name` may do: the run folder's budget file if it speaks of it, else the recipe's `steps`."""
    path = run / "budget.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    return int(told.get(name, steps))


def train(name: str, run: Path) -> None:
    """Train `name` to the end of its budget; leaves `name.pt` and `name.curve.json` in `run`."""
    shape = name.removesuffix("-distilled")
    torch.manual_seed(SEEDS[name])
    started = time.monotonic()
    rng = np.random.default_rng(SEEDS[name])
    data, held = np.load(run / "train.npy"), np.load(run / "held_out.npy")
    teachers = [load(target, run) for target in TARGETS] if shape != name else []
    model = load(shape, run).train() if teachers else new_model(shape).train()
    curve: list[dict[str, float]] = []
    texts = [data]
    for teacher in teachers:
        teacher.requires_grad_(False)
        texts.append(own_words(teacher, data, rng))
        print(f"{len(texts[-1])} tokens written by a target after {time.monotonic() - started:.0f} s", flush=True)
    found = optimisers(model)
    seconds, step, recent = 0.0, 0, []
    while step < (steps := budget(name, run, STEPS[name])):
        set_rate(found, rate(step, steps) * (0.5 if teachers else 1.0))
        who = step % 2
        x, y = batch(texts[1 + who] if teachers and step % 4 >= 2 else data, rng)
        loss, plain = lesson(model, teachers[who] if teachers else None, x, y)
        descend(model, found, loss)
        recent.append(plain.item())
        step += 1
        if step % 20 == 0 or step >= steps:
            point = {"step": step, "tokens": step * ROWS * WIDTH, "train_nats": sum(recent) / len(recent)}
            seconds = time.monotonic() - started
            if step % 100 == 0 or step >= steps:
                point["held_out_nats"] = held_out_nats(model, held)
                torch.save(model.state_dict(), run / f"{name}.pt")
            point["wall_s"] = round(seconds, 1)
            curve.append(point)
            recent = []
            print(name, steps, json.dumps(point), flush=True)
            (run / f"{name}.curve.json").write_text(json.dumps(curve))
            if not math.isfinite(point["train_nats"]):
                raise SystemExit(f"{name}: the loss is no longer finite at step {step}; lower the rates in optim.py")
    torch.save(model.state_dict(), run / f"{name}.pt")
