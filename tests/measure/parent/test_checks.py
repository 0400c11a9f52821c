import datetime
import random

import msgspec
import pytest

from mlsd.measure.parent.checks import Drift, check_run, condition_warnings, drift_of, plain_points
from mlsd.measure.parent.disturbance import disturbed
from mlsd.records import Anchors, Conditions, Losslessness, Status, Trial
from tests.measure.examples import ENVIRONMENT, case, failed, trial

EIGHT_CORES = msgspec.structs.replace(ENVIRONMENT, os="Linux", logical_cores=8)
LOSSLESS = Losslessness(verdict="lossless")
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
CALM = Conditions(load_1min=0.1, on_battery=False, low_power_mode=False, thermal_state="nominal", swap_used_bytes=0)


def good(tok_s: float = 100.0, minute: float = 0.0, **changes: object) -> Trial:
    """A trial that nothing speaks against: 101 tokens, so 100 in the decode time."""
    fields: dict[str, object] = {
        "tokens": tuple(range(101)),
        "decode_ns": round(100 / tok_s * 1e9),
        "started_at": (START + datetime.timedelta(minutes=minute)).isoformat(),
        "timed": True,
        "fell_back": None,
        "failed_native_calls": 0,
        "losslessness": LOSSLESS,
        "reason": None,
        "status": Status.VALID,
        "conditions": CALM,
    }
    return trial(case(0), **(fields | changes))


def codes(*trials: Trial) -> list[str]:
    return [warning.code for warning in check_run(trials, EIGHT_CORES)]


def condition_codes(*conditions: Conditions, at_rest: bool = True) -> list[str]:
    return [warning.code for warning in condition_warnings(conditions, EIGHT_CORES, at_rest=at_rest)]


def baseline_drift(trials: list[Trial]) -> Drift | None:
    return drift_of(plain_points(trials))


def test_a_clean_run_and_an_empty_one_raise_no_doubt() -> None:
    assert codes(*(good(minute=m) for m in range(8))) == codes() == condition_codes(Conditions()) == []
    assert codes(good(losslessness=Losslessness(verdict="near_tie"))) == []
    assert not disturbed([good(), good(), took(9, 8.0)]), "no other repeat has readings"


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"on_battery": True}, "on_battery", "all the time"),
        ({"low_power_mode": True}, "low_power_mode", "all the time"),
        ({"thermal_state": "heavy"}, "throttled", "(heavy)"),
        ({"load_1min": 3.0}, "background_load", "about 3.0 of 8 logical cores busy"),
        ({"load_1min": 17.8}, "background_load", "every logical core busy"),  # no more than the machine has
    ],
)
def test_a_disturbed_machine_is_named(changed: dict[str, object], code: str, words: str) -> None:
    [warning] = condition_warnings([msgspec.structs.replace(CALM, **changed)], EIGHT_CORES, at_rest=True)
    assert warning.code == code and words in warning.message


def test_the_load_of_a_run_is_the_processor_time_of_other_programs() -> None:
    def found(others: float, wall_s: float = 1.0) -> list[str]:
        ours = {"generation_ns": round(wall_s * 1e9), "processor_ns": round(4 * wall_s * 1e9)}
        busy = Conditions(**ours, machine_ns=round((4 + others) * wall_s * 1e9), load_1min=9.0)
        return condition_codes(busy, at_rest=False)

    assert found(0.7) == [] and found(1.0) == ["background_load"]
    assert found(3.0, wall_s=0.1) == [], "too short for the system's own count"
    assert condition_codes(Conditions(load_1min=9.0), at_rest=False) == [], "a server is among the load"


