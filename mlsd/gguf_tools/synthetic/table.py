"""Tiny models given as tables of keys and tensors, for architectures that only tests and demonstrations write."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec

from mlsd.gguf_tools.shape import TINY_VOCAB
from mlsd.gguf_tools.tensor import Tensor, read_tensors
from mlsd.records import Record

_FILE = "architectures.toml"


class TensorTable(Record, frozen=True, kw_only=True):
    """One model: what llama.cpp reads of its header, and its tensors in file order."""

    name: str
    architecture: str
    keys: dict[str, Any]  # without the architecture's prefix
    tensors: tuple[Tensor, ...]
    n_vocab: int = TINY_VOCAB

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_weights for tensor in self.tensors)


class _TensorEntry(msgspec.Struct, forbid_unknown_fields=True):
    blocks: list[str]  # the parts of each block
    next_token: str = ""  # those of a block that predicts the token after the next one, beside its projections
    architecture: str = ""  # as files say it, where it is not the name
    sets: list[str] = []  # keys that several architectures share
    keys: dict[str, Any] = {}
    parts: dict[str, str] = {}


def read_tables(*, next_token: bool = False) -> dict[str, TensorTable]:
    """The tables of the package, by name; or those of its models that can have a next-token block, with one."""
    document = tomllib.loads(resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))
    keys, parts, sets = (document.pop(name) for name in ("keys", "parts", "sets"))
    entries = {name: msgspec.convert(entry, _TensorEntry) for name, entry in document.items()}
    if next_token:
        entries = {f"{name}-mtp": _with_block(name, entry) for name, entry in entries.items() if entry.next_token}
    return {name: _table(name, entry, keys, parts, sets) for name, entry in entries.items() if entry.blocks}


def _with_block(name: str, entry: _TensorEntry) -> _TensorEntry:
    return msgspec.structs.replace(
        entry,
        architecture=entry.architecture or name,
        blocks=[*entry.blocks, f"{entry.next_token} next-token"],
        keys={**entry.keys, "nextn_predict_layers": 1},
    )


def _table(
    name: str,
    entry: _TensorEntry,
    keys: Mapping[str, Any],
    parts: Mapping[str, str],
    sets: Mapping[str, dict[str, Any]],
) -> TensorTable:
    merged = {"vocab_size": TINY_VOCAB, "block_count": len(entry.blocks), **keys}
    for chosen in entry.sets:
        merged.update(sets[chosen])
    tensors = list(read_tensors(f"token_embd.weight {keys['embedding_length']} {TINY_VOCAB}"))
    for prefix, block in (("", "outer"), *((f"blk.{layer}.", block) for layer, block in enumerate(entry.blocks))):
        for part in block.split():
            tensors += read_tensors(",".join(_lines(part, entry.parts, parts)), prefix=prefix)
    return TensorTable(
        name=name, architecture=entry.architecture or name, keys=merged | entry.keys, tensors=tuple(tensors)
    )


def _lines(part: str, parts: Mapping[str, str], shared: Mapping[str, str]) -> Iterator[str]:
    """The tensors of a part; another part named in it stands for its tensors, its own name for the shared one's."""
    for line in (parts.get(part) or shared[part]).split(","):
        if " " in line.strip():
            yield line.strip()
        else:
            yield from _lines(line.strip(), {} if line.strip() == part else parts, shared)
