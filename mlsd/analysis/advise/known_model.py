"""What is known of a model by its name alone: a file that is here, a shape, or one that a database remembers."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mlsd.errors import InputError, ModelFileError
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.shapes import FULL, SAME_SHAPE
from mlsd.models.library import resolve_model
from mlsd.models.manifest import load_manifest
from mlsd.planning.known_shapes import NEAREST, QUANTS, quant_of, shape_facts, shape_of
from mlsd.records import ModelFacts, Record

_DEFAULT = "Q8_0"


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
    chosen = said or (None if quant is None else quant_of(quant)) or (_DEFAULT if assumed else None)
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
        hint=f"Name one: {', '.join((*QUANTS, *NEAREST))}, like {name}-q4_k_m.",
    )
