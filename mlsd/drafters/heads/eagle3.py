"""Drafting with an EAGLE-3 head: one trained block that reads the target's rows of three depths.

Li et al. 2025, EAGLE-3 (arXiv 2503.01840). At position p the head reads token p + 1 and the encoded target rows of p;
the newest committed token has no rows yet, so it is read with those of the position before, and its own position waits
for the next round. A reduced vocabulary is spread over the target's by the head's own graph. Chains of sampled tokens
are verified with their distributions. `eagle3-tree` grows trees with the same head.

The head is the user's. mlsd has run heads of random weights only: what it shows of them is that the output stays
right, not that a trained head is accepted.
"""

from __future__ import annotations

from pathlib import Path

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.heads.head_chain import HeadChain
from mlsd.drafters.heads.head_files import check_head, check_rows, open_head, row_options
from mlsd.drafters.options import Span, read_options
from mlsd.engine.llama.heads import EagleHead
from mlsd.engine.llama.row_context import Hidden
from mlsd.engine.llama.rows import LayerRowsSession
from mlsd.records import DrafterSpec

ARCHITECTURE = "eagle3"
READS_TARGET = True
OPTIONS = Doubt
SPACE = {"gamma": Span(low=1, high=8)}

target_options = row_options
check_target = check_rows


def check_draft(spec: DrafterSpec, target_path: Path, draft_path: Path) -> None:
    """Refuse a head that does not fit the target. Raises: UnsupportedError, ModelFileError."""
    check_head(ARCHITECTURE, target_path, draft_path)


def make(bench: DrafterBench) -> Eagle3Draft:
    """The head beside the target.

    Raises: InputError without a head, UnsupportedError for one that does not fit, VocabularyError.
    """
    opened = open_head(bench, ARCHITECTURE)
    chain = Chain(bench.clock, bench.sampling, read_options(bench.spec, Doubt))
    return Eagle3Draft(opened.target, EagleHead(opened.model, opened.target), bench.clock, chain)


class Eagle3Draft(HeadChain):
    """A chain of tokens from the head."""

    name = "eagle3"
    n_ahead = 1

    def __init__(self, target: LayerRowsSession, head: EagleHead, clock: Clock, chain: Chain) -> None:
        super().__init__(head, clock, chain)
        self._target, self._eagle = target, head

    def true_rows(self, first: int, end: int) -> Hidden:
        """The target's rows of the same positions, encoded."""
        return self._eagle.encode(self._target.rows[first:end])
