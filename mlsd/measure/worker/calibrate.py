"""Timing a model's passes one kind at a time: T(k), draft steps, prefill, rollback, sampling.

The first repeat takes the widths that matter most first; later ones visit all in random order, so that heat is shared.
"""

import collections
import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec

from mlsd.clock import Clock, MonotonicClock
from mlsd.engine.context import context_options
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.probe import ProbeReport, assumed_strategy, check_model
from mlsd.engine.rollback import rollback_options
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.errors import EngineError
from mlsd.measure.cool_down import idles_cold
from mlsd.measure.messages import Alive, CalibrateJob, Covered, Passes, Spent, silent
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.experts import cover
from mlsd.measure.worker.timing import Ledger, PassBench, Span, TimeBudget, check_room
from mlsd.planning.job import ModelFile
from mlsd.records import Record
from mlsd.store.rows import CalibrationPoint, PassKind

_ROOM = 32  # positions beyond what a depth and the widest pass need
_Spans = tuple[str, list[Span]]  # of the model with that key

_DRAFT_WIDTHS = (1, 2, 5, 3, 9, 17)  # rows of a catch-up: the bonus token, and accepted ones where a draft replays
_FIRST_WIDTHS = (1, 2, 5, 9, 17, 33)  # plain decoding, and gamma 1, 4, 8, 16, 32

# Shares of the budget; what one part leaves over is the next one's.
_COVERAGE_SHARE = 0.25
_DRAFT_ROUND = 5  # tokens that a draft takes back where that is timed
_DRAFT_SHARE = 0.25  # of the first repeat
_BURST_SHARE = 0.06
_ROLLBACK_SHARE = 0.15
_PROBE_SHARE = 0.15
_PROBE_PASSES = 400  # single-token passes that take about as long as the probe


class _Visit(Record, frozen=True, kw_only=True):
    """One context to open, and what to time in it."""

    depth: int
    widths: tuple[int, ...]  # in this order; empty: the draft's context


def calibrate(job: CalibrateJob, alive: Alive = silent) -> Iterator[Passes | Covered | Spent]:
    """Time passes, a repeat at a time; then ask a mixture for its experts, outside everything timed."""
    with closing(Calibration(job, MonotonicClock(), ProbeCache(alive=alive), alive)) as calibration:
        yield from calibration.repeats()
        if job.windows and job.n_experts:
            yield calibration.coverage()
        yield calibration.spent()


