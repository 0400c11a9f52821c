"""Whether a machine is hot, and rest until it is not.

Heat slows wide passes before narrow ones: on an M5 Max T(4) went from 37 to 51 ms while T(1) stood still (mlxcel issue
1182). So the widest and the narrowest pass are timed between blocks, until readings agree: a device that paused for 200
ms is 11 to 12 % slower, too (llama.cpp 10119).
"""

import itertools
import statistics
from collections.abc import Callable, Sequence

import msgspec

from mlsd.clock import Clock
from mlsd.hardware.chips import has_no_fan
from mlsd.measure.messages import HeatReading, Resting
from mlsd.records import Anchors, Environment
from mlsd.units import NS_PER_MS, format_percent

STEP_S, MOST_S = 30.0, 600.0  # of one rest without a word, and of all rests between two blocks
DISTURBED, CLEAN = 0.05, 0.03  # change of either anchor: what was measured does not count; it is cool again
AGREE, MOST_READINGS = 0.02, 12  # change between any two of three readings in a row; of readings that never agree
_COOL = (None, "nominal")
# A processor with a fan, and a device behind a network, whose passes scatter with other work and say nothing of heat.
_STEADY = ("CPU", "RPC")


def idles_cold(backend: str | None) -> bool:
    """Whether a device is slow after a pause, so that passes are timed once three in a row agree."""
    return backend not in _STEADY


def cool_down_of(given_s: float | None, environment: Environment) -> float | None:
    """Seconds of rest between blocks, as asked for; None: while it is hot, on machines that get so."""
    steady = environment.backend in _STEADY and not has_no_fan(environment.hardware_model)
    return 0.0 if given_s is None and steady else given_s


def rest(clock: Clock, send: Callable[[Resting], None], span_s: float, why: str) -> None:
    """Wait, and never be silent for long: the other side takes silence for a hang."""
    end_ns = clock.now_ns() + round(span_s * 1e9)
    while (left_s := (end_ns - clock.now_ns()) / 1e9) > 0:
        send(_resting(why, span_s - left_s, span_s))
        clock.sleep(min(STEP_S, left_s))


def _resting(why: str, rested_s: float, most_s: float) -> Resting:
    return Resting(text=f"Resting {why} ({rested_s:.0f} of at most {most_s:.0f} s)")


class CoolDown:
    """What is known of a machine's heat while it measures."""

    def __init__(
        self,
        clock: Clock,
        thermal_state: Callable[[], str | None],
        anchors: Callable[[], Anchors | None],
        send: Callable[[HeatReading | Resting], None],
        clean: Anchors | None = None,
    ) -> None:
        """`anchors` times the two passes now, None where nothing can; `clean` is known from an earlier worker."""
        self._clock, self._state, self._anchors, self._send = clock, thermal_state, anchors, send
        self._clean = clean
        self._usual_state: str | None = None  # one that the longest rest did not change
        self.newest: Anchors | None = None

    def feel(self) -> str | None:
        """Why what was measured since the last anchors does not count; None: it does."""
        if (now := self.warm()) is None:
            return None
        same = self._clean is not None and (self._clean.target, self._clean.width) == (now.target, now.width)
        clean = self._clean if same and self._clean is not None else now
        why = drift_words(clean, now) if _most(clean, now) > DISTURBED else None
        # Whatever is faster than the clean anchors says that those were hot.
        self._keep(now, now if why and _slowest(clean, now) <= CLEAN else clean)
        return why

    def warm(self) -> Anchors | None:
        """Time the anchors until three readings in a row agree: a device that idled is cold."""
        readings: list[Anchors] = []
        while len(readings) < MOST_READINGS and (now := self._anchors()) is not None:
            readings = [one for one in readings if one.width == now.width] + [now]
            pairs = itertools.combinations(readings[-3:], 2)
            if len(readings) > 2 and all(_most(*pair) <= AGREE for pair in pairs):
                break
        if not readings:
            return None
        one_ns, wide_ns = zip(*((last.one_ns, last.wide_ns) for last in readings[-3:]), strict=True)
        return msgspec.structs.replace(
            readings[-1], one_ns=round(statistics.median(one_ns)), wide_ns=round(statistics.median(wide_ns))
        )

    def rest(self) -> float:
        """Rest while it is hot, and feel it after each rest; seconds of rest. The longest rest ends in any case."""
        rested_s, slow = 0.0, self._slow(DISTURBED)
        while rested_s < MOST_S and (why := slow or self._warning()):
            self._send(_resting(f"until it is cool: {why}", rested_s, MOST_S))
            self._clock.sleep(STEP_S)
            rested_s += STEP_S
            if (now := self.warm()) is not None and self._clean is not None:
                self._keep(now, self._clean)
            slow = slow and self._slow(CLEAN)
        if rested_s >= MOST_S:  # as cool as it gets: no further rest brings the old speed back
            self._usual_state = self._state()
            if self.newest is not None:
                self._keep(self.newest, self.newest)
        return rested_s

    def _keep(self, now: Anchors, clean: Anchors) -> None:
        self.newest, self._clean = now, clean
        self._send(HeatReading(clean=clean))

    def _slow(self, most: float) -> str:
        """Words for passes that are slower than clean ones by more than `most`; empty: they are not."""
        if self._clean is None or self.newest is None or _slowest(self._clean, self.newest) <= most:
            return ""
        return drift_words(self._clean, self.newest)

    def _warning(self) -> str:
        state = self._state()
        return "" if state in (*_COOL, self._usual_state) else f"the system says {state}"


def steady(spans_ns: Sequence[int]) -> bool:
    """Whether the last three times of one pass agree: a GPU that idled is slow at first."""
    last = spans_ns[-3:]
    return len(last) == 3 and max(last) <= (1 + AGREE) * min(last)


def _changes(clean: Anchors, now: Anchors) -> tuple[float, float]:
    return now.one_ns / max(clean.one_ns, 1) - 1, now.wide_ns / max(clean.wide_ns, 1) - 1


def _slowest(clean: Anchors, now: Anchors) -> float:
    return max(_changes(clean, now))


def _most(clean: Anchors, now: Anchors) -> float:
    return max(map(abs, _changes(clean, now)))


def drift_words(clean: Anchors, now: Anchors) -> str:
    """Both anchors and how they changed; slower is heat, or another program on the device."""
    spans = ((1, clean.one_ns, now.one_ns), (now.width, clean.wide_ns, now.wide_ns))
    facts = (
        f"T({width}) {old / NS_PER_MS:.1f} to {new / NS_PER_MS:.1f} ms ({format_percent(change)})"
        for (width, old, new), change in zip(spans, _changes(clean, now), strict=True)
    )
    cause = "heat or other work slowed passes" if _slowest(clean, now) > CLEAN else "passes were slowed before"
    return f"{cause}: {', '.join(facts)}"
