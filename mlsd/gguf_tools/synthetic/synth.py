"""Synthetic models of any size: exact shapes, random quantized blocks, constant memory, the speed of the disk."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import gguf
import msgspec
import numpy as np

from mlsd.errors import InputError, choose
from mlsd.folders import free_bytes
from mlsd.gguf_tools.read import ModelWeight, source_weight, trunk_layers, weigh
from mlsd.gguf_tools.shape import FULL, RANDOM, SYNTHETIC, TINY, Shape
from mlsd.gguf_tools.source import Bytes, Floats, Source
from mlsd.gguf_tools.stream import add_keys, write_gguf
from mlsd.gguf_tools.surgery import edit as surgery
from mlsd.gguf_tools.surgery.cut import one_layer_of_hybrid, shallow_layers
from mlsd.gguf_tools.synthetic.blocks import Pool
from mlsd.gguf_tools.synthetic.quantization import SAME, quantized, stored_shape
from mlsd.gguf_tools.synthetic.router import EMBEDDING_STD, SharedChannel, correlation_for
from mlsd.gguf_tools.synthetic.write import add_vocabulary, generator, random_weights, spread
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Tensor
from mlsd.hashes import OnBytes
from mlsd.records import Record
from mlsd.units import format_bytes

_OWN_KEYS = "mlsd."
_HEADER_ROOM = 32 << 20  # metadata and padding of the largest vocabularies


class SynthPlan(Record, frozen=True, kw_only=True):
    """What a synthetic model will be, before a byte is written."""

    name: str
    architecture: str
    quant: str
    n_layers: int
    n_layers_full: int  # of the whole shape; more than `n_layers` when the depth is cut
    tensors: tuple[Tensor, ...]
    weight: ModelWeight
    describe: Callable[[gguf.GGUFWriter], None]  # adds the metadata
    n_vocab: int | None = None  # of the byte-level tokenizer to add; None: `describe` adds one
    source: Source | None = None  # the file that small tensors are copied from
    origins: dict[str, str] = msgspec.field(default_factory=dict)  # a tensor's name -> its name there

    @property
    def tensor_types(self) -> dict[str, int]:
        return dict(Counter(tensor.type.name for tensor in self.tensors).most_common())


def from_shape(shape: Shape, *, quant: str = "Q8_0", n_layers: int | None = None) -> SynthPlan:
    """A model of a known shape, with a byte-level tokenizer. Raises: InputError for a quant or depth it cannot have."""
    depth = _depth(n_layers, shape.n_layers, shape.name)
    if shape.full_attention_interval > 1 and depth == 1 < shape.n_layers:
        raise one_layer_of_hybrid(shape.name)
    # It needs a block of either kind, so a very shallow cut ends in one that has attention.
    cut = msgspec.structs.replace(
        shape, n_layers=depth, full_attention_interval=min(shape.full_attention_interval, depth)
    )
    stored, weight = stored_shape(cut, quant)

    def describe(writer: gguf.GGUFWriter) -> None:
        name = f"{shape.name}, random weights"
        add_keys(writer, shape.architecture, cut.keys, name=name, origin={"shape": shape.name})

    return SynthPlan(
        name=shape.name,
        architecture=shape.architecture,
        quant=quant,
        n_layers=cut.n_layers,
        n_layers_full=shape.n_layers,
        tensors=tuple(stored),
        weight=weight,
        describe=describe,
        n_vocab=cut.n_vocab,
    )


def from_gguf(source: Source, *, quant: str = SAME, n_layers: int | None = None) -> SynthPlan:
    """A model with the tensors, tokenizer and metadata of an existing GGUF, of any architecture.

    Matrices become random; norms and other small tensors are copied, so the network stays in its usual range. Raises:
    InputError as `from_shape`; ModelFileError when the depth of this architecture cannot be cut.
    """
    source.require_whole()
    full = trunk_layers(source) or 0
    depth = _depth(n_layers, full, source.path.name)
    everything = surgery.Edit(
        pieces=tuple(surgery.TensorPiece(tensor=t, source=t.name) for t in source.tensors), label="random weights"
    )
    edit = everything if depth == full else surgery.keep_layers(source, shallow_layers(source, depth))
    written_by_mlsd = frozenset(key for key in source.values if key.startswith(_OWN_KEYS))
    edit = msgspec.structs.replace(edit, removed=edit.removed | written_by_mlsd, label="random weights")
    stored = [piece.tensor for piece in edit.pieces]
    types = stored if quant == SAME else quantized(stored, quant, n_layers=depth)
    # Small tensors keep their type as well as their values.
    tensors = tuple(new if old.kind in QUANTIZED_KINDS else old for new, old in zip(types, stored, strict=True))
    whole = source_weight(source)
    weight = weigh(tensors, n_trunk=depth, n_experts=whole.n_experts, n_experts_used=whole.n_experts_used)
    write = surgery.describe(source, edit)

    def describe(writer: gguf.GGUFWriter) -> None:
        write(writer)
        writer.add_bool(SYNTHETIC, True)
        writer.add_string("mlsd.shape", source.path.name)

    return SynthPlan(
        name=source.path.stem,
        architecture=source.architecture,
        quant=quant,
        n_layers=depth,
        n_layers_full=full,
        tensors=tensors,
        weight=weight,
        describe=describe,
        source=source,
        origins={piece.tensor.name: piece.source for piece in edit.pieces if piece.source is not None},
    )


def plan_synthetic(shape: str, quant: str | None = None, n_layers: int | None = None) -> SynthPlan:
    """What to write of a known shape or a GGUF. Raises: InputError, ModelFileError."""
    shapes = {name: shape for name, shape in (FULL | TINY | RANDOM).items() if shape.writable}
    path = Path(shape)
    if shape.lower() in shapes:
        return from_shape(shapes[shape.lower()], quant=quant or "Q8_0", n_layers=n_layers)
    if path.suffix == ".gguf" or path.exists():
        return from_gguf(Source(path), quant=quant or SAME, n_layers=n_layers)
    raise InputError(f"There is no shape {shape!r}.", hint=choose(shape, shapes, ", or give the path of a GGUF"))


def choose_correlation(plan: SynthPlan, shared: float | None) -> float | None:
    """The correlation of the router's logits at which two tokens share that many experts. Raises: InputError."""
    if shared is None:
        return None
    if not plan.weight.n_experts:
        raise InputError("--router-shared needs a mixture of experts.", hint="Leave the option out.")
    return correlation_for(shared, plan.weight.n_experts, plan.weight.n_experts_used)


