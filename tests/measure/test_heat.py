"""A machine rests until it is cool, whoever watches hears of it, and nothing measured hot counts."""

import random
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from mlsd.measure.bench import BlockBench
from mlsd.measure.heat import MOST_READINGS, MOST_S, STEP_S, Heat, cool_down_of, read_steady
from mlsd.measure.messages import BlockMeasured
from mlsd.measure.parent.blocks import Choice, Experiment, RunOutcome, Watcher, run_experiment
from mlsd.measure.parent.checks import check_run
from mlsd.measure.parent.disturbance import BlockJudge
from mlsd.planning.job import Block
from mlsd.records import Anchors, Conditions, Status
from mlsd.stats import grouped
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.engine.fake import FakeClock
from tests.measure.examples import ENVIRONMENT, trial
from tests.measure.simulated_mac import Mac, mac_job

COLD = Anchors(target="t", width=4, one_ns=31_000_000, wide_ns=37_300_000)


class Scripted(BlockBench):
    """Anchors from a script, the last one for ever, and what is said of rests."""

    def __init__(self, *wide: float, one: float = 1.0, states: tuple[str | None, ...] = (None,)) -> None:
        self.clock, self._wide, self._one, self._states = FakeClock(), list(wide), one, list(states)
        self.rests, self.n_readings = list[str](), 0
        self.heat = Heat()
        self.heat._clean["t", 4] = COLD

    def measure(self, block: Block) -> BlockMeasured:
        raise NotImplementedError

    def conditions(self) -> Conditions:
        return Conditions(thermal_state=self._states[min(len(self.rests), len(self._states) - 1)])

    def read_anchors(self) -> Anchors:
        self.n_readings += 1
        factor = self._wide.pop(0) if len(self._wide) > 1 else self._wide[0]
        one_ns, wide_ns = round(COLD.one_ns * self._one), round(COLD.wide_ns * factor)
        return msgspec.structs.replace(COLD, one_ns=one_ns, wide_ns=wide_ns)

    def settle(self) -> tuple[str | None, float]:
        """Why what was measured does not count, by the wide pass behind it, and the seconds of rest."""
        behind = msgspec.structs.replace(self.read_anchors(), one_ns=None)
        why = self.heat.judge(self, behind)
        began_ns = self.clock.now_ns()
        assert self.heat.rest(self, self.rests.append, lambda: False)
        return why, (self.clock.now_ns() - began_ns) / 1e9


def test_one_reading_that_did_not_move_is_enough_and_none_decides_that_something_did() -> None:
    calm = Scripted(1.04)
    assert calm.settle() == (None, 0) and calm.n_readings == 1, "four per cent are noise"
    cold = Scripted(1.07, 1.0)
    assert cold.settle() == (None, 0) and cold.n_readings == 4, "the passes after a pause are slow"
    assert Scripted(1.07, 1.07, 1.07, 1.0).settle() == (None, 0)


def test_passes_run_until_three_readings_in_a_row_agree_or_never_will() -> None:
    ramp = Scripted(1.12, 1.09, 1.06, 1.03, 1.0)
    assert read_steady(ramp) == COLD and ramp.n_readings == 7
    wild = Scripted(*(1.0, 1.2) * MOST_READINGS)
    assert read_steady(wild) is not None and wild.n_readings == MOST_READINGS


def test_heat_that_slows_only_wide_passes_is_found() -> None:
    hot = Scripted(*[50.6 / 37.3] * 4, *[1.2] * 3, *[1.04] * 3, 1.01)
    why, rested_s = hot.settle()
    assert why == "heat or other work slowed passes: T(1) 31.0 to 31.0 ms (0.0 %), T(4) 37.3 to 50.6 ms (35.7 %)"
    assert rested_s == 3 * STEP_S and len(hot.rests) == 3, "until both are within three per cent"
    assert Scripted(1.06, one=1.06).settle()[0] is not None, "both slower"
    assert Scripted(1.0, states=("serious", "fair", "nominal")).settle() == (None, 2 * STEP_S)


def test_anchors_that_were_hot_themselves_are_replaced_and_what_stood_on_them_does_not_count() -> None:
    fast = Scripted(0.7)
    why, rested_s = fast.settle()
    assert "slowed before" in (why or "") and rested_s == 0
    assert fast.settle() == (None, 0)


def test_a_state_or_a_speed_that_no_rest_changes_is_waited_for_once() -> None:
    for machine in (Scripted(1.0, states=("fair",)), Scripted(1.2)):
        assert machine.settle()[1] == MOST_S
        assert machine.settle() == (None, 0)


# --- a whole run, by one clock ------------------------------------------------------------------------------------


class Listener(Watcher):
    """What is said of rests, by the Mac's clock; and what is called measured again."""

    def __init__(self, mac: Mac) -> None:
        self._mac, self.rests, self.again = mac, list[float](), 0

    def rest(self, why: str) -> None:
        self.rests.append(self._mac.now_s())

    def tell(self, line: str) -> None:
        self.again += "measured again" in line


def run(
    mac: Mac, path: Path, *, n_blocks: int, cool_down_s: float | None = None, choice: Choice | None = None
) -> tuple[RunOutcome, Listener]:
    plan, listener = (
        Experiment(loads=(mac_job(n_blocks=n_blocks, cool_down_s=cool_down_s),), environment=METAL),
        Listener(mac),
    )
    with Store.open(path) as store:
        return run_experiment(plan, mac.bench, store, watcher=listener, choice=choice or Choice()), listener


