"""How far trees move a target's logits by arithmetic alone.

Cells that a rejected branch leaves free are taken by later tokens, so attention adds up the same numbers in another
order, and wide batches run through other kernels. Both are harmless, and this tells how large they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import cast

import msgspec
import numpy as np

from mlsd.engine.probe import PROBE_TEXT
from mlsd.engine.session import Session, SessionOptions, TreeSession
from mlsd.engine.tree import ROOT, merge

_N_PREFIX = 12
_N_ROUNDS = 12
_PATH = 3


def tree_noise(open_session: Callable[[SessionOptions], Session], options: SessionOptions) -> float:
    """Largest logit difference between a text decoded token by token and as the last branch of many trees.

    `options` are those of the tree session; its trees are as wide as its outputs allow. A text of some 60 tokens is
    decoded twice. Raises: EngineError when decoding fails.
    """
    plain = msgspec.structs.replace(options, tree="off", n_sequences=1, max_outputs=1, device_sampling=False)
    with closing(open_session(plain)) as session:
        text = session.tokenize(PROBE_TEXT)
        session.decode(text[:_N_PREFIX])
        rows = []
        for token in text[_N_PREFIX : _N_PREFIX + _N_ROUNDS * (1 + _PATH)]:
            session.decode((token,))
            rows.append(session.logits()[0])
    worst, at = 0.0, 0
    with closing(cast(TreeSession, open_session(options))) as trees:
        trees.decode(text[:_N_PREFIX])
        while at + _PATH < len(rows):
            root, *path = text[_N_PREFIX + at : _N_PREFIX + at + 1 + _PATH]
            n_nodes = max(_PATH + 1, min(options.max_outputs - 1, options.n_sequences + _PATH - 1))
            wrong = [(token,) for token in range(n_nodes) if token != path[0]][: n_nodes - _PATH]
            tree = merge([*wrong, path], n_nodes, _PATH)
            trees.decode_tree(root, tree)
            kept = range(len(tree.tokens) - _PATH, len(tree.tokens))
            for row, node in zip(rows[at:], (ROOT, *kept), strict=False):
                worst = max(worst, float(np.abs(trees.row(node) - row).max()))
            trees.keep_path(kept)
            at += 1 + _PATH
    return worst
