"""What PyTorch says about the finished models: held-out loss, routing, reference logits.

Every figure is taken from the weights as shipped, that is after rounding to the file's number format.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from convert import FORMATS, rounded
from corpus import documents
from shapes import SHAPES, new_model
from tokens import VOCAB_SIZE, excerpts
from tokens import load as load_tokenizer
from train import WIDTH, cross_entropy, stages

SHIPPED = {"tiny-dense": "Q8_0", "tiny-moe": "Q8_0", "tiny-draft": "F32"}
N_COLUMNS, N_TOP = 56, 8
ROUTED_SPAN, ROUTED_WINDOWS = 8, 60
_TEXT_FILE = "sched.py"
_ODD_LINES = "\n# naïve Ünïcode: Δ 漢字 🙂 1234567   x\r\n\t y  \n\n\n"


def shipped_model(name: str, run: Path) -> Any:
    """The model `name` with its weights rounded to the number format of its file."""
    model = new_model(name)
    model.load_state_dict(rounded(torch.load(run / checkpoint(name, run)), FORMATS[SHIPPED[name]]))
    return model.eval()


def checkpoint(name: str, run: Path) -> str:
    """File name of the newest stage of a model: the draft after its distillations once they are done."""
    return f"{[stage for stage in stages(name) if (run / f'{stage}.pt').exists()][-1]}.pt"


@torch.no_grad()
def held_out_loss(model: Any, held: np.ndarray) -> tuple[float, int]:
    """(mean nats a token, tokens scored) over all consecutive windows of the held-out tokens."""
    total, count = 0.0, 0
    for start in range(0, len(held) - 1, WIDTH):
        x = torch.from_numpy(held[start : start + WIDTH + 1].astype(np.int64))[None]
        n = x.shape[1] - 1
        total += cross_entropy(model(input_ids=x[:, :-1], use_cache=False).logits, x[:, 1:]).item() * n
        count += n
    return total / count, count


@torch.no_grad()
def routing(model: Any, held: np.ndarray) -> dict[str, Any]:
    """How the router spreads held-out tokens: use of each expert and distinct experts of 8 consecutive tokens."""
    n_experts, top_k = model.config.num_experts, model.config.num_experts_per_tok
    used: list[np.ndarray] = []
    distinct: list[list[float]] = []
    for i in range(ROUTED_WINDOWS):
        x = torch.from_numpy(held[i * WIDTH : (i + 1) * WIDTH].astype(np.int64))[None]
        logits = model(input_ids=x, use_cache=False, output_router_logits=True).router_logits
        chosen = [layer.topk(top_k, -1).indices.numpy() for layer in logits]
        used.append(np.stack([np.bincount(c.ravel(), minlength=n_experts) for c in chosen]))
        spans = [c[: len(c) // ROUTED_SPAN * ROUTED_SPAN].reshape(-1, ROUTED_SPAN * top_k) for c in chosen]
        distinct.append([float(np.mean([len(set(row)) for row in span.tolist()])) for span in spans])
    share = np.sum(used, axis=0) / np.sum(used, axis=(0, 2))[:, None]
    by_layer = np.mean(distinct, axis=0)
    return {
        "n_experts": n_experts,
        "n_used": top_k,
        "least_used_share": [round(float(s), 5) for s in share.min(axis=1)],
        "most_used_share": [round(float(s), 5) for s in share.max(axis=1)],
        "distinct_of_8_tokens": [round(float(d), 3) for d in by_layer],
        "distinct_of_8_tokens_mean": round(float(by_layer.mean()), 3),
        "distinct_if_uniform": round(n_experts * (1 - (1 - top_k / n_experts) ** ROUTED_SPAN), 3),
    }


@torch.no_grad()
def reference(run: Path, held: np.ndarray, out: Path) -> None:
    """Store held-out windows and, for each model, some logits of every position: a test needs no torch to compare.

    `tokens` uint16 [8, 192]; `routed` uint16 [60, 512], the text routing is judged on; `text` (UTF-8 bytes) with its
    `text_ids`; for each model the eight largest logits (`<name>.top`, with `<name>.ids`) and the logits of 56 fixed
    `columns`, both of the first window and float32.
    """
    rng = np.random.default_rng(7)
    windows = excerpts(held)
    columns = np.sort(rng.choice(VOCAB_SIZE, N_COLUMNS, replace=False))
    text = next(d.text for d in documents() if d.name == _TEXT_FILE) + _ODD_LINES
    stored: dict[str, np.ndarray] = {
        "tokens": windows,
        "routed": held[: ROUTED_WINDOWS * WIDTH].reshape(ROUTED_WINDOWS, WIDTH),
        "columns": columns.astype(np.uint16),
        "text": np.frombuffer(text.encode(), dtype=np.uint8),
        "text_ids": np.asarray(load_tokenizer(run / "tokenizer.json").encode(text).ids, dtype=np.uint16),
    }
    for name in SHAPES:
        logits = shipped_model(name, run)(
            input_ids=torch.from_numpy(windows[:1].astype(np.int64)), use_cache=False
        ).logits[0]
        top = logits.topk(N_TOP, -1)
        stored[f"{name}.ids"] = top.indices.numpy().astype(np.uint16)
        stored[f"{name}.top"] = top.values.numpy()
        stored[f"{name}.columns"] = logits.numpy()[:, columns]
    np.savez_compressed(out, **stored)


def evaluate(run: Path) -> dict[str, Any]:
    """All figures as one JSON-ready dictionary; also writes `reference.npz` into the run folder."""
    held = np.load(run / "held_out.npy")
    tokenizer = load_tokenizer(run / "tokenizer.json")
    n_bytes = len(tokenizer.decode(held.tolist(), skip_special_tokens=True).encode())
    bits = len(held) / n_bytes / math.log(2)
    facts: dict[str, Any] = {"held_out_bytes": n_bytes, "held_out_tokens": len(held), "models": {}}
    facts["five_gram"] = json.loads((run / "five_gram.json").read_text())
    facts["five_gram"]["bits_per_byte"] = round(facts["five_gram"]["nats_per_token"] * bits, 4)
    reference(run, held, run / "reference.npz")
    for name in SHAPES:
        model = shipped_model(name, run)
        nats, n_scored = held_out_loss(model, held)
        facts["models"][name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "nats_per_token": round(nats, 4),
            "bits_per_byte": round(nats * bits, 4),
            "tokens_scored": n_scored,
        }
        if hasattr(model.config, "num_experts"):
            facts["models"][name]["routing"] = routing(model, held)
    return facts


def write(run: Path) -> None:
    """Write the facts, and the reference logits beside them."""
    (run / "facts.json").write_text(json.dumps(evaluate(run), indent=1) + "\n")
