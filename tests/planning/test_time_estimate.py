import msgspec
import pytest

from mlsd.hardware.apple_passes import Work, apple_chip
from mlsd.planning.job import ModelFile
from mlsd.planning.options import Overrides
from mlsd.planning.plan import expand
from mlsd.planning.suite import DrafterChoice, Part, Profile, Suite
from mlsd.planning.time_estimate import (
    Rate,
    TokS,
    estimate_time,
    load_preparation_s,
    preparation_line,
    preparation_s,
    rates_from_chips,
    rates_from_results,
)
from mlsd.records import DRAFT_MODEL, Case, DrafterSpec, ModelRef, PromptRef, Trial
from mlsd.trials.stages import StageTime

TARGET, DRAFT = ModelRef(id="t", sha256="f" * 64, n_bytes=100), ModelRef(id="d", n_bytes=20)
PROFILE = Profile(name="p", title="", roles={"target": "t", "draft": "d"})
PART = Part(targets=("target",), drafters=(DrafterChoice(draft="draft"),), gammas=(4,), prompts=("code", "factual"))
SUITE = Suite(name="S", title="", repeats=3, n_predict=101, parts=(PART,))
PLAN = expand([SUITE], PROFILE, {"t": ModelFile(ref=TARGET), "d": ModelFile(ref=DRAFT)}, Overrides())


def case(gamma: int, prompt: str = "code", **changes) -> Case:
    drafter = DrafterSpec(name=DRAFT_MODEL, draft=DRAFT) if gamma else DrafterSpec()
    values = {"suite": "S", "target": TARGET, "prompt": PromptRef(key=prompt, sha256=prompt), "n_predict": 101}
    return Case(**{**values, "drafter": drafter, "gamma": gamma, **changes})


def trial(of: Case, tok_s: float, **changes) -> Trial:
    place = {"arm": of.arm, "gamma": of.gamma, "block": 0, "repeat": 0, "position": 0, "started_at": "2026-01-01"}
    made = {"status": "valid", "tokens": (7,) * 101, "decode_ns": round(100e9 / tok_s), "prefill_ns": 500_000_000}
    return msgspec.convert({"case_id": of.id, **place, **made, **changes}, Trial)


def test_the_time_of_a_plan_is_prefill_and_decoding_of_every_trial():
    def tok_s(of: Case) -> Rate:
        return Rate(decode_tok_s=10 if of.arm == "ar" else 20, prefill_ns=1e9, source="results")

    found = estimate_time(PLAN.loads, tok_s)
    assert found.seconds == pytest.approx(6 * (10 + 1) + 6 * (5 + 1))  # 2 prompts x 3 repeats of each arm
    assert (found.n_trials, found.n_unknown, found.sources) == (12, 0, {"results": 12})
    some = estimate_time(PLAN.loads, lambda of: tok_s(of) if not of.gamma else None)
    assert (some.seconds, some.n_unknown) == (pytest.approx(66), 6)
    assert estimate_time(PLAN.loads, lambda of: None).seconds is None


def test_results_give_the_median_of_the_same_case_before_that_of_a_like_one():
    known = [case(0), case(0, "other")]
    trials = [trial(known[0], rate) for rate in (10, 12, 50)] + [trial(known[1], 90), trial(known[1], 91)]
    tok_s = rates_from_results(trials, {one.id: one for one in known})
    assert tok_s(case(0)) == Rate(decode_tok_s=pytest.approx(12), prefill_ns=5e8, source="results")
    like = tok_s(case(0, "third"))
    assert like.decode_tok_s == pytest.approx(50)
    assert like.prefill_ns is None
    assert tok_s(case(4)) is None
    other = case(0, target=ModelRef(id="t", sha256="0" * 64))
    useless = [trial(other, 10), trial(case(0), 10, status="failed"), trial(case(0), 10, decode_ns=None)]
    assert rates_from_results(useless, {other.id: other, case(0).id: case(0)})(case(0)) is None


WORKS = {
    "t": Work(n_layers=32, n_embd=4096, n_parameters=8 * 10**9, always_bytes=8.5e9),
    "d": Work(n_layers=24, n_embd=1024, n_parameters=8 * 10**8, always_bytes=8.5e8),
}


