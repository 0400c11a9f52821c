"""Synthetic models of any size: exact shapes, random quantized blocks, constant memory, the speed of the disk."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gguf
import msgspec
import numpy as np

from mlsd.errors import InputError, choose
from mlsd.folders import free_bytes
from mlsd.gguf_tools.read import ModelWeight, source_weight, trunk_layers, weigh
from mlsd.gguf_tools.shape import FULL, RANDOM, SYNTHETIC, TINY, Shape
from mlsd.gguf_tools.source import Bytes, Floats, Source
from mlsd.gguf_tools.stream import Progress, add_keys, new_gguf
from mlsd.gguf_tools.surgery import edit as surgery
from mlsd.gguf_tools.surgery.cut import one_layer_of_hybrid, shallow_layers
from mlsd.gguf_tools.synthetic.blocks import Pool
from mlsd.gguf_tools.synthetic.quantization import SAME, quantized, stored_shape
from mlsd.gguf_tools.synthetic.router import EMBEDDING_STD, SharedChannel, correlation_for
from mlsd.gguf_tools.synthetic.write import add_vocabulary, generator, random_weights, spread
from mlsd.gguf_tools.tensor import QUANTIZED_KINDS, Tensor
from mlsd.records import Record
from mlsd.units import format_bytes

_OWN_KEYS = "mlsd."
_HEADER_ROOM = 32 << 20  # metadata and padding of the largest vocabularies


class SynthPart(Record, frozen=True, kw_only=True):
    """One tensor to write."""

    tensor: Tensor
    origin: Tensor | None = None  # the tensor of the file that gives the shape


class SynthPlan(Record, frozen=True, kw_only=True):
    """What a synthetic model will be, before a byte is written."""

    name: str
    architecture: str
    quant: str
    n_layers: int
    n_layers_full: int  # of the whole shape; more than `n_layers` when the depth is cut
    parts: tuple[SynthPart, ...]
    weight: ModelWeight
    describe: Callable[[gguf.GGUFWriter], None]  # adds the metadata
    source: Source | None = None  # the file that small tensors are copied from

    @property
    def tensor_types(self) -> dict[str, int]:
        return dict(Counter(part.tensor.type.name for part in self.parts).most_common())


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
        add_vocabulary(writer, cut.n_vocab)

    parts = tuple(SynthPart(tensor=tensor) for tensor in stored)
    return SynthPlan(
        name=shape.name,
        architecture=shape.architecture,
        quant=quant,
        n_layers=cut.n_layers,
        n_layers_full=shape.n_layers,
        parts=parts,
        weight=weight,
        describe=describe,
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
    own = frozenset(key for key in source.keys() if key.startswith(_OWN_KEYS))  # noqa: SIM118  # no mapping
    edit = msgspec.structs.replace(edit, removed=edit.removed | own, label="random weights")
    kept = [piece.tensor for piece in edit.pieces]
    in_source = {tensor.name: tensor for tensor in source.tensors}
    origins = [in_source[piece.source] for piece in edit.pieces if piece.source is not None]
    types = kept if quant == SAME else quantized(kept, quant, n_layers=depth)
    parts = tuple(
        # Small tensors keep their type as well as their values.
        SynthPart(tensor=new if old.kind in QUANTIZED_KINDS else old, origin=origin)
        for new, old, origin in zip(types, kept, origins, strict=True)
    )
    whole = source_weight(source)
    weight = weigh(
        (part.tensor for part in parts), n_trunk=depth, n_experts=whole.n_experts, n_experts_used=whole.n_experts_used
    )
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
        parts=parts,
        weight=weight,
        describe=describe,
        source=source,
    )


def plan_synthetic(shape: str, quant: str | None = None, n_layers: int | None = None) -> SynthPlan:
    """What to write of a known shape or a GGUF. Raises: InputError, ModelFileError."""
    known = {name: own for name, own in (FULL | TINY | RANDOM).items() if own.writable}
    path = Path(shape)
    if shape.lower() in known:
        return from_shape(known[shape.lower()], quant=quant or "Q8_0", n_layers=n_layers)
    if path.suffix == ".gguf" or path.exists():
        return from_gguf(Source(path), quant=quant or SAME, n_layers=n_layers)
    raise InputError(f"There is no shape {shape!r}.", hint=choose(shape, known, ", or give the path of a GGUF"))


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
    progress: Progress | None = None,
) -> None:
    """Write the planned model in constant memory; one seed gives one file. Raises: InputError, before any byte."""
    source = plan.source
    if source is not None and path.exists() and path.samefile(source.path):
        raise InputError(f"{path} gives the shape and cannot be written over.", hint="Give another output file.")
    _check_space(path, plan)
    tensors = [part.tensor for part in plan.parts]
    pools = _Pools(seed, plan.parts, router_correlation)

    def write_metadata(writer: gguf.GGUFWriter) -> None:
        plan.describe(writer)
        writer.add_uint32("mlsd.seed", seed)
        if router_correlation is not None:
            writer.add_float32("mlsd.router_correlation", router_correlation)

    with new_gguf(path, plan.architecture, tensors, write_metadata, progress=progress) as stream:
        for part in plan.parts:
            data = pools.pieces(part)
            if data is None and source is not None:
                data = source.pieces(part.origin or part.tensor)
            stream.write(data if data is not None else _packed(random_weights(part.tensor, seed), part.tensor))


def write_hollow(path: Path, plan: SynthPlan) -> None:
    """Write the planned model as a sparse file without weights, to plan memory with. Raises: InputError."""
    tensors = [part.tensor for part in plan.parts]
    with new_gguf(path, plan.architecture, tensors, plan.describe) as stream:
        for _ in tensors:
            stream.leave_hole()


class _Pools:
    """The random data of every tensor of one plan."""

    def __init__(self, seed: int, parts: Sequence[SynthPart], correlation: float | None) -> None:
        """Try every type before anything is written."""
        self._seed = seed
        self._pools: dict[tuple[gguf.GGMLQuantizationType, float], Pool] = {}
        self._shared: SharedChannel | None = None
        if correlation is not None:
            table = next(part for part in parts if part.tensor.kind == "embedding")
            self._shared = SharedChannel(correlation, self._pool(table.tensor.type, EMBEDDING_STD))
        # A table that is also the head is scaled as a head, so that logits are not too far apart.
        tied = all(part.tensor.kind != "head" for part in parts)
        self._head = next((part.tensor.name for part in parts if tied and part.tensor.kind == "embedding"), None)
        for part in parts:
            if part.tensor.kind in QUANTIZED_KINDS:
                self._pool(part.tensor.type, self._std(part.tensor))

    def _std(self, tensor: Tensor) -> float:
        is_head = tensor.name == self._head
        return spread(msgspec.structs.replace(tensor, name="output.weight") if is_head else tensor)

    def _pool(self, kind: gguf.GGMLQuantizationType, std: float) -> Pool:
        if (kind, std) not in self._pools:
            self._pools[kind, std] = Pool(kind, std, self._seed)
        return self._pools[kind, std]

    def pieces(self, part: SynthPart) -> Iterator[Bytes] | None:
        """The data of one tensor; None for a small one that the correlation does not touch."""
        tensor, rng = part.tensor, generator(self._seed, part.tensor.name)
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


def _check_space(path: Path, plan: SynthPlan) -> None:
    free = free_bytes(path.parent)
    needed = sum(part.tensor.n_bytes for part in plan.parts) + _HEADER_ROOM
    if needed > free:
        raise InputError(
            f"{plan.name} as {plan.quant} needs {format_bytes(needed)}; {path.parent} has {format_bytes(free)} free.",
            hint="Choose a smaller quant, --layers for a part of the depth, or another disk.",
        )
