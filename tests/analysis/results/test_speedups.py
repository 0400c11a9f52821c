"""Metrics against studies whose answers are known, and their refusals."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from mlsd.analysis.fits.costmodel import conditional_acceptance
from mlsd.analysis.results import frames, round_sums, speedups
from mlsd.errors import AnalysisError
from mlsd.measure.store.store import Store
from mlsd.records import Case, DrafterSpec, EngineOptions, Losslessness, Trial
from tests.analysis.studies import MACHINE, MOE, blocks, case, failed, lasting, trial, write

Made = list[tuple[Case, Trial]]


def frame_of(path: Path, made: Made) -> pd.DataFrame:
    write(path, made)
    with Store.open(path, read_only=True) as store:
        return frames.trials(store)


def test_a_noiseless_study_gives_its_speedup_exactly(tmp_path: Path) -> None:
    frame = frame_of(tmp_path / "s.sqlite", blocks(MOE, alpha=1.0, noise=0.0, gammas=(4,), prompts=("code",)))
    (found,) = speedups.speedups(frame)
    plain_ms = 32 * 10.06
    # 32 tokens with every draft accepted: six rounds of five tokens, then one of two.
    sd_ms = 6 * (4 + 14 + 0.16) + (1 + 11 + 0.16)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(plain_ms / sd_ms, rel=1e-6)
    assert found.ratio.low == pytest.approx(found.ratio.high, rel=1e-6)
    assert (found.effect, found.n_blocks, found.acceptance_rate) == ("faster", 3, 1.0)
    assert found.mgl == pytest.approx(32 / 7)


def test_a_drafter_that_is_never_right_is_slower(tmp_path: Path) -> None:
    frame = frame_of(tmp_path / "s.sqlite", blocks(MOE, alpha=0.0, gammas=(4, 16)))
    assert [arm.effect for arm in speedups.speedups(frame)] == ["slower", "slower"]
    assert [arm.acceptance_rate for arm in speedups.speedups(frame)] == [0.0, 0.0]


def test_an_interval_that_holds_one_is_undecided_and_says_what_would_show_more(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made: Made = []
    for repeat in range(4):
        plain, sd = case(MOE, "code"), case(MOE, "code", 4)
        base = trial(plain, repeat, repeat, 0)
        made.append((plain, base))
        took = int((base.decode_ns or 0) * math.exp(rng.normal(0, 0.1)))
        made.append((sd, lasting(trial(sd, repeat, repeat, 1), took)))
    (found,) = speedups.speedups(frame_of(tmp_path / "s.sqlite", made), together=True)
    assert found.effect == "undecided"
    assert found.standing is not None and found.standing.more_blocks is not None


def test_one_block_gives_a_value_without_an_interval_and_no_decision(tmp_path: Path) -> None:
    frame = frame_of(tmp_path / "s.sqlite", blocks(MOE, alpha=1.0, prompts=("code",), gammas=(4,), repeats=1))
    (found,) = speedups.speedups(frame)
    assert found.ratio is not None and found.ratio.low is None
    assert found.effect == "undecided"


def test_speedups_pair_within_blocks_so_that_drift_cancels(tmp_path: Path) -> None:
    made: Made = []
    for repeat, slow in enumerate((1, 3, 9)):
        for i, of in enumerate((case(MOE, "code"), case(MOE, "code", 4))):
            once = trial(of, 7, 0, i)  # the same rounds each time, on a machine that gets slower
            times = {"decode_ns": (once.decode_ns or 0) * slow, "repeat": repeat, "block": repeat}
            made.append((of, msgspec.structs.replace(once, **times)))
    (found,) = speedups.speedups(frame_of(tmp_path / "s.sqlite", made))
    assert found.ratio is not None
    assert found.ratio.low == pytest.approx(found.ratio.high)


def test_invalid_and_failed_trials_give_no_number_but_their_reason(tmp_path: Path) -> None:
    sd = case(MOE, "code", 4)
    wrong = trial(sd, 2, 0, 0, valid=False, invalid_reason="3 native calls failed",
                  losslessness=Losslessness(verdict="diverged"))  # fmt: skip
    made = [(case(MOE, "code"), trial(case(MOE, "code"), 2, 0, 1)), (sd, wrong), (sd, failed(sd, 3))]
    (found,) = speedups.speedups(frame_of(tmp_path / "s.sqlite", made))
    assert found.ratio is None and found.decode_tok_s is None
    assert (found.n_trials, found.n_valid, found.effect) == (2, 0, "undecided")
    assert found.invalid_reason == "3 native calls failed"


def test_machines_refuse_to_mix(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    write(path, blocks(MOE))
    write(path, blocks(MOE), msgspec.structs.replace(MACHINE, host="b" * 16))
    with Store.open(path, read_only=True) as store:
        frame = frames.trials(store)
    for ask in (speedups.speedups, speedups.baselines):
        with pytest.raises(AnalysisError, match="mixes 2 machines or builds"):
            ask(frame)


def test_other_hashes_and_engine_options_are_averaged_apart(tmp_path: Path) -> None:
    plain = case(MOE, "code")
    again = msgspec.structs.replace(plain, target=msgspec.structs.replace(MOE.ref, sha256="d" * 64))
    threads = msgspec.structs.replace(plain, engine=EngineOptions(n_threads=2))
    for i, other in enumerate((again, threads)):
        made = [(plain, trial(plain, 1, 0, 0)), (other, trial(other, 2, 0, 0))]
        frame = frame_of(tmp_path / f"{i}.sqlite", made)
        assert len(speedups.baselines(frame)) == 2


def test_an_empty_study_is_a_clear_message(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="no trials"):
        speedups.speedups(frame_of(tmp_path / "s.sqlite", []))


def test_a_verification_over_depth_is_that_of_its_own_draft(tmp_path: Path) -> None:
    """Two drafts at one depth and gamma, the passes of one twice as long: each arm has its own."""
    arms = [case(MOE, "code@64"), case(MOE, "code@64", 4), case(MOE, "code@64", 4, draft=msgspec.structs.replace(MOE))]
    made = [(arm, trial(arm, 0, repeat, i)) for repeat in range(2) for i, arm in enumerate(arms)]
    for i, (arm, one) in enumerate(made):
        if arm is arms[2]:
            slow = tuple(msgspec.structs.replace(r, verify_ns=2 * r.verify_ns) for r in one.rounds)
            made[i] = arm, msgspec.structs.replace(one, rounds=slow, decode_ns=sum(r.wall_ns for r in slow))
    found = {row.found.draft: row.verify_ms for row in speedups.deep_arms(frame_of(tmp_path / "s.sqlite", made))}
    assert found[MOE.ref.id] == pytest.approx(2 * min(found.values()))


def test_baselines_are_the_mean_of_plain_trials(tmp_path: Path) -> None:
    frame = frame_of(tmp_path / "s.sqlite", blocks(MOE, noise=0.0))
    (found,) = speedups.baselines(frame)
    assert found.mean_tok_s == pytest.approx(1000 / 10.06)
    assert (found.n, found.sd_tok_s) == (12, pytest.approx(0.0, abs=1e-6))


def test_acceptance_by_position_is_that_of_the_rounds(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, alpha=0.6, gammas=(8,)))
    with Store.open(path, read_only=True) as store:
        found = round_sums.position_acceptance(frames.outcomes(store), frames.trials(store))
        every = [r for stored in store.trials() if stored.trial.arm == "sd" for r in stored.trial.rounds]
    wanted = conditional_acceptance([r.proposed for r in every], [r.accepted for r in every])
    for position, rate in enumerate(wanted, start=1):
        row = found[found["position"] == position].iloc[0]
        assert row["conditional"] == pytest.approx(rate, nan_ok=True) if rate is not None else row["tried"] == 0
        offered = [r for r in every if r.proposed >= position]
        assert row["overall"] == pytest.approx(sum(r.accepted >= position for r in offered) / len(offered))


def test_two_settings_of_one_method_are_never_one_row_of_rounds(tmp_path: Path) -> None:
    own = [DrafterSpec(name="pld", options={"ngram": n}) for n in (2, 3)]
    arms = [case(MOE, "code"), *(case(MOE, "code", 4, drafter=spec) for spec in own)]
    made = [(arm, trial(arm, 0, 0, i)) for i, arm in enumerate(arms)]
    write(tmp_path / "s.sqlite", made)
    with Store.open(tmp_path / "s.sqlite", read_only=True) as store:
        trials, outcomes = frames.trials(store), frames.outcomes(store)
    assert len(round_sums.time_split(trials)) == len(arms)
    table = round_sums.position_acceptance(outcomes, trials)
    assert not table.duplicated(["options", "gamma", "position"]).any() and table["options"].nunique() == len(own)


def test_the_time_split_holds_the_times_that_were_set(tmp_path: Path) -> None:
    frame = frame_of(tmp_path / "s.sqlite", blocks(MOE, alpha=0.0, noise=0.0, gammas=(4,), prompts=("code",)))
    split = round_sums.time_split(frame).set_index("arm")
    assert split.loc["ar", "verify_ms"] == pytest.approx(10)
    assert split.loc["sd", "rollback_ms"] == pytest.approx(0.1 * 31 / 32)  # no draft fits before the last token
    assert split.loc["sd", "draft_ms"] == pytest.approx((28 * 4 + 3 + 2 + 1) / 32)
