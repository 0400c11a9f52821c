"""Draft models cut out of a target: some blocks left out, some parts silenced, raw bytes copied, nothing requantized.

Blocks that stay are renumbered and everything the file says per block follows them. Only architectures whose blocks do
not depend on their own number are accepted; a window or rotation pattern bound to the number would change silently.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock

from mlsd.errors import InputError, ModelFileError
from mlsd.folders import cache_dir, unwritable
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Bytes, Source
from mlsd.gguf_tools.tensor import Tensor
from mlsd.hashes import OnBytes, file_sha256
from mlsd.records import Record

if TYPE_CHECKING:
    import gguf


HYBRIDS = ("qwen35", "qwen35moe")  # a block has attention or a recurrent mixer
# Blocks of these do not depend on their number (read in src/models of llama.cpp; the tests cut a tiny one of each).
RENUMBERABLE = ("llama", "qwen2", "qwen3", "qwen3moe", "falcon-h1", *HYBRIDS)
RECURRENT_LAYERS = "attention.recurrent_layers"
_INTERVAL = "full_attention_interval"
_DEFAULT_INTERVAL = 4  # what llama.cpp assumes when the file does not say
_FEEDING_BLOCKS = ("nemotron_h", "nemotron_h_moe")  # with blocks that only feed forward
# The width of a state, one for each kind of recurrent mixer.
_STATE_KEYS = ("ssm.conv_kernel", "ssm.inner_size", "shortconv.l_cache", "wkv.head_size", "kda.head_dim")
_PARTS_OF_A_NAME = 4  # blk.N.PART.weight


class TensorPiece(Record, frozen=True, kw_only=True):
    """One tensor of the new file, and where its bytes come from."""

    tensor: Tensor
    source: str | None = None  # name in the old file, whose first bytes are taken; None: zeros, or what `compute` gives
    compute: Callable[[], Bytes] | None = None  # its bytes, when they are written


class Edit(Record, frozen=True, kw_only=True):
    """A new model described by an old one: its tensors, the metadata that differs, and a word for its name."""

    pieces: tuple[TensorPiece, ...]
    changed: dict[str, Any] = msgspec.field(default_factory=dict)  # full key -> new value
    removed: frozenset[str] = frozenset()
    label: str = ""
    layers: tuple[int, ...] = ()  # old numbers of the blocks, in their new order

    @property
    def n_bytes(self) -> int:
        """Weights of the new file, a copy of which lies in memory next to the target's."""
        return sum(piece.tensor.n_bytes for piece in self.pieces)


class MadeDraft(Record, frozen=True, kw_only=True):
    """A draft that is made of its target."""

    source: Source
    edit: Edit  # without pieces the draft is the target's own file
    kind: str
    recipe: str  # what decides the bytes, beside the source

    def file(self) -> Path:
        """Its file, written once and kept for the next time. Raises: InputError."""
        source = self.source
        if not self.edit.pieces:
            return source.path
        digest = hashlib.sha256(f"{file_sha256(source.path)} {self.recipe}".encode()).hexdigest()[:12]
        name = f"{source.path.stem}-{self.kind}-{digest}.gguf"
        return cached_draft(name, lambda path: write_edit(source, self.edit, path))


def keep_layers(source: Source, keep: Sequence[int]) -> Edit:
    """The model with only the trunk blocks `keep` (old numbers, ascending). Raises: ModelFileError."""
    source.require_whole()
    if source.architecture not in RENUMBERABLE:
        raise ModelFileError(
            f"{source.path.name} is a {source.architecture or 'nameless'} model, whose blocks may depend on their own "
            "number: a window, a rotation or a scale would change silently.",
            hint=f"Architectures that can be cut: {', '.join(RENUMBERABLE)}.",
        )
    layers, pieces = tuple(keep), []
    for tensor in source.tensors:
        block = tensor.block
        if block is None:
            pieces.append(TensorPiece(tensor=tensor, source=tensor.name))
        elif block in layers:
            rest = tensor.name.split(".", 2)[2]
            renamed = msgspec.structs.replace(tensor, name=f"blk.{layers.index(block)}.{rest}")
            pieces.append(TensorPiece(tensor=renamed, source=tensor.name))
    changed, removed = _layer_metadata(source, layers)
    return Edit(pieces=tuple(pieces), changed=changed, removed=removed, label=f"{len(layers)} blocks", layers=layers)


def silence(edit: Edit, parts: Sequence[str], *, label: str, layers: Sequence[int] | None = None) -> Edit:
    """Zero the tensors ``blk.N.PART.weight`` of `layers` (new numbers; None: all). Raises: InputError without any."""
    is_any_hit = False
    pieces = []
    for piece in edit.pieces:
        block, names = piece.tensor.block, piece.tensor.name.split(".")
        hit = block is not None and (layers is None or block in layers) and names[2] in parts
        is_any_hit = is_any_hit or hit
        pieces.append(msgspec.structs.replace(piece, source=None) if hit else piece)
    if not is_any_hit:
        raise InputError(f"No block has a part called {' or '.join(parts)}.", hint="Like attn_output or ssm_out.")
    return msgspec.structs.replace(edit, pieces=tuple(pieces), label=f"{edit.label} {label}")


