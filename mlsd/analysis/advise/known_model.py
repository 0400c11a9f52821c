"""What is known of a model by its name alone: a file that is here, a shape, or one that a database remembers."""

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from mlsd.analysis.advise.acceptance import HEADS
from mlsd.audits.model_name import read_model_name
from mlsd.errors import InputError, ModelFileError, did_you_mean
from mlsd.gguf_tools.shape import FULL, SAME_SHAPE, Shape
from mlsd.methods import METHODS
from mlsd.models.library import LocalModel, resolve_model
from mlsd.models.manifest import load_manifest
from mlsd.planning.known_shapes import BITS, NEAREST, QUANTS, bits_of, quant_of, shape_facts, shape_of, sized_facts
from mlsd.records import ModelFacts, Record

_DEFAULT = "Q8_0"
_SCALES = 0.5  # bits that scales add to a stored weight
_ROUNDED = 1.3  # names round parameters by less


class KnownModel(Record, frozen=True, kw_only=True):
    """A target or a draft by the name that was given."""

    facts: ModelFacts
    shape: Shape | None = None  # the whole shape, where the name or the file is one of those that are known
    quant: str | None = None  # of that shape
    quant_assumed: bool = False  # it was not given
    path: Path | None = None  # of its file, where it is on this machine

    @property
    def here(self) -> bool:
        return self.path is not None

    @property
    def called_elsewhere(self) -> str:
        """How a command on another machine calls it: by an id that can be pulled or is made, else by a file's path."""
        name = self.path.name if self.path is not None else f"{self.facts.ref.id}.gguf"
        return self.facts.ref.id if self.facts.ref.id in load_manifest().models else name


def named(
    text: str, quant: str | None = None, stored: Iterable[ModelFacts] = (), *, elsewhere: bool = False
) -> KnownModel:
    """The model that a person names; one that is not here is taken by its shape, else as a database remembers it.

    `elsewhere`: on another machine, so that no file is looked for where the shape is known. `quant` is the quantization
    of a shape, where the name itself does not say. Raises: InputError for a name that is none of these, or whose end is
    no quantization.
    """
    name, stated = shape_of(text)
    if quant is not None and stated is not None and quant_of(quant) != stated:
        raise InputError(f"{text} is in {stated} by its name.", hint="Leave --quant out, or that end of the name.")
    if elsewhere and name is not None and not (stated or quant) and (file := _file_here(text)) is not None:
        return file
    if elsewhere and name is not None and (shaped := _by_shape(text, name, stated, quant)) is not None:
        return shaped
    remembered = [facts for facts in stored if facts.ref.id == text]
    try:
        model = resolve_model(text, make=True)
    except (ModelFileError, InputError):
        if name is not None and (shaped := _by_shape(text, name, stated, quant)) is not None:
            return shaped
        if remembered:
            return KnownModel(facts=remembered[-1])
        sized = by_sizes(text, quant)
        if sized is not None and (name is None or _of_another_size(sized.facts, name)):
            return sized
        if name is not None:
            raise InputError(
                f"{text} starts with {name}, but ends in no quantization that mlsd knows.",
                hint=f"Name one: {', '.join((*QUANTS, *NEAREST, *BITS))}, like {name}-q4_k_m; or the size, too, of a "
                f"model of another one: {name}-mini-3.8b-q4_k_m.",
            ) from None
        from mlsd.drafters import UNAVAILABLE  # which loads numpy

        if (method := text.partition(":")[0]) in METHODS or method in UNAVAILABLE:
            raise InputError(
                f"{text} is a drafting method, not a model.", hint=f"Name the model first: MODEL --drafter {text}."
            ) from None
        bare = next((text[: -len(end) - 1] for end in _ends(text) if quant_of(end) is not None), text)
        raise InputError(
            f"{text} is not on this machine, and its shape is unknown.",
            hint=did_you_mean(text, load_manifest().models)
            + f"Name a GGUF file or an id of `mlsd models list`, or a model by its sizes: {bare}-27b-q4_k_m, "
            f"{bare}-124b-a5b-mxfp4. Heads and look-ups go by --drafter: {', '.join(HEADS)}, pld.",
        ) from None
    if quant is not None and stated is None:
        raise InputError(
            f"{text} is a file on this machine, in the quantization that it has.",
            hint="--quant is of a model that is only known by its shape, like qwen3.5-9b.",
        )
    return _of_file(text, model)


def _of_file(text: str, model: LocalModel) -> KnownModel:
    from mlsd.gguf_tools.read import model_facts

    name, stated = shape_of(text)
    facts = model_facts(model.path, ref=model.ref)
    return KnownModel(facts=facts, shape=None if name is None else FULL[name], quant=stated, path=model.path)


def _file_here(text: str) -> KnownModel | None:
    """The file that an id means, where it is on this machine: another machine would run the same."""
    try:
        return _of_file(text, resolve_model(text))
    except (ModelFileError, InputError):
        return None


def by_sizes(text: str, quant: str | None = None) -> KnownModel | None:
    """A model of an unknown shape by what its name says of its size and quantization; None where that is too little."""
    read = read_model_name(text)
    chosen = quant_of(quant or "") or next((q for part in _ends(text) if (q := quant_of(part)) is not None), None)
    if not read.active_b:
        return None
    assumed = chosen is None and read.bits is None and quant is None
    if assumed:
        chosen = quant_of("MXFP4") if "gpt-oss" in text.lower() else _DEFAULT
    bits = bits_of(chosen) if chosen else None if read.bits is None else read.bits + _SCALES
    if bits is None:
        return None
    facts = sized_facts(text, max(read.total_b or 0.0, read.active_b), read.active_b, bits, chosen or _DEFAULT)
    return KnownModel(facts=facts, quant=chosen, quant_assumed=assumed)


def _ends(text: str) -> list[str]:
    """Every end of a name, the longest first: ``it-q4_k_m``, ``q4_k_m``."""
    parts = text.split("-")
    return ["-".join(parts[i:]) for i in range(1, len(parts))]


def _by_shape(text: str, name: str, stated: str | None, quant: str | None) -> KnownModel | None:
    """The shape in the quantization that the name, the caller or the manifest's size says; None where none does."""
    assumed = quant is None and text.lower() in (*FULL, *SAME_SHAPE)
    chosen = stated or (None if quant is None else quant_of(quant)) or (_DEFAULT if assumed else None)
    if chosen is not None:
        facts = shape_facts(text, FULL[name], chosen)
        return KnownModel(facts=facts, shape=FULL[name], quant=chosen, quant_assumed=assumed)
    entry = next((e for e in load_manifest() if e.id == text.lower() and e.n_bytes), None)
    if entry is None or entry.n_bytes is None or entry.id != f"{name}-{entry.quantization.lower()}":
        return None
    facts = shape_facts(text, FULL[name], _DEFAULT)
    larger = entry.n_bytes / (facts.weight_bytes or entry.n_bytes)
    scaled = {key: round(larger * (getattr(facts, key) or 0)) for key in ("weight_bytes", "active_bytes")}
    facts = replace(facts, **scaled)
    return KnownModel(facts=facts, shape=FULL[name], quant=entry.quantization)


def _of_another_size(sized: ModelFacts, name: str) -> bool:
    """Whether what a name states of its size is not that of the shape it starts with: ``phi-4-mini-3.8b``."""
    by_shape, stated = shape_facts(name, FULL[name], _DEFAULT).n_parameters or 0, sized.n_parameters or 0
    return not by_shape / _ROUNDED < stated < by_shape * _ROUNDED