@pytest.mark.parametrize(
    ("system", "load", "swap_mib", "codes"),
    [
        ("Linux", 0.1, (4000, 4010), []),  # only swap that grows is a doubt
        ("Linux", 0.1, (0, 500, 100), ["swap_growth"]),
        ("macOS 26.5 (25F71)", 1.8, (0, 500), []),  # a Mac's own swapping and services
        ("macOS 26.5 (25F71)", 4.0, (0, 2000), ["background_load", "swap_growth"]),
    ],
)
def test_swap_and_load_count_beyond_what_a_system_does_by_itself(
    system: str, load: float, swap_mib: tuple[int, ...], codes: list[str]
) -> None:
    read = [msgspec.structs.replace(CALM, load_1min=load, swap_used_bytes=mib << 20) for mib in swap_mib]
    machine = msgspec.structs.replace(EIGHT_CORES, os=system)
    assert [warning.code for warning in condition_warnings(read, machine, at_rest=True)] == codes


def test_failed_trials_are_counted_by_reason() -> None:
    warnings = check_run([failed(reason="killed\nlog line"), failed(reason="killed"), failed(reason="hung")])
    assert [w.message for w in warnings] == ["2 trials failed: killed", "1 trial failed: hung"]


OTHER = {"tokens": tuple(range(1, 102))}


@pytest.mark.parametrize(
    ("trials", "code", "words"),
    [
        ([good(failed_native_calls=7, status=Status.INVALID)], "failed_native_calls", "7 llama.cpp calls failed"),
        (
            [good(losslessness=Losslessness(verdict="diverged"), status=Status.INVALID)],
            "diverged",
            "In 1 trial output or state differ",
        ),
        ([good(status=Status.INVALID, reason="unchecked")], "invalid_trials", "1 invalid trial: unchecked"),
        ([good(), good(**OTHER)], "unstable_output", "2 different outputs"),
        ([good(losslessness=None), good(losslessness=None, **OTHER)], None, ""),
        ([good(5_000), good(4_900)], "too_short", "2 of 2 trials decoded for less than 100 ms (the shortest for 20.0"),
        ([good(100), good(130), good(100)], "wide_spread", "The 3 repeats scatter"),
        ([good(100), good(103), good(100)], None, ""),
        ([good(), good(status=Status.DISTURBED, reason="it waited for 6.0 s")], "disturbed", "it waited for 6.0 s"),
    ],
)
def test_what_speaks_against_trials_is_named_once(trials: list[Trial], code: str | None, words: str) -> None:
    found = check_run(trials, EIGHT_CORES)
    assert [warning.code for warning in found] == ([] if code is None else [code])
    assert all(words in warning.message and warning.advice for warning in found)
    assert code != "wide_spread" or found[0].case_id == case(0).id


# --- drift ------------------------------------------------------------------------------------------------------


def test_a_steady_slowdown_is_found_with_its_size() -> None:
    trials = [good(100 * 0.99**m, minute=m) for m in range(11)]
    drift = baseline_drift(trials)
    assert drift is not None
    assert drift.change == pytest.approx(0.99**10 - 1)
    assert baseline_drift(trials[:4]) is None and baseline_drift([good(99 - m) for m in range(9)]) is None, "too little"
    assert baseline_drift([msgspec.structs.replace(one, arm="sd") for one in trials]) is None
    assert (drift.n_trials, drift.span_s) == (11, 600)
    assert "baseline_drift" in codes(*trials)


def test_a_drift_is_no_larger_than_the_time_in_which_it_was_seen() -> None:
    later = case(0, n_predict=9)
    trials = [good(100 * 0.9**m, minute=m) for m in range(5)]
    drift = baseline_drift([*trials, good(50, minute=600, case_id=later.id)])
    assert drift is not None
    assert drift.change == pytest.approx(0.9**4 - 1)