def by_public_rows(*chips: str, scale: float | None = None) -> TokS:
    known = [chip for name in chips if (chip := apple_chip(name)) is not None]
    return rates_from_chips(WORKS, known, lambda of: 300, scale=scale)


def test_public_rows_give_a_range_with_prefill_and_judging_inside():
    plain, drafted = (by_public_rows("M2 Ultra")(case(gamma)) for gamma in (0, 4))
    assert 0.4 * 94 < plain.decode_tok_s < 0.9 * 94  # a roofline at the whole peak says 94
    assert plain.faster < 1 < plain.slower and plain.source == "public rows"
    assert drafted.slower / drafted.faster > plain.slower / plain.faster
    assert by_public_rows("M2 Ultra")(case(4, drafter=DrafterSpec(name="pld"))) is not None
    assert by_public_rows()(case(0)) is None
    assert rates_from_chips({"t": None}, [], lambda of: 1)(case(0)) is None


def test_several_chips_give_a_range_that_holds_each_of_them():
    both, slow, fast = (by_public_rows(*chips)(case(0)) for chips in (("M1", "M4"), ("M1",), ("M4",)))
    ends = (both.faster / both.decode_tok_s, both.slower / both.decode_tok_s)
    assert ends[0] < 1 / fast.decode_tok_s < 1 / slow.decode_tok_s < ends[1]


def test_what_was_measured_on_the_machine_scales_and_narrows_the_rest():
    wide, narrow = by_public_rows("M4")(case(0)), by_public_rows("M4", scale=1.5)(case(0))
    assert narrow.decode_tok_s == pytest.approx(wide.decode_tok_s / 1.5)
    assert narrow.slower < wide.slower


def test_what_lies_between_blocks_takes_time_too():
    def seconds(rest_s: float | None) -> float:
        return estimate_time(PLAN.loads, lambda of: Rate(decode_tok_s=10, source="results"), rest_s=rest_s).seconds

    assert seconds(None) > seconds(0.0)
    assert seconds(30.0) == pytest.approx(seconds(0.0) + 30 * sum(len(load.blocks) - 1 for load in PLAN.loads))


def test_every_arm_of_a_load_is_warmed_by_a_whole_trial_on_a_gpu():
    def tok_s(of: Case) -> Rate:
        return Rate(decode_tok_s=10, source="public rows", faster=0.5, slower=2)

    cold, warm = (estimate_time(PLAN.loads, tok_s, warmed=warmed) for warmed in (False, True))
    assert (cold.seconds, warm.seconds) == (pytest.approx(120), pytest.approx(140))
    assert (warm.low_seconds, warm.high_seconds) == (pytest.approx(70), pytest.approx(280))
    assert warm.text == "2 min 20 s (1 min 10 s to 4 min 40 s)"


def test_getting_ready_takes_what_it_took_before_and_longer_for_larger_files_where_nothing_is_known():
    (load,) = PLAN.loads
    large = msgspec.structs.replace(
        load, target=msgspec.structs.replace(load.target, ref=msgspec.structs.replace(TARGET, n_bytes=10**10))
    )
    sized_s, larger_s = load_preparation_s(load), load_preparation_s(large)
    assert sized_s is not None and larger_s is not None and 2.0 < sized_s < larger_s
    assert preparation_line("Loading", larger_s).startswith("Loading: about ")
    earlier = [
        [StageTime(stage="load", wall_ns=9 * 10**9, processor_ns=0)],
        [
            StageTime(stage="load", wall_ns=3 * 10**9, processor_ns=0),
            StageTime(stage="warm-up", wall_ns=10**9, processor_ns=0),
            StageTime(stage="timed rounds", wall_ns=50 * 10**9, processor_ns=0),
        ],
    ]
    assert load_preparation_s(large, earlier) == 4.0


def test_where_the_size_of_a_file_is_not_known_that_is_said_in_place_of_a_guess():
    seconds = preparation_s([ModelRef(id="here", n_bytes=10**9), ModelRef(id="of no size")])
    assert seconds is None and "how long is not known" in preparation_line("Loading", seconds)
