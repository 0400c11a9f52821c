"""A random model of any shape: a vocabulary that spells every text, weights that behave, and the file of both.

Spread logits, stable recurrent states, text that does not repeat itself at once. Every tensor has its own generator,
keyed by the seed and the tensor's name: a file is repeatable byte for byte, and no tensor depends on those before it.
"""

import hashlib
from importlib import resources
from pathlib import Path

import gguf
import numpy as np

from mlsd.errors import InputError
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.source import Bytes, Floats
from mlsd.gguf_tools.stream import add_keys, write_gguf
from mlsd.gguf_tools.synthetic.table import TensorTable
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Kind, Tensor
from mlsd.hashes import OnBytes

_MERGES_FILE = "merges.txt"  # one merge a line, most frequent first, counted on English text and Python code
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
_SPECIALS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
N_BYTES = 256
N_MERGES = 208
N_TEXT = N_BYTES + N_MERGES  # tokens that stand for text; the ones after them are special or unused
MIN_VOCAB = N_TEXT + len(_SPECIALS)


def byte_spellings() -> list[str]:
    """The stand-in of each byte in GPT-2's tokenizer: itself if printable Latin-1, else from U+0100 onwards."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spellings, next_free = [], N_BYTES
    for byte in range(N_BYTES):
        if byte in printable:
            spellings.append(chr(byte))
        else:
            spellings.append(chr(next_free))
            next_free += 1
    return spellings


def merges() -> list[str]:
    """The byte pairs that become tokens, each ``left right``; without them every byte would be a token."""
    return resources.files(__package__).joinpath(_MERGES_FILE).read_text(encoding="utf-8").splitlines()


def add_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Write the tokenizer's metadata, padded to `n_vocab`. Raises: InputError for too few to spell every byte."""
    if n_vocab < MIN_VOCAB:
        raise InputError(f"A vocabulary of {n_vocab} cannot spell every text.", hint=f"Use at least {MIN_VOCAB}.")
    pairs = merges()
    tokens = byte_spellings() + [pair.replace(" ", "") for pair in pairs] + list(_SPECIALS)
    tokens += [f"<|unused_{i}|>" for i in range(n_vocab - len(tokens))]
    types = [gguf.TokenType.NORMAL] * N_TEXT + [gguf.TokenType.CONTROL] * len(_SPECIALS)
    types += [gguf.TokenType.UNUSED] * (n_vocab - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(pairs)
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eot_token_id(tokens.index(END_OF_TURN))
    writer.add_add_bos_token(False)


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
    if tensor.kind == "decay":
        # Decay rates of a state: from slow to fast over the heads, always negative, so no state can grow.
        rates = -np.geomspace(0.5, 4.0, tensor.dims[-1], dtype=np.float32)
        return np.repeat(rates, tensor.n_weights // len(rates)).reshape(tensor.dims[::-1])
    if tensor.kind == "time_step":
        # softplus(bias) is the step: 0.02 to 0.2, so states remember for some tens of tokens.
        steps = np.geomspace(0.02, 0.2, tensor.dims[0], dtype=np.float32)[::-1]
        return np.log(np.expm1(steps)).astype(np.float32)
    weights = generator(seed, tensor.name).standard_normal(tensor.dims[::-1], dtype=np.float32)
    weights *= np.float32(spread(tensor))
    if tensor.kind in ("norm", "skip"):
        weights += np.float32(_HEAD_NORM_MEAN if tensor.part in ("attn_q_norm", "attn_k_norm") else 1.0)
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


# Routers are quantized too, unlike in real models: an F32 product of a batch differs from that of one token in the last
# bit, and a router's last bit can choose another expert.
_QUANTIZED: frozenset[Kind] = QUANTIZED_KINDS | {"router", "shared_gate"}


def write_random(
    path: Path, shape: Shape | TensorTable, *, seed: int, precision: str = "Q8_0", on_bytes: OnBytes | None = None
) -> None:
    """Write a model with random weights as F32, F16 or Q8_0, whole or not at all. Raises: InputError.

    Q8_0 is the default because llama.cpp's CPU kernels then give the same bits for a batch of up to 63 tokens as for
    one token (flash attention on, up to 512 positions): speculative and plain decoding agree exactly, without ties.
    """
    kind = gguf.GGMLQuantizationType[precision]

    def describe(writer: gguf.GGUFWriter) -> None:
        origin = {"shape": shape.name, "seed": seed}
        name = f"mlsd random {shape.name}, seed {seed}"
        add_keys(writer, shape.architecture, shape.keys, name=name, origin=origin)
        add_vocabulary(writer, shape.n_vocab)

    def data(tensor: Tensor) -> list[Bytes]:
        return [gguf.quants.quantize(random_weights(tensor, seed), tensor.type)]

    tensors = [tensor.stored_as(kind, quantized=_QUANTIZED) for tensor in shape.tensors]
    write_gguf(path, shape.architecture, tensors, describe, data, on_bytes=on_bytes)
