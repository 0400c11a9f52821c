"""What methods share that draft with a head from a file of its own: the file, the target's rows, refusals.

A head's file is checked against the target's before either is loaded (`check_head`); once more where it is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from mlsd.drafters import DrafterBench
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.rows import LayerRowsSession, check_layers
from mlsd.engine.session import SessionOptions
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.heads import Head, read_head
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.records import DrafterSpec


def row_options(options: SessionOptions, spec: DrafterSpec, gamma: int, rollback: str) -> SessionOptions:
    """The target keeps the rows that a head reads.

    Raises: UnsupportedError for unchecked rollback.
    """
    if rollback == "unchecked":
        raise UnsupportedError(
            f"{spec.name} reads the target's rows, and after a failed pass there are none.",
            hint="Use --rollback auto, or draft-model to show what unchecked rollback does.",
        )
    return msgspec.structs.replace(options, kind="layer-rows")


def check_rows(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse a target whose graph does not give out the rows between its blocks, by its header alone.

    Raises: InputError without a head, UnsupportedError, ModelFileError.
    """
    if spec.draft is None:
        raise InputError(f"The {spec.name} method needs a head.", hint="Name its GGUF with --draft.")
    target = Source(target_path)
    check_layers(target.architecture, trunk_layers(target) or 0, ())


def check_head(architecture: str, target_path: Path, head_path: Path) -> Head:
    """The head in a file; refuses one that llama.cpp cannot run beside the target, by the two headers alone.

    Raises: UnsupportedError, ModelFileError.
    """
    target = Source(target_path)
    head = read_head(Source(head_path), target, architecture)
    # Only EAGLE-3's own driver reads the row after the last block where a next-token block would.
    last = architecture == "eagle3"
    check_layers(target.architecture, trunk_layers(target) or 0, head.target_layers, last=last)
    return head


@dataclass(frozen=True)
class Opened:
    """What a method builds its head from."""

    target: LayerRowsSession  # keeps the head's rows from now on
    model: LlamaModel  # the head's weights
    head: Head


def open_head(bench: DrafterBench, architecture: str) -> Opened:
    """Load the head beside the target.

    Raises: InputError without a head, UnsupportedError, ModelFileError, VocabularyError.
    """
    if bench.draft_path is None:
        raise InputError(f"The {bench.spec.name} method needs a head.", hint="Name its GGUF with --draft.")
    head = check_head(architecture, bench.target_path, bench.draft_path)
    model: LlamaModel = bench.open_model(bench.draft_path)
    check_vocabularies(bench.target, model)
    target = cast(LayerRowsSession, bench.target)
    target.keep_rows(head.target_layers)
    return Opened(target=target, model=model, head=head)
