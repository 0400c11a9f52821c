"""One question answered from what databases, references and models say."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mlsd.analysis.advise import acceptance, ask
from mlsd.analysis.advise.answer import AdviceQuestion, AdvisedMachine, answer
from mlsd.analysis.advise.prospects import Prospect, Recommendation, RequestSize
from mlsd.analysis.predict.evidence import Evidence, read_evidence
from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import AnalysisError, InputError, MlsdError
from mlsd.hardware.apple_passes import Runtime, apple_chip
from mlsd.models.library import resolve_model
from mlsd.planning.prompts import find_prompt
from mlsd.records import EngineOptions, ModelRef
from mlsd.store.rows import environment_key
from mlsd.store.store import Store
from mlsd.trials.on_or_off import Answer
from mlsd.trials.results import SessionPlan, arm_results
from tests.analysis.predict.test_shapes import evidence_of, facts
from tests.analysis.studies import as_measured, blocks, model

NOTHING = Evidence()
HERE = AdvisedMachine(environment_key="here", limit_bytes=20_000_000_000)
QUESTION = AdviceQuestion(target="qwen3.5-9b", gammas=(1, 4))


def on(chip: str, program: str = "llama.cpp", depth: int = 0) -> AdvisedMachine:
    apple = apple_chip(chip)
    assert apple is not None
    return AdvisedMachine(runtime=Runtime(chip=apple, program=program), depth=depth)


def of_chip(chip: str, target: str, **asked: Any) -> Recommendation:
    """What public rows tell."""
    return answer(AdviceQuestion(target=target, **asked), NOTHING, on(chip)).recommendation


def test_without_a_figure_of_the_machine_the_commands_that_give_one_are_named() -> None:
    with pytest.raises(AnalysisError, match="No pass of") as error:
        answer(QUESTION, NOTHING, HERE)
    for part in ("make synth qwen3.5-9b --quant Q8_0 --layers 4", "make synth qwen3.5-0.8b", "--chip"):
        assert part in error.value.hint
    with pytest.raises(AnalysisError) as error:
        answer(AdviceQuestion(target="qwen3.5-35b-a3b"), NOTHING, HERE)
    assert "--layers 8 --router-shared 0.33 -o 35b-8.gguf && mlsd calibrate 35b-8.gguf" in error.value.hint


def test_a_target_and_one_draft_that_were_timed_by_shape_are_enough() -> None:
    stored = evidence_of(facts("qwen3.5-9b", 4), facts("qwen3.5-9b", 8), facts("qwen3.5-0.8b"))
    advice = answer(QUESTION, stored, HERE)
    assert {(p.draft, p.gamma) for p in advice.recommendation.prospects} == {
        (None, 0),
        ("qwen3.5-0.8b", 1),
        ("qwen3.5-0.8b", 4),
    }
    assert set(advice.untimed) == {"qwen3.5-2b", "mtp"}
    assert not advice.modelled
    steps = "\n".join(advice.recommendation.next_steps)
    assert "make synth qwen3.5-2b" in steps
    assert "mlsd models pull qwen3.5-9b-q8_0 qwen3.5-0.8b-q8_0" in steps


def test_a_target_that_does_not_fit_is_not_fetched() -> None:
    stored = evidence_of(facts("qwen3.5-9b", 4), facts("qwen3.5-0.8b"))
    small = replace(HERE, limit_bytes=1_000_000_000)
    steps = answer(QUESTION, stored, small).recommendation.next_steps
    assert "qwen3.5-9b does not fit" in steps[-1] and not any("models pull" in step for step in steps)


def test_a_calibration_alone_is_enough() -> None:
    timed = replace(facts("qwen3.5-9b", 4), ref=ModelRef(id="mine", sha256="mine"))
    advice = answer(AdviceQuestion(target=timed.ref.id, gammas=(1, 4), drafts=("pld",)), evidence_of(timed), HERE)
    assert advice.recommendation.costs_source == "calibration on this machine"
    assert {(p.drafter, p.gamma) for p in advice.recommendation.prospects} == {("none", 0), ("pld", 1), ("pld", 4)}


def test_drafts_are_not_asked_for_where_the_smallest_cannot_pay() -> None:
    slow = evidence_of(facts("qwen3.5-9b", 4), facts("qwen3.5-0.8b"))
    key = facts("qwen3.5-0.8b").ref.id
    # The same draft, timed on a machine where it is as slow as its target.
    slow.passes["here", key] = tuple(
        type(p)(**{name: getattr(p, name) for name in p.__struct_fields__} | {"span_ns": 20 * p.span_ns})
        for p in slow.passes["here", key]
    )
    advice = answer(QUESTION, slow, HERE)
    assert advice.recommendation.best.gamma == 0
    assert not any("make synth qwen3.5-2b" in step for step in advice.recommendation.next_steps)


def test_heads_and_look_ups_are_answered_for_by_public_rows() -> None:
    advice = of_chip("M5 Max", "qwen3.5-35b-a3b-q8_0", gammas=(1, 2), drafts=("mtp", "pld", "dspark"))
    assert {(p.drafter, p.gamma) for p in advice.prospects} == {
        ("none", 0),
        *((method, gamma) for method in ("mtp", "pld", "dspark") for gamma in (1, 2)),
    }
    assert advice.level == 0.9
    off = next(p for p in advice.prospects if not p.gamma)
    assert off.tok_s.low is not None and off.tok_s.high is not None
    assert off.tok_s.low < 92.9 < off.tok_s.high, "as stared/benching-local-llms measured it"
    speedups = [p.speedup for p in advice.prospects if p.drafter == "mtp"]
    assert any((s.low or 0) < 104.6 / 92.9 < (s.high or 0) for s in speedups)


def test_the_answer_is_to_use_it_to_leave_it_off_or_not_decided() -> None:
    dense = {"target": "qwen3.5-27b-q4_k_m", "drafts": ("mtp",), "gammas": (1, 2)}
    undecided = of_chip("M3 Max", **dense)
    assert undecided.verdict == "not decided yet" and len(undecided.to_measure) == 2
    assert undecided.settles is not None
    for part in (
        "pays from an acceptance of",
        "% of what is proposed on (where passes cost least from",
        "; it has 8",
        "The biggest unknown is the cost of a pass",
    ):
        assert part in undecided.settles
    wide = of_chip("M5 Max", "qwen3.5-27b-q8_0", drafts=("mtp",), gammas=(8,))
    assert wide.verdict == "not decided yet" and (wide.prospects[0].speedup.low or 0) > 1.03, "no public row tests it"
    sure = of_chip("M1 Max", "qwen3.5-9b-q4_k_m", drafts=("qwen3.5-2b",), gammas=(16,))
    assert sure.verdict == "off" and sure.best.gamma == 0 and sure.settles is None and not sure.to_measure


@pytest.mark.slow
@pytest.mark.parametrize(("program", "quant"), [("mlx", "Q8_0"), ("llama.cpp", "Q8_0"), ("llama.cpp", "Q4_K_M")])
@pytest.mark.parametrize("chip", ["M1 Pro", "M4 Max"])
def test_an_open_question_names_the_acceptance_from_which_and_up_to_which_it_would_be_decided(
    chip: str, program: str, quant: str
) -> None:
    for target in ("qwen3.5-35b-a3b", "qwen3.5-9b"):
        asked, machine = AdviceQuestion(target=target, quant=quant), on(chip, program)
        advice = answer(asked, NOTHING, machine).recommendation
        if advice.verdict != "not decided yet":
            continue
        first = advice.to_measure[0]
        assert advice.settles is not None and "pays from an acceptance of" in advice.settles
        for rate, verdict in zip(first.break_even_range, ("off", "on"), strict=True):
            if rate is not None and 0 < rate < 0.97:
                stated = acceptance.Stated(gamma=first.gamma, rate=rate * (0.98 if verdict == "off" else 1.02))
                named = {"drafts": (first.draft or first.drafter,), "gammas": (first.gamma,), "stated": stated}
                assert answer(replace(asked, **named), NOTHING, machine).recommendation.verdict == verdict


# --- what was measured here ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> tuple[Evidence, Study, AdvisedMachine]:
    with Store.open(Path("notebooks/data/tiny.sqlite"), create=False, read_only=True) as store:
        stored, study = read_evidence([store]), read_study(store)
    key = environment_key(study.environment)
    return stored, study, AdvisedMachine(environment_key=key)


def length_of(best: Answer) -> int:
    """Tokens of the prompt that was measured."""
    return next(one.trial.n_prompt for arm in best.arms for one in arm.trials if one.trial.n_prompt)


@pytest.mark.slow
def test_advice_says_what_a_report_says_of_a_measured_study(measured: tuple[Evidence, Study, AdvisedMachine]) -> None:
    stored, study, here = measured
    n_measured = n_timed = 0
    for best in study.answers:
        asked = RequestSize(prompt_tokens=length_of(best), n_predict=101)
        question = AdviceQuestion(target=best.target, workload=best.text, request=asked)
        advice = answer(question, stored, here).recommendation
        assert (advice.verdict == "on") == (best.use == "on")
        rows = {(p.drafter, p.draft, p.gamma): p for p in advice.prospects}
        for arm in best.arms:
            spec = arm.case.drafter
            p = rows.get((spec.name, spec.draft.id if spec.draft else None, arm.case.gamma))
            if p is not None:
                assert (p.effect, p.speedup) == (arm.effect, arm.ratio), "an undecided one is not predicted instead"
                assert p.tok_s.value == arm.tok_s, "as it was measured"
                n_measured += 1
                if p.request is not None and p.request.ttft_s is not None and p.request.whole_s is not None:
                    n_timed += 1
                    assert p.request.whole_s.value == pytest.approx(p.request.ttft_s + 100 / p.tok_s.value)
    assert n_measured > 10 and n_timed > 10, "a request, too"


def test_another_workload_is_no_evidence(measured: tuple[Evidence, Study, AdvisedMachine]) -> None:
    stored, _, here = measured
    advice = answer(AdviceQuestion(target="tiny-moe", workload="chinese"), stored, here).recommendation
    drafted = [p for p in advice.prospects if p.gamma]
    assert drafted and all(p.acceptance_assumed and p.effect is None for p in drafted)
    assert "mlsd bench tiny-moe --draft tiny-draft --gamma 1 --prompt chinese" in advice.next_steps[0]


def test_what_was_measured_on_other_threads_is_no_evidence(measured: tuple[Evidence, Study, AdvisedMachine]) -> None:
    stored, study, here = measured
    n_threads = study.results[0].case.engine.n_threads
    assert n_threads is not None
    for engine, count in ((EngineOptions(n_threads=n_threads), True), (EngineOptions(n_threads=n_threads + 1), False)):
        advice = answer(AdviceQuestion(target="tiny-moe", engine=engine), stored, here)
        assert bool(advice.measured) == count


@pytest.mark.parametrize("kind", [None, "rag", "translation", "code"])
def test_what_is_next_names_prompts_and_no_kinds_of_text(
    measured: tuple[Evidence, Study, AdvisedMachine], kind: str | None
) -> None:
    """`--prompt rag` is refused: a kind of text is no prompt."""
    stored, _, here = measured
    steps = answer(AdviceQuestion(target="tiny-moe", workload=kind), stored, here).recommendation.next_steps
    named = re.findall(r"--prompt (\S+)", " ".join(steps))
    assert kind != "rag" or named, "nothing of it was measured"
    assert all(find_prompt(name).text for name in named), named


def test_a_question_of_no_workload_is_of_the_one_that_was_measured_and_of_each_alike_else(
    measured: tuple[Evidence, Study, AdvisedMachine],
) -> None:
    stored, _, here = measured
    every = answer(AdviceQuestion(target="tiny-moe"), stored, here).recommendation
    assert every.workload is None
    assert any(p.effect for p in every.prospects if p.gamma), "what was decided of two texts is used"
    key = here.environment_key
    code = {key: tuple(one for one in stored.arms[key] if one.text == "code")}
    alone = answer(AdviceQuestion(target="tiny-moe"), replace(stored, arms=code), here)
    assert alone.recommendation.workload == "code"


def test_a_drafts_file_is_the_draft_that_was_measured_by_its_content(tmp_path: Path) -> None:
    here, target, draft = resolve_model("tiny-draft"), resolve_model("tiny-dense").ref, tmp_path / "renamed.gguf"
    draft.write_bytes(here.path.read_bytes())
    facts_of = {ref: replace(model(ref.id), ref=ref) for ref in (target, here.ref)}
    trials = as_measured(blocks(facts_of[target], prompts=("code",), draft=facts_of[here.ref]))
    stored = Evidence(arms={"here": tuple(arm_results(trials, SessionPlan()))})
    by_name, by_file = (
        answer(AdviceQuestion(target="tiny-dense", drafts=(name,)), stored, HERE).recommendation
        for name in ("tiny-draft", str(draft))
    )
    assert by_file.prospects == by_name.prospects and any(p.effect for p in by_file.prospects if p.gamma)


def test_another_file_of_one_name_is_another_model(measured: tuple[Evidence, Study, AdvisedMachine]) -> None:
    stored, _, _ = measured
    target = next(arm.case.target for arms in stored.arms.values() for arm in arms if arm.case.target.id == "tiny-moe")
    assert target.sha256 and stored.of(target) and stored.of(ModelRef(id="renamed", sha256=target.sha256))
    assert stored.of(ModelRef(id="tiny-moe")), "whose content nobody knows"
    assert not stored.of(ModelRef(id="tiny-moe", sha256="0" * 64))


def test_how_long_a_prompt_takes_is_only_known_of_prompts_about_as_long(
    measured: tuple[Evidence, Study, AdvisedMachine],
) -> None:
    stored, study, here = measured
    best = study.answers[0]
    for n_prompt, is_known in ((length_of(best), True), (100_000, False)):
        request = RequestSize(prompt_tokens=n_prompt, n_predict=64)
        asked = AdviceQuestion(target=best.target, workload=best.text, request=request)
        plain = next(p for p in answer(asked, stored, here).recommendation.prospects if not p.gamma)
        assert plain.request is not None and (plain.request.ttft_s is not None) == is_known


def test_mtp_is_answered_for_files_that_have_its_block(measured: tuple[Evidence, Study, AdvisedMachine]) -> None:
    stored, _, here = measured
    with pytest.raises(MlsdError, match="next-token block"):
        answer(AdviceQuestion(target="tiny-dense", drafts=("mtp",)), stored, here)
    steps = of_chip("M4 Max", "qwen3.5-9b-q4_k_m", drafts=("mtp",)).next_steps
    assert "mlsd bench qwen3.5-9b-mtp-q4_k_m --drafter mtp" in steps[-1], "the manifest's file that has it"
    notes_of = [
        answer(AdviceQuestion(target=name, drafts=("mtp",)), NOTHING, on("M4 Max")).notes
        for name in ("qwen3.5-27b-q4_k_m", "qwen3.5-9b-mtp-q4_k_m")
    ]
    assert ["block" in " ".join(notes) for notes in notes_of] == [True, False]


# --- an acceptance that somebody states ----------------------------------------------------------------------------


def stated(program: str = "mlx", **given: Any) -> Prospect:
    asked = AdviceQuestion(
        target="qwen3.5-27b-4bit", drafts=("mtp",), gammas=(3,), stated=acceptance.Stated(gamma=3, **given)
    )
    advice = answer(asked, NOTHING, on("M5 Max", program)).recommendation
    return next(p for p in advice.prospects if p.gamma)


def test_a_stated_acceptance_is_accepted_over_proposed_at_its_gamma() -> None:
    for given in ({"rate": 0.63}, {"counts": (63, 100)}, {"mgl": 1 + 3 * 0.63}):
        drafted = stated(**given)
        assert drafted.mgl == pytest.approx(2.89), "1 + gamma times the rate; as a chance of each token it were 2.28"
        assert "as stated" in drafted.acceptance_source and not drafted.acceptance_assumed
    assert stated(rate=1.0).mgl == pytest.approx(4)
    for impossible in ({"rate": 1.2}, {"counts": (5, 4)}, {"counts": (0, 0)}, {"mgl": 4.5}):
        with pytest.raises(InputError, match="gamma 3"):
            stated(**impossible)


def test_a_program_with_rows_of_its_own_goes_by_its_name() -> None:
    assert stated("mtplx", mgl=3.8).speedup.value > 1.2 * stated("mlx-vlm", mgl=3.8).speedup.value
    for unknown in ("ollama", "llama.cpp before b9900"):
        with pytest.raises(InputError, match=unknown):
            ask.advise("qwen3.5-27b-4bit", chip="M5 Max", runtime=unknown)


@pytest.mark.parametrize("program", ["mlx", "mlx-vlm", "mtplx"])
@pytest.mark.parametrize(("target", "drafts"), [("qwen3.5-27b", ("mtp",)), ("qwen3-8b-q4_k_m", ("pld",))])
def test_a_program_on_mlx_is_timed_through_its_server_and_by_no_command_for_llama_cpp(
    program: str, target: str, drafts: tuple[str, ...]
) -> None:
    advice = answer(AdviceQuestion(target=target, drafts=drafts), NOTHING, on("M4 Max", program)).recommendation
    assert [step.rpartition(": ")[2] for step in advice.next_steps] == ["mlsd server URL --against URL"]
    text = " ".join((*advice.next_steps, advice.settles or ""))
    assert not re.search(r"mlsd (bench|calibrate|models)", text)
    assert advice.settles is None or "mlsd server" in advice.settles
    with_llama_cpp = of_chip("M4 Max", target, drafts=drafts)
    assert "mlsd bench" in with_llama_cpp.next_steps[-1]


def test_a_deeper_context_is_slower_and_asks_for_a_shape() -> None:
    asked = AdviceQuestion(target="qwen3.5-9b-q4_k_m", drafts=("pld",))
    short, deep = (
        next(p for p in answer(asked, NOTHING, on("M4 Pro", depth=depth)).recommendation.prospects if not p.gamma)
        for depth in (0, 32_768)
    )
    assert deep.tok_s.value < short.tok_s.value
    with pytest.raises(AnalysisError, match="keys and values"):
        answer(replace(asked, target="unheard-of-27b-q4_k_m"), NOTHING, on("M4 Pro", depth=32_768))


def test_a_mixture_of_bits_that_nothing_here_can_write_is_answered_by_the_chip() -> None:
    stored = evidence_of(facts("qwen3.5-9b", 4))
    advice = answer(AdviceQuestion(target="qwen3.5-9b-iq2_xxs"), stored, replace(on("M4 Pro"), environment_key="here"))
    assert advice.modelled
