"""Write a random model of any shape to a GGUF file, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path

import gguf

from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.stream import Progress, add_keys, new_gguf
from mlsd.gguf_tools.synthetic.table import TensorTable
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Kind
from mlsd.gguf_tools.vocabulary import add_vocabulary
from mlsd.gguf_tools.weights import random_weights

# Routers are quantized too, unlike in real models: an F32 product of a batch differs from that of one token in the last
# bit, and a router's last bit can choose another expert.
_QUANTIZED: frozenset[Kind] = QUANTIZED_KINDS | {"router", "shared_gate"}


def write_random(
    path: Path, shape: Shape | TensorTable, *, seed: int, precision: str = "Q8_0", progress: Progress | None = None
) -> None:
    """Write a model with random weights as F32, F16 or Q8_0, whole or not at all. Raises: InputError.

    Q8_0 is the default because llama.cpp's CPU kernels then give the same bits for a batch of up to 63 tokens as for
    one token (flash attention on, up to 512 positions): speculative and plain decoding agree exactly, without ties.
    """
    kind = gguf.GGMLQuantizationType[precision]
    announced = [tensor.stored_as(kind, quantized=_QUANTIZED) for tensor in shape.tensors]

    def describe(writer: gguf.GGUFWriter) -> None:
        origin = {"shape": shape.name, "seed": seed}
        name = f"mlsd random {shape.name}, seed {seed}"
        add_keys(writer, shape.architecture, shape.keys, name=name, origin=origin)
        add_vocabulary(writer, shape.n_vocab)

    with new_gguf(path, shape.architecture, announced, describe, progress=progress) as stream:
        for tensor in announced:
            stream.write([gguf.quants.quantize(random_weights(tensor, seed), tensor.type)])
