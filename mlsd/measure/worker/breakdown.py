"""Profiling passes: a plain context and a watched one side by side, in turns, so that heat and load are shared.

Runs inside the worker, never beside a timed trial. Answers with shares; see `engine.profiler` for how they are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from mlsd.clock import Clock
from mlsd.drafters import drafting_file, drafting_key, find_method
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import HEADS, open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.llama.taps import TappedSession
from mlsd.engine.probe import probe
from mlsd.engine.session import SessionOptions
from mlsd.errors import CapacityError, PromptError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.measure.messages import BreakdownJob, ModelFile, SharesFound
from mlsd.measure.store.pass_shares import PassShares
from mlsd.measure.store.rows import model_key
from mlsd.measure.worker.arms import session_options
from mlsd.measure.worker.breakdown_heads import EAGLE, profile_block, profile_eagle
from mlsd.measure.worker.pass_turns import Kinds
from mlsd.measure.worker.probe_cache import ProbeCache

_CONTEXT_STEP = 256


class PassMaker:
    """One context filled to a depth, to which it returns after every pass."""

    def __init__(
        self, session: LlamaSession, clock: Clock, text: Sequence[int], depth: int, *, recurrent: bool
    ) -> None:
        self._session, self._clock, self._text, self._depth = session, clock, text, depth
        self._recurrent = recurrent
        self._n_windows = 0
        session.decode(text[:depth], n_outputs=0)
        if recurrent:
            session.save_state()

    def once(self, rows: int, n_outputs: int) -> int:
        """One pass over the next `rows` tokens of the text, in ns."""
        room = len(self._text) - self._depth - rows + 1
        first = self._depth + self._n_windows * rows % room
        self._n_windows += 1
        tokens = self._text[first : first + rows]
        began_ns = self._clock.now_ns()
        self._session.decode(tokens, n_outputs=n_outputs)
        spent_ns = self._clock.now_ns() - began_ns
        if self._recurrent:
            self._session.load_state()
        self._session.truncate(self._depth)
        return spent_ns


def break_down(job: BreakdownJob, clock: Clock, cache: ProbeCache) -> SharesFound:
    """Profile the target's passes, then a step of the draft network where the job names one.

    Raises: PromptError, CapacityError and UnsupportedError before anything is timed, EngineError.
    """
    found: list[PassShares] = []
    with ExitStack() as stack:
        target = _open(stack, job.target.path, job)
        text = target.tokenize(job.text)
        widest = max(job.rows)
        _check_room(job, len(text), target, widest)
        strategy = _strategy(job, job.target, target, cache) if target.is_recurrent and widest > 1 else None
        key = model_key(job.target.ref.sha256, job.target.ref.id)
        for rows in job.rows:
            found.append(_profile(target, job, clock, text, rows, snapshots=strategy == "snapshots", key=key))
        if find_method(job.drafter.name).loads_next_token_block:
            found.append(
                profile_block(
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
    if draft.architecture != EAGLE:
        return []
    options = _options(job, 1, snapshots=False)
    return [profile_eagle(Path(job.target.path), draft, options, clock, text[: job.depth], job.repeats, key)]


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
    options = session_options(job.engine, -(-n_ctx // _CONTEXT_STEP) * _CONTEXT_STEP)
    return msgspec.structs.replace(options, max_outputs=rows, n_snapshots=rows if snapshots and rows > 1 else 0)


def _strategy(job: BreakdownJob, file: ModelFile, model: LlamaModel, cache: ProbeCache) -> str | None:
    options = session_options(job.engine, _CONTEXT_STEP)
    return cache.get(file.ref, options, lambda: probe(partial(open_session, model), options)).target


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
        alone = PassMaker(plain, clock, text, job.depth, recurrent=model.is_recurrent)
        seen = PassMaker(watched, clock, text, job.depth, recurrent=model.is_recurrent)
        kinds = Kinds(
            clock,
            plain=lambda: alone.once(rows, rows),
            headless=lambda: alone.once(rows, 0),
            watched=lambda: seen.once(rows, rows),
            tapped=watched.tapped,
        )
        return kinds.measure(job.repeats, rows=rows, depth=job.depth, key=key, part=part)