# --- component-aware drafts ---------------------------------------------------------------------------------------


def recurrent_only(source: Source, layers: Sequence[int], *, whole_blocks: bool = False) -> Edit:
    """The recurrent part of a hybrid model's blocks `layers` as a draft.

    falcon-h1: attention adds nothing in any block and shrinks to one head, which gives the same logits for less work.
    qwen35: attention is silenced, and the feed-forward half of its blocks stays; or `whole_blocks` are left out, but
    for one that is silenced wholly, because llama.cpp needs a block with attention memory.

    Raises: ModelFileError when the model is no hybrid.
    """
    if source.architecture == "falcon-h1":
        return _one_silent_head(source, keep_layers(source, layers))
    if source.architecture not in HYBRIDS:
        raise ModelFileError(
            f"{source.path.name} ({source.architecture}) has no recurrent part to draft with.",
            hint=f"Architectures that work: falcon-h1, {', '.join(HYBRIDS)}.",
        )
    recurrent = recurrent_layers(source)
    attention = [layer for layer in layers if not recurrent[layer]]
    if not attention:
        raise InputError("None of the kept blocks has attention, which llama.cpp needs.", hint="Keep one that has.")
    if not whole_blocks:
        edit = keep_layers(source, layers)
        return silence(edit, ["attn_output"], layers=[layers.index(i) for i in attention], label="no attention")
    left = tuple(layer for layer in layers if recurrent[layer] or layer == attention[0])
    parts = ["attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp"]
    return silence(keep_layers(source, left), parts, layers=[left.index(attention[0])], label="recurrent blocks only")


def attention_only(source: Source, layers: Sequence[int]) -> Edit:
    """The attention half of a falcon-h1 model's blocks `layers`. Raises: ModelFileError for other models."""
    if source.architecture != "falcon-h1":
        raise ModelFileError(f"{source.path.name} has no parallel blocks to take the recurrent half out of.")
    return silence(keep_layers(source, layers), ["ssm_out"], label="no recurrence")


def recurrent_layers(source: Source) -> list[bool]:
    """Which trunk blocks keep a recurrent state, from the header alone: what `load_arch_hparams` of llama.cpp reads.

    The file may list them. Else a model without attention heads, a RWKV and a falcon-h1 have one in every block, those
    with a list of key heads where that is 0 (and nemotron-h's feed-forward width too), and the others but every so
    many-th block. A model without the keys of a state has none.
    """
    n_layers = trunk_layers(source)
    if n_layers is None:
        raise ModelFileError(f"{source.path.name} does not say how many blocks it has.", hint="Is it a language model?")
    listed = source.flags(RECURRENT_LAYERS)
    if 0 < len(listed) < n_layers:
        raise source.damaged(f"it states for {len(listed)} of its {n_layers} blocks whether they are recurrent")
    if listed:
        return list(listed[:n_layers])
    interval = source.count(_INTERVAL, None)
    if interval is None and not any(source.count(key) for key in _STATE_KEYS):
        return [False] * n_layers
    key = "attention.head_count_kv"
    stated, queries = (source.of_blocks(name, n_layers) for name in (key, "attention.head_count"))  # both are checked
    heads = stated or queries or (0,) * n_layers
    if source.architecture == "falcon-h1" or source.count("wkv.head_size") or not any(heads):
        return [True] * n_layers
    if source.is_array(f"{source.architecture}.{key}"):
        feeding = source.of_blocks("feed_forward_length", n_layers) if source.architecture in _FEEDING_BLOCKS else None
        return [not n_heads and not (feeding and feeding[layer]) for layer, n_heads in enumerate(heads)]
    if interval == 0:
        raise source.damaged(f"its {_INTERVAL} is 0; llama.cpp would divide by it")
    return [(layer + 1) % (interval or _DEFAULT_INTERVAL) != 0 for layer in range(n_layers)]


def _one_silent_head(source: Source, edit: Edit) -> Edit:
    import gguf

    n_embd, n_head = source.count("embedding_length"), max(source.counts("attention.head_count") or (0,))
    head_dim = source.count("attention.key_length") or n_embd // max(1, n_head)
    if not head_dim:
        raise source.damaged("it does not say how wide a head is")
    pieces = []
    for piece in edit.pieces:
        names = piece.tensor.name.split(".")
        part = names[2] if names[0] == "blk" and len(names) == _PARTS_OF_A_NAME else ""
        if part in ("attn_q", "attn_k", "attn_v"):
            # The rows of the first head come first, so the first bytes are enough.
            dims = (piece.tensor.dims[0], head_dim) if names[3] == "weight" else (head_dim,)
            piece = msgspec.structs.replace(piece, tensor=msgspec.structs.replace(piece.tensor, dims=dims))
        elif part == "attn_output" and names[3] == "weight":
            tensor = Tensor(name=piece.tensor.name, dims=(head_dim, n_embd), type=gguf.GGMLQuantizationType.F16)
            piece = TensorPiece(tensor=tensor)
        pieces.append(piece)
    heads = {f"{source.architecture}.attention.{key}": 1 for key in ("head_count", "head_count_kv")}
    return msgspec.structs.replace(
        edit, pieces=tuple(pieces), changed={**edit.changed, **heads}, label=f"{edit.label} no attention"
    )


