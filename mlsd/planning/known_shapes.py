"""What a model's name says of it: its shape, its quantization, and the bytes that follow from both."""

from collections import Counter

from msgspec.structs import replace

from mlsd.gguf_tools.shape import FULL, SAME_SHAPE, Shape
from mlsd.gguf_tools.synthetic.quantization import MIXTURES, SYNTHETIC_TYPES, stored_shape
from mlsd.records import ModelFacts, ModelRef

QUANTS = (*MIXTURES, *SYNTHETIC_TYPES)  # what synthetic models are written in
# Mixtures of others that have no rule here, by the one of ours with as many bytes; MLX groups 64 weights of b bits with
# a scale and an offset of 16 bits: b + 0.5 bits each, as the blocks of Q4_0, Q5_0 and Q8_0.
NEAREST = {
    "4BIT": "Q4_0",
    "5BIT": "Q5_0",
    "6BIT": "Q6_K",
    "8BIT": "Q8_0",
    "IQ4_XS": "Q4_0",
    "MXFP4": "Q4_0",
    "MXFP4_MOE": "Q4_0",
    "Q4_K_S": "Q4_K",
    "Q4_K_XL": "Q4_K_M",
    "Q5_K_S": "Q5_K",
    "Q5_K_XL": "Q5_K_M",
    "Q6_K_XL": "Q6_K",
}
# Bits of a weight, for mixtures of which none of ours has as many bytes: whole files of 7 to 32 billion parameters over
# their weights (llama.cpp's tools/quantize/README.md), and MLX's groups with their scale.
BITS = {
    "2BIT": 2.5,
    "3BIT": 3.5,
    "IQ2_XXS": 2.4,
    "IQ2_XS": 2.6,
    "IQ2_S": 2.7,
    "IQ2_M": 2.9,
    "IQ3_XXS": 3.3,
    "IQ3_XS": 3.5,
    "IQ3_S": 3.7,
    "IQ3_M": 3.8,
    "IQ4_NL": 4.7,
    "MXFP8": 8.25,
    "NVFP4": 4.5,
    "Q2_K": 3.2,
    "Q2_K_XL": 3.2,
    "Q3_K": 3.9,
    "Q3_K_S": 3.6,
    "Q3_K_M": 3.9,
    "Q3_K_L": 4.2,
    "Q3_K_XL": 4.0,
}
_Q8 = 8.5
_VOCABULARY = 150_000  # of models of the last years; what a head reads beside its layer
_EXPERTS = (128, 8)  # of a mixture that says only how many parameters are active
# Parts of a name that change nothing of a plain pass, and those of another model than the shape's.
_FILE_TAGS = ("UD", "MTP", "IT", "INSTRUCT", "QAT", "CHAT", "GGUF", "MLX")
_OTHERS = {"DFLASH", "EAGLE3", "DSPARK", "MINI"}


def shape_of(text: str) -> tuple[str | None, str | None]:
    """The shape that an id begins with and the quantization that it ends with; None for what it does not say."""
    lower = text.lower()
    names = [n for n in (*FULL, *SAME_SHAPE) if lower == n or lower.startswith((f"{n}-", f"{n}_"))]
    if not names:
        return None, None
    longest = max(names, key=len)
    return SAME_SHAPE.get(longest, longest), quant_of(lower[len(longest) :])


def quant_of(text: str) -> str | None:
    """The quantization of ours that the end of a name means, without tags of the file; None if it means none."""
    parts = text.strip("-_ ").upper().removesuffix(".GGUF").replace("-BIT", "BIT").split("-")
    rest = [part.removesuffix(" MIXED") for part in parts if part not in _FILE_TAGS]
    # An author's suffix may stand beside MLX's bits: `-4bit-MTPLX-Optimized-Speed`.
    whole = "-".join(rest)
    name = whole if whole in QUANTS or whole in BITS else NEAREST.get(whole)
    bits = [part for part in (*rest[:1], *rest[-1:]) if part.endswith("BIT") and not _OTHERS & set(rest)]
    return name if name or not bits else bits[0] if bits[0] in BITS else NEAREST.get(bits[0])


def sized_facts(text: str, total_b: float, active_b: float, bits: float, stored: str = "Q8_0") -> ModelFacts:
    """A model of an unknown shape by its parameters (10^9), those that a token uses, and how and in how many bits each
    is stored.

    Layers and width are those that known shapes of such sizes have: ``36 (P / 8)^0.3`` layers of a dense model and
    ``42 (P / 35)^0.1`` of a mixture, each of ``12 n_embd^2`` active parameters.
    """
    mixture = active_b < total_b
    n_layers = max(1, round(42 * (total_b / 35) ** 0.1 if mixture else 36 * (total_b / 8) ** 0.3))
    return ModelFacts(
        ref=ModelRef(id=text),
        architecture="by its sizes",
        n_layers=n_layers,
        n_vocab=_VOCABULARY,
        n_embd=round((active_b * 1e9 / 12 / n_layers) ** 0.5),
        n_experts=_EXPERTS[0] if mixture else None,
        n_experts_used=_EXPERTS[1] if mixture else None,
        n_parameters=round(total_b * 1e9),
        n_parameters_active=round(active_b * 1e9),
        weight_bytes=round(total_b * 1e9 * bits / 8),
        active_bytes=round(active_b * 1e9 * bits / 8),
        tensor_types={stored: 1},
    )


def bits_of(quant: str) -> float:
    """Bits of a weight in a file of this quantization."""
    if quant in BITS:
        return BITS[quant]
    facts = shape_facts("", FULL["qwen3-8b"], quant)
    return 8 * (facts.weight_bytes or 0) / (facts.n_parameters or 1)


def shape_facts(text: str, shape: Shape, quant: str) -> ModelFacts:
    """What a file of the shape would say of itself; in a quantization of `BITS` it is scaled from Q8_0."""
    if quant in BITS:
        facts = shape_facts(text, shape, "Q8_0")
        bytes_of = {key: round(BITS[quant] / _Q8 * getattr(facts, key)) for key in ("weight_bytes", "active_bytes")}
        types = {quant if name == "Q8_0" else name: n for name, n in facts.tensor_types.items()}
        return replace(facts, **bytes_of, tensor_types=types)
    tensors, weight = stored_shape(shape, quant)
    return ModelFacts(
        ref=ModelRef(id=text),
        architecture=shape.architecture,
        n_layers=shape.n_layers,
        n_embd=shape.n_embd,
        n_vocab=shape.n_vocab,
        **weight.facts(),
        tensor_types=dict(Counter(tensor.type.name for tensor in tensors).most_common()),
    )
