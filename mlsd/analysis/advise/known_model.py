"""What is known of a model by its name alone: a file that is here, a shape, or one that a database remembers."""

from __future__ import annotations

from collections.abc import Iterable

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.shapes import FULL
from mlsd.gguf_tools.synthetic.blocks import SYNTHETIC_TYPES
from mlsd.gguf_tools.synthetic.quantization import MIXTURES
from mlsd.gguf_tools.synthetic.synth import from_shape
from mlsd.models.library import resolve_model
from mlsd.records import ModelFacts, ModelRef, Record

QUANTS = (*MIXTURES, *SYNTHETIC_TYPES)
# Mixtures of others that have no rule here, by the type that most of their weights have.
_NEAREST = {"UD-Q4_K_XL": "Q4_K_M", "UD-Q5_K_XL": "Q5_K_M", "UD-Q6_K_XL": "Q6_K"}


class KnownModel(Record, frozen=True, kw_only=True):
    """A target or a draft as somebody named it."""

    facts: ModelFacts
    shape: Shape | None = None  # the whole shape, where the name or the file is one of those that are known
    quant: str | None = None  # of that shape
    here: bool  # its file is on this machine


def named(text: str, quant: str | None = None, stored: Iterable[ModelFacts] = ()) -> KnownModel:
    """The model that a person names; one that is not here is taken by its shape, else as a database remembers it.

    `quant` is the quantization of a shape, where the name itself does not say. Raises: InputError for a name that is
    none of these.
    """
    name, said = shape_of(text)
    remembered = [facts for facts in stored if facts.ref.id == text]
    try:
        model = resolve_model(text, make=True)
    except (ModelFileError, InputError):
        if name is not None:
            chosen = said or quant or "Q8_0"
            return KnownModel(facts=shape_facts(text, FULL[name], chosen), shape=FULL[name], quant=chosen, here=False)
        if remembered:
            return KnownModel(facts=remembered[-1], here=False)
        raise
    shape = None if name is None else FULL[name]
    return KnownModel(facts=model_facts(model.path, ref=model.ref), shape=shape, quant=said, here=True)


def shape_of(text: str) -> tuple[str | None, str | None]:
    """The shape that an id begins with and the quantization that it ends with; None for what it does not say."""
    name = max((name for name in FULL if text.lower().startswith(name)), key=len, default=None)
    if name is None:
        return None, None
    rest = text[len(name) :].strip("-_").upper()
    return name, rest if rest in QUANTS else _NEAREST.get(rest)


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
