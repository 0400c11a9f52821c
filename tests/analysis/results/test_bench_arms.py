"""A bench's own summary, and that it says what a report, advice and a record say of the same trials."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.results import frames
from mlsd.analysis.results.bench_arms import ArmSummary, bench_arms, summarize
from mlsd.analysis.results.speedups import speedups
from mlsd.measure.exchange.record import make_record
from mlsd.measure.run.race import standings
from mlsd.measure.run.runs import BenchTrial
from mlsd.measure.store.store import Store
from mlsd.records import Case, Losslessness, Trial
from tests.analysis.studies import MOE, blocks, failed, lasting, write

DIVERGED = {"valid": False, "invalid_reason": "output differs", "losslessness": Losslessness(verdict="diverged")}
DISTURBED = {"valid": False, "invalid_reason": "the worker waited", "disturbed": True}


def _measured() -> list[tuple[Case, Trial]]:
    """Three gammas beside plain decoding in four blocks, where each thing that can go wrong with a trial did once."""
    made = [(of, trial) for of, trial in blocks(MOE, repeats=4, prompts=("code",), noise=0.05)]
    wrong = {(4, 0): DIVERGED, (8, 1): DISTURBED, (0, 2): DISTURBED}
    made = [(of, msgspec.structs.replace(t, **wrong.get((of.gamma, t.repeat), {}))) for of, t in made]
    last = next(i for i, (of, t) in enumerate(made) if (of.gamma, t.repeat) == (16, 3))
    made[last] = (made[last][0], failed(made[last][0], made[last][1].block, 3))
    slow = [i for i, (of, t) in enumerate(made) if t.disturbed]
    for i in slow:
        made[i] = (made[i][0], lasting(made[i][1], 50 * (made[i][1].decode_ns or 0)))
    return made


def _arms(measured: list[tuple[Case, Trial]]) -> dict[int, ArmSummary]:
    rows = [BenchTrial(case=of, trial=trial) for of, trial in measured]
    return {arm.case.gamma: arm.summary for arm in bench_arms(rows, standings(measured))}


def test_a_bench_says_what_a_report_says_of_the_same_trials(tmp_path: Path) -> None:
    measured = _measured()
    said = _arms(measured)
    with Store.open(write(tmp_path / "s.sqlite", measured)) as store:
        reported = {found.gamma: found for found in speedups(frames.trials(store), ("prompt",), together=True)}
    assert set(reported) == set(said) - {0} == {4, 8, 16}
    for gamma, found in reported.items():
        own = said[gamma]
        assert found.ratio is not None
        ratio = (found.ratio.value, found.ratio.low, found.ratio.high)
        assert (own.speedup, own.ci_low, own.ci_high) == pytest.approx(ratio)
        assert (found.standing is None) == (gamma in (4, 16))  # of which one trial is not valid
        assert own.decode_tok_s == pytest.approx(found.decode_tok_s)
        assert (own.n_trials, own.n_valid) == (found.n_trials, found.n_valid)
        assert (own.acceptance_rate, own.mgl) == pytest.approx((found.acceptance_rate, found.mgl))


def test_a_record_holds_the_rates_that_a_bench_showed(tmp_path: Path) -> None:
    measured = [(of, t) for of, t in _measured() if t.valid]
    said = _arms(measured)
    with Store.open(write(tmp_path / "s.sqlite", measured)) as store:
        study = make_record(store)
    for gamma, own in said.items():
        rows = [row for row in study.trials if row.trial.gamma == gamma]
        speeds = sorted(row.rates["decode_tok_s"] for row in rows)
        assert own.decode_tok_s is not None and speeds[0] <= own.decode_tok_s <= speeds[-1]
        sums = {name: sum(row.sums[name] for row in rows) for name in ("proposed", "accepted", "committed")}
        assert own.mgl == pytest.approx(sums["committed"] / own.rounds)
        assert own.acceptance_rate == (pytest.approx(sums["accepted"] / sums["proposed"]) if gamma else None)


def test_a_disturbed_trial_counts_in_no_speed_and_makes_nothing_invalid() -> None:
    said = _arms(_measured())
    assert said[8].fates == {"valid": 3, "disturbed": 1} and said[8].wrong == 0 and said[8].verdict == "lossless"
    assert said[4].fates == {"valid": 3, "diverged": 1} and said[4].wrong == 1
    assert said[4].invalid_reason == "output differs" and said[16].invalid_reason == "the worker was killed"
    plain = [trial for of, trial in _measured() if of.arm == "ar"]
    calm, shaken = ([t for t in plain if t.valid], plain)
    assert summarize(shaken, plain, "none").decode_tok_s == summarize(calm, plain, "none").decode_tok_s
    only = [trial for trial in plain if trial.disturbed]
    assert summarize(only, plain, "none").decode_tok_s is None


def test_an_arm_without_a_valid_trial_shows_what_a_program_that_checks_nothing_prints() -> None:
    made = [(of, msgspec.structs.replace(t, **DIVERGED) if of.gamma == 4 else t) for of, t in _measured()]
    found = _arms(made)[4]
    assert found.n_valid == 0 and found.wrong == 4 and found.speedup is not None and found.verdict == "diverged"
