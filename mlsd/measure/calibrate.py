"""Timing a model's passes one kind at a time: T(k), draft steps, prefill, rollback, sampling.

Runs inside the worker. A repeat visits every context and width in random order, so that heat and load are shared.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from mlsd.clock import Clock
from mlsd.engine.llama import LlamaModel
from mlsd.engine.probe import ProbeReport, probe
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.errors import CapacityError, PromptError
from mlsd.measure.experts import cover
from mlsd.measure.job import CalibrateJob, Covered, ModelFile, Passes
from mlsd.measure.passes import PassBench, Span
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.rig import session_options
from mlsd.measure.rows import CalibrationPoint, PassKind, model_key

_ROOM = 32  # positions beyond what a depth and the widest pass need
_CONTEXT_STEP = 256
_Spans = tuple[str, list[Span]]  # of the model with that key

_DRAFT_WIDTHS = (1, 2, 3, 5, 9, 17)  # rows of a catch-up: the bonus token, and accepted ones where a draft replays


class Calibration:
    """One target and perhaps a draft, open for timing. Close it after use."""

    def __init__(self, job: CalibrateJob, clock: Clock, cache: ProbeCache) -> None:
        self._job, self._clock, self._cache = job, clock, cache
        n_ctx = max(job.depths) + 3 * max(job.widths) + _ROOM
        self.options = session_options(job.engine, -(-n_ctx // _CONTEXT_STEP) * _CONTEXT_STEP)
        self._models: list[LlamaModel] = []
        try:
            self.target = self._open(job.target)
            self.draft = self._open(job.draft) if job.draft is not None else None
            self.text = self.target.tokenize(job.text)
            needed = max(job.depths) + max(job.widths)
            if len(self.text) < needed:
                raise PromptError(
                    f"The text has {len(self.text)} tokens for this model; depth and width need {needed}.",
                    hint="Give a longer text with --text, or a smaller --depth.",
                )
            if self.target.n_ctx_train and needed > self.target.n_ctx_train:
                raise CapacityError(
                    f"Depth {max(job.depths)} is beyond the {self.target.n_ctx_train} positions of this model.",
                    hint="Give a smaller --depth.",
                )
            if self.draft is not None:
                small = msgspec.structs.replace(self.options, n_ctx=256)
                with closing(self.target.session(small)) as a, closing(self.draft.session(small)) as b:
                    check_vocabularies(a, b)
        except BaseException:
            self.close()
            raise

    def _open(self, file: ModelFile) -> LlamaModel:
        model = LlamaModel(Path(file.path), n_gpu_layers=self._job.engine.n_gpu_layers)
        self._models.append(model)
        return model

    def _report(self, file: ModelFile, model: LlamaModel) -> ProbeReport:
        return self._cache.get(file.ref, self.options, lambda: probe(model.session, self.options))

    def close(self) -> None:
        """Free the models; calling it twice is harmless."""
        for model in self._models:
            model.close()

    # --- timing ---------------------------------------------------------------------------------------------------

    def repeats(self) -> Iterator[Passes]:
        """Timed passes, a repeat at a time, until all cells are tight or the budget ends."""
        rng = random.Random(self._job.seed)
        tally = _Tally()
        started_ns, spent_ns, repeat = self._clock.now_ns(), 0, 0
        while True:
            begun_ns = self._clock.now_ns()
            points = self._repeat(repeat, rng)
            tally.add(points)
            now_ns = self._clock.now_ns()
            spent_ns = max(spent_ns, now_ns - begun_ns)
            repeat += 1
            width = tally.half_width()
            yield Passes(points=tuple(points), half_width=width)
            enough = repeat >= self._job.least_repeats
            tight = width is not None and width <= self._job.precision
            late = now_ns - started_ns + spent_ns > self._job.budget_s * 1e9
            if enough and (tight or late):
                return

    def _repeat(self, repeat: int, rng: random.Random) -> list[CalibrationPoint]:
        tasks: list[Callable[[], _Spans]] = []
        for depth in self._job.depths:
            for widths in contexts(self._job.widths):
                order = rng.sample(widths, len(widths))
                tasks.append(lambda d=depth, w=order: self._target_passes(repeat, d, w))  # type: ignore[misc]
            if self.draft is not None:
                tasks.append(lambda d=depth: self._draft_steps(repeat, d))  # type: ignore[misc]
        rng.shuffle(tasks)
        return _points([task() for task in tasks], repeat)

    def _target_passes(self, repeat: int, depth: int, widths: Sequence[int]) -> _Spans:
        """One context as an arm with that gamma has it: prefill, then each width in a burst."""
        job, widest = self._job, max(widths)
        # Plain decoding rolls nothing back, so it needs no probe.
        strategy = self._report(job.target, self.target).target if widest > 1 else None
        options = msgspec.structs.replace(
            self.options,
            max_outputs=widest,
            n_snapshots=widest if strategy == "snapshots" and widest > 1 else 0,
        )
        with self.target.session(options) as session:
            bench = PassBench(session, self._clock, self.text, depth, repeat, recurrent=self.target.is_recurrent)
            spans = [bench.fill()]
            for width in widths:
                spans += bench.burst("target_pass", width)
                if width > 1 and strategy is not None:
                    spans.append(bench.rollback(strategy, width))
            if self.target.is_recurrent and widest == 1:
                spans.append(bench.checkpoint())
        return model_key(job.target.ref.sha256, job.target.ref.id), spans

    def _draft_steps(self, repeat: int, depth: int) -> _Spans:
        job, draft = self._job, self.draft
        assert draft is not None and job.draft is not None
        strategy = self._report(job.draft, draft).draft
        with draft.session(msgspec.structs.replace(self.options, max_outputs=2)) as session:
            bench = PassBench(session, self._clock, self.text, depth, repeat, recurrent=draft.is_recurrent)
            spans = [bench.fill()]
            for rows in (1, 2):  # with one proposal a round a draft's passes are one or two wide and nothing else
                spans += bench.burst("target_pass", rows)
            spans += [bench.draft_step(rows) for rows in _DRAFT_WIDTHS]
            if strategy is not None:
                spans.append(bench.rollback(strategy, 5, singly=True))
            if draft.is_recurrent:
                spans.append(bench.checkpoint())
        return model_key(job.draft.ref.sha256, job.draft.ref.id), spans

    # --- experts --------------------------------------------------------------------------------------------------

    def coverage(self) -> Covered:
        """Which experts the target chooses. Raises UnsupportedError for a target without routed experts."""
        job = self._job
        key = model_key(job.target.ref.sha256, job.target.ref.id)
        return cover(
            key, self.target, self.draft, self.text, self.options, windows=job.windows, n_experts=job.n_experts
        )


class _Tally:
    """How well T(k) is known so far."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, int, int], list[int]] = {}

    def add(self, points: Sequence[CalibrationPoint]) -> None:
        for p in points:
            if p.kind in ("target_pass", "draft_step"):
                self._cells.setdefault((p.model_key, p.kind, p.rows, p.depth), []).append(p.span_ns)

    def half_width(self) -> float | None:
        """Relative half-width of the 95 % interval of the worst cell's mean; None before three repeats."""
        if any(len(spans) < 3 for spans in self._cells.values()):
            return None
        widths = [
            1.96 * statistics.stdev(spans) / len(spans) ** 0.5 / statistics.fmean(spans)
            for spans in self._cells.values()
        ]
        return float(max(widths))


def contexts(widths: Sequence[int]) -> list[list[int]]:
    """Widths that share a context: 1, then up to 2, 4, 8, ...; a context keeps as many snapshots as its widest pass."""
    groups: dict[int, list[int]] = {}
    for width in sorted(set(widths)):
        groups.setdefault((width - 1).bit_length(), []).append(width)
    return list(groups.values())


def _points(timed: Sequence[_Spans], repeat: int) -> list[CalibrationPoint]:
    """One point a cell: a depth is filled once a context, so a repeat has several prefills, whose mean counts."""
    cells: dict[tuple[str, PassKind, int, int], list[int]] = {}
    for key, spans in timed:
        for span in spans:
            cells.setdefault((key, span.kind, span.rows, span.depth), []).append(span.ns)
    return [
        CalibrationPoint(
            model_key=key, kind=kind, rows=rows, depth=depth, repeat=repeat, span_ns=round(statistics.fmean(ns))
        )
        for (key, kind, rows, depth), ns in cells.items()
    ]
