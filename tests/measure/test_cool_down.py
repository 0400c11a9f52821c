"""A machine rests until it is cool, its parent hears of it, and nothing measured hot counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mlsd.hardware.chips import has_no_fan
from mlsd.measure.cool_down import MOST_READINGS, MOST_S, STEP_S, CoolDown, cool_down_of
from mlsd.measure.lab.machine import Block
from mlsd.measure.messages import Done, HeatReading, Resting
from mlsd.measure.process import run_job
from mlsd.measure.run.checks import check_run
from mlsd.measure.run.runner import RunPlan, run_plan
from mlsd.measure.store.store import Store
from mlsd.planning.job import Job
from mlsd.records import Anchors
from mlsd.trials.fates import Fate, fate_of
from tests.engine.fake import FakeClock
from tests.measure.examples import ENVIRONMENT
from tests.measure.simulated_mac import Mac, mac_job

COLD = Anchors(target="t", width=4, one_ns=31_000_000, wide_ns=37_300_000)


class Heat:
    """Anchors from a script, the last one for ever; what is sent, and how long it rests."""

    def __init__(self, *wide: float, one: float = 1.0, states: tuple[str | None, ...] = (None,)) -> None:
        self._wide, self._one, self._states = list(wide), one, list(states)
        self.sent: list[HeatReading | Resting] = []
        self.n_readings = 0
        self.heat = CoolDown(FakeClock(), self._state, self._read, self.sent.append, COLD)

    def _state(self) -> str | None:
        n_rests = sum(isinstance(event, Resting) for event in self.sent)
        return self._states[min(n_rests, len(self._states) - 1)]

    def _read(self) -> Anchors:
        self.n_readings += 1
        factor = self._wide.pop(0) if len(self._wide) > 1 else self._wide[0]
        one_ns, wide_ns = round(COLD.one_ns * self._one), round(COLD.wide_ns * factor)
        return msgspec.structs.replace(COLD, one_ns=one_ns, wide_ns=wide_ns)

    def settle(self) -> tuple[str | None, float]:
        """Why what was measured does not count, and the seconds of rest."""
        n_before = len(self.sent)
        rested_s = self.heat.settle()
        reading = self.sent[n_before]
        assert isinstance(reading, HeatReading)
        return reading.disturbed, rested_s


def test_nothing_is_decided_by_one_reading_or_by_noise() -> None:
    assert Heat(1.04).settle() == (None, 0)  # four per cent are noise
    assert Heat(1.07, 1.0).settle() == (None, 0), "the passes after a pause are slow"
    assert Heat(1.0, 1.07, 1.07, 1.0).settle() == (None, 0)


def test_passes_run_until_three_readings_in_a_row_agree_or_never_will() -> None:
    ramp = Heat(1.12, 1.09, 1.06, 1.03, 1.0)
    warm = ramp.heat.warm()
    assert warm == COLD and ramp.n_readings == 7
    wild = Heat(*(1.0, 1.2) * MOST_READINGS)
    assert wild.heat.warm() is not None and wild.n_readings == MOST_READINGS


def test_heat_that_slows_only_wide_passes_is_found() -> None:
    heat = Heat(*[50.6 / 37.3] * 3, *[1.2] * 3, *[1.04] * 3, 1.01)
    why, rested_s = heat.settle()
    assert why == "heat or other work slowed passes: T(1) 31.0 to 31.0 ms (0.0 %), T(4) 37.3 to 50.6 ms (35.7 %)"
    assert rested_s == 3 * STEP_S, "until both are within three per cent"
    assert Heat(1.0, one=1.06).settle()[0] is not None, "the narrow one shows it, too"
    assert Heat(1.0, states=("serious", "fair", "nominal")).settle() == (None, 2 * STEP_S)


def test_anchors_that_were_hot_themselves_are_replaced_and_what_stood_on_them_does_not_count() -> None:
    heat = Heat(0.7)
    why, rested_s = heat.settle()
    assert "slowed before" in (why or "") and rested_s == 0
    assert heat.settle() == (None, 0)


def test_a_state_or_a_speed_that_no_rest_changes_is_waited_for_once() -> None:
    for heat in (Heat(1.0, states=("fair",)), Heat(1.2)):
        assert heat.settle()[1] == MOST_S
        assert heat.settle() == (None, 0)


# --- worker and parent, by one clock ------------------------------------------------------------------------------


def events(mac: Mac, job: Job) -> list[object]:
    return list(run_job(job, hire=mac.hire))


@pytest.mark.parametrize("cool_down_s", [None, 600.0])
def test_the_longest_rest_does_not_end_the_worker_and_is_never_silent(cool_down_s: float | None) -> None:
    mac = Mac(episodes=[(4, 1e9)])
    job = mac_job(n_blocks=4, cool_down_s=cool_down_s)
    trials = [event.trial for event in events(mac, job) if isinstance(event, Done)]
    assert [trial.status for trial in trials] == ["ok"] * 12 and mac.n_workers == 1
    assert any(isinstance(event, Resting) for _, event in mac.events_received)
    assert mac.longest_silence_s <= 60


def test_after_a_rest_arms_are_warmed_briefly_for_they_are_compiled() -> None:
    mac = Mac(episodes=[(4, 90.0)])
    events(mac, mac_job(n_blocks=4))
    assert mac.warmed == [("ar0", True), ("sd1", True), ("sd4", True), ("ar0", False), ("sd1", False), ("sd4", False)]


def test_a_device_that_is_cold_after_every_pause_rests_for_its_heat_alone() -> None:
    idle = Mac(load_s=30.0)
    trials = [event.trial for event in events(idle, mac_job(n_blocks=5)) if isinstance(event, Done)]
    assert len(trials) == 15 and not any(isinstance(event, Resting) for _, event in idle.events_received)
    assert not any(isinstance(event, HeatReading) and event.disturbed for _, event in idle.events_received)
    hot = Mac(episodes=[(4, 90.0)])
    events(hot, mac_job(n_blocks=5))
    assert sum(isinstance(event, Resting) for _, event in hot.events_received) == 3


def test_a_machine_that_every_block_heats_is_tried_twice_and_then_believed(tmp_path: Path) -> None:
    mac = Mac(episodes=[(3 * block + 1, 60.0) for block in range(10)])
    plan = RunPlan(loads=(mac_job(n_blocks=4),), environment=ENVIRONMENT)

    def run(store: Store) -> list[bool]:
        run_plan(plan, partial(run_job, hire=mac.hire), store)
        rows = [row.trial for row in store.trials(rounds=False)]
        assert all(trial.disturbed for trial in rows)
        assert not any(trial.valid != (trial.invalid_reason is None) for trial in rows)
        return [trial.valid for trial in sorted(rows, key=lambda trial: trial.block)]

    with Store.open(tmp_path / "hot.sqlite") as store:
        assert run(store) == [False] * 6 + [True] * 6
        assert run(store) == [True] * 12, "what counted in nothing is measured again, and kept"
        assert mac.n_trials == 18
        assert "kept_hot" in {warning.code for warning in check_run([row.trial for row in store.trials()])}


def test_the_next_turn_is_asked_for_when_a_block_was_judged_and_the_machine_rested() -> None:
    mac, asked = Mac(episodes=[(1, 90.0)]), []

    def turns() -> Iterator[Sequence[int]]:
        for block in range(2):
            asked.append([type(event).__name__ for _, event in mac.events_received])
            yield range(3 * block, 3 * block + 3)

    list(run_job(mac_job(n_blocks=2), turns=turns(), hire=mac.hire))
    assert asked[0] == [] and "Resting" in asked[1] and asked[1][-1] == "Ready"


def test_a_machine_of_a_lab_sends_a_block_once_the_heat_after_it_is_known() -> None:
    mac = Mac(episodes=[(4, 200.0)])
    block, sent = Block(waits=True), []
    for event in run_job(mac_job(n_blocks=4), hire=mac.hire):
        sent += [(done.trial, len(mac.measured)) for done in block.released(event)]
    trials = [trial for trial, _ in sent]
    assert len(trials) == 12 and all(n % 3 == 0 for _, n in sent), "whole blocks"
    hot = [heat for *_, heat in mac.measured]
    assert any(hot) and not any(heat and trial.valid for heat, trial in zip(hot, trials, strict=True))
    assert {fate_of(trial) for trial in trials if not trial.valid} == {Fate.DISTURBED}


@pytest.mark.parametrize(
    ("asked", "backend", "model", "rest"),
    [
        (None, "CPU", "Mac16,10", 0.0),
        (None, "CPU", "Mac16,12", None),  # no fan
        (None, "Metal", "Mac16,10", None),
        (None, "RPC", None, 0.0),
        (5.0, "Metal", None, 5.0),
    ],
)
def test_heat_is_watched_on_graphics_devices_and_without_a_fan(
    asked: float | None, backend: str, model: str | None, rest: float | None
) -> None:
    environment = msgspec.structs.replace(ENVIRONMENT, backend=backend, hardware_model=model)
    assert cool_down_of(asked, environment) == rest


@pytest.mark.parametrize(
    ("model", "fanless"),
    [
        *(("Mac16,12", True), ("MacBookAir10,1", True), ("Mac17,3", True), ("Mac17,4", True), ("Mac17,5", True)),
        *(("Mac16,10", False), ("Mac17,2", False), ("Mac18,1", False), (None, False)),
    ],
)
def test_a_macbook_air_or_neo_has_no_fan(model: str | None, fanless: bool) -> None:
    assert has_no_fan(model) is fanless