def write_synthetic(
    path: Path,
    plan: SynthPlan,
    *,
    seed: int = 0,
    router_correlation: float | None = None,
    on_bytes: OnBytes | None = None,
) -> None:
    """Write the planned model in constant memory; one seed gives one file. Raises: InputError, before any byte."""
    free, needed = free_bytes(path.parent), plan.weight.total.n_bytes + _HEADER_ROOM
    if needed > free:
        raise InputError(
            f"{plan.name} as {plan.quant} needs {format_bytes(needed)}; {path.parent} has {format_bytes(free)} free.",
            hint="Choose a smaller quant, --layers for a part of the depth, or another disk.",
        )
    pools = _Pools(seed, plan.tensors, router_correlation)

    def write_metadata(writer: gguf.GGUFWriter) -> None:
        plan.describe(writer)
        if plan.n_vocab is not None:
            add_vocabulary(writer, plan.n_vocab)
        writer.add_uint32("mlsd.seed", seed)
        if router_correlation is not None:
            writer.add_float32("mlsd.router_correlation", router_correlation)

    def data(tensor: Tensor) -> Iterable[Bytes]:
        if (pieces := pools.pieces(tensor)) is not None:
            return pieces
        if plan.source is not None:
            return [plan.source.data(plan.origins[tensor.name])]
        return _packed(random_weights(tensor, seed), tensor)

    made_from = None if plan.source is None else plan.source.path
    write_gguf(path, plan.architecture, plan.tensors, write_metadata, data, made_from=made_from, on_bytes=on_bytes)


def write_hollow(path: Path, plan: SynthPlan) -> None:
    """Write the planned model as a sparse file without weights, to plan memory with. Raises: InputError.

    Of a tokenizer only the size is there: to write and to load one of 248,320 tokens takes longer than all the rest.
    """

    def write_metadata(writer: gguf.GGUFWriter) -> None:
        plan.describe(writer)
        if plan.n_vocab is not None:
            writer.add_tokenizer_model("no_vocab")

    write_gguf(path, plan.architecture, plan.tensors, write_metadata, None)


class _Pools:
    """The random data of every tensor of one plan."""

    def __init__(self, seed: int, tensors: Sequence[Tensor], correlation: float | None) -> None:
        """Try every type before anything is written."""
        self._seed = seed
        self._pools: dict[tuple[gguf.GGMLQuantizationType, float], Pool] = {}
        self._shared: SharedChannel | None = None
        if correlation is not None:
            table = next(tensor for tensor in tensors if tensor.kind == "embedding")
            self._shared = SharedChannel(correlation, self._pool(table.type, EMBEDDING_STD))
        # A table that is also the head is scaled as a head, so that logits are not too far apart.
        tied = all(tensor.kind != "head" for tensor in tensors)
        self._head = next((tensor.name for tensor in tensors if tied and tensor.kind == "embedding"), None)
        for tensor in tensors:
            if tensor.kind in QUANTIZED_KINDS:
                self._pool(tensor.type, self._std(tensor))

    def _std(self, tensor: Tensor) -> float:
        is_head = tensor.name == self._head
        return spread(msgspec.structs.replace(tensor, name="output.weight") if is_head else tensor)

    def _pool(self, kind: gguf.GGMLQuantizationType, std: float) -> Pool:
        if (kind, std) not in self._pools:
            self._pools[kind, std] = Pool(kind, std, self._seed)
        return self._pools[kind, std]

    def pieces(self, tensor: Tensor) -> Iterator[Bytes] | None:
        """The data of one tensor; None for a small one that the correlation does not touch."""
        rng = generator(self._seed, tensor.name)
        if self._shared is not None:
            if tensor.kind == "embedding":
                return self._shared.embedding(tensor, rng)
            if tensor.kind == "router":
                return _packed(self._shared.router(tensor, rng), tensor)
            if "_norm" in tensor.name:
                # A norm's weights would scale the shared channel differently in every block.
                return _packed(np.ones(tensor.dims[::-1], dtype=np.float32), tensor)
        if tensor.kind in QUANTIZED_KINDS:
            return self._pool(tensor.type, self._std(tensor)).pieces(tensor.n_bytes, rng)
        return None


def _packed(weights: Floats, tensor: Tensor) -> Iterator[Bytes]:
    yield np.ascontiguousarray(gguf.quants.quantize(weights, tensor.type)).view(np.uint8)


def _depth(wanted: int | None, full: int, name: str) -> int:
    if wanted is None:
        return full
    if not 1 <= wanted <= full:
        raise InputError(f"{name} has {full} layers, so it cannot have {wanted}.", hint=f"Give 1 to {full}.")
    return wanted
