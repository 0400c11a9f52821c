"""Train a multi-token-prediction block for tiny-dense with the trunk frozen.

The block is Qwen3.5's: the embedding of a token and the trunk's final hidden state one position earlier, each
normalised, are joined by `eh_proj` and go through one full-attention decoder layer; the trunk's LM head reads the
result. It learns the trunk's own distribution for the next token, once from the trunk's hidden states and once more
from its own, as it will be used when it drafts several tokens in a row.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import shipped_model
from optim import descend, optimisers, rate, set_rate
from torch import nn
from train import ROWS, WIDTH, batch, budget, own_words
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

NAME = "tiny-dense"
_STEPS, _SEED, _DEPTH = 250, 5, 2


class MtpBlock(nn.Module):
    """One next-token block; parameter names become the GGUF's through `convert`."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        config = trunk.config
        width, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = Qwen3_5RMSNorm(width, eps=eps)
        self.hnorm = Qwen3_5RMSNorm(width, eps=eps)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.layer = Qwen3_5DecoderLayer(config, config.layer_types.index("full_attention"))
        self.shared_head_norm = Qwen3_5RMSNorm(width, eps=eps)
        nn.init.normal_(self.eh_proj.weight, std=config.initializer_range)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, rotary: Any) -> torch.Tensor:
        """Normalised hidden states [rows, width, n_embd] for tokens `embedded` that follow `hidden`."""
        joined = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1))
        # Without a mask, scaled_dot_product_attention is causal here.
        out = self.layer(joined, position_embeddings=rotary, attention_mask=None)
        return self.shared_head_norm(out[0] if isinstance(out, tuple) else out)


def lesson(trunk: Any, block: MtpBlock, x: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
    """(distillation loss over all depths, share of tokens at each depth on which block and trunk agree)."""
    with torch.no_grad():
        hidden = trunk.model(input_ids=x, use_cache=False).last_hidden_state
        logits = trunk.lm_head(hidden)
        embedded = trunk.model.embed_tokens(x)
    positions = torch.arange(x.shape[1])[None].expand(3, x.shape[0], -1)
    rotary = trunk.model.rotary_emb(hidden, positions)
    losses, agreement = [], []
    for depth in range(1, _DEPTH + 1):
        # Row p joins token p with the state one position earlier; position 0 has none before it.
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
        hidden = block(embedded, before, rotary)
        guess = trunk.lm_head(hidden)
        losses.append(-(logits.softmax(-1) * guess.log_softmax(-1))[:, depth:].sum(-1).mean())
        agreement.append((guess.argmax(-1) == logits.argmax(-1))[:, depth:].float().mean().item())
    return torch.stack(losses).mean(), agreement


def train(run: Path) -> None:
    """Train the block; leaves `tiny-dense-mtp.pt`, the block alone, and its curve in `run`."""
    torch.manual_seed(_SEED)
    rng = np.random.default_rng(_SEED)
    data, held = np.load(run / "train.npy"), np.load(run / "held_out.npy")
    trunk = shipped_model(NAME, run).requires_grad_(False)
    texts = (data, own_words(trunk, data, rng))
    block = MtpBlock(trunk)
    found = optimisers(block)
    steps = budget("tiny-dense-mtp", run, _STEPS)
    curve, started = [], time.monotonic()
    for step in range(1, steps + 1):
        set_rate(found, rate(step - 1, steps))
        loss, _ = lesson(trunk, block, batch(texts[step % 2], rng)[0])
        descend(block, found, loss)
        if step % 50 == 0 or step == steps:
            with torch.no_grad():
                x = torch.from_numpy(held[: ROWS * WIDTH].astype(np.int64)).view(ROWS, WIDTH)
                held_loss, held_agreement = lesson(trunk, block, x)
            point = {
                "step": step,
                "tokens": step * ROWS * WIDTH,
                "held_out_nats": round(held_loss.item(), 4),
                "agreement": [round(a, 4) for a in held_agreement],
                "wall_s": round(time.monotonic() - started, 1),
            }
            curve.append(point)
            print(f"{NAME}-mtp", steps, json.dumps(point), flush=True)
            (run / f"{NAME}-mtp.curve.json").write_text(json.dumps(curve))
            torch.save(block.state_dict(), run / f"{NAME}-mtp.pt")
