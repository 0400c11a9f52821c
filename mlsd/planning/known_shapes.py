"""What a model's name says of it: its shape, its quantization, and the bytes that follow from both."""

from __future__ import annotations

from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.shapes import FULL, SAME_SHAPE
from mlsd.gguf_tools.synthetic.blocks import SYNTHETIC_TYPES
from mlsd.gguf_tools.synthetic.quantization import MIXTURES
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.records import ModelFacts, ModelRef

QUANTS = (*MIXTURES, *SYNTHETIC_TYPES)
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
_SAID_OF_A_FILE = ("UD", "MTP", "IT", "INSTRUCT", "QAT")  # parts of a name that change nothing of a plain pass


def shape_of(text: str) -> tuple[str | None, str | None]:
    """The shape that an id begins with and the quantization that it ends with; None for what it does not say."""
    lower = text.lower()
    names = [n for n in (*FULL, *SAME_SHAPE) if lower == n or lower.startswith((f"{n}-", f"{n}_"))]
    if not names:
        return None, None
    said = max(names, key=len)
    return SAME_SHAPE.get(said, said), quant_of(lower[len(said) :])


def quant_of(text: str) -> str | None:
    """The quantization of ours that a name's end means, what else is said of the file left out; None for none."""
    parts = text.strip("-_").upper().split("-")
    rest = "-".join(part for part in parts if part not in _SAID_OF_A_FILE)
    return rest if rest in QUANTS else NEAREST.get(rest)


def shape_facts(text: str, shape: Shape, quant: str) -> ModelFacts:
    """What a file of the shape would say of itself."""
    recipe = from_shape(shape, quant=quant)
    plan, weight = recipe.plan, recipe.plan.weight
    return ModelFacts(
        ref=ModelRef(id=text),
        architecture=plan.architecture,
        n_layers=plan.n_layers,
        n_embd=shape.n_embd,
        n_vocab=shape.n_vocab,
        n_experts=weight.n_experts or None,
        n_experts_used=weight.n_experts_used or None,
        n_parameters=weight.total.n_parameters,
        n_parameters_active=weight.active.n_parameters,
        weight_bytes=weight.total.n_bytes,
        active_bytes=weight.active.n_bytes,
        tensor_types=plan.tensor_types,
    )
