"""Profiling passes: a plain context and a watched one side by side, in turns, so that heat and load are shared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from mlsd.clock import Clock, MonotonicClock
from mlsd.drafters import drafting_file, drafting_key, find_method
from mlsd.engine.llama.heads import EagleHead, NextTokenHead, RowContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import HEADS, open_session
from mlsd.engine.llama.profiler import GraphTap, SpanTap, WatchedEagleHead, WatchedNextTokenHead
from mlsd.engine.llama.rows import HiddenRowsSession, LayerRowsSession, Rows
from mlsd.engine.llama.taps import Tap, TappedSession
from mlsd.engine.parts import PARTS, Part
from mlsd.engine.session import SessionOptions, session_options
from mlsd.errors import CapacityError, PromptError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.measure.messages import BreakdownJob, SharesFound
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.store.pass_shares import PassShares, block_key
from mlsd.measure.store.rows import model_key
from mlsd.measure.worker.passes import PassBench
from mlsd.records import DrafterSpec

_BURST = 2  # counted passes of a kind before the next kind's turn, after one that is not counted
_EAGLE = "eagle3"  # architecture of heads whose steps are profiled


class Pass(NamedTuple):
    """The three ways to make one and the same pass; each call makes one and says how long it took, in ns."""

    plain: Callable[[], int]
    watched: Callable[[], int]
    tapped: Callable[[Tap], AbstractContextManager[None]]  # what looks inside the watched ones
    headless: Callable[[], int] | None = None

    def measure(self, clock: Clock, repeats: int, *, rows: int, depth: int, key: str, part: str | None) -> PassShares:
        """The fastest of `repeats` turns. Raises UnsupportedError for a graph whose parts cannot be told apart."""
        graph = GraphTap()
        with self.tapped(graph):
            self.watched()
        tap = SpanTap(graph.nodes, clock)
        plain: list[int] = []
        headless: list[int] = []
        watched: list[int] = []
        parts: list[dict[Part, int]] = []
        for _ in range(repeats):
            plain += _burst(self.plain)
            if self.headless is not None:
                headless += _burst(self.headless)
            with self.tapped(tap):
                for i in range(_BURST + 1):
                    spent_ns, sums = self.watched(), tap.take()
                    if i:
                        watched.append(spent_ns)
                        parts.append(sums)
        return PassShares(
            model_key=key,
            drafting_key=part,
            rows=rows,
            depth=depth,
            n_passes=len(plain),
            plain_ns=min(plain),
            profiled_ns=min(watched),
            headless_ns=min(headless) if headless else None,
            parts_ns={part: min([sums[part] for sums in parts]) for part in PARTS if part in parts[0]},
        )


def _burst(make: Callable[[], int]) -> list[int]:
    """The first pass of a width builds the graph anew and is not counted."""
    make()
    return [make() for _ in range(_BURST)]


def break_down(job: BreakdownJob, clock: Clock | None = None, cache: ProbeCache | None = None) -> SharesFound:
    """Profile the target's passes, then a step of the draft network where the job names one.

    Raises: PromptError, CapacityError and UnsupportedError before anything is timed, EngineError.
    """
    # Metal reorders up to 64 nodes before the callback sees them, which gives a part's time to another part.
    os.environ["GGML_METAL_GRAPH_OPTIMIZE_DISABLE"] = "1"
    clock, cache = clock or MonotonicClock(), cache or ProbeCache()
    found: list[PassShares] = []
    with ExitStack() as stack:
        target = _open(stack, job.target.path, job)
        text = target.tokenize(job.text)
        widest = max(job.rows)
        _check_room(job, len(text), target, widest)
        snapshots = False
        if target.is_recurrent and widest > 1:
            report = cache.get(job.target.ref, session_options(job.engine, 1), target)
            snapshots = report.target == "snapshots"
        key = model_key(job.target.ref.sha256, job.target.ref.id)
        for rows in job.rows:
            found.append(_profile(target, job, clock, text, rows, snapshots=snapshots, key=key))
        if find_method(job.drafter.name).loads_next_token_block:
            found.append(
                _profile_block(
                    Path(job.target.path),
                    job.drafter,
                    _options(job, 1, snapshots=False),
                    clock,
                    text[: job.depth],
                    job.repeats,
                    key,
                )
            )
        network = _draft_network(job)
        if network is not None:
            path, key, part = network
            found += _profile_draft(_open(stack, path, job), job, clock, text, key, part)
    return SharesFound(shares=tuple(found))


def _profile_draft(
    draft: LlamaModel, job: BreakdownJob, clock: Clock, text: Sequence[int], key: str, part: str | None
) -> list[PassShares]:
    """A step of the network that drafts; of heads, only EAGLE-3's takes steps that are profiled."""
    if draft.architecture not in HEADS:
        return [_profile(draft, job, clock, text, 1, snapshots=False, key=key, part=part)]
    if draft.architecture != _EAGLE:
        return []
    options = _options(job, 1, snapshots=False)
    return [_profile_eagle(Path(job.target.path), draft, options, clock, text[: job.depth], job.repeats, key)]