METAL = msgspec.structs.replace(ENVIRONMENT, backend="Metal")


@pytest.mark.parametrize("cool_down_s", [None, 600.0])
def test_the_longest_rest_does_not_end_the_worker_and_is_never_silent(
    tmp_path: Path, cool_down_s: float | None
) -> None:
    mac = Mac(episodes=[(4, 1e9)])
    outcome, listener = run(mac, tmp_path / "s.sqlite", n_blocks=4, cool_down_s=cool_down_s)
    assert outcome.n_ok == 12 and mac.n_workers == 1 and len(listener.rests) >= MOST_S / STEP_S
    assert mac.longest_silence_s(listener.rests) <= 60


def test_after_a_rest_arms_are_warmed_briefly_for_they_are_compiled(tmp_path: Path) -> None:
    mac = Mac(episodes=[(4, 90.0)])
    run(mac, tmp_path / "s.sqlite", n_blocks=4)
    assert mac.warmed == [("ar0", True), ("sd1", True), ("sd4", True), ("ar0", False), ("sd1", False), ("sd4", False)]


def test_a_device_that_is_cold_after_every_pause_rests_for_its_heat_alone(tmp_path: Path) -> None:
    idle = Mac(load_s=30.0)
    outcome, listener = run(idle, tmp_path / "idle.sqlite", n_blocks=5)
    assert outcome.n_ok == 15 and not listener.rests and not listener.again
    _, listener = run(Mac(episodes=[(4, 90.0)]), tmp_path / "hot.sqlite", n_blocks=5)
    assert len(listener.rests) == 3 and listener.again == 1


def test_a_cool_machine_is_asked_for_nine_wide_passes_a_block(tmp_path: Path) -> None:
    mac, longer = Mac(), Mac()
    run(mac, tmp_path / "short.sqlite", n_blocks=4)
    run(longer, tmp_path / "long.sqlite", n_blocks=24)
    assert longer.n_anchor_passes - mac.n_anchor_passes == 20 * 9


@pytest.mark.parametrize("seed", range(6))
def test_what_was_hot_is_measured_again_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    episodes = sorted((rng.randint(1, 36), rng.choice([20.0, 60.0, 150.0, 400.0])) for _ in range(rng.randint(1, 3)))
    mac = Mac(episodes=episodes, load_s=rng.choice([0.0, 30.0]))
    run(mac, tmp_path / "s.sqlite", n_blocks=12)
    blocks = grouped(mac.measured, lambda one: one[:2]).values()
    tries = [[any(hot for *_, hot in block[at : at + 3]) for at in range(0, len(block), 3)] for block in blocks]
    assert all(not own[-1] and all(own[:-1]) for own in tries)


def test_a_machine_that_every_block_heats_is_tried_twice_and_then_believed(tmp_path: Path) -> None:
    mac = Mac(episodes=[(3 * block + 1, 60.0) for block in range(20)])
    plan = Experiment(loads=(mac_job(n_blocks=4),), environment=ENVIRONMENT)
    with Store.open(tmp_path / "hot.sqlite") as store:
        outcome = run_experiment(plan, mac.bench, store)
        assert (outcome.n_ok, outcome.n_left) == (12, 0) and mac.n_trials == 3 * 12
        rows = [row.trial for row in store.trials(TrialFilter(superseded=True), rounds=False)]
        assert Counter(trial.status for trial in rows) == {Status.DISTURBED: 24, Status.HOT: 12}
        assert all("heat" in (trial.reason or "") for trial in rows)
        assert {row.trial.status for row in store.trials()} == {Status.HOT}
        assert "kept_hot" in {warning.code for warning in check_run([row.trial for row in store.trials()])}
        assert run_experiment(plan, mac.bench, store).n_skipped == 12, "what is kept counts"


def test_no_heat_makes_a_wrong_output_right() -> None:
    """The machine is hot at each try, and one arm diverges."""
    job = mac_job(n_blocks=1)
    (block,) = job.blocks
    good = [trial(slot.case, status=Status.VALID, reason=None) for slot in block.slots]
    wrong = msgspec.structs.replace(good[2], status=Status.INVALID, reason="output differs")
    judge, bench = BlockJudge(on_device=True), Scripted(*[1.0] * 4, 1.2)
    judge.begin(job)
    assert judge.rest(bench, print)
    for _ in range(5):
        found = BlockMeasured(trials=(*good[:2], wrong), anchors=bench.read_anchors())
        ((_, trials, again),) = judge.judge(bench, block, found)
    assert not again
    assert [one.status for one in trials] == [Status.HOT, Status.HOT, Status.INVALID]
    assert trials[2].reason == wrong.reason


def test_nothing_rests_behind_the_last_block(tmp_path: Path) -> None:
    for episode, n_rests in (((1, 90.0), 3), ((100, 90.0), 0)):
        mac = Mac(episodes=[episode])
        _, listener = run(mac, tmp_path / f"{n_rests}.sqlite", n_blocks=2)
        assert len(listener.rests) == n_rests and isinstance(mac.events_received[-1][1], BlockMeasured)


def test_a_rest_counts_in_the_budget(tmp_path: Path) -> None:
    """A machine that is too hot for another block when the time is up ends the run without it."""
    mac = Mac(episodes=[(4, 1e9)])

    class OneMinute(Choice):
        def is_over(self) -> bool:
            return mac.now_s() > 60.0

    outcome, _ = run(mac, tmp_path / "hot.sqlite", n_blocks=4, choice=OneMinute())
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
