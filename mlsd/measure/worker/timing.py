"""One context at a fixed depth, on which passes, draft steps, rollbacks and checkpoints are timed.

A width is timed in a burst: llama.cpp builds its graph anew when the width changes, which a speculative loop of
constant width pays once, so the first pass of a burst is not counted. The time budget is asked after every pass.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mlsd.clock import Clock
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.rollback import make_rollback
from mlsd.errors import EngineError, PromptError
from mlsd.measure.messages import report_progress
from mlsd.store.rows import CalibrationPoint, PassKind

_BURST = 3  # timed passes a width and repeat, after one that is not counted
_SINGLES = 3  # steps after a draft's catch-up, which show what the change of width costs
_SHIFT = 131  # positions of text between repeats
_AGREE = 0.02  # change between three passes in a row that are as fast as they get
MOST_UNTIMED = 12  # passes before those that count, where they never agree


def is_steady(spans_ns: Sequence[int]) -> bool:
    """Whether the last three times of one pass agree: a GPU that idled is slow at first."""
    last = spans_ns[-3:]
    return len(last) == 3 and max(last) <= (1 + _AGREE) * min(last)


def check_room(n_text: int, model: LlamaModel, depth: int, width: int) -> None:
    """Raises: PromptError for a text that does not fill depth and width, EngineError beyond the trained context."""
    needed = depth + width
    if n_text < needed:
        raise PromptError(
            f"The text has {n_text} tokens for this model; depth and width need {needed}.",
            hint="Give a smaller --depth, or to `mlsd calibrate` a longer text with --text.",
        )
    if model.n_ctx_train and needed > model.n_ctx_train:
        raise EngineError(
            f"Depth {depth} is beyond the {model.n_ctx_train} positions of this model.", hint="Give a smaller --depth."
        )


class PausableClock:
    """A clock that stands still while something is prepared: a budget is of measuring."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._paused_ns = clock, 0
        self._stands_at_ns: int | None = None

    def now_ns(self) -> int:
        if self._stands_at_ns is not None:
            return self._stands_at_ns
        return self._clock.now_ns() - self._paused_ns

    def sleep(self, span_s: float) -> None:
        self._clock.sleep(span_s)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, no time passes."""
        began_ns = self._clock.now_ns()
        self._stands_at_ns = began_ns - self._paused_ns
        try:
            yield
        finally:
            self._paused_ns += self._clock.now_ns() - began_ns
            self._stands_at_ns = None


class TimeBudget:
    """A span of time that begins now, asked between native calls, so that the last of them may end late."""

    def __init__(self, clock: Clock, span_ns: float = math.inf) -> None:
        self._clock, self.span_ns, self._begin_ns = clock, span_ns, clock.now_ns()

    @property
    def spent_ns(self) -> int:
        return self._clock.now_ns() - self._begin_ns

    @property
    def left_ns(self) -> float:
        return max(0.0, self.span_ns - self.spent_ns)

    @property
    def is_over(self) -> bool:
        return self.left_ns == 0

    def part(self, share: float) -> TimeBudget:
        """`share` of this one's whole span, at most what is left of it."""
        return TimeBudget(self._clock, min(share * self.span_ns, self.left_ns))


