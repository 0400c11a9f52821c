"""Rest between blocks until a machine is as cool as it was: by what its system says, and by how fast it decodes.

Most systems say nothing of their heat, and a fixed time is too long for one machine and too short for another.
"""

from __future__ import annotations

from collections.abc import Callable

from mlsd.records import Trial
from mlsd.units import tok_s

STEP_S, MOST_S = 15.0, 600.0  # of one rest, and of all rests between two blocks
SLOWER = 0.05  # than its fastest plain trial: the machine is hot


class CoolDown:
    """What is known of a machine's heat while it measures."""

    def __init__(
        self, thermal_state: Callable[[], str | None], sleep: Callable[[float], None], plain: Callable[[], None]
    ) -> None:
        """`plain` decodes as the newest plain trial did and tells `timed` how fast."""
        self._state, self._sleep, self._plain = thermal_state, sleep, plain
        self._fastest: dict[str, float] = {}  # case -> tok/s
        self._drift = 0.0  # of the newest plain decoding, below the fastest

    def heard(self, trial: Trial) -> None:
        """Take a plain trial as a thermometer."""
        if trial.arm == "ar" and trial.decode_ns is not None:
            self.timed(trial.case_id, len(trial.tokens) - 1, trial.decode_ns)

    def timed(self, case_id: str, n_tokens: int, span_ns: int) -> None:
        """One plain decoding, measured or only to feel the heat."""
        speed = tok_s(n_tokens, span_ns) or 0.0
        fastest = self._fastest[case_id] = max(speed, self._fastest.get(case_id, 0.0))
        self._drift = 1 - speed / fastest if fastest else 0.0

    @property
    def is_hot(self) -> bool:
        """Whether the system says so, or plain decoding has become slow."""
        return self._state() not in (None, "nominal") or self._drift > SLOWER

    def rest(self) -> float:
        """Rest while it is hot, and feel again after each rest; seconds of it. The longest rest ends in any case."""
        rested = 0.0
        while rested < MOST_S and self.is_hot:
            self._sleep(STEP_S)
            rested += STEP_S
            if self._drift > SLOWER:
                self._plain()
        if rested >= MOST_S:  # as cool as it gets: its fastest trial may have been a slip, and no rest brings that back
            self._fastest, self._drift = {}, 0.0
        return rested
