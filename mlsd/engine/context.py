"""The seam between mlsd and an inference engine: one model with one context and one sequence of tokens in memory.

`llama.context.LlamaContext` is the real one. Loops, rollback strategies and drafters know only this protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from mlsd.engine.tree import Tree
from mlsd.engine.vocabulary import Tokenizer
from mlsd.errors import EngineError, InputError
from mlsd.hardware import logical_cores, performance_cores
from mlsd.records import EngineOptions, Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# With so few cores there is none to spare for the rest of the system, and llama.cpp's threads wait for the slowest:
# one stolen core then stalls every pass.
_FEW_CORES = 4


def threads_of(engine: EngineOptions) -> int:
    """The threads that a context runs on. Raises: InputError for more than the machine has cores."""
    n_threads = engine.n_threads or default_threads()
    check_threads(n_threads)
    return n_threads


def on_threads(engine: EngineOptions) -> EngineOptions:
    """The options with the number of threads that contexts run on here, so that naming it asks for nothing else."""
    return msgspec.structs.replace(engine, n_threads=threads_of(engine))


def check_threads(n_threads: int) -> None:
    """Raises: InputError for more threads than cores: llama.cpp's threads wait for the slowest, and no time is true."""
    cores = logical_cores()
    if n_threads > cores:
        raise InputError(
            f"{n_threads} threads were asked for, but this machine has {cores} core{'s' if cores > 1 else ''}.",
            hint="Give fewer with --n-threads, or leave it out.",
        )


def default_threads() -> int:
    """Physical cores (performance cores where the machine tells them apart), one less where there are few."""
    cores = performance_cores()
    return max(1, cores - 1) if cores <= _FEW_CORES else cores


Logits: TypeAlias = "npt.NDArray[np.float32]"
_CONTEXT_STEP = 256


def check_finite(rows: Logits) -> Logits:
    """`rows` as they are. Raises: EngineError for NaN or infinite logits, of which every comparison says False."""
    import numpy as np

    if not np.isfinite(rows).all():
        raise EngineError(
            "The model's logits are not finite.",
            hint="Its file holds NaN or infinite weights, or they overflow on this backend: convert or fetch it again.",
        )
    return rows


# layer-rows: can keep what chosen blocks are fed with, for a drafting head or the model's own next-token block.
ContextKind = Literal["plain", "layer-rows"]
# Whether batches may branch, and what becomes of an accepted path: its memory cells stay ("keep"), or it is decoded
# once more as a chain ("redecode": slower, and bit for bit what plain decoding leaves behind).
TreeKind = Literal["off", "keep", "redecode"]


class ContextOptions(Record, frozen=True, kw_only=True):
    """How a context is made. Widths count positions of one `decode` call."""

    n_ctx: int
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = msgspec.field(default_factory=default_threads)
    n_gpu_layers: int = -1
    flash_attention: str = "auto"  # auto, on, off
    kv_type: str = "f16"  # of keys and values in the memory
    n_snapshots: int = 0  # recurrent states kept for rollback inside the last batch
    n_saved_states: int = 0  # recurrent states that can be saved beside the one of `save_state()`
    saved_on_device: bool = False  # each then takes a sequence; on the host otherwise
    max_outputs: int = 1  # the most output rows one decode asks for
    device_sampling: bool = True  # greedy tokens are picked on the device; logits rows are then not available
    checked: bool = True  # False repeats the study's mistake: failed native calls are counted and ignored
    n_sequences: int = 1  # parallel sequences, for tree verification and state synchronisation
    tree: TreeKind = "off"
    kind: ContextKind = "plain"

    @property
    def n_all_sequences(self) -> int:
        """With those under which the device keeps saved states."""
        return self.n_sequences + (self.n_saved_states if self.saved_on_device else 0)


def padded(n_positions: int) -> int:
    """The length of a context for so many positions: rounded up as llama.cpp does."""
    return -(-n_positions // _CONTEXT_STEP) * _CONTEXT_STEP


def context_options(engine: EngineOptions, n_positions: int) -> ContextOptions:
    """Contexts as `engine` asks for them, with room for `n_positions` where it leaves that open."""
    return ContextOptions(
        n_ctx=engine.n_ctx or padded(n_positions),
        n_batch=engine.n_batch,
        n_ubatch=engine.n_ubatch,
        n_threads=threads_of(engine),
        n_gpu_layers=engine.n_gpu_layers,
        flash_attention=engine.flash_attention,
        kv_type=engine.kv_type,
    )


class Context(Protocol):
    """One model, one context, one growing sequence; every call raises an `EngineError` when the engine fails."""

    options: ContextOptions
    n_ctx: int  # positions that fit into memory
    window: int  # positions that some layers see (0: all see all)
    last_width: int  # tokens of the last micro-batch; rollback by snapshots is exact only inside them
    n_snapshots: int  # recurrent snapshots the engine really keeps (0: none)
    failed_native_calls: int  # that were ignored; always 0 in a checked context

    @property
    def tokenizer(self) -> Tokenizer:
        """Its model's."""

    @property
    def n_past(self) -> int:
        """Positions in memory; the next token goes to this position."""

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        """Append `tokens` at `n_past` and compute outputs for the last `n_outputs` of them; returns when it is done."""

    def decode_tree(self, root: int, tree: Tree) -> None:
        """Append `root` at `n_past` and the nodes of `tree` after it, in one pass; returns when it is done.

        Raises: EngineError in a context whose batches cannot branch (`ContextOptions.tree`).
        """

    def keep_path(self, path: Sequence[int]) -> int:
        """Keep the root and the nodes of `path`, forget all others; returns the rows decoded again for it."""

    def greedy(self) -> list[int]:
        """The most likely next token after each output row of the last decode, in order."""

    def logits(self) -> Logits:
        """Logits of the output rows of the last decode: shape (n_outputs, n_vocab), a copy."""

    def row(self, node: int) -> Logits:
        """Logits after a proposed token or a node of a tree (ROOT: the token before all), shape (n_vocab,), no copy."""

    def truncate(self, n_past: int) -> None:
        """Forget every position >= `n_past`. Raises EngineError when the engine says it cannot."""

    def save_state(self, slot: int | None = None) -> None:
        """Remember the recurrent part of the memory as it is now, in the one place there is or in a further one."""

    def load_state(self, slot: int | None = None) -> None:
        """Bring back what `save_state` remembered there; attention memory is cut with `truncate`."""

    @property
    def model_key(self) -> object:
        """Equal for contexts over one model in memory."""

    def copy_memory(self) -> Any:
        """All memory, for `set_memory` of any context over the same model."""

    def set_memory(self, data: Any, n_past: int) -> None:
        """Hold what `copy_memory` gave of `n_past` positions, and nothing else."""

    def clear(self) -> None:
        """Forget everything."""

    def close(self) -> None:
        """Free every native handle; calling it twice is harmless."""