# --- metadata and writing -----------------------------------------------------------------------------------------


def _layer_metadata(source: Source, layers: tuple[int, ...]) -> tuple[dict[str, Any], frozenset[str]]:
    prefix = f"{source.architecture}."
    n_stored = source.n_blocks
    changed: dict[str, Any] = {f"{prefix}block_count": len(layers)}
    for key, value in source.values.items():
        if key.startswith(prefix) and value.item_type is not None and value.length == n_stored:
            values = source.get(key)
            changed[key] = [values[layer] for layer in layers]
    removed = {f"{prefix}nextn_predict_layers"}
    if source.architecture in HYBRIDS:
        recurrent = recurrent_layers(source)
        changed[f"{prefix}{RECURRENT_LAYERS}"] = [recurrent[layer] for layer in layers]
        removed.add(f"{prefix}{_INTERVAL}")
    return changed, frozenset(removed)


def write_edit(
    source: Source, edit: Edit, target: Path, *, on_bytes: OnBytes | None = None, hollow: bool = False
) -> None:
    """Write the edited model, or a sparse file of its size, whole or not at all. Raises: InputError."""
    import numpy as np

    from mlsd.gguf_tools.stream import write_gguf

    pieces = {piece.tensor.name: piece for piece in edit.pieces}

    def data(tensor: Tensor) -> list[Bytes]:
        piece = pieces[tensor.name]
        if piece.compute is not None:
            return [piece.compute()]
        if piece.source is not None:
            return [source.data(piece.source)[: tensor.n_bytes]]
        # A block of zero bytes is a block of zero weights in every type: its scale is zero.
        return [np.zeros(tensor.n_bytes, dtype=np.uint8)]

    write_gguf(
        target,
        source.architecture,
        [piece.tensor for piece in edit.pieces],
        describe(source, edit),
        None if hollow else data,
        made_from=source.path,
        on_bytes=on_bytes,
    )


def describe(source: Source, edit: Edit) -> Callable[[gguf.GGUFWriter], None]:
    """What writes the edit's metadata: the source's, but for what changed."""

    def write(writer: gguf.GGUFWriter) -> None:
        import gguf

        source.copy_metadata(writer, skip={*edit.changed, *edit.removed, "general.name"})
        writer.add_name(f"{source.text('general.name', source.path.stem, prefixed=False)}, {edit.label}")
        for key, value in edit.changed.items():
            if (old := source.values.get(key)) is not None:
                writer.add_key_value(key, value, old.type, old.item_type)
            else:
                writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL)

    return write


MOST_BYTES = 10_000_000_000
_KEPT = 4  # drafts of the size asked for that stay in any case: the arms of a session open theirs in turn


def draft_folder() -> Path:
    """Where cut drafts are kept; it may not exist yet."""
    return cache_dir() / "drafts"


def cached_draft(name: str, write: Callable[[Path], None], *, most_bytes: int = MOST_BYTES) -> Path:
    """The draft of that file name (with a hash of its recipe in it), made by `write` unless it is there.

    While all are larger than `most_bytes`, and than four of this size, the least recently used are removed. Raises:
    InputError, and what `write` raises.
    """
    folder = draft_folder()
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not path.is_file():
                write(path)
            # Only the time of the last use moves: size and modification time tell whether a known hash still holds.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            _shrink(folder, path, max(most_bytes, _KEPT * path.stat().st_size))
    except OSError as error:
        raise unwritable(folder, error) from error
    return path


def clear_drafts() -> int:
    """Remove every cut draft; returns the bytes that were freed."""
    folder = draft_folder()
    if not folder.is_dir():
        return 0
    with FileLock(folder / ".lock"):
        return _shrink(folder, None, 0)


def drafts_bytes() -> int:
    """Bytes of all cut drafts."""
    return sum(path.stat().st_size for path in _files(draft_folder()))


def _shrink(folder: Path, keep: Path | None, most_bytes: int) -> int:
    """Remove files but `keep`, least recently used first; returns the bytes freed."""
    files = sorted(_files(folder), key=lambda path: path.stat().st_atime_ns)
    total, freed = sum(path.stat().st_size for path in files), 0
    for path in files:
        if total - freed <= most_bytes:
            break
        if path != keep:
            freed += path.stat().st_size
            path.unlink()  # who has it open keeps it until it is closed
    return freed


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_file() and path.name != ".lock"]