def test_heat_that_slows_only_wide_passes_is_a_drift_of_those_alone() -> None:
    def warmer(minute: int) -> Conditions:
        anchors = Anchors(target="t", width=5, one_ns=31_000_000, wide_ns=round(37e6 * 1.02**minute))
        return msgspec.structs.replace(CALM, anchors=anchors)

    warnings = check_run([good(minute=m, conditions=warmer(m)) for m in range(11)], EIGHT_CORES)
    assert [warning.code for warning in warnings] == ["anchor_drift"]
    assert "over the widest, timed between blocks, changed in speed by -18.0 %" in warnings[0].message


def test_cases_of_different_speed_do_not_look_like_drift() -> None:
    slow = case(0, n_predict=9)
    trials = [good(100, minute=m) for m in range(4)] + [good(20, minute=10 + m, case_id=slow.id) for m in range(4)]
    drift = baseline_drift(trials)
    assert drift is not None
    assert drift.change == pytest.approx(0, abs=1e-6)
    assert codes(*trials) == []


def test_noise_alone_is_called_drift_about_as_often_as_the_interval_allows() -> None:
    rng = random.Random(5)
    found = [baseline_drift([good(100 * (1 + rng.gauss(0, 0.05)), minute=m) for m in range(12)]) for _ in range(400)]
    rate = sum(drift is not None and drift.decided for drift in found) / len(found)
    assert 0.02 < rate < 0.09  # 5 % promised


def test_a_trial_that_measured_something_else_than_the_methods_speed_is_named() -> None:
    inside = good(decode_ns=None, timed=False)
    fallen = good(rollback_draft="trim", fell_back="another release.")
    found = {w.code: w.message for w in check_run([good(), inside, fallen], EIGHT_CORES)}
    assert set(found) == {"not_timed", "sync_fallback"}
    assert "another release." in found["sync_fallback"]


# --- disturbed --------------------------------------------------------------------------------------------------------


def took(wall_s: float, processor_s: float) -> Trial:
    """A trial by its wall and processor time."""
    spans = Conditions(generation_ns=round(wall_s * 1e9), processor_ns=round(processor_s * 1e9))
    return good(100 / wall_s, conditions=spans)


@pytest.mark.parametrize(
    ("spans_s", "on_device", "places", "words"),
    [
        ([(0.1, 0.1), (6.07, 0.1), (0.1, 0.1)], False, [1], "the worker waited for 6.0 of 6.1 s"),
        ([(6.07, 0.1), (0.1, 0.1)], False, [0], "the worker waited for 6.0 of 6.1 s"),  # one other repeat is enough
        ([(5, 5), (9, 9), (5, 5)], False, [], ""),  # a throttled processor
        ([(5, 20), (9, 36), (5, 20)], False, [], ""),  # on four threads
        ([(5, 0.2), (5.5, 0.2), (5, 0.2)], True, [], ""),  # scatter of a graphics device
        ([(5, 2.0), (5, 2.1), (5, 1.9)], False, [0, 1, 2], "no thread of the worker ran for"),  # as long as its repeats
        ([(5, 2.0)], False, [0], "no thread of the worker ran for 3.0 of 5.0 s"),  # or without any
        ([(0.5, 0.1), (0.6, 0.1)], False, [], ""),  # scatter
        ([(5, 0.2), (8, 0.4), (5, 0.2)], True, [1], "heat, sleep or other work"),  # the processor polls meanwhile
    ],
)
def test_a_trial_that_waited_is_disturbed_and_one_that_computed_longer_is_not(
    spans_s: list[tuple[float, float]], on_device: bool, places: list[int], words: str
) -> None:
    found = disturbed([took(*span_s) for span_s in spans_s], on_device=on_device)
    assert list(found) == places and all(reason.startswith(words) for reason in found.values())


def test_on_a_graphics_device_the_one_trial_that_reads_the_prompt_is_not_disturbed() -> None:
    read = took(5, 0.2)
    whole = msgspec.structs.replace(read.conditions or CALM, generation_ns=25_000_000_000)
    assert not disturbed([msgspec.structs.replace(read, conditions=whole), took(5, 0.2), took(5, 0.2)], on_device=True)
