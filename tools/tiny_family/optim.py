"""Optimisers: Muon for the matrices inside the blocks, AdamW for everything else, one schedule for both.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces each matrix's momentum by the nearest
orthogonal matrix; here it also takes stacks of expert matrices.
"""

from __future__ import annotations

from typing import Any

import torch

_MUON_LR = 0.02
_ADAM_LR = 4e-3
_WARMUP_STEPS = 40
_DECAY_SHARE = 0.6
_FLOOR = 0.02


def orthogonalised(update: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The matrices [..., rows, cols] with singular values pushed near 1 by a quintic Newton-Schulz iteration."""
    wide = update.size(-2) <= update.size(-1)
    x = update if wide else update.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, scaled by sqrt(max(1, rows / cols)), with decoupled weight decay."""

    def __init__(
        self, params: list[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalised(p.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, p.size(-2) / p.size(-1)) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


def optimisers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for block matrices with at least 32 rows and columns (conv kernels apart), AdamW for the rest."""
    matrices, others = [], []
    for name, p in model.named_parameters():
        big = p.ndim >= 2 and min(p.shape[-2:]) >= 32 and "embed_tokens" not in name and "lm_head" not in name
        (matrices if big else others).append(p)
    adam = torch.optim.AdamW(others, lr=_ADAM_LR, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)
    found: list[torch.optim.Optimizer] = [adam, Muon(matrices, lr=_MUON_LR)]
    for optimiser in found:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return found


def rate(step: int, steps: int) -> float:
    """Share of the peak rate at `step` of `steps`: linear warm-up, flat, linear decay over the last 60 % to 2 %."""
    if step < _WARMUP_STEPS:
        return (step + 1) / _WARMUP_STEPS
    left = max(0.0, (steps - step) / (steps * _DECAY_SHARE))
    return max(_FLOOR, min(1.0, left))


def set_rate(found: list[torch.optim.Optimizer], share: float) -> None:
    """Set every group to `share` of its peak rate."""
    for optimiser in found:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * share


def descend(model: torch.nn.Module, found: list[torch.optim.Optimizer], loss: torch.Tensor) -> None:
    """One step down the gradient of `loss`, which is clipped to a norm of 1."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in found:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
