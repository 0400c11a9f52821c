"""A difference is a tie only when the kernels' own noise on this text explains it."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from mlsd.clock import FakeClock, MonotonicClock
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.fake import FakeSession
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.losslessness import first_difference, judge, text_noise
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.folders import asset_path
from mlsd.planning.prompts import load_prompt

OPTIONS = SessionOptions(n_ctx=1024, n_threads=1, device_sampling=False)


def fake_session() -> FakeSession:
    """Its logits are 8 for token 7 and 0 for every other."""
    return FakeSession(lambda context: 7, SessionOptions(n_ctx=64), FakeClock())


def test_the_first_difference_is_found_and_a_missing_token_is_one() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 9, 3), (1, 2, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


@pytest.mark.parametrize(("noise", "verdict"), [(0.0, "diverged"), (3.9, "diverged"), (4.0, "near_tie")])
def test_a_difference_is_a_tie_up_to_twice_the_noise(noise: float, verdict: str) -> None:
    found = judge((7, 3, 7), (7, 7, 7), (1, 2), fake_session(), noise)
    assert found.verdict == verdict
    assert (found.first_difference, found.worst_gap, found.top2_gap) == (1, 8.0, 8.0)


def test_without_a_known_noise_nothing_is_a_tie() -> None:
    assert judge((7, 3), (7, 7), (1,), fake_session(), None).verdict == "diverged"


def test_a_shorter_output_is_no_tie() -> None:
    assert judge((7,), (7, 7), (1,), fake_session(), 100.0).verdict == "diverged"


def test_the_noise_of_a_trained_mixture_of_experts_stays_small_at_any_depth() -> None:
    """Its routers feel the last bit of a sum, so it is not zero everywhere, but it never explains a wrong token."""
    with LlamaModel(asset_path("tiny/tiny-moe.gguf")) as model:
        text = model.tokenize(load_prompt("length-512").text)

        def noise(n_prompt: int) -> float:
            prompt = text[:n_prompt]
            with closing(open_session(model, OPTIONS)) as session:
                limits = GenerationLimits(n_predict=24)
                trim = make_rollback("trim", session)
                tokens = generate(session, NoDrafter(), trim, prompt, limits, MonotonicClock()).tokens
            return text_noise(tokens, prompt, partial(open_session, model), OPTIONS, (9,))

        assert max(noise(n) for n in (300, 512, 700)) < 1.0, "batched and single decoding disagree beyond rounding"


def test_a_random_model_decodes_a_batch_as_it_decodes_single_tokens(tiny: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model:
        assert (
            text_noise(tuple(range(20)), tuple(range(40, 60)), partial(open_session, model), OPTIONS, (2, 5, 9)) < 0.05
        )