class Calibration:
    """One target and perhaps a draft, open for timing. Close it after use."""

    def __init__(self, job: CalibrateJob, clock: Clock, cache: ProbeCache, alive: Alive = silent) -> None:
        self._job, self._clock, self._cache, self._alive = job, clock, cache, alive
        self._ledger, self._assumed = Ledger(clock), False
        n_ctx = max(job.depths) + 3 * max(job.rows) + _ROOM
        self.options = context_options(job.engine, n_ctx)
        self._stack = ExitStack()
        self._budget = TimeBudget(clock)  # of everything after loading; it begins with the first repeat
        self._reports: dict[bool, ProbeReport] = {}  # of the target, and of the draft
        self._fill_ns: dict[tuple[int, bool], int] = {}  # by depth, and whether it is the draft's
        self._t_one_ns = 0
        try:
            with self._ledger.entry("load"):
                self.target = self._open(job.target)
                self.draft = self._open(job.draft) if job.draft is not None else None
            for model in filter(None, (self.target, self.draft)):
                check_model(partial(open_context, model), self.options)
            self.text = self.target.tokenize(job.text)
            check_room(len(self.text), self.target, max(job.depths), max(job.rows))
            if self.draft is not None:
                small = msgspec.structs.replace(self.options, n_ctx=256)
                with closing(open_context(self.target, small)) as a, closing(open_context(self.draft, small)) as b:
                    check_vocabularies(a.tokenizer, b.tokenizer)
        except BaseException:
            self.close()
            raise

    def _open(self, file: ModelFile) -> LlamaModel:
        model = LlamaModel(Path(file.path), n_gpu_layers=self._job.engine.n_gpu_layers)
        return self._stack.enter_context(model)

    def close(self) -> None:
        self._stack.close()

    # --- timing ---------------------------------------------------------------------------------------------------

    def repeats(self) -> Iterator[Passes]:
        """Timed passes, a repeat at a time, until all cells are tight or the budget ends, perhaps within a repeat.

        T(1) is timed whatever the budget says. Raises EngineError when not even its context could be filled in time.
        """
        rng = random.Random(self._job.seed)
        tally = _Tally()
        budget = self._budget = TimeBudget(self._clock, self._job.budget_s * 1e9)
        timing = budget.part(1 - (_COVERAGE_SHARE if self._job.windows else 0.0))
        for repeat in itertools.count():
            must = repeat < self._job.least_repeats
            points = self._repeat(repeat, rng, TimeBudget(self._clock) if must else timing)
            if not points and repeat:
                return
            tally.add(points)
            if not tally.has_t_one:
                raise EngineError(
                    f"{self._job.budget_s:g} s ended before the context was filled to depth {min(self._job.depths)}, "
                    "so no pass was timed.",
                    hint="Give a larger --budget-s or a smaller --depth.",
                )
            width = tally.half_width()
            yield Passes(points=tuple(points), half_width=width)
            tight = width is not None and width <= self._job.precision
            if repeat + 1 >= self._job.least_repeats and (tight or timing.is_over):
                return

    def spent(self) -> Spent:
        """What each part took so far."""
        return Spent(
            seconds={part: ns / 1e9 for part, ns in self._ledger.spent_ns.items()}, rollback_assumed=self._assumed
        )

    def _repeat(self, repeat: int, rng: random.Random, budget: TimeBudget) -> list[CalibrationPoint]:
        visits = collections.deque(self._visits(None if repeat == 0 else rng))
        timed: list[_Spans] = []
        while visits and not (timed and budget.is_over):
            share = budget.fraction(1 / len(visits)) if repeat == 0 else budget
            visit = visits.popleft()
            self._alive("timing passes")
            first = not repeat and not timed
            if not first and budget.left_ns <= self._fill_ns.get((visit.depth, not visit.widths), 0):
                continue  # another context may take less to fill
            if not visit.widths:
                timed.append(self._draft_steps(repeat, visit.depth, budget))
                continue
            spans, n_done = self._target_passes(repeat, visit, budget, share, first=first)
            timed.append(spans)
            if left := visit.widths[n_done:]:
                visits.append(msgspec.structs.replace(visit, widths=left))
        return _points(timed, repeat)

    def _visits(self, rng: random.Random | None) -> list[_Visit]:
        """Every context: in random order, or those of widths that matter most first, and the draft's second."""
        depths, groups = self._job.depths, contexts(self._job.rows)
        for group in groups:
            group.sort(key=_importance if rng is None else lambda _: rng.random())
        groups.sort(key=lambda group: _importance(group[0]))
        visits = [_Visit(depth=depth, widths=tuple(group)) for group in groups for depth in depths]
        if self.draft is not None:
            visits[len(depths) : len(depths)] = [_Visit(depth=depth, widths=()) for depth in depths]
        if rng is not None:
            rng.shuffle(visits)
        return visits

    def _target_passes(
        self, repeat: int, visit: _Visit, budget: TimeBudget, share: TimeBudget, *, first: bool
    ) -> tuple[_Spans, int]:
        """One context as an arm with that gamma has it: prefill, then each width in a burst.

        Also how many of the widths had their turn: those after the first only while the visit's share lasts.
        """
        job, widest, n_done = self._job, max(visit.widths), 0
        # Plain decoding rolls nothing back, so it needs no strategy.
        strategy = self._strategy(job.target, self.target, budget) if widest > 1 else None
        options = rollback_options(strategy, msgspec.structs.replace(self.options, max_outputs=widest), widest)
        with open_context(self.target, options) as context:
            if strategy == "snapshots" and not context.n_snapshots:
                strategy = "checkpoint"  # assumed, but this engine keeps no snapshots of this architecture
            bench, spans = self._bench(context, self.target, visit.depth, repeat, budget)
            for width in visit.widths if spans else ():
                if n_done and share.is_over:
                    break
                n_done += 1
                with self._ledger.entry("passes"):
                    spans += bench.burst("target_pass", width, budget.part(_BURST_SHARE), must=first)
                late = budget.is_over or self._ledger.spent_ns.get("rollback", 0) >= _ROLLBACK_SHARE * budget.span_ns
                if width > 1 and strategy is not None and not late:
                    with self._ledger.entry("rollback"):
                        spans.append(bench.rollback(strategy, width))
            if spans and self.target.is_recurrent and widest == 1:
                spans.append(bench.checkpoint())
        if first:
            self._t_one_ns = next((span.ns for span in spans if span.kind == "target_pass"), 0)
        return (job.target.ref.key, spans), n_done or len(visit.widths)

    def _draft_steps(self, repeat: int, depth: int, budget: TimeBudget) -> _Spans:
        job, draft = self._job, self.draft
        assert draft is not None and job.draft is not None
        strategy = self._strategy(job.draft, draft, budget)
        if repeat == 0:
            budget = budget.part(_DRAFT_SHARE)
        options = rollback_options(strategy, msgspec.structs.replace(self.options, max_outputs=2), _DRAFT_ROUND)
        with open_context(draft, options) as context:
            bench, spans = self._bench(context, draft, depth, repeat, budget)
            with self._ledger.entry("draft"):
                if spans:
                    spans += bench.draft_step(1)
                    for rows in (1, 2):  # with one proposal a round a draft's passes are one or two wide, nothing else
                        spans += bench.burst("target_pass", rows, budget.part(_BURST_SHARE))
                    spans += [span for rows in _DRAFT_WIDTHS[1:] for span in bench.draft_step(rows)]
                if strategy is not None and not budget.is_over:
                    spans.append(bench.rollback(strategy, _DRAFT_ROUND, singly=True))
                if spans and strategy == "checkpoint":  # which says that accepted tokens are taken in again
                    spans.append(bench.checkpoint())
        return job.draft.ref.key, spans

    def _bench(
        self, context: LlamaContext, model: LlamaModel, depth: int, repeat: int, budget: TimeBudget
    ) -> tuple[PassBench, list[Span]]:
        """A bench with its context filled, and what that took; no span when the time was up before."""
        cold, recurrent = idles_cold(backend_info(self._job.engine.n_gpu_layers).backend), model.is_recurrent
        bench = PassBench(context, self._clock, self.text, depth, repeat, recurrent=recurrent, cold=cold, budget=budget)
        with self._ledger.entry("prefill"):
            spans = bench.fill()
        for span in spans:
            self._fill_ns[depth, model is self.draft] = span.ns
        return bench, spans

    # --- rollback -------------------------------------------------------------------------------------------------

    def _strategy(self, file: ModelFile, model: LlamaModel, budget: TimeBudget) -> str | None:
        """How a model is rolled back: as a probe found, or as its kind is known to be where a probe takes too long."""
        is_target = model is self.target
        report = self._reports.get(is_target) or self._cache.known(file.ref, self.options)
        affordable = _PROBE_PASSES * self._t_one_ns < _PROBE_SHARE * budget.span_ns
        if report is None and affordable:
            with self._ledger.entry("probe"):
                report = self._cache.get(file.ref, self.options, model)
        if report is not None:
            self._reports[is_target] = report
            return report.target if is_target else report.draft
        self._assumed = True
        return assumed_strategy("target" if is_target else "draft", recurrent=model.is_recurrent)

    # --- experts --------------------------------------------------------------------------------------------------

    def coverage(self) -> Covered:
        """Which experts the target chooses. Raises UnsupportedError for a target without routed experts."""
        job = self._job
        key = job.target.ref.key
        with self._ledger.entry("coverage"):
            return cover(
                key,
                self.target,
                self.draft,
                self.text,
                self.options,
                windows=job.windows,
                n_experts=job.n_experts,
                budget=self._budget,
            )


class _Tally:
    """How well T(k) is known so far."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str, int, int], list[int]] = {}

    def add(self, points: Sequence[CalibrationPoint]) -> None:
        for p in points:
            if p.kind in ("target_pass", "draft_step"):
                self._cells.setdefault((p.model_key, p.kind, p.rows, p.depth), []).append(p.span_ns)

    @property
    def has_t_one(self) -> bool:
        return any(kind == "target_pass" and rows == 1 for _, kind, rows, _ in self._cells)

    def half_width(self) -> float | None:
        """Relative half-width of the 95 % interval of the worst cell's mean; None before three repeats."""
        if any(len(spans) < 3 for spans in self._cells.values()):
            return None
        widths = [
            1.96 * statistics.stdev(spans) / len(spans) ** 0.5 / statistics.fmean(spans)
            for spans in self._cells.values()
        ]
        return float(max(widths))


def _importance(width: int) -> tuple[bool, int]:
    return width not in _FIRST_WIDTHS, width


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
