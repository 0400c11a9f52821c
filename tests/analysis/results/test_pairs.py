from pathlib import Path

import pytest

from mlsd.analysis.fits.study_fits import fit_pairs
from mlsd.analysis.results.pairs import COLUMNS, evidence, over_groups
from mlsd.errors import AnalysisError
from mlsd.measure.store.study import Store
from tests.analysis.pair_studies import Arm, Study, read_study, write_study


def test_every_sd_trial_is_paired_with_the_ar_trial_of_its_block(tmp_path: Path) -> None:
    found = read_study(write_study(tmp_path / "s.sqlite", Study(noise=0.0)))
    assert len(found.pairs) == 3 * 4 * 3
    assert (found.n_unpaired, found.n_invalid) == (0, 0)
    for pair in found.pairs:
        assert pair.speedup == pytest.approx(pair.mgl * pair.t_one_ms / pair.round_ms, rel=1e-6)
        assert pair.t_one_ms == pytest.approx(10.03, rel=1e-6)


def test_machines_and_builds_refuse_to_mix(tmp_path: Path) -> None:
    row = dict.fromkeys(COLUMNS, 0)
    rows = [tuple((row | {"environment_key": key}).values()) for key in ("a", "b")]
    with pytest.raises(AnalysisError, match="mixes 2 machines"):
        evidence(COLUMNS, rows)


def test_an_empty_study_and_a_table_of_something_else_are_refused() -> None:
    with pytest.raises(AnalysisError, match="no trials"):
        evidence(COLUMNS, [])
    with pytest.raises(AnalysisError, match="no column trial_id"):
        evidence(["speed"], [(1.0,)])


def test_invalid_trials_make_no_pairs(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(gammas=(4,)),), prompts=("code",), repeats=1))
    with Store.open(path, read_only=True) as store:
        table = store.summary()
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for row in rows:
        row["valid"] = 0 if row["arm"] == "ar" else 1
    found = evidence(table.columns, [tuple(row.values()) for row in rows])
    assert (len(found.pairs), found.n_unpaired, found.n_invalid) == (0, 1, 1)


def test_groups_weigh_equally_and_one_group_has_no_interval() -> None:
    mean = over_groups([1.0, 1.0, 1.0, 4.0], ["a", "a", "a", "b"], ratio=True)
    assert mean.value == pytest.approx(2.0)
    assert mean.n == 2
    assert mean.low is not None and mean.low < 1.0
    assert over_groups([3.0, 5.0], ["a", "a"]).low is None
    with pytest.raises(AnalysisError):
        over_groups([], [])


def test_trials_of_another_sampling_are_left_out_and_counted(tmp_path: Path) -> None:
    study = Study(arms=(Arm(), Arm(temperature=0.8, gammas=(4,))))
    found = read_study(write_study(tmp_path / "s.sqlite", study))
    assert len(found.pairs) == 36
    assert found.n_other_settings == 24


def test_options_of_a_drafter_tell_its_pairs_apart(tmp_path: Path) -> None:
    arms = (Arm(drafter="pld", draft=None, options={"ngram": 2}), Arm(drafter="pld", draft=None, options={"ngram": 3}))
    found = read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms)))
    assert {pair.options for pair in found.pairs} == {"ngram=2", "ngram=3"}
    assert [fitted.options for fitted in fit_pairs(found)] == ["ngram=2", "ngram=3"]
