"""A llama.cpp context whose verification batches may branch; attention memory only.

Every sequence of the context holds the whole committed prefix, so a node of a tree can look back through whichever of
its leaves is named first. Memory cells are shared between sequences: the prefix is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.native import library
from mlsd.engine.tree import Tree, TreeLayout, layout
from mlsd.errors import EngineError, UnsupportedError

if TYPE_CHECKING:
    from mlsd.engine.llama.model import LlamaModel

Ints = npt.NDArray[np.signedinteger]
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_ID_BYTES = 4


class LevelSequences:
    """Sequences of the nodes of a tree that grows level by level below a text.

    Levels take turns with the two halves of a context's sequences, so that parents are still there to copy from.
    """

    def __init__(self, context: LlamaContext) -> None:
        self._context, self._half = context, context.options.n_sequences // 2
        self.n_levels = 0

    def add(self, base: int, parents: Sequence[int]) -> tuple[int, int]:
        """The sequence of the next level's first node, and the level's position; nodes have neighbouring sequences.

        `parents` are places in the level before (ROOT on the first), `base` is the position behind the text.
        """
        width, depth = len(parents), self.n_levels
        if width > self._half:
            raise EngineError(f"A level of {width} nodes needs {2 * width} sequences, there are {2 * self._half}.")
        first, before = (0, self._half) if depth % 2 == 0 else (self._half, 0)
        copy, memory = library().llama_memory_seq_cp, self._context.memory
        for i, parent in enumerate(parents if depth else ()):
            self._context.cut(first + i, base)
            copy(memory, before + parent, first + i, base, base + depth)
        self.n_levels += 1
        return first, base + depth


class LlamaTreeContext(LlamaContext):
    """One whose batches branch. Logits are read on the host: device sampling takes single rows."""

    def __init__(self, model: LlamaModel, options: ContextOptions) -> None:
        if model.is_recurrent:
            raise UnsupportedError(
                f"{model.path.name} has recurrent memory, which cannot hold a tree.", hint="Draft single chains for it."
            )
        if options.n_sequences > MAX_SEQUENCES:
            raise UnsupportedError(
                f"A tree with {options.n_sequences} leaves needs as many sequences; llama.cpp has {MAX_SEQUENCES}.",
                hint="Give a smaller gamma.",
            )
        super().__init__(model, options)
        self._n_held = 1  # sequences 0 .. n_held - 1 hold the committed prefix
        self._tree = Tree(tokens=(), parents=())
        self._layout: TreeLayout = layout(self._tree)
        self._n_root = 0
        self._levels = LevelSequences(self)

    # --- decoding -------------------------------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        rows = min(len(tokens), self.options.n_batch)
        self._n_ids[:rows] = self._n_held
        self._id_lists[:rows] = self._ids.ctypes.data
        super().decode(tokens, n_outputs=n_outputs)

    def decode_tree(self, root: int, tree: Tree) -> None:
        plan, width = layout(tree), 1 + len(tree.tokens)
        if plan.n_leaves > self.options.n_sequences or width > self.options.n_batch:
            raise EngineError(
                f"A tree of {width} rows and {plan.n_leaves} leaves does not fit into a context of "
                f"{self.options.n_sequences} sequences and batches of {self.options.n_batch}."
            )
        self._spread()
        self._tree, self._layout, self._n_root = tree, plan, self.n_past
        first, end = np.array((0, *plan.first_leaf)), np.array((self.options.n_sequences, *plan.end_leaf))
        wanted = np.ones(width, dtype=np.int8)
        for node in range(tree.n_candidates, len(tree.tokens)):
            wanted[1 + node] = node not in tree.parents  # of a window, whose ends alone say something new
        self._decode_rows((root, *tree.tokens), np.array((0, *plan.depths)) + self.n_past, first, end - first, wanted)
        self.n_past += 1 + max(plan.depths, default=0)
        self.last_width = width

    def grow(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Decode one more level of a tree below the prefix, for a draft that grows one level at a time.

        Token i continues node `parents[i]` of the level before (ROOT on the first level). Returns the logits after
        each, shape (len(tokens), n_vocab). `truncate(n_past)` forgets all levels; a new tree starts from the prefix.
        """
        self._spread()
        first, position = self._levels.add(self.n_past, parents)
        self._decode_rows(tokens, position, first + np.arange(len(tokens)), n_ids=1, wanted=1)
        return self.logits()

    def _decode_rows(
        self, tokens: Sequence[int], positions: Ints | int, first: Ints, n_ids: Ints | int, wanted: Ints | int
    ) -> None:
        """One pass over rows, each of `n_ids` neighbouring sequences from `first` on; the wanted ones get outputs."""
        width = len(tokens)
        if width > self._most_outputs:
            self._refuse_outputs(width)
        self._tokens[:width], self._positions[:width], self._wanted[:width] = tokens, positions, wanted
        self._n_ids[:width], self._id_lists[:width] = n_ids, self._ids.ctypes.data + _ID_BYTES * first
        self._submit(width)
        self._first_row, self._n_outputs = 0, width

    def _spread(self) -> None:
        """Let every sequence hold the prefix; done once a generation, later rows carry all ids themselves."""
        for sequence in range(self._n_held, self.options.n_sequences):
            self._native.llama_memory_seq_cp(self.memory, 0, sequence, 0, self.n_past)
        self._n_held = self.options.n_sequences

    @property
    def _sequence(self) -> int:  # type: ignore[override]
        """Of a row's sequences llama.cpp masks by the last."""
        return self._n_held - 1

    # --- memory ---------------------------------------------------------------------------------------------------

    def keep_path(self, path: Sequence[int]) -> int:
        n_first = self._n_root + 1
        if self._layer_rows is not None:
            self._layer_rows.keep_path(self._n_root, path)
        if self.options.tree == "redecode":
            self.cut(-1, n_first)
            self.n_past = n_first
            if path:
                self.decode([self._tree.tokens[i] for i in path], n_outputs=0)
            return len(path)
        n_end = n_first + len(path)
        self.cut(-1, n_end)
        if path:
            self._share(path[-1], n_first, n_end)
        self.n_past = n_end
        return 0

    def _share(self, node: int, n_first: int, n_end: int) -> None:
        """Give the cells on the path to `node` to every sequence that is not below it."""
        winner, end = self._layout.first_leaf[node], self._layout.end_leaf[node]
        for sequence in range(self.options.n_sequences):
            if winner <= sequence < end:
                continue
            if sequence < self._layout.n_leaves:
                self.cut(sequence, n_first, n_end)
            self._native.llama_memory_seq_cp(self.memory, winner, sequence, n_first, n_end)

    def truncate(self, n_past: int) -> None:
        self.cut(-1, n_past)
        self.n_past = n_past
        self._levels.n_levels = 0

    def clear(self) -> None:
        super().clear()
        self._n_held, self._levels.n_levels = 1, 0
        self._tree = Tree(tokens=(), parents=())
