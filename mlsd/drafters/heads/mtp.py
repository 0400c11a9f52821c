"""Drafting with the target's own next-token block (multi-token prediction), as Qwen3.5 ships it.

Each step reads a token and the hidden row of the position before: the target's own row where it is known, the block's
row for speculative positions (`head_chain`).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.heads.head_chain import HeadChain
from mlsd.drafters.options import read_options
from mlsd.engine.llama.heads import NextTokenHead
from mlsd.engine.llama.row_context import Hidden
from mlsd.engine.llama.rows import HiddenRowsSession
from mlsd.engine.session import SessionOptions
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec

ARCHITECTURES = ("qwen35", "qwen35moe")
LOADS_NEXT_TOKEN_BLOCK = True
OPTIONS = Doubt


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """The target keeps its hidden rows."""
    return msgspec.structs.replace(options, kind="hidden-rows")


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse a file without the block.

    Raises: UnsupportedError, ModelFileError.
    """
    source = Source(target_path)
    if source.architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{target_path.name} is a {source.architecture} model; mtp works on {' and '.join(ARCHITECTURES)}.",
            hint="Choose another drafter for it.",
        )
    if int(source.own("nextn_predict_layers", 0)) < 1:
        raise UnsupportedError(
            f"{target_path.name} has no next-token block: it was left out when the file was made.",
            hint="Use a GGUF converted with the model's MTP layers.",
        )


def make(bench: DrafterBench) -> NextTokenDraft:
    """The block beside the target.

    Raises: UnsupportedError for a target without one.
    """
    check_target(bench.spec, bench.target_path)
    target = cast(HiddenRowsSession, bench.target)
    chain = Chain(bench.clock, bench.sampling, read_options(bench.spec, Doubt))
    return NextTokenDraft(target, NextTokenHead(target), bench.clock, chain)


class NextTokenDraft(HeadChain):
    """A chain of tokens from one block used again and again."""

    name = "mtp"

    def __init__(self, target: HiddenRowsSession, head: NextTokenHead, clock: Clock, chain: Chain) -> None:
        super().__init__(head, clock, chain)
        self._target = target

    def true_rows(self, first: int, end: int) -> Hidden:
        """The target's rows of positions first - 1 .. end - 2; before the text there is a row of zeros."""
        known = self._target.hidden
        if first > 0:
            return known[first - 1 : end - 1]
        return np.concatenate([np.zeros((1, known.shape[1]), dtype=np.float32), known[: end - 1]])