class PassBench:
    """One context filled to a depth, to which it returns after everything that is timed in it.

    A point is the median time of one kind of pass in one burst: a busy machine interrupts single passes.
    """

    def __init__(
        self,
        context: LlamaContext,
        clock: Clock,
        text: Sequence[int],
        depth: int,
        repeat: int = 0,
        *,
        model_key: str = "",
        recurrent: bool,
        cold: bool = False,
        budget: TimeBudget | None = None,
    ) -> None:
        """`cold`: the device is slow after a pause, and warmed before passes are timed."""
        self._most_untimed = MOST_UNTIMED if cold else 1
        self._context, self._clock, self._recurrent = context, clock, recurrent
        self._budget = budget or TimeBudget(clock)
        self._text, self._depth, self._repeat, self._model_key = text, depth, repeat, model_key
        self.points: list[CalibrationPoint] = []
        self._start = repeat * _SHIFT % max(1, len(text) - depth - 1)
        self._n_windows = 0

    def fill(self) -> None:
        """Prefill with text and remember the state; the last position makes an output."""
        prompt = self._text[self._start : self._start + self._depth]
        step = self._context.options.n_ubatch  # what the engine makes one pass of anyway
        began = self._clock.now_ns()
        for first in range(0, len(prompt), step):
            report_progress("filling a context")
            part = prompt[first : first + step]
            self._context.decode(part, n_outputs=1 if first + step >= len(prompt) else 0)
        ns = self._clock.now_ns() - began
        if self._recurrent:
            self._context.save_state()
        self._add("prefill", self._depth, [ns], depth=0)

    def _return(self) -> None:
        if self._recurrent:
            self._context.load_state()
        self._context.truncate(self._depth)

    def _window(self, width: int) -> Sequence[int]:
        """The next `width` tokens of the text, so that a burst does not read the same experts again and again."""
        first = (self._start + self._depth + self._n_windows * width) % max(1, len(self._text) - width)
        self._n_windows += 1
        return self._text[first : first + width]

    def _timed(self, call: Callable[[], object]) -> int:
        began = self._clock.now_ns()
        call()
        return self._clock.now_ns() - began

    def _pass(self, tokens: Sequence[int], n_outputs: int) -> int:
        return self._timed(lambda: self._context.decode(tokens, n_outputs=n_outputs))

    def once(self, width: int, n_outputs: int) -> int:
        """One pass over the next `width` tokens of the text, in ns."""
        spent_ns = self._pass(self._window(width), n_outputs)
        self._return()
        return spent_ns

    def warm(self, width: int, n_outputs: int, limit: TimeBudget | None = None, *, must: bool = False) -> bool:
        """Passes that do not count: the first of a width builds the graph anew, and a device that idled is cold.

        False: the whole budget was over before, and there is no `must`.
        """
        spans = list[int]()
        while len(spans) < self._most_untimed and not is_steady(spans):
            if spans and not must and limit is not None and limit.is_over:
                break
            if self._budget.is_over and not must:
                return False
            spans.append(self.once(width, n_outputs))
        return True

    def burst(self, kind: PassKind, width: int, limit: TimeBudget, *, must: bool = False) -> None:
        """A few passes of one width, and the reading of their tokens.

        One counted pass is enough when `limit` is over; none is made when the whole budget is, but for a `must`. What
        warms the device does not count.
        """
        passes, samples = list[int](), list[int]()
        if not self.warm(width, width, limit, must=must):
            return
        while len(passes) < _BURST and not (passes and limit.is_over):
            if self._budget.is_over and not (must and not passes):
                break
            passes.append(self._pass(self._window(width), width))
            samples.append(self._timed(self._context.greedy))
            self._return()
        self._add(kind, width, passes)
        self._add("sample", width, samples)

    def draft_step(self, rows: int) -> None:
        """A pass over `rows` tokens that ends in one proposal, on a context that drafts token by token.

        What a change of width costs the next single step is part of it.
        """
        totals: list[int] = []
        for _ in range(_BURST):
            if self._budget.is_over:
                break
            first = self._timed(lambda: self._propose(self._window(rows)))
            singles = [self._timed(lambda: self._propose(self._context.greedy()[-1:])) for _ in range(_SINGLES)]
            change = max(0, singles[0] - min(singles[1:])) if rows > 1 else 0
            totals.append(first + change)
            self._return()
        self._add("draft_step", rows, totals)

    def _propose(self, tokens: Sequence[int]) -> None:
        self._context.decode(tokens)
        self._context.greedy()

    def rollback(self, strategy: str, width: int, *, singly: bool = False) -> None:
        """Mark, and rewind to the first token after a pass of `width`: the worst case of a round."""
        rollback = make_rollback(strategy, self._context)
        tokens = self._window(width)
        spent = self._timed(rollback.mark)
        if singly:
            for token in tokens:
                spent += self._timed(rollback.step)
                self._context.decode((token,))
        else:
            self._context.decode(tokens, n_outputs=width)
        # A draft stops at the mark: what it keeps is decoded with its next catch-up.
        length, replayed = (self._depth, ()) if singly else (self._depth + 1, tokens[:1])
        spent += self._timed(lambda: rollback.rewind(length, replayed))
        self._return()
        self._add("rollback", width, [spent])

    def checkpoint(self) -> None:
        """Save and load the recurrent state."""
        self._add("checkpoint", 0, [self._timed(self._context.save_state) + self._timed(self._context.load_state)])

    def _add(self, kind: PassKind, rows: int, spans_ns: Sequence[int], depth: int | None = None) -> None:
        """A point of what was timed; none where the time was up before."""
        if spans_ns:
            point = CalibrationPoint(
                model_key=self._model_key,
                kind=kind,
                rows=rows,
                depth=self._depth if depth is None else depth,
                repeat=self._repeat,
                span_ns=round(statistics.median(spans_ns)),
            )
            self.points.append(point)
