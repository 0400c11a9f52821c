"""One question answered from what databases, references and models say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlsd.analysis.advise.answer import Place, Question, answer, check_question
from mlsd.analysis.advise.prospects import Recommendation
from mlsd.analysis.predict.arms import Known, read_known
from mlsd.analysis.results.best_setting import best_settings
from mlsd.analysis.study.study import read_study
from mlsd.errors import AnalysisError, InputError
from mlsd.measure.store.rows import environment_key
from mlsd.measure.store.store import Store
from mlsd.planning.passes import AppleChip, apple_chip, unnamed_chip
from tests.analysis.predict.test_shape_costs import facts, known

NOTHING = Known(groups=(), passes={}, coverage={}, models={})
HERE = Place(environment_key="here", chip=None, safe_bytes=20_000_000_000)
QUESTION = Question(target="qwen3.5-9b", gammas=(1, 4))


def test_without_a_figure_of_the_machine_the_commands_that_give_one_are_named() -> None:
    with pytest.raises(AnalysisError, match="No pass of") as error:
        answer(QUESTION, NOTHING, HERE)
    for words in (
        "make synth qwen3.5-9b --quant Q8_0 --layers 4",
        "make synth qwen3.5-0.8b",
        "--chip",
    ):
        assert words in error.value.hint


def test_a_target_and_one_draft_that_were_timed_by_shape_are_enough() -> None:
    stored = known(facts("qwen3.5-9b", 4), facts("qwen3.5-9b", 8), facts("qwen3.5-0.8b"))
    found = answer(QUESTION, stored, HERE)
    assert {(p.draft, p.gamma) for p in found.recommendation.prospects} == {
        (None, 0),
        ("qwen3.5-0.8b", 1),
        ("qwen3.5-0.8b", 4),
    }
    assert found.untimed == ("qwen3.5-2b", "mtp")
    assert not found.modelled
    files = {q.id: q for q in found.quants}
    assert files["qwen3.5-9b-q8_0"].off_tok_s is not None and files["qwen3.5-9b-q8_0"].fits
    assert files["qwen3.5-9b-q4_k_m"].off_tok_s is None
    steps = "\n".join(found.recommendation.next_steps)
    assert "make synth qwen3.5-9b --quant BF16 --layers 4" in steps, "the next file of it that fits"
    assert "make synth qwen3.5-2b" in steps
    assert "mlsd models pull qwen3.5-9b-q8_0 qwen3.5-0.8b-q8_0" in steps


def test_drafts_are_not_asked_for_where_the_smallest_cannot_pay() -> None:
    slow = known(facts("qwen3.5-9b", 4), facts("qwen3.5-0.8b"))
    key = facts("qwen3.5-0.8b").ref.id
    # The same draft, timed on a machine where it is as slow as its target.
    slow.passes["here", key] = tuple(
        type(p)(**{name: getattr(p, name) for name in p.__struct_fields__} | {"span_ns": 20 * p.span_ns})
        for p in slow.passes["here", key]
    )
    found = answer(QUESTION, slow, HERE)
    assert found.recommendation.best.gamma == 0
    assert not any("make synth qwen3.5-2b" in step for step in found.recommendation.next_steps)


def test_only_the_drafts_that_were_asked_for_are_answered_for() -> None:
    chip = Question(target="qwen3.5-9b", gammas=(1,), drafts=("qwen3.5-2b",), chip=unnamed_chip(400.0))
    found = answer(chip, NOTHING, None)
    assert {p.draft for p in found.recommendation.prospects} == {None, "qwen3.5-2b"}
    assert found.modelled
    with pytest.raises(AnalysisError, match="Nothing is known of other"):
        answer(Question(target="qwen3.5-9b", drafts=("other",), chip=unnamed_chip(400.0)), NOTHING, None)
    with pytest.raises(InputError):
        check_question((0, 1))


def test_heads_and_look_ups_are_answered_for_by_public_rows() -> None:
    chip = apple_chip("M5 Max")
    assert chip is not None
    asked = Question(target="qwen3.5-35b-a3b-q8_0", gammas=(1, 2), drafts=("mtp", "pld", "dspark"), chip=chip)
    found = answer(asked, NOTHING, None).recommendation
    assert {(p.drafter, p.gamma) for p in found.prospects} == {
        ("none", 0),
        *((method, gamma) for method in ("mtp", "pld", "dspark") for gamma in (1, 2)),
    }
    assert found.level == 0.9
    off = next(p for p in found.prospects if not p.gamma)
    assert off.tok_s.low is not None and off.tok_s.high is not None
    assert off.tok_s.low < 92.9 < off.tok_s.high, "as stared/benching-local-llms measured it"
    speedups = [p.speedup for p in found.prospects if p.drafter == "mtp"]
    assert any((s.low or 0) < 104.6 / 92.9 < (s.high or 0) for s in speedups)


def test_the_verdict_is_faster_slower_or_two_settings_to_measure() -> None:
    def asked(
        chip: str,
        target: str = "qwen3.5-27b-q4_k_m",
        drafts: tuple[str, ...] = ("mtp",),
        gammas: tuple[int, ...] = (1, 2),
    ) -> Recommendation:
        known = apple_chip(chip)
        assert isinstance(known, AppleChip)
        asked = Question(target=target, drafts=drafts, gammas=gammas, chip=known)
        return answer(asked, NOTHING, None).recommendation

    undecided = asked("M3 Max")
    assert undecided.verdict == "measure" and len(undecided.to_measure) == 2
    assert "tokens a round" in undecided.why
    sure = asked("M1 Max", "qwen3.5-9b-q4_k_m", ("qwen3.5-2b",), (16,))
    assert sure.verdict == "slower" and sure.best.gamma == 0 and sure.sure


def test_advice_says_what_a_report_says_of_a_measured_study() -> None:
    with Store.open(Path("notebooks/data/tiny.sqlite"), create=False, read_only=True) as store:
        stored, study = read_known([store]), read_study(store)
    here = Place(environment_key=environment_key(study.environment), chip=None, safe_bytes=None)
    n_decided = 0
    for best in best_settings(study.by_workload):
        question = Question(target=best.target, workload=best.workload, gammas=(1, 2, 4, 8, 16))
        said = answer(question, stored, here).recommendation
        assert best.use == "off" or said.verdict == "faster"
        rows = {(p.drafter, p.draft, p.gamma): p for p in said.prospects}
        for one in study.by_workload:
            p = rows.get((one.drafter, one.draft, one.gamma))
            if (one.target, one.workload) == (best.target, best.workload) and p is not None and not one.options:
                assert p.measured == (one.effect != "undecided")
                assert p.speedup == one.ratio or not p.measured
                n_decided += p.measured
    assert n_decided
