"""What methods that draft trees share: the target context they need, and the tree of the commonest continuations."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.session import SessionOptions
from mlsd.engine.tree import ROOT, Tree, depth_first
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import state_layers

_DROPPED = -2
_CONTEXT_STEP = 256  # contexts are rounded up, as llama.cpp does

Commit = Literal["keep", "redecode"]  # see `engine.session.SessionOptions.tree`


def tree_options(options: SessionOptions, *, n_rows: int, n_leaves: int, commit: Commit) -> SessionOptions:
    """A target context for trees of `n_rows` nodes and `n_leaves` leaves; it has room for one tree at its end."""
    n_ctx = -(-(options.n_ctx + n_rows + 1) // _CONTEXT_STEP) * _CONTEXT_STEP
    return msgspec.structs.replace(
        options,
        tree=commit,
        n_ctx=n_ctx,
        n_batch=max(options.n_batch, n_rows + 1),
        n_ubatch=max(options.n_ubatch, n_rows + 1),
        n_sequences=max(2, n_leaves),
        max_outputs=n_rows + 1,
        device_sampling=False,
    )


def chain_options(options: SessionOptions, longest: int) -> SessionOptions:
    """A target context for chains of at most `longest` tokens, however large gamma is."""
    return msgspec.structs.replace(
        options,
        max_outputs=min(options.max_outputs, longest + 1),
        n_snapshots=min(options.n_snapshots, longest + 1),
    )


def check_holds_trees(method: str, target_path: Path) -> None:
    """Refuse a target with recurrent memory, from its header alone. Raises: UnsupportedError, ModelFileError."""
    if state_layers(Source(target_path)):
        raise UnsupportedError(
            f"{method} needs a target with attention memory only, because it verifies trees; {target_path.name} has "
            "recurrent layers.",
            hint="draft-model, prompt lookup (pld) and rest draft chains for such targets.",
        )


def commonest_prefixes(rows: npt.NDArray[np.int32], n_nodes: int) -> Tree:
    """The `n_nodes` commonest prefixes of `rows` as a tree, commoner children first.

    `rows`, shape (n, length), are sorted; a row ends at its first negative id. A prefix is at least as common as what
    continues it, so the chosen ones form a tree by themselves (He et al. 2023, REST, arXiv 2311.08252, section 3.2,
    which takes the most frequent prefixes of a trie).
    """
    nodes: list[tuple[int, int, int]] = []  # count, token, parent among `nodes`
    group = np.full(len(rows), ROOT)  # each row's node at the depth before
    for depth in range(rows.shape[1]):
        column = rows[:, depth]
        changed = np.ones(len(rows), dtype=bool)
        np.logical_or(column[1:] != column[:-1], group[1:] != group[:-1], out=changed[1:])
        starts = np.flatnonzero(changed)
        sizes = np.diff(starts, append=len(rows))
        chosen = _commonest(np.where(column[starts] >= 0, sizes, 0), n_nodes)
        index = np.full(len(starts), _DROPPED)
        index[chosen] = len(nodes) + np.arange(len(chosen))
        first = starts[chosen]
        nodes += zip(sizes[chosen].tolist(), column[first].tolist(), group[first].tolist(), strict=True)
        group = np.repeat(index, sizes)
        alive = group != _DROPPED
        if not alive.all():
            rows, group = rows[alive], group[alive]
        if not len(rows):
            break
    # The sort is stable and `nodes` has parents first, so a parent comes before children that are as common.
    best = sorted(range(len(nodes)), key=lambda i: -nodes[i][0])[:n_nodes]
    place = {ROOT: ROOT, **{node: i for i, node in enumerate(best)}}
    return depth_first([nodes[i][1] for i in best], [place[nodes[i][2]] for i in best])


def _commonest(sizes: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """Indices of the `n` largest sizes above 0, in ascending order; of equal ones the earlier."""
    n_positive = int(np.count_nonzero(sizes))
    if n_positive <= n:
        return np.flatnonzero(sizes)
    keys = sizes * len(sizes) - np.arange(len(sizes))
    return np.sort(np.argpartition(keys, -n)[-n:])
