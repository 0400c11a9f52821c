"""Rows of hidden values kept for every position, for what drafts with them: a head, or the next-token block.

llama.cpp ends the process when asked for rows that a graph does not give out, so requests are checked here. The names
were read from the graphs of the pinned release; mlsd has run llama, qwen35 and qwen35moe of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mlsd.engine.llama.native import extension, fail, layer_inputs, library
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.llama.trees import LlamaTreeSession
from mlsd.engine.session import SessionOptions
from mlsd.errors import UnsupportedError

if TYPE_CHECKING:
    from mlsd.engine.llama.model import LlamaModel


Rows = npt.NDArray[np.float32]

# Graphs that give out the input of every block, one row of the model's width for each position.
_BLOCKS = frozenset(
    {
        *("llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "lfm2", "lfm2moe"),
        *("mimo2", "minimax-01", "minimax-m2", "nemotron_h", "nemotron_h_moe", "bailingmoe3", "hunyuan-dense"),
    }
)
# Of these, the ones that also give out the row after the last block, as a next-token block would read it.
_LAST = frozenset(
    {"qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "bailingmoe3"}
)


def check_layers(architecture: str, n_layers: int, layers: Sequence[int], *, last: bool = True) -> None:
    """Refuse rows that the graph of a target with `n_layers` trunk blocks does not give out. Raises: UnsupportedError.

    Layer i stands for the input of block i, and `n_layers` for the row after the last block, where `last` allows it.
    """
    if architecture not in _BLOCKS:
        raise UnsupportedError(
            f"llama.cpp's graph of {architecture} does not give out the rows between its blocks.",
            hint=f"A drafting head needs a target of {', '.join(sorted(_BLOCKS))}.",
        )
    last = last and architecture in _LAST
    for layer in layers:
        if not 0 <= layer < n_layers + last:
            raise UnsupportedError(
                f"The drafting head wants the rows of layer {layer}; this {architecture} target gives out 0 to "
                f"{n_layers - 1 + last}.",
                hint="The head was made for another target; take the one that its card names.",
            )


class LayerRowsSession(LlamaSession):
    """A session that keeps rows of every position, once it was told which."""

    def __init__(self, model: LlamaModel, options: SessionOptions) -> None:
        self._extension = extension()  # may refuse this release, so before a context is open
        self._layers: tuple[int, ...] = ()
        super().__init__(model, options)
        self._n_embd = int(library().llama_model_n_embd(model.handle))
        self._n_layers = int(library().llama_model_n_layer(model.handle))
        self.rows: Rows = np.zeros((0, 0), dtype=np.float32)
        self._newest = self.rows

    def keep_rows(self, layers: Sequence[int]) -> None:
        """From the next pass on, keep the rows of `layers` side by side in `rows`, shape (n_ctx, n_layers * n_embd).

        Raises: UnsupportedError for a layer whose rows this graph does not give out, or a library that exports none.
        """
        check_layers(self.model.architecture, self._n_layers, layers)
        self._keep(layers)

    def keep_hidden_rows(self) -> None:
        """The same of the row that the model's own next-token block reads. Raises: UnsupportedError without a block."""
        if not self.model.has_next_token_block:
            raise UnsupportedError(
                f"{self.model.path.name} was loaded without next-token block.", hint="Most public GGUFs leave it out."
            )
        self._keep((self._n_layers,))

    def _keep(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if layer < self._n_layers:
                layer_inputs()[0](self.handle, layer, True)
            else:
                self._extension.llama_set_embeddings_nextn(self.handle, True, False)
        self._layers = tuple(layers)
        # By position: what a rollback forgets is overwritten when the position is decoded again.
        self.rows = np.zeros((self.n_ctx, len(layers) * self._n_embd), dtype=np.float32)

    def _submit(self, width: int) -> None:
        super()._submit(width)
        if self._layers:
            self._newest = np.concatenate([self._read(layer, width) for layer in self._layers], axis=1)
            self.rows[self._positions[:width]] = self._newest

    def _read(self, layer: int, width: int) -> Rows:
        if layer < self._n_layers:
            pointer = layer_inputs()[1](self.handle, layer)
        else:
            pointer = self._extension.llama_get_embeddings_nextn(self.handle)
        if not pointer:
            raise fail(f"llama.cpp has no rows of layer {layer}")
        return np.ctypeslib.as_array(pointer, shape=(width, self._n_embd))


class LayerRowsTreeSession(LayerRowsSession, LlamaTreeSession):
    """The same for batches that branch: the rows of the path that is kept are the ones that stay."""

    def keep_path(self, path: Sequence[int]) -> int:
        first, tree_rows = self._n_root, self._newest
        n_again = super().keep_path(path)
        if not self._layers:
            return n_again
        self.rows[first] = tree_rows[0]
        if not n_again:
            self.rows[first + 1 : first + 1 + len(path)] = tree_rows[[1 + node for node in path]]
        return n_again
