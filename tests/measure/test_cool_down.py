"""A machine rests until it is cool, its parent hears of it, and nothing measured hot counts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from mlsd.measure.cool_down import MOST_READINGS, MOST_S, STEP_S, CoolDown, cool_down_of
from mlsd.measure.messages import BlockMeasured, HeatReading, Resting
from mlsd.measure.parent.blocks import Choice, Experiment, run_experiment
from mlsd.measure.parent.checks import check_run
from mlsd.measure.parent.disturbance import BlockJudge
from mlsd.measure.process import measure_job
from mlsd.planning.job import Job
from mlsd.records import Anchors, Status
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.engine.fake import FakeClock
from tests.measure.examples import ENVIRONMENT, trial
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
        return self.heat.feel(), self.heat.rest()


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
    return list(measure_job(job, hire=mac.hire))


@pytest.mark.parametrize("cool_down_s", [None, 600.0])
def test_the_longest_rest_does_not_end_the_worker_and_is_never_silent(cool_down_s: float | None) -> None:
    mac = Mac(episodes=[(4, 1e9)])
    job = mac_job(n_blocks=4, cool_down_s=cool_down_s)
    trials = [trial for event in events(mac, job) if isinstance(event, BlockMeasured) for trial in event.trials]
    assert [trial.valid for trial in trials] == [True] * 12 and mac.n_workers == 1
    assert any(isinstance(event, Resting) for _, event in mac.events_received)
    assert mac.longest_silence_s <= 60


def test_after_a_rest_arms_are_warmed_briefly_for_they_are_compiled() -> None:
    mac = Mac(episodes=[(4, 90.0)])
    events(mac, mac_job(n_blocks=4))
    assert mac.warmed == [("ar0", True), ("sd1", True), ("sd4", True), ("ar0", False), ("sd1", False), ("sd4", False)]


def test_a_device_that_is_cold_after_every_pause_rests_for_its_heat_alone() -> None:
    idle = Mac(load_s=30.0)
    measured = [event for event in events(idle, mac_job(n_blocks=5)) if isinstance(event, BlockMeasured)]
    assert len(measured) == 5 and not any(event.heat for event in measured)
    assert not any(isinstance(event, Resting) for _, event in idle.events_received)
    hot = Mac(episodes=[(4, 90.0)])
    events(hot, mac_job(n_blocks=5))
    assert sum(isinstance(event, Resting) for _, event in hot.events_received) == 3


def test_a_machine_that_every_block_heats_is_tried_twice_and_then_believed(tmp_path: Path) -> None:
    mac = Mac(episodes=[(3 * block + 1, 60.0) for block in range(20)])
    plan = Experiment(loads=(mac_job(n_blocks=4),), environment=ENVIRONMENT)
    with Store.open(tmp_path / "hot.sqlite") as store:
        outcome = run_experiment(plan, partial(measure_job, hire=mac.hire), store)
        assert (outcome.n_ok, outcome.n_left) == (12, 0) and mac.n_trials == 3 * 12
        rows = [row.trial for row in store.trials(TrialFilter(superseded=True), rounds=False)]
        assert Counter(trial.status for trial in rows) == {Status.DISTURBED: 24, Status.HOT: 12}
        assert all("heat" in (trial.reason or "") for trial in rows)
        assert {row.trial.status for row in store.trials()} == {Status.HOT}
        assert "kept_hot" in {warning.code for warning in check_run([row.trial for row in store.trials()])}
        assert run_experiment(plan, partial(measure_job, hire=mac.hire), store).n_skipped == 12, "what is kept counts"


def test_no_heat_makes_a_wrong_output_right() -> None:
    """The machine is hot at each try, and one arm diverges."""
    block = mac_job(n_blocks=1).blocks[0]
    good = [trial(slot.case, status=Status.VALID, reason=None) for slot in block.slots]
    wrong = msgspec.structs.replace(good[2], status=Status.INVALID, reason="output differs")
    judge = BlockJudge(on_device=True)
    for _ in range(5):
        ((_, trials, again),) = judge.judge(block, [*good[:2], wrong], "heat slowed passes")
    assert not again
    assert [one.status for one in trials] == [Status.HOT, Status.HOT, Status.INVALID] and trials[2] == wrong


def test_the_next_turn_is_asked_for_when_a_block_was_judged_and_nothing_rests_behind_the_last() -> None:
    mac, asked = Mac(episodes=[(1, 90.0), (4, 90.0)]), []

    def turns() -> Iterator[Sequence[int]]:
        for block in range(2):
            asked.append([type(event).__name__ for _, event in mac.events_received])
            yield range(3 * block, 3 * block + 3)

    list(measure_job(mac_job(n_blocks=2), turns=turns(), hire=mac.hire))
    assert asked[0] == [] and "Resting" not in asked[1] and asked[1][-1] == "BlockMeasured"
    all_events = [type(event).__name__ for _, event in mac.events_received]
    last = len(all_events) - 1 - all_events[::-1].index("BlockMeasured")
    assert "Resting" in all_events[:last] and "Resting" not in all_events[last:]


def test_a_rest_counts_in_the_budget(tmp_path: Path) -> None:
    """A machine that is too hot for another block when the time is up ends the run without it."""
    mac = Mac(episodes=[(4, 1e9)])

    class OneMinute(Choice):
        def is_over(self) -> bool:
            return mac.now_s() > 60.0

    plan = Experiment(loads=(mac_job(n_blocks=4),), environment=ENVIRONMENT)
    with Store.open(tmp_path / "hot.sqlite") as store:
        outcome = run_experiment(plan, partial(measure_job, hire=mac.hire), store, choice=OneMinute())
    assert outcome.n_ok == 3 and outcome.n_left == 9 and mac.now_s() < 60.0 + 2 * STEP_S


@pytest.mark.parametrize(
    ("asked", "backend", "model", "rest"),
    [
        (None, "CPU", "Mac16,10", 0.0),
        *((None, "CPU", air, None) for air in ("Mac16,12", "MacBookAir10,1", "Mac17,3", "Mac17,5")),  # no fan
        *((None, "CPU", other, 0.0) for other in ("Mac17,2", "Mac18,1", None)),
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
