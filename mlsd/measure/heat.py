"""Whether a machine is hot, and rest until it is not.

Heat slows wide passes before narrow ones: on an M5 Max T(4) went from 37 to 51 ms while T(1) stood still (mlxcel issue
1182). So the widest pass is timed behind each block. Where it moved, it and the narrowest are timed until readings
agree: a device that paused for 200 ms is 11 to 12 % slower, too (llama.cpp 10119).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from mlsd.hardware.chips import has_no_fan
from mlsd.records import Anchors, Environment
from mlsd.units import NS_PER_MS, format_percent

if TYPE_CHECKING:
    from mlsd.measure.bench import BlockBench

STEP_S, MOST_S = 30.0, 600.0  # of one rest without a word, and of all rests between two blocks
MOVED, CLEAN = 0.05, 0.03  # change of either anchor: what was measured does not count; it is cool again
AGREE, MOST_READINGS = 0.02, 12  # change between any two of three readings in a row; of readings that never agree
_COOL = (None, "nominal")
# A processor with a fan, and a device behind a network, whose passes scatter with other work and say nothing of heat.
_STEADY = ("CPU", "RPC")

Tell = Callable[[str], object]  # hears why nothing is measured


def idles_cold(backend: str | None) -> bool:
    """Whether a device is slow after a pause, so that passes are timed once three in a row agree."""
    return backend not in _STEADY


def cool_down_of(given_s: float | None, environment: Environment) -> float | None:
    """Seconds of rest between blocks, as asked for; None: while it is hot, on machines that get so."""
    steady = environment.backend in _STEADY and not has_no_fan(environment.hardware_model)
    return 0.0 if given_s is None and steady else given_s


def rest_for(bench: BlockBench, span_s: float, tell: Tell, is_over: Callable[[], bool]) -> bool:
    """Rest for so long; False: the time was used up before."""
    rested_s = 0.0
    while rested_s < span_s:
        tell(f"Resting between blocks, as asked for ({rested_s:.0f} of {span_s:.0f} s)")
        if is_over():
            return False
        step_s = min(STEP_S, span_s - rested_s)
        bench.clock.sleep(step_s)
        rested_s += step_s
    return True


class Heat:
    """What is known of a machine's heat while it measures."""

    def __init__(self) -> None:
        self._clean: dict[tuple[str, int], Anchors] = {}  # by target and width
        self._usual_state: str | None = None  # one that the longest rest did not change
        self.newest: Anchors | None = None

    def judge(self, bench: BlockBench, now: Anchors | None) -> str | None:
        """Why what was measured since the last reading does not count; None: it does, or nothing can be timed."""
        if now is None:
            return None
        clean = self._clean.get(_key(now))
        if clean is None or _most(clean, now) > MOVED:
            if (now := read_steady(bench)) is None:
                return None
            clean = self._clean.setdefault(_key(now), now)
        self.newest = now
        if _most(clean, now) <= MOVED:
            return None
        if _slowest(clean, now) <= CLEAN:  # whatever is faster than the clean anchors says that those were hot
            self._clean[_key(now)] = now
        return drift_words(clean, now)

    def rest(self, bench: BlockBench, tell: Tell, is_over: Callable[[], bool]) -> bool:
        """Rest while it is hot, and read the anchors after each rest; False: the time was used up before.

        The longest rest ends in any case.
        """
        rested_s, slow = 0.0, self._slow(MOVED)
        while rested_s < MOST_S and (why := slow or self._warning(bench)):
            tell(f"Resting until it is cool: {why} ({rested_s:.0f} of at most {MOST_S:.0f} s)")
            if is_over():
                return False
            bench.clock.sleep(STEP_S)
            rested_s += STEP_S
            self.newest = read_steady(bench) or self.newest
            slow = slow and self._slow(CLEAN)
        if rested_s >= MOST_S:  # as cool as it gets: no further rest brings the old speed back
            self._usual_state = bench.conditions().thermal_state
            if self.newest is not None:
                self._clean[_key(self.newest)] = self.newest
        return True

    def _slow(self, most: float) -> str:
        """Words for passes that are slower than clean ones by more than `most`; empty: they are not."""
        clean = None if self.newest is None else self._clean.get(_key(self.newest))
        if clean is None or self.newest is None or _slowest(clean, self.newest) <= most:
            return ""
        return drift_words(clean, self.newest)

    def _warning(self, bench: BlockBench) -> str:
        state = bench.conditions().thermal_state
        return "" if state in (*_COOL, self._usual_state) else f"the system says {state}"


def read_steady(bench: BlockBench) -> Anchors | None:
    """Both anchors, read until three readings in a row agree: a device that idled is cold. None: nothing can be timed.

    Each is the median of the last three readings.
    """
    readings: list[Anchors] = []
    while len(readings) < MOST_READINGS and (now := bench.read_anchors()) is not None:
        readings = [reading for reading in readings if reading.width == now.width] + [now]
        pairs = itertools.combinations(readings[-3:], 2)
        if len(readings) > 2 and all(_most(*pair) <= AGREE for pair in pairs):
            break
    if not readings:
        return None
    last = readings[-3:]
    one_ns = round(statistics.median(reading.one_ns or 0 for reading in last))
    wide_ns = round(statistics.median(reading.wide_ns for reading in last))
    return msgspec.structs.replace(readings[-1], one_ns=one_ns, wide_ns=wide_ns)


def _key(anchors: Anchors) -> tuple[str, int]:
    return anchors.target, anchors.width


def _spans(clean: Anchors, now: Anchors) -> list[tuple[int, int, int]]:
    """Width, clean and new time of each anchor that both hold."""
    wide = (now.width, clean.wide_ns, now.wide_ns)
    return [wide] if clean.one_ns is None or now.one_ns is None else [(1, clean.one_ns, now.one_ns), wide]


def _changes(clean: Anchors, now: Anchors) -> list[float]:
    return [new_ns / max(old_ns, 1) - 1 for _, old_ns, new_ns in _spans(clean, now)]


def _slowest(clean: Anchors, now: Anchors) -> float:
    return max(_changes(clean, now))


def _most(clean: Anchors, now: Anchors) -> float:
    return max(map(abs, _changes(clean, now)))


def drift_words(clean: Anchors, now: Anchors) -> str:
    """The anchors and how they changed; slower is heat, or another program on the device."""
    facts = (
        f"T({width}) {old / NS_PER_MS:.1f} to {new / NS_PER_MS:.1f} ms ({format_percent(change)})"
        for (width, old, new), change in zip(_spans(clean, now), _changes(clean, now), strict=True)
    )
    cause = "heat or other work slowed passes" if _slowest(clean, now) > CLEAN else "passes were slowed before"
    return f"{cause}: {', '.join(facts)}"
