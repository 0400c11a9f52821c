from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.claim_tests import TESTS
from mlsd.analysis.claims import ClaimVerdict, claims, decide, decide_all, printed_audit
from mlsd.analysis.evidence import Evidence

from .pair_studies import Arm, Study, read_study, write_study

BY_ID = {claim.id: claim for claim in claims()}


def verdict(tmp_path: Path, claim: str, study: Study) -> ClaimVerdict:
    return decide(BY_ID[claim], read_study(write_study(tmp_path / "s.sqlite", study)))


def test_every_claim_has_a_test_of_its_own_and_a_source() -> None:
    assert sorted(claim.test for claim in claims()) == sorted(TESTS)
    assert all(claim.source and claim.population and claim.printed for claim in claims())
    assert len(BY_ID) == 12


def test_an_empty_study_measures_no_claim() -> None:
    assert {found.decision for found in decide_all(Evidence(pairs=(), models={}))} == {"not measured"}


SLOW_VERIFY = Arm(target="moe", per_row=0.3, draft_ms=2.0, alpha=0.3)
FAST_VERIFY = Arm(target="moe", per_row=0.01, draft_ms=0.2, alpha=0.9)


@pytest.mark.parametrize(
    ("claim", "study", "decision"),
    [
        ("acceptance-low", Study(), "refuted"),
        ("acceptance-low", Study(arms=(Arm(alpha=0.0),)), "confirmed"),
        ("moe-speedup", Study(arms=(FAST_VERIFY,)), "confirmed"),
        ("moe-speedup", Study(arms=(SLOW_VERIFY,)), "refuted"),
        ("moe-speedup", Study(), "not measured"),
        ("gamma-rises", Study(arms=(Arm(alpha=0.99, draft_ms=0.1, gammas=(2, 4, 8)),)), "confirmed"),
        ("gamma-rises", Study(arms=(Arm(alpha=0.2, draft_ms=2.0),)), "refuted"),
        ("smaller-draft", Study(arms=(Arm(draft_ms=0.5), Arm(draft="large", draft_ms=4.0))), "confirmed"),
        ("smaller-draft", Study(arms=(Arm(alpha=0.1), Arm(draft="large", alpha=0.95))), "refuted"),
        ("more-bits-gain-more", Study(arms=(FAST_VERIFY, Arm(target="moe-q4", per_row=0.3))), "confirmed"),
        ("overhead-decides", Study(arms=(Arm(draft_ms=12.0, alpha=0.8),)), "confirmed"),
        ("overhead-decides", Study(arms=(Arm(draft_ms=0.2, alpha=0.9),)), "refuted"),
        ("overhead-decides", Study(arms=(Arm(per_row=2.0, alpha=0.3),)), "refuted"),
        ("retrieval-steady", Study(arms=(Arm(drafter="pld", draft=None, draft_ms=0.01),)), "confirmed"),
        ("retrieval-steady", Study(arms=(Arm(drafter="pld", draft=None, per_row=0.5),)), "refuted"),
        (
            "parallel-hybrids",
            Study(
                arms=(
                    Arm(target="falcon", drafter="component", draft=None, alpha=0.8),
                    Arm(target="qwen", drafter="component", draft=None, alpha=0.05),
                )
            ),
            "confirmed",
        ),
        (
            "total-parameters",
            Study(
                arms=(
                    Arm(target="moe", alpha=0.9, per_row=0.01),
                    Arm(target="dense", alpha=0.3),
                    Arm(target="dense-big", alpha=0.35),
                )
            ),
            "confirmed",
        ),
    ],
)
def test_a_claim_is_decided_by_what_was_measured(tmp_path: Path, claim: str, study: Study, decision: str) -> None:
    found = verdict(tmp_path, claim, study)
    assert found.decision == decision, found.sentence


def test_speedup_that_does_not_change_with_the_prompt_is_stable(tmp_path: Path) -> None:
    lengths = {f"length-{n}": n for n in (32, 128, 512)}
    study = Study(arms=(Arm(gammas=(4,), alpha=1.0),), prompts=tuple(lengths), lengths=lengths)
    found = verdict(tmp_path, "prompt-length", study)
    assert found.decision == "confirmed"
    assert found.effect is not None and found.effect.value == pytest.approx(1.0, abs=0.05)


def test_perplexity_is_asked_only_where_it_was_measured(tmp_path: Path) -> None:
    targets = ("dense", "dense-big", "falcon", "qwen", "moe", "moe-q4")
    arms = tuple(
        Arm(target=t, drafter="component", draft=None, alpha=0.9 - 0.15 * i, gammas=(4,)) for i, t in enumerate(targets)
    )
    measured = read_study(write_study(tmp_path / "s.sqlite", Study(arms=arms)))
    assert decide(BY_ID["perplexity-predicts"], measured).decision == "not measured"
    ratios = {pair.trial_id: 2.0 ** targets.index(pair.target) for pair in measured.pairs}
    found = decide(BY_ID["perplexity-predicts"], msgspec.structs.replace(measured, perplexity_ratios=ratios))
    assert found.decision == "confirmed"
    assert found.effect is not None and found.effect.value == pytest.approx(-1.0, abs=0.1)


def test_a_verdict_names_its_trials_its_interval_and_what_the_audit_says_of_the_print(tmp_path: Path) -> None:
    found = verdict(tmp_path, "moe-speedup", Study(arms=(SLOW_VERIFY,)))
    assert len(found.trials) == 2 * 4 * 3  # the best gamma and its baselines, over prompts and repeats
    assert found.effect is not None and found.effect.low is not None and found.effect.high is not None
    assert found.effect.low < found.effect.value < found.effect.high < 1.0
    assert found.smallest_visible == pytest.approx((found.effect.high - found.effect.low) / 2)
    assert found.published_audit == {"possible": 0, "suspicious": 0, "impossible": 12}


def test_noise_leaves_a_claim_undecided(tmp_path: Path) -> None:
    found = verdict(tmp_path, "moe-speedup", Study(arms=(Arm(target="moe", alpha=0.5, draft_ms=1.9),), noise=0.5))
    assert found.decision == "undecided"


def test_the_printed_rows_of_every_claim_exist() -> None:
    for claim in claims():
        if claim.audit is not None:
            assert sum(printed_audit(claim.audit).values()) > 0, claim.id
