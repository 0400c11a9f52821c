"""An honest run is lossless or a tie; a broken memory is found out, also where run and judge share the fault."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.truth_losslessness import CAUGHT, TREES, Target, Way, misread, opened, spoilable
from mlsd.clock import MonotonicClock
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.engine.llama.open import open_context
from mlsd.engine.losslessness import (
    FedContext,
    FedText,
    Feeding,
    Judge,
    Leads,
    TopLogits,
    distance,
    first_difference,
    full,
)
from mlsd.engine.rollback import make_rollback
from mlsd.errors import EngineError
from tests.conftest import ARCHITECTURES
from tests.engine.broken_files import write_nan_norm
from tests.engine.native_faults import native_fault

OPTIONS = ContextOptions(n_ctx=256, n_threads=1)
N_PREDICT = 40


def test_the_first_difference_is_found_and_a_missing_token_is_one() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 9, 3), (1, 2, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


# --- the tokens -------------------------------------------------------------------------------------------------------


def leads(tokens: tuple[int, ...], *, lead: float, noise: float) -> Leads:
    """Token 7 leads token 3 by `lead` everywhere alone; wide passes change that by `noise` at one position."""
    single = np.zeros((len(tokens), 10), dtype=np.float32)
    single[:, 7], single[:, 3] = 8.0, 8.0 - lead
    wide = single.copy()
    wide[0, 3] += noise
    gathered = Leads(tokens)
    gathered.take_single(single)
    take = gathered.next_feeding()
    for row in wide:  # as passes bring them, a few at a time
        take(row[None])
    return gathered


@pytest.mark.parametrize(("noise", "verdict"), [(0.0, "diverged"), (0.9, "diverged"), (1.1, "near_tie")])
def test_a_difference_is_a_tie_up_to_the_noise_of_the_two_best_logits(noise: float, verdict: str) -> None:
    judged = leads((7, 3, 7, 7), lead=1.0, noise=noise).verdict((7, 7, 7, 7))
    assert judged.verdict == verdict
    assert (judged.first_difference, judged.worst_gap, judged.top2_gap) == (1, 1.0, 1.0)
    assert judged.tolerance == pytest.approx(noise, abs=1e-5)
    assert judged.differences_per_1000 == 250


def test_noise_of_tokens_that_are_never_chosen_explains_nothing() -> None:
    single = np.zeros((3, 10), dtype=np.float32)
    single[:, 7], single[:, 3] = 8.0, 7.0
    wide = single.copy()
    wide[:, 0] += 6.0  # far from the best two
    gathered = Leads((7, 3, 7))
    gathered.take_single(single)
    gathered.next_feeding()(wide)
    assert gathered.verdict((7, 7, 7)).verdict == "diverged"


def test_more_differences_than_noise_can_make_are_no_ties() -> None:
    n = 200
    tokens = (3,) * 100 + (7,) * 100  # each within the noise that one position has
    assert leads(tokens, lead=0.5, noise=0.6).verdict((7,) * n).verdict == "diverged"
    assert leads((3, *(7,) * (n - 1)), lead=0.5, noise=0.6).verdict((7,) * n).verdict == "near_tie"


def test_rows_behind_the_end_of_an_output_change_nothing() -> None:
    """A run that an end token ended has more in its memory than in its output, and every feeding brings those rows."""
    tokens = (7, 3, 7, 7)
    rows = np.zeros((7, 10), dtype=np.float32)
    rows[:, 7], rows[:, 3] = 8.0, 7.5
    gathered = Leads(tokens)
    for row in rows:
        gathered.take_single(row[None])
    for parts in ((rows[:3], rows[3:]), (rows,)):
        take = gathered.next_feeding()
        for part in parts:
            take(part)
    verdict = gathered.verdict((7, 7, 7, 7))
    assert (verdict.verdict, verdict.tolerance, verdict.n_compared) == ("diverged", 0.0, 4)


def test_a_shorter_output_is_no_tie() -> None:
    assert leads((7,), lead=1.0, noise=100.0).verdict((7, 7)).verdict == "diverged"


def test_a_constant_on_all_logits_is_no_distance() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    top = TopLogits(rows)
    assert distance(top.of(rows + 5), top.of(rows)) == pytest.approx(0, abs=1e-5)
    assert distance(top.of(rows[:, ::-1]), top.of(rows)) > 0.5


def test_a_text_is_fed_whole_and_every_token_once_in_a_pass_as_wide_as_the_runs_widest() -> None:
    for n, widest, n_prompt in itertools.product(range(1, 40), (2, 5, 17), (1, 60)):
        text = FedText(prompt=(0,) * n_prompt, tokens=tuple(range(n)), accepted=full(n, 3), widest=widest, tree="keep")
        feedings = list(text.feedings())
        assert all(sum(feeding.widths) == n and feeding.n_from_prompt < n_prompt for feeding in feedings)
        assert text.token_by_token in feedings
        met = set[int]()
        for feeding in feedings:
            ends = list(itertools.accumulate(feeding.widths))
            for i, (width, end) in enumerate(zip(feeding.widths, ends, strict=True)):
                if width + (feeding.n_from_prompt if i == 0 else 0) >= widest:
                    met |= set(range(end - width, end))
        assert met == set(range(n)) or n + n_prompt - 1 < widest


@pytest.mark.parametrize(("name", "n_reads"), [("llama", 1), ("gemma3", 2)])
def test_a_prompt_is_copied_unless_the_model_has_a_window(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, name: str, n_reads: int
) -> None:
    """A copy leaves out cells that no window sees any more: three honest runs of Gemma 3 were called diverged by it."""
    prompt, tokens, decode, widths = tuple(range(11, 111)), tuple(range(8)), LlamaContext.decode, list[int]()

    def counted(context: LlamaContext, tokens: tuple[int, ...], *, n_outputs: int = 1) -> None:
        widths.append(len(tokens))
        decode(context, tokens, n_outputs=n_outputs)

    monkeypatch.setattr(LlamaContext, "decode", counted)
    text = FedText(prompt=prompt, tokens=tokens, accepted=(8,), widest=8)
    with (
        LlamaModel(tiny / f"{name}.gguf") as model,
        closing(FedContext(partial(open_context, model), OPTIONS, lambda _: None)) as fed,
    ):
        for feeding in (Feeding(widths=(8,)), text.token_by_token):
            fed.feed(text, feeding)
    assert widths.count(len(prompt)) == n_reads


# --- the live state ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Target]:
    with opened(request.param, tiny / f"{request.param}.gguf", N_PREDICT) as opened_target:
        yield opened_target


@pytest.mark.parametrize("gamma", [1, 5, 16])
def test_an_honest_run_is_lossless_or_a_tie(target: Target, gamma: int) -> None:
    for strategy in target.strategies:
        verdict = target.trial("factual", Way(gamma=gamma, strategy=strategy)).verdict
        assert verdict.verdict in ("lossless", "near_tie"), verdict
        assert verdict.live_distance is not None and verdict.live_limit is not None
        assert verdict.live_distance <= verdict.live_limit


@pytest.mark.parametrize("gamma", [8, 70])
@pytest.mark.parametrize("tree", TREES)
def test_an_honest_run_of_trees_has_not_diverged(target: Target, gamma: int, tree: str) -> None:
    if target.model.is_recurrent:
        with pytest.raises(EngineError, match="recurrent"):
            target.trial("factual", Way(gamma=gamma, tree=tree))
        return
    verdict = target.trial("factual", Way(gamma=gamma, tree=tree)).verdict
    assert verdict.verdict != "diverged", verdict


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("gamma", [4, 8])
def test_a_fault_that_run_and_judge_share_excuses_nothing(target: Target, gamma: int, rate: float) -> None:
    target.plain("factual")
    n_broken = 0
    for base, fault in spoilable(target):
        way = msgspec.structs.replace(base, gamma=gamma)
        try:
            with native_fault(fault, rate):
                tried = target.trial("factual", way)
        except EngineError:  # llama.cpp itself refused to go on
            continue
        if tried.differs and tried.tokens != target.trial("factual", way).tokens:
            n_broken += 1
            assert tried.verdict.verdict in CAUGHT, (way, fault, tried.verdict)
    assert n_broken


@pytest.mark.parametrize("name", ["llama", "mamba2"])
def test_a_wrong_reading_that_all_arms_go_on_from_excuses_none_of_them(tiny: Path, name: str) -> None:
    """Plain decoding goes on from it too, so that tokens are equal; it is not valid either."""
    cases = [*misread(name, tiny / f"{name}.gguf", ("code", "reasoning"), ("first", "all"))]
    changed = [case for case in cases if case.get("changed")]
    assert {(case["prompt"], case["arm"]) for case in changed} >= {("reasoning", "ar"), ("reasoning", "sd")}
    assert [case for case in cases if "fault" not in case and case["verdict"] in CAUGHT] == []
    assert [case for case in changed if case["verdict"] not in CAUGHT] == []


def test_a_fault_is_found_in_the_memory_where_every_token_is_right(tiny: Path) -> None:
    with (
        LlamaModel(tiny / "llama.gguf") as model,
        open_context(model, OPTIONS) as context,
        closing(Judge(partial(open_context, model), OPTIONS)) as judge,
    ):
        prompt, limits = tuple(range(20)), GenerationLimits(n_predict=N_PREDICT)
        run = generate(context, NoDrafter(), make_rollback("trim", context), prompt, limits, MonotonicClock())
        assert judge.judge(run, run.tokens, prompt, context, strategy="trim").verdict == "lossless"
        context.decode((3,), n_outputs=0)
        context.n_past -= 1  # and its cell stays beside the true ones
        library().llama_memory_seq_add(context.memory, 0, context.n_past, context.n_past + 1, -1)
        verdict = judge.judge(run, run.tokens, prompt, context, strategy="trim")
        assert (verdict.verdict, verdict.first_difference) == ("diverged", None)
        context.truncate(context.n_past - 1)
        verdict = judge.judge(run, run.tokens, prompt, context, strategy="trim")
        assert (verdict.verdict, verdict.n_positions_off) == ("diverged", -1)


@pytest.mark.parametrize("name", ["qwen35", "mamba2"])
@pytest.mark.parametrize("n_prompt", [20, 600])
def test_copies_that_change_a_memory_alike_are_no_ground_for_a_verdict(tiny: Path, name: str, n_prompt: int) -> None:
    """Of the memory of an honest run nothing can be said then; and a long prompt is not brought back from a copy."""
    options = ContextOptions(n_ctx=1024, n_threads=1)
    with (
        LlamaModel(tiny / f"{name}.gguf") as model,
        open_context(model, options) as context,
        closing(Judge(partial(open_context, model), options)) as judge,
    ):
        prompt, limits = tuple(i * i % 256 for i in range(n_prompt)), GenerationLimits(n_predict=N_PREDICT)
        run = generate(context, NoDrafter(), make_rollback("trim", context), prompt, limits, MonotonicClock())
        with native_fault("half", 1.0):
            judge.close()
            verdict = judge.judge(run, run.tokens, prompt, context, strategy="trim")
            forged = judge.judge_tokens(run, (run.tokens[0] + 1, *run.tokens[1:]), prompt)
        assert verdict.verdict == "not_judged"
        assert forged.verdict == "near_tie", "what was fed is right all the same"


def test_nothing_is_ever_taken_back_in_the_judges_own_contexts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Way(gamma=5, strategy=strategy) for strategy in target.strategies]
    ways += [Way(gamma=8, tree=tree) for tree in TREES if not target.model.is_recurrent]
    judging: list[bool] = []

    def forbidden(name: str) -> Any:
        real = getattr(LlamaContext, name)

        def call(context: LlamaContext, *arguments: Any, **named: Any) -> Any:
            assert not judging, f"{name} was called in judging"
            return real(context, *arguments, **named)

        return call

    class Watched(Judge):
        def judge(self, *given: Any, **named: Any) -> Any:
            judging.append(True)
            verdict = super().judge(*given, **named)
            judging.clear()
            return verdict

    for name in ("truncate", "save_state", "load_state"):
        monkeypatch.setattr(LlamaContext, name, forbidden(name))
    monkeypatch.setattr("benchmarks.truth_losslessness.Judge", Watched)
    target._plain.clear()  # so that a new judge is made
    for way in ways:
        assert target.trial("factual", way).verdict.verdict != "diverged"


def test_an_output_that_ended_inside_accepted_tokens_is_judged(tiny: Path) -> None:
    """With `ignore_eog` off: what was accepted behind the end token is in the memory, and in no output."""
    limits = GenerationLimits(n_predict=N_PREDICT)
    with (
        LlamaModel(tiny / "llama.gguf") as model,
        open_context(model, OPTIONS) as context,
        closing(Judge(partial(open_context, model), OPTIONS)) as judge,
    ):
        prompt = tuple(range(20))
        plain = generate(context, NoDrafter(), make_rollback("trim", context), prompt, limits, MonotonicClock())
        accepted = msgspec.structs.replace(plain.rounds[0], proposed=8, accepted=8, committed=4)
        ended = msgspec.structs.replace(
            plain, tokens=(plain.tokens[0], 3, *plain.tokens[2:5]), rounds=(accepted,), past=plain.past[:9]
        )
        assert len(ended.past) > len(ended.tokens)
        assert judge.judge_tokens(ended, plain.tokens[:5], prompt).verdict == "diverged"


def test_judging_leaves_the_memory_as_it_is(tiny: Path) -> None:
    with LlamaModel(tiny / "qwen35.gguf") as model, open_context(model, OPTIONS) as context:
        context.decode(tuple(range(20)))
        with closing(Judge(partial(open_context, model), OPTIONS)) as judge:
            judge.check_finite(context)
        context.decode((20,))
        with open_context(model, OPTIONS) as other:
            other.decode(tuple(range(20)))
            other.decode((20,))
            assert (other.n_past, other.greedy()) == (context.n_past, context.greedy())


def test_logits_that_are_not_finite_are_refused(tiny: Path, tmp_path: Path) -> None:
    write_nan_norm(tiny / "llama.gguf", tmp_path / "nan.gguf")
    with LlamaModel(tmp_path / "nan.gguf") as model, open_context(model, OPTIONS) as context:
        context.decode(tuple(range(20)))
        with closing(Judge(partial(open_context, model), OPTIONS)) as judge:
            for _ in range(2):  # what was opened for the first is not used again
                with pytest.raises(EngineError, match="not finite"):
                    judge.check_finite(context)
