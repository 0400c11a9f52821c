"""Random weights that behave: spread logits, stable recurrent states, text that does not repeat itself at once.

Every tensor has its own generator, keyed by the seed and the tensor's name, so a file is repeatable byte for byte and
no tensor depends on the ones before it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from mlsd.gguf_tools.tensor import Tensor
from mlsd.gguf_tools.vocabulary import N_TEXT

Floats = npt.NDArray[np.float32]

# Standard deviations of a matrix are gain / sqrt(row length). Gains are chosen so that context counts as much as the
# last token (else greedy text falls into a short cycle) and a 0.3 % change of the weights flips some tokens, not most.
_GAINS = {
    "attn_q": 2.0,
    "attn_k": 2.0,
    "attn_output": 3.0,
    "ssm_out": 3.0,
    "ffn_down": 3.0,
    "ffn_down_exps": 1.0,
    "ffn_gate_inp": 3.0,
    "output": 3.0,
}
_EMBEDDING_STD = 0.5
_BIAS_STD = 0.2
_NORM_STD = 0.1
_HEAD_NORM_MEAN = 1.5


def generator(seed: int, name: str, purpose: str = "weights") -> np.random.Generator:
    """The generator of one tensor: PCG64 keyed by a hash of seed, tensor name and purpose."""
    key = hashlib.sha256(f"{seed}/{purpose}/{name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))


def random_weights(tensor: Tensor, seed: int) -> Floats:
    """Weights of one tensor in numpy order (rows first): shape `tensor.dims` reversed, float32."""
    weights = _plain(tensor, generator(seed, tensor.name), spread(tensor))
    if tensor.kind == "head":
        # Special and unused tokens get a logit of zero: with spread logits they are never the best, so a tiny model
        # does not end its text by chance.
        weights[N_TEXT:] = 0.0
    return weights


def spread(tensor: Tensor) -> float:
    """Standard deviation of the tensor's weights."""
    match tensor.kind:
        case "embedding":
            return _EMBEDDING_STD
        case "bias":
            return _BIAS_STD
        case "norm" | "skip" | "time_step" | "decay" | "conv_bias":
            return _NORM_STD
        case "conv":
            return float(1.0 / np.sqrt(tensor.dims[0]))
        case _:
            return float(_GAINS.get(tensor.part, 1.0) / np.sqrt(tensor.dims[0]))


def _plain(tensor: Tensor, rng: np.random.Generator, spread: float) -> Floats:
    if tensor.kind == "decay":
        # Decay rates of a state: from slow to fast over the heads, always negative, so no state can grow.
        rates = -np.geomspace(0.5, 4.0, tensor.dims[-1], dtype=np.float32)
        return np.repeat(rates, tensor.n_weights // len(rates)).reshape(tensor.dims[::-1])
    if tensor.kind == "time_step":
        # softplus(bias) is the step: 0.02 to 0.2, so states remember for some tens of tokens.
        steps = np.geomspace(0.02, 0.2, tensor.dims[0], dtype=np.float32)[::-1]
        return np.log(np.expm1(steps)).astype(np.float32)
    values = rng.standard_normal(tensor.dims[::-1], dtype=np.float32)
    values *= np.float32(spread)
    if tensor.kind in ("norm", "skip"):
        values += np.float32(_HEAD_NORM_MEAN if tensor.part in ("attn_q_norm", "attn_k_norm") else 1.0)
    return values
