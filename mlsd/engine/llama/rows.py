"""Rows of hidden values kept for every position, for what drafts with them: a head, or the next-token block.

llama.cpp ends the process when asked for rows that a graph does not give out, so requests are checked here. The names
were read from the graphs of the pinned release; mlsd has run llama, qwen35 and qwen35moe of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlsd.engine.llama.native import extension, fail, layer_inputs, library
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


class LayerRows:
    """The rows that one context keeps of every position, once it was told which."""

    def __init__(self, model: LlamaModel, handle: Any, n_ctx: int) -> None:
        """Raises: NativeError for a release whose symbols are not known."""
        self._model, self._handle, self._n_ctx = model, handle, n_ctx
        self._extension = extension()
        self._layers: tuple[int, ...] = ()
        self._n_embd = int(library().llama_model_n_embd(model.handle))
        self._n_layers = int(library().llama_model_n_layer(model.handle))
        # By position: what a rollback forgets is overwritten when the position is decoded again.
        self.rows: Rows = np.zeros((0, 0), dtype=np.float32)
        self._newest = self.rows

    def keep(self, layers: Sequence[int]) -> None:
        """From the next pass on, keep the rows of `layers` side by side in `rows`, shape (n_ctx, n_layers * n_embd).

        Raises: UnsupportedError for a layer whose rows this graph does not give out, or a library that exports none.
        """
        check_layers(self._model.architecture, self._n_layers, layers)
        self._keep(layers)

    def keep_hidden(self) -> None:
        """The same of the row that the model's own next-token block reads. Raises: UnsupportedError without a block."""
        if not self._model.has_next_token_block:
            raise UnsupportedError(
                f"{self._model.path.name} was loaded without next-token block.", hint="Most public GGUFs leave it out."
            )
        self._keep((self._n_layers,))

    def _keep(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if layer < self._n_layers:
                layer_inputs()[0](self._handle, layer, True)
            else:
                self._extension.llama_set_embeddings_nextn(self._handle, True, False)
        self._layers = tuple(layers)
        self.rows = np.zeros((self._n_ctx, len(layers) * self._n_embd), dtype=np.float32)

    def take(self, positions: npt.NDArray[np.int32]) -> None:
        """Keep those of the pass that has just ended, whose rows stand at `positions`."""
        if self._layers:
            self._newest = np.concatenate([self._read(layer, len(positions)) for layer in self._layers], axis=1)
            self.rows[positions] = self._newest

    def _read(self, layer: int, width: int) -> Rows:
        if layer < self._n_layers:
            pointer = layer_inputs()[1](self._handle, layer)
        else:
            pointer = self._extension.llama_get_embeddings_nextn(self._handle)
        if not pointer:
            raise fail(f"llama.cpp has no rows of layer {layer}")
        return np.ctypeslib.as_array(pointer, shape=(width, self._n_embd))

    def keep_path(self, first: int, path: Sequence[int]) -> None:
        """Of the tree whose root stands at `first`, and which was the last pass, the rows of that path stay."""
        if self._layers:
            self.rows[first : first + 1 + len(path)] = self._newest[[0, *(1 + node for node in path)]]
