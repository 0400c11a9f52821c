"""Timing a model's passes one kind at a time: T(k), draft steps, prefill, rollback, sampling.

The first repeat takes the widths that matter most first; later ones visit all in random order, so that heat is shared.
"""

import collections
import itertools
import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from mlsd.clock import Clock, MonotonicClock
from mlsd.engine.context import context_options
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import rollback_options
from mlsd.engine.rollback_choice import Role, candidates, check_model
from mlsd.engine.vocabulary import check_vocabularies
from mlsd.measure.heat import idles_cold
from mlsd.measure.messages import CalibrateJob, Covered, Passes, Spent, report_progress
from mlsd.measure.worker.exactness import certify
from mlsd.measure.worker.experts import cover
from mlsd.measure.worker.timing import PassBench, PausableClock, TimeBudget, check_room
from mlsd.planning.job import ModelFile
from mlsd.stats import grouped, t_quantile
from mlsd.store.rows import CalibrationPoint, PassKind, WidthExactness

_ROOM = 32  # positions beyond what a depth and the widest pass need
_Visit = tuple[int, tuple[int, ...]]  # a context to open: its depth, and widths to time in it; without: the draft's

_DRAFT_WIDTHS = (1, 2, 5, 3, 9, 17)  # rows of a catch-up: the bonus token, and accepted ones where a draft replays
_FIRST_WIDTHS = (1, 2, 5, 9, 17, 33)  # plain decoding, and gamma 1, 4, 8, 16, 32

# Shares of the budget; what one part leaves over is the next one's.
_COVERAGE_SHARE = 0.25
_EXACT_SHARE = 0.15  # of comparing widths with single passes
_DRAFT_ROUND = 5  # tokens that a draft takes back where that is timed
_DRAFT_SHARE = 0.25  # of the first repeat
_BURST_SHARE = 0.06
_MOST_PREPARATION = 3  # times the budget, for filling contexts
_ROLLBACK_SHARE = 0.15


def calibrate(job: CalibrateJob) -> Iterator[Passes | Covered | WidthExactness | Spent]:
    """Time passes, a repeat at a time; then compare widths and ask a mixture for its experts, outside what is timed."""
    with closing(Calibration(job, MonotonicClock())) as calibration:
        yield from calibration.repeats()
        yield from calibration.exactness()
        if job.windows and job.n_experts:
            yield calibration.coverage()
        yield calibration.spent()