def _open(stack: ExitStack, path: str, job: BreakdownJob) -> LlamaModel:
    refuse_unloadable(Source(Path(path)))
    return stack.enter_context(LlamaModel(Path(path), n_gpu_layers=job.engine.n_gpu_layers))


def _check_room(job: BreakdownJob, n_text: int, target: LlamaModel, widest: int) -> None:
    needed = job.depth + widest
    if n_text < needed:
        raise PromptError(
            f"The text has {n_text} tokens for this model; depth and rows need {needed}.",
            hint="Give a longer text, or a smaller --depth.",
        )
    if target.n_ctx_train and needed > target.n_ctx_train:
        raise CapacityError(
            f"Depth {job.depth} is beyond the {target.n_ctx_train} positions of this model.",
            hint="Give a smaller --depth.",
        )


def _draft_network(job: BreakdownJob) -> tuple[str, str, str | None] | None:
    """File, model key and drafting key of the network that drafts; None where none does."""
    if job.draft is not None:
        return job.draft.path, model_key(job.draft.ref.sha256, job.draft.ref.id), None
    path = drafting_file(job.drafter, Path(job.target.path))
    if path is None:
        return None
    return str(path), model_key(job.target.ref.sha256, job.target.ref.id), drafting_key(job.drafter)


def _options(job: BreakdownJob, rows: int, *, snapshots: bool) -> SessionOptions:
    n_ctx = job.depth + 2 * rows + 1
    options = session_options(job.engine, n_ctx)
    return msgspec.structs.replace(options, max_outputs=rows, n_snapshots=rows if snapshots and rows > 1 else 0)


def _profile(
    model: LlamaModel,
    job: BreakdownJob,
    clock: Clock,
    text: Sequence[int],
    rows: int,
    *,
    snapshots: bool,
    key: str,
    part: str | None = None,
) -> PassShares:
    """Passes of one width: plain, without outputs, and watched, a few of each in turns."""
    options = _options(job, rows, snapshots=snapshots)
    with open_session(model, options) as plain, TappedSession(model, options) as watched:
        alone, seen = (PassBench(one, clock, text, job.depth, recurrent=model.is_recurrent) for one in (plain, watched))
        alone.fill()
        seen.fill()
        made = Pass(
            plain=lambda: alone.once(rows, rows),
            headless=lambda: alone.once(rows, 0),
            watched=lambda: seen.once(rows, rows),
            tapped=watched.tapped,
        )
        return made.measure(clock, job.repeats, rows=rows, depth=job.depth, key=key, part=part)


# --- a step of a drafting head: a context beside the target that reads rows of numbers -------------------------------


def _profile_block(
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
        made = Pass(*turns, tapped=watched.tapped)
        return made.measure(clock, repeats, rows=1, depth=len(text), key=key, part=block_key(spec))


def _profile_eagle(
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
        made = Pass(*turns, tapped=watched.tapped)
        return made.measure(clock, repeats, rows=1, depth=len(text), key=key, part=None)


def _turns(
    stack: ExitStack, clock: Clock, text: Sequence[int], rows: Rows, plain: RowContext, watched: RowContext
) -> tuple[Callable[[], int], Callable[[], int]]:
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

    return filled(plain), filled(watched)
