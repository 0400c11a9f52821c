import sqlite3
from pathlib import Path

import pytest

from tests.analysis.pair_studies import Arm, Study, read_study, write_study
from tests.formats.records import trial_with


def test_every_sd_trial_is_paired_with_the_ar_trial_of_its_block(tmp_path: Path) -> None:
    found = read_study(write_study(tmp_path / "s.sqlite", Study(noise=0.0)))
    assert len(found.pairs) == 3 * 4 * 3
    pairs = found.pairs
    assert pairs["speedup"].tolist() == pytest.approx((pairs["mgl"] * pairs["t_one_ms"] / pairs["round_ms"]).tolist())
    assert pairs["t_one_ms"].tolist() == pytest.approx([10.06] * len(pairs), rel=1e-6)
    assert (pairs["draft_parameters"] == 100_000).all() and not pairs["mixture"].any() and not pairs["loops"].any()


def test_an_invalid_baseline_makes_no_pair(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=(4,)),), prompts=("code",), repeats=1))
    with sqlite3.connect(path) as database:
        database.execute(trial_with("status", "'invalid'", "case_id IN (SELECT id FROM \"case\" WHERE arm = 'ar')"))
    database.close()
    assert read_study(path).pairs.empty