class Calibration:
    """One target and perhaps a draft, open for timing. Close it after use."""

    def __init__(self, job: CalibrateJob, clock: Clock) -> None:
        self._job, self._clock = job, clock
        self._spent_ns = collections.Counter[str]()
        self.options = context_options(job.engine, max(job.depths) + 3 * max(job.rows) + _ROOM)
        self._measuring = PausableClock(clock)  # stands still while contexts are filled
        self._budget = TimeBudget(self._measuring)  # of everything that is timed; it begins with the first repeat
        self._t_one_ns = 0
        with ExitStack() as opening:
            with self._booked("load"):
                self.target, *drafts = (
                    opening.enter_context(LlamaModel(Path(file.path), n_gpu_layers=job.engine.n_gpu_layers))
                    for file in (job.target, job.draft)
                    if file is not None
                )
            self.draft = next(iter(drafts), None)
            for model in filter(None, (self.target, self.draft)):
                check_model(partial(open_context, model), self.options)
            self.text = self.target.tokenize(job.text)
            check_room(len(self.text), self.target, max(job.depths), max(job.rows))
            if self.draft is not None:
                small = msgspec.structs.replace(self.options, n_ctx=256)
                with closing(open_context(self.target, small)) as a, closing(open_context(self.draft, small)) as b:
                    check_vocabularies(a.tokenizer, b.tokenizer)
            self.close = opening.pop_all().close  # frees both models

    # --- timing ---------------------------------------------------------------------------------------------------

    def repeats(self) -> Iterator[Passes]:
        """Timed passes, a repeat at a time, until all cells are tight or the budget ends, perhaps within a repeat.

        T(1) is timed whatever the budget says. Filling contexts is not within the budget, but bounded by it: where that
        has taken so many times as long, no further context is opened.
        """
        rng = random.Random(self._job.seed)
        timed = list[CalibrationPoint]()
        budget = self._budget = TimeBudget(self._measuring, self._job.budget_s * 1e9)
        timing = budget.part(1 - _EXACT_SHARE - (_COVERAGE_SHARE if self._job.windows else 0.0))
        for repeat in itertools.count():
            must = repeat < self._job.least_repeats
            points = self._repeat(repeat, rng, TimeBudget(self._measuring) if must else timing)
            if not points and repeat:
                return
            timed += points
            width = half_width(timed)
            yield Passes(points=tuple(points), half_width=width)
            tight = width is not None and width <= self._job.precision
            if repeat + 1 >= self._job.least_repeats and (tight or timing.is_over):
                return

    @contextmanager
    def _booked(self, part: str) -> Iterator[None]:
        began_ns = self._clock.now_ns()
        try:
            yield
        finally:
            self._spent_ns[part] += self._clock.now_ns() - began_ns

    def spent(self) -> Spent:
        """What each part took so far."""
        return Spent(seconds={part: ns / 1e9 for part, ns in self._spent_ns.items()})

    def _repeat(self, repeat: int, rng: random.Random, budget: TimeBudget) -> list[CalibrationPoint]:
        visits = collections.deque(self._visits(None if repeat == 0 else rng))
        timed, is_begun = list[CalibrationPoint](), False
        while visits and not (is_begun and budget.is_over):
            share = budget if repeat else TimeBudget(self._measuring, budget.left_ns / len(visits))
            depth, widths = visits.popleft()
            report_progress("timing passes")
            first = not repeat and not is_begun
            if not first and self._spent_ns["prefill"] > _MOST_PREPARATION * budget.span_ns:
                break
            is_begun = True
            if not widths:
                timed += self._draft_steps(repeat, depth, budget)
                continue
            points, n_done = self._target_passes(repeat, depth, widths, budget, share, first=first)
            timed += points
            if widths[n_done:]:
                visits.append((depth, widths[n_done:]))
        # One point a cell: a depth is filled once a context, so a repeat has several prefills, whose mean counts.
        means = (
            (points[0], statistics.fmean(point.span_ns for point in points))
            for points in grouped(timed, _cell).values()
        )
        return [msgspec.structs.replace(point, span_ns=round(mean_ns)) for point, mean_ns in means]

    def _visits(self, rng: random.Random | None) -> list[_Visit]:
        """Every context: in random order, or those of widths that matter most first, and the draft's second."""
        depths, groups = self._job.depths, contexts(self._job.rows)
        for group in groups:
            group.sort(key=_importance if rng is None else lambda _: rng.random())
        groups.sort(key=lambda group: _importance(group[0]))
        visits: list[_Visit] = [(depth, tuple(group)) for group in groups for depth in depths]
        if self.draft is not None:
            visits[len(depths) : len(depths)] = [(depth, ()) for depth in depths]
        if rng is not None:
            rng.shuffle(visits)
        return visits

    def _target_passes(
        self, repeat: int, depth: int, widths: Sequence[int], budget: TimeBudget, share: TimeBudget, *, first: bool
    ) -> tuple[list[CalibrationPoint], int]:
        """One context as an arm with that gamma has it: prefill, then each width in a burst.

        Also how many of the widths had their turn: those after the first only while the visit's share lasts.
        """
        job, widest, n_done = self._job, max(widths), 0
        # Plain decoding rolls nothing back, so it needs no strategy.
        strategy = self._strategy(self.target, "target") if widest > 1 else None
        options = rollback_options(strategy, msgspec.structs.replace(self.options, max_outputs=widest), widest)
        with open_context(self.target, options) as context:
            if strategy == "snapshots" and not context.n_snapshots:
                strategy = "checkpoint"  # this engine keeps no snapshots of this architecture
            bench = self._bench(context, job.target, depth, repeat, budget)
            for width in widths:
                if n_done and share.is_over:
                    break
                n_done += 1
                with self._booked("passes"):
                    bench.burst("target_pass", width, budget.part(_BURST_SHARE), must=first)
                late = budget.is_over or self._spent_ns["rollback"] >= _ROLLBACK_SHARE * budget.span_ns
                if width > 1 and strategy is not None and not late:
                    with self._booked("rollback"):
                        bench.rollback(strategy, width)
            if self.target.is_recurrent and widest == 1:
                bench.checkpoint()
        if first:
            self._t_one_ns = next((point.span_ns for point in bench.points if point.kind == "target_pass"), 0)
        return bench.points, n_done or len(widths)

    def _draft_steps(self, repeat: int, depth: int, budget: TimeBudget) -> list[CalibrationPoint]:
        job, draft = self._job, self.draft
        assert draft is not None and job.draft is not None
        strategy = self._strategy(draft, "draft")
        if repeat == 0:
            budget = budget.part(_DRAFT_SHARE)
        options = rollback_options(strategy, msgspec.structs.replace(self.options, max_outputs=2), _DRAFT_ROUND)
        with open_context(draft, options) as context:
            bench = self._bench(context, job.draft, depth, repeat, budget)
            with self._booked("draft"):
                bench.draft_step(1)
                for rows in (1, 2):  # with one proposal a round a draft's passes are one or two wide, nothing else
                    bench.burst("target_pass", rows, budget.part(_BURST_SHARE))
                for rows in _DRAFT_WIDTHS[1:]:
                    bench.draft_step(rows)
                if not budget.is_over:
                    bench.rollback(strategy, _DRAFT_ROUND, singly=True)
                if strategy == "checkpoint":  # which says that accepted tokens are taken in again
                    bench.checkpoint()
        return bench.points

    def _bench(self, context: LlamaContext, file: ModelFile, depth: int, repeat: int, budget: TimeBudget) -> PassBench:
        """A bench whose context is filled."""
        cold, recurrent = idles_cold(backend_info(self._job.engine.n_gpu_layers).backend), context.model.is_recurrent
        bench = PassBench(
            context, self._clock, self.text, depth, repeat,
            model_key=file.ref.key, recurrent=recurrent, cold=cold, budget=budget,
        )  # fmt: skip
        with self._booked("prefill"), self._measuring.paused():
            bench.fill()
        return bench

    def _strategy(self, model: LlamaModel, role: Role) -> str:
        """The usual one of its kind of memory: here it is timed, and arms see whether it is exact."""
        backend = backend_info(self._job.engine.n_gpu_layers).backend
        return candidates(role, recurrent=model.is_recurrent, backend=backend)[0]

    def exactness(self) -> Iterator[WidthExactness]:
        """Whether wide passes give what single ones give, width by width while its share of the budget lasts."""
        share = TimeBudget(self._clock, _EXACT_SHARE * self._budget.span_ns)  # which the timing left alone
        with self._booked("exactness"):
            key = self._job.target.ref.key
            yield from certify(self.target, self.options, self.text, self._job.rows, share, self._t_one_ns, key)

    # --- experts --------------------------------------------------------------------------------------------------

    def coverage(self) -> Covered:
        """Which experts the target chooses. Raises UnsupportedError for a target without routed experts."""
        with self._booked("coverage"):
            return cover(self._job, self.target, self.draft, self.text, self.options, self._budget)


def _cell(point: CalibrationPoint) -> tuple[str, PassKind, int, int]:
    return point.model_key, point.kind, point.rows, point.depth


def half_width(points: Iterable[CalibrationPoint]) -> float | None:
    """Relative half-width of the 95 % interval (Student 1908) of the worst cell's mean; None before three repeats."""
    passes = (point for point in points if point.kind in ("target_pass", "draft_step"))
    cells = [[point.span_ns for point in points] for points in grouped(passes, _cell).values()]
    if any(len(spans) < 3 for spans in cells):
        return None
    return max(
        t_quantile(0.975, len(spans) - 1) * statistics.stdev(spans) / math.sqrt(len(spans)) / statistics.fmean(spans)
        for spans in cells
    )


def _importance(width: int) -> tuple[bool, int]:
    return width not in _FIRST_WIDTHS, width


def contexts(widths: Sequence[int]) -> list[list[int]]:
    """Widths that share a context: 1, then up to 2, 4, 8, ...; a context keeps as many snapshots as its widest pass."""
    groups: dict[int, list[int]] = {}
    for width in sorted(set(widths)):
        groups.setdefault((width - 1).bit_length(), []).append(width)
    return list(groups.values())
