"""What is known of a model by its name alone: a file that is here, a shape, or one that a database remembers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.shapes import FULL, SAME_SHAPE
from mlsd.gguf_tools.synthetic.blocks import SYNTHETIC_TYPES
from mlsd.gguf_tools.synthetic.quantization import MIXTURES
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.models.library import resolve_model
from mlsd.models.manifest import load_manifest
from mlsd.records import ModelFacts, ModelRef, Record

QUANTS = (*MIXTURES, *SYNTHETIC_TYPES)
_DEFAULT = "Q8_0"
# Mixtures of others that have no rule here, by the one of ours with as many bytes; MLX groups 64 weights of b bits with
# a scale and an offset of 16 bits: b + 0.5 bits each, as the blocks of Q4_0, Q5_0 and Q8_0.
_NEAREST = {
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


class KnownModel(Record, frozen=True, kw_only=True):
    """A target or a draft as somebody named it."""

    facts: ModelFacts
    shape: Shape | None = None  # the whole shape, where the name or the file is one of those that are known
    quant: str | None = None  # of that shape
    quant_assumed: bool = False  # nobody said it
    here: bool  # its file is on this machine


def named(text: str, quant: str | None = None, stored: Iterable[ModelFacts] = ()) -> KnownModel:
    """The model that a person names; one that is not here is taken by its shape, else as a database remembers it.

    `quant` is the quantization of a shape, where the name itself does not say. Raises: InputError for a name that is
    none of these, or whose end is no quantization.
    """
    name, said = shape_of(text)
    remembered = [facts for facts in stored if facts.ref.id == text]
    try:
        model = resolve_model(text, make=True)
    except (ModelFileError, InputError):
        if name is not None and (known := _by_shape(text, name, said, quant)) is not None:
            return known
        if remembered:
            return KnownModel(facts=remembered[-1], here=False)
        if name is not None:
            raise _unknown_quant(text, name) from None
        raise
    shape = None if name is None else FULL[name]
    return KnownModel(facts=model_facts(model.path, ref=model.ref), shape=shape, quant=said, here=True)


def _by_shape(text: str, name: str, said: str | None, quant: str | None) -> KnownModel | None:
    """The shape in the quantization that the name, the caller or the manifest's size says; None where none does."""
    assumed = quant is None and text.lower() in (*FULL, *SAME_SHAPE)
    chosen = said or (None if quant is None else _ours(quant)) or (_DEFAULT if assumed else None)
    if chosen is not None:
        facts = shape_facts(text, FULL[name], chosen)
        return KnownModel(facts=facts, shape=FULL[name], quant=chosen, quant_assumed=assumed, here=False)
    entry = next((e for e in load_manifest() if e.id == text.lower() and e.n_bytes), None)
    if entry is None or entry.n_bytes is None or entry.id != f"{name}-{entry.quantization.lower()}":
        return None
    facts = shape_facts(text, FULL[name], _DEFAULT)
    larger = entry.n_bytes / (facts.weight_bytes or entry.n_bytes)
    scaled = {key: round(larger * (getattr(facts, key) or 0)) for key in ("weight_bytes", "active_bytes")}
    facts = msgspec.structs.replace(facts, **scaled)
    return KnownModel(facts=facts, shape=FULL[name], quant=entry.quantization, here=False)


def _unknown_quant(text: str, name: str) -> InputError:
    return InputError(
        f"{text} is {name} by its beginning, but mlsd knows no quantization that it could end with.",
        hint=f"Name one: {', '.join((*QUANTS, *_NEAREST))}, like {name}-q4_k_m.",
    )


def shape_of(text: str) -> tuple[str | None, str | None]:
    """The shape that an id begins with and the quantization that it ends with; None for what it does not say."""
    lower = text.lower()
    names = [n for n in (*FULL, *SAME_SHAPE) if lower == n or lower.startswith((f"{n}-", f"{n}_"))]
    if not names:
        return None, None
    said = max(names, key=len)
    return SAME_SHAPE.get(said, said), _ours(lower[len(said) :])


def _ours(text: str) -> str | None:
    """The quantization of ours that a name's end means, what else is said of the file left out; None for none."""
    parts = text.strip("-_").upper().split("-")
    rest = "-".join(part for part in parts if part not in _SAID_OF_A_FILE)
    return rest if rest in QUANTS else _NEAREST.get(rest)


def shape_facts(text: str, shape: Shape, quant: str) -> ModelFacts:
    """What a file of the shape would say of itself."""
    plan = from_shape(shape, quant=quant).plan
    weight = plan.weight
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
    )
