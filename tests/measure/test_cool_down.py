"""A machine without a fan rests until it is cool, not for a fixed time."""

from __future__ import annotations

import pytest

from mlsd.hardware.chips import has_no_fan
from mlsd.measure.cool_down import MOST_S, STEP_S, CoolDown


class Mac:
    """One that cools by a state or a share of its speed with each rest."""

    def __init__(self, states: list[str | None], spans_ns: list[int]) -> None:
        self._states, self._spans_ns = states, spans_ns
        self.rests: list[float] = []
        self.n_felt = 0
        self.heat = CoolDown(self._state, self.rests.append, self._feel)
        self.heat.timed("plain", 100, 1_000_000_000)

    def _state(self) -> str | None:
        return self._states[min(len(self.rests), len(self._states) - 1)]

    def _feel(self) -> None:
        self.n_felt += 1
        self.heat.timed("plain", 100, self._spans_ns.pop(0))


def test_a_cool_machine_does_not_rest() -> None:
    for state in ("nominal", None):
        mac = Mac([state], [])
        mac.heat.timed("plain", 100, 1_040_000_000)  # four per cent are noise
        assert mac.heat.rest() == 0 and not mac.rests


def test_it_rests_until_the_system_says_nominal() -> None:
    mac = Mac(["serious", "fair", "nominal"], [])
    assert mac.heat.rest() == 2 * STEP_S and mac.n_felt == 0


def test_where_the_system_says_nothing_slow_plain_decoding_does() -> None:
    mac = Mac([None], [1_200_000_000, 1_100_000_000, 1_010_000_000])
    mac.heat.timed("plain", 100, 1_300_000_000)
    assert mac.heat.rest() == 3 * STEP_S and mac.n_felt == 3


def test_each_case_is_compared_with_itself() -> None:
    mac = Mac([None], [])
    mac.heat.timed("a longer prompt", 100, 2_000_000_000)
    assert mac.heat.rest() == 0


def test_a_machine_that_stays_hot_does_not_rest_for_ever() -> None:
    mac = Mac(["critical"], [])
    assert mac.heat.rest() == MOST_S == STEP_S * len(mac.rests)


def test_a_speed_that_no_rest_brings_back_is_waited_for_once() -> None:
    mac = Mac([None], [1_200_000_000] * 1000)
    mac.heat.timed("plain", 100, 1_200_000_000)
    assert mac.heat.rest() == MOST_S
    mac.heat.timed("plain", 100, 1_200_000_000)
    assert mac.heat.rest() == 0


@pytest.mark.parametrize(
    ("model", "fanless"),
    [
        *(("Mac16,12", True), ("MacBookAir10,1", True), ("Mac17,3", True), ("Mac17,4", True), ("Mac17,5", True)),
        *(("Mac16,10", False), ("Mac17,2", False), ("Mac18,1", False), (None, False)),
    ],
)
def test_a_macbook_air_or_neo_has_no_fan(model: str | None, fanless: bool) -> None:
    assert has_no_fan(model) is fanless
