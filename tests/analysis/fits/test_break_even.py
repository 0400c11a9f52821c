from pathlib import Path

import pytest

from mlsd.analysis.fits.break_even import best_gamma, by_gamma
from mlsd.errors import AnalysisError
from tests.analysis.pair_studies import Arm, Study, read_study, write_study


def test_speedup_is_mgl_over_the_mgl_to_break_even(tmp_path: Path) -> None:
    pairs = read_study(write_study(tmp_path / "s.sqlite", Study(noise=0.0))).pairs
    for outlook in by_gamma(pairs):
        assert outlook.speedup.low is not None and outlook.speedup.low < outlook.speedup.value
        assert outlook.speedup.value == pytest.approx(outlook.mgl.value / outlook.break_even_mgl.value, rel=0.05)
        assert 0 < outlook.draft_share + outlook.verify_share < 1


def test_the_best_gamma_is_found_and_its_doubt_is_shown(tmp_path: Path) -> None:
    arm = Arm(alpha=0.95, draft_ms=0.3, per_row=0.02)
    best = best_gamma(read_study(write_study(tmp_path / "s.sqlite", Study(arms=(arm,)))).pairs)
    assert best.gamma == 8
    assert best.low is not None and best.low <= 8
    assert best.share is not None and best.share > 0.5


def test_the_best_gamma_is_off_when_nothing_gains(tmp_path: Path) -> None:
    best = best_gamma(read_study(write_study(tmp_path / "s.sqlite", Study(arms=(Arm(alpha=0.1),)))).pairs)
    assert (best.gamma, best.low, best.high, best.share) == (0, 0, 0, 1.0)
    assert best.speedup.value == 1.0


def test_no_pairs_have_no_outlook() -> None:
    with pytest.raises(AnalysisError, match="No speculative trial was measured beside a plain one"):
        by_gamma([])
