"""Profiling a step of a drafting head: a context beside the target that reads rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.engine.llama.heads import EagleHead, NextTokenHead
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.profiler import WatchedEagleHead, WatchedNextTokenHead
from mlsd.engine.llama.row_context import Hidden, RowContext
from mlsd.engine.llama.rows import HiddenRowsSession, LayerRowsSession
from mlsd.engine.session import SessionOptions
from mlsd.measure.store.pass_shares import PassShares, block_key
from mlsd.measure.worker.pass_turns import Kinds
from mlsd.records import DrafterSpec

EAGLE = "eagle3"  # architecture of heads whose steps are profiled


def profile_block(
    path: Path, spec: DrafterSpec, options: SessionOptions, clock: Clock, text: Sequence[int], repeats: int, key: str
) -> PassShares:
    """A step of the target's own next-token block behind `text`, on the target's true rows."""
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(path, n_gpu_layers=options.n_gpu_layers, load_mtp=True))
        target = HiddenRowsSession(model, msgspec.structs.replace(options, kind="hidden-rows"))
        stack.callback(target.close)
        target.decode(text, n_outputs=0)
        rows = np.concatenate([np.zeros_like(target.hidden[:1]), target.hidden[: len(text)]])
        watched = WatchedNextTokenHead(target)
        turns = _turns(stack, clock, text, rows, NextTokenHead(target), watched)
        kinds = Kinds(clock, **turns, tapped=watched.tapped)
        return kinds.measure(repeats, rows=1, depth=len(text), key=key, part=block_key(spec))


def profile_eagle(
    path: Path, head: LlamaModel, options: SessionOptions, clock: Clock, text: Sequence[int], repeats: int, key: str
) -> PassShares:
    """A step of an EAGLE-3 head behind `text`; its rows are zeros, which take as long as any others."""
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(path, n_gpu_layers=options.n_gpu_layers))
        target = LayerRowsSession(model, msgspec.structs.replace(options, kind="layer-rows"))
        stack.callback(target.close)
        watched = WatchedEagleHead(head, target)
        rows = np.zeros((len(text) + 1, watched.n_embd), dtype=np.float32)
        turns = _turns(stack, clock, text, rows, EagleHead(head, target), watched)
        kinds = Kinds(clock, **turns, tapped=watched.tapped)
        return kinds.measure(repeats, rows=1, depth=len(text), key=key, part=None)


def _turns(
    stack: ExitStack, clock: Clock, text: Sequence[int], rows: Hidden, plain: RowContext, watched: RowContext
) -> dict[str, Callable[[], int]]:
    """Both contexts filled with the text, and one step of each."""

    def filled(head: RowContext) -> Callable[[], int]:
        stack.callback(head.close)
        head.decode(text, rows[:-1])
        return lambda: step(head)

    def step(head: RowContext) -> int:
        began_ns = clock.now_ns()
        head.decode(text[-1:], rows[-1:])
        spent_ns = clock.now_ns() - began_ns
        head.truncate(len(text))
        return spent_ns

    return {"plain": filled(plain), "watched": filled(watched)}
