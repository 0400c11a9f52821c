"""Plain and watched passes in turns, so that heat and load are shared, and what they divide into."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from mlsd.clock import Clock
from mlsd.engine.llama.profiler import GraphTap, SpanTap
from mlsd.engine.llama.taps import Tap
from mlsd.engine.parts import PARTS, Part
from mlsd.measure.store.pass_shares import PassShares

_BURST = 2  # counted passes of a kind before the next kind's turn, after one that is not counted


class Kinds:
    """The three ways to make one and the same pass; each call makes one and says how long it took, in ns."""

    def __init__(
        self,
        clock: Clock,
        *,
        plain: Callable[[], int],
        headless: Callable[[], int] | None = None,
        watched: Callable[[], int],
        tapped: Callable[[Tap], AbstractContextManager[None]],
    ) -> None:
        self._clock = clock
        self._plain, self._headless, self._watched, self._tapped = plain, headless, watched, tapped

    def measure(self, repeats: int, *, rows: int, depth: int, key: str, part: str | None) -> PassShares:
        """The fastest of `repeats` turns. Raises UnsupportedError for a graph whose parts cannot be told apart."""
        graph = GraphTap()
        with self._tapped(graph):
            self._watched()
        tap = SpanTap(graph.nodes, self._clock)
        plain: list[int] = []
        headless: list[int] = []
        watched: list[int] = []
        parts: list[dict[Part, int]] = []
        for _ in range(repeats):
            plain += _burst(self._plain)
            if self._headless is not None:
                headless += _burst(self._headless)
            with self._tapped(tap):
                for i in range(_BURST + 1):
                    spent_ns, sums = self._watched(), tap.take()
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
