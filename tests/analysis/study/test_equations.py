"""The study's equations with measured inputs: known answers, an account that adds up, and what is a prediction."""

from pathlib import Path

import pytest

import mlsd
from mlsd.analysis.study.equations import corrected, equation_1, equation_2
from mlsd.report.tables.equations import equation_sentences
from tests.analysis.pair_studies import Arm, Study, write_study
from tests.analysis.studies import MOE, blocks, write


def test_the_equations_are_their_formulas() -> None:
    assert equation_1(0.5, 0.1, 2) == pytest.approx(1.75 / 1.2)
    assert equation_1(1.0, 0.0, 4) == 5.0
    # A draft that is never right: a loss by equation 1 and by what is committed, a gain by equation 2.
    assert equation_1(0.0, 0.1, 16) == pytest.approx(1 / 2.6)
    assert equation_2(t_seq_ms=10, t_draft_ms=16, t_verify_ms=34, gamma=16) == pytest.approx(3.2)
    assert corrected(t_seq_ms=10, round_ms=50, mgl=1.0) == pytest.approx(0.2)


def test_equation_2_credits_rejected_tokens_and_the_corrected_form_adds_up(tmp_path: Path) -> None:
    """T(k) = 10 (1 + 0.02 (k - 1)) ms, 1 ms a drafted token: every input of the equations is known."""
    study = Study(arms=(Arm(alpha=0.1, gammas=(4, 16)),), n_predict=257, noise=0.0)
    four, sixteen = mlsd.open_study(write_study(tmp_path / "s.sqlite", study)).predictions
    for found, gamma in ((four, 4), (sixteen, 16)):
        assert found.inputs == "rounds" and found.arm.case.gamma == gamma
        assert found.t_seq_ms == pytest.approx(10.05, rel=0.01) and found.c == pytest.approx(0.1, rel=0.01)
        assert found.t_draft_ms == pytest.approx(found.proposed_per_round, rel=1e-3)
        account = corrected(found.t_seq_ms, found.t_draft_ms + found.t_verify_ms + found.t_rest_ms, found.mgl)
        assert account == pytest.approx(found.measured.value, rel=0.01)
        assert found.corrected is None, "of the same rounds it is the speedup by definition, and predicts nothing"
        assert found.eq2.off.value == pytest.approx(found.credited, rel=0.05), "by as much as it credits"
    assert sixteen.eq2.speedup > 3 and sixteen.measured.value < 0.8
    words = " ".join(equation_sentences([four, sixteen]))
    assert "16 proposed" in words or "15." in words
    assert "0.14x for moe_q4" in words and "prints 1.26x" in words, "equation 1 with the study's own figures"


@pytest.mark.parametrize("gammas", [(4,), (4, 8)])
def test_every_setting_is_a_row_of_the_frame(tmp_path: Path, gammas: tuple[int, ...]) -> None:
    frame = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, gammas=gammas))).equations
    assert list(frame["gamma"]) == list(gammas) and set(frame["inputs"]) == {"rounds"}
    assert (frame["eq2"] > frame["speedup"]).all() and frame["eq2_off"].notna().all()
