"""Profiling passes: a plain context and a watched one side by side, in turns, so that heat and load are shared."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from mlsd.clock import Clock, MonotonicClock
from mlsd.drafters import drafting_file, drafting_key
from mlsd.engine.context import context_options
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import HEADS, open_context
from mlsd.engine.llama.taps import GraphTap, SpanTap, TappedContext
from mlsd.engine.parts import PARTS, Part
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.measure.heat import idles_cold
from mlsd.measure.messages import BreakdownJob, report_progress
from mlsd.measure.worker.timing import PassBench, check_room
from mlsd.store.rows import PassShares

_BURST = 2  # counted passes of a kind before the next kind's turn


def break_down(job: BreakdownJob) -> tuple[PassShares, ...]:
    """Profile the target's passes, then a step of the model that drafts where the job names one.

    Raises: PromptError and EngineError, what cannot be before anything is timed.
    """
    # Metal reorders up to 64 nodes before the callback sees them, which gives a part's time to another part.
    os.environ["GGML_METAL_GRAPH_OPTIMIZE_DISABLE"] = "1"
    clock = MonotonicClock()
    shares: list[PassShares] = []
    with ExitStack() as stack:
        target = _open(stack, job.target.path, job)
        text = target.tokenize(job.text)
        widest = max(job.rows)
        check_room(len(text), target, job.depth, widest)
        key = job.target.ref.key
        for rows in job.rows:
            report_progress("profiling passes")
            shares.append(_profile(target, job, clock, text, rows, snapshots=target.is_recurrent, key=key))
        network = _draft_network(job)
        if network is not None:
            path, key, part = network
            draft = _open(stack, path, job)
            if draft.architecture not in HEADS:
                shares.append(_profile(draft, job, clock, text, 1, snapshots=False, key=key, part=part))
    return tuple(shares)


def _open(stack: ExitStack, path: str, job: BreakdownJob) -> LlamaModel:
    refuse_unloadable(Source(Path(path)))
    return stack.enter_context(LlamaModel(Path(path), n_gpu_layers=job.engine.n_gpu_layers))


def _draft_network(job: BreakdownJob) -> tuple[str, str, str | None] | None:
    """File, model key and drafting key of the network that drafts; None where none does."""
    if job.draft is not None:
        return job.draft.path, job.draft.ref.key, None
    path = drafting_file(job.drafter, Path(job.target.path))
    if path is None:
        return None
    return str(path), job.target.ref.key, drafting_key(job.drafter)


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
    """The fastest of passes of one width: plain, without outputs, and watched, a few of each in turns.

    Raises: UnsupportedError for a graph whose parts cannot be told apart.
    """
    options = msgspec.structs.replace(
        context_options(job.engine, job.depth + 2 * rows + 1),
        max_outputs=rows,
        n_snapshots=rows if snapshots and rows > 1 else 0,
    )
    cold = idles_cold(backend_info(job.engine.n_gpu_layers).backend)
    plain, headless, watched, parts = list[int](), list[int](), list[int](), list[dict[Part, int]]()
    with open_context(model, options) as context, TappedContext(model, options) as tapped:
        alone, watching = (
            PassBench(opened, clock, text, job.depth, recurrent=model.is_recurrent, cold=cold)
            for opened in (context, tapped)
        )
        alone.fill()
        watching.fill()
        graph = GraphTap()
        with tapped.tapped(graph):
            watching.once(rows, rows)
        tap = SpanTap(graph.nodes, clock)
        for _ in range(job.repeats):
            alone.warm(rows, rows)
            plain += [alone.once(rows, rows) for _ in range(_BURST)]
            alone.warm(rows, 0)
            headless += [alone.once(rows, 0) for _ in range(_BURST)]
            with tapped.tapped(tap):
                watching.warm(rows, rows)
                tap.take()
                turn = [(watching.once(rows, rows), tap.take()) for _ in range(_BURST)]
            watched += [spent_ns for spent_ns, _ in turn]
            parts += [sums for _, sums in turn]
    return PassShares(
        model_key=key,
        drafting_key=part,
        rows=rows,
        depth=job.depth,
        n_passes=len(plain),
        plain_ns=min(plain),
        profiled_ns=min(watched),
        headless_ns=min(headless),
        parts_ns={part: min(sums[part] for sums in parts) for part in PARTS if part in parts[0]},
    )
