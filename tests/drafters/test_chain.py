"""Chains of draft tokens: how they grow, and where doubt ends them; whatever it does, the output stays the target's."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters import check_target
from mlsd.drafters.chain import Chain, EarlyStop
from mlsd.drafters.draft_model import chain_context
from mlsd.drafters.recipe import opening_of
from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.verify import Proposal, Verification
from mlsd.errors import EngineError
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.records import DrafterSpec, ModelRef, Sampling
from tests.drafters.arena import Arena, Watched, prompt_of
from tests.engine.fake import FakeClock
from tests.measure.examples import case


class Table:
    """A predictor that is a list of rows, one after another."""

    def __init__(self, confidences: Sequence[float]) -> None:
        self._rows = [np.log(np.array([[p, 1 - p - 1e-9, 1e-9]], dtype=np.float32)) for p in confidences]
        self.forwarded: list[int] = []

    def logits(self) -> Logits:
        return self._rows[len(self.forwarded)]

    def greedy(self) -> list[int]:
        return [int(self.logits()[0].argmax())]


def grown(confidences: Sequence[float], k: int, **stop: object) -> tuple[int, Table, dict[str, float]]:
    chain, table = Chain(FakeClock(), stop=EarlyStop(**stop)), Table(confidences)  # type: ignore[arg-type]
    chain.begin(np.random.default_rng(0))
    proposal = grow(chain, table, k)
    assert proposal.probabilities is None and table.forwarded == list(proposal.tokens[: len(table.forwarded)])
    return len(proposal.tokens), table, chain.stats()


def grow(chain: Chain, table: Table, k: int) -> Proposal:
    chain.start(k)
    while chain.extend(table):
        table.forwarded += chain.tokens[-1:]
    return chain.proposal()


CONFIDENCES = st.lists(st.floats(0.51, 0.99), min_size=8, max_size=8)


@given(confidences=CONFIDENCES, k=st.integers(1, 8), p_min=st.floats(0.5, 1.0))
def test_a_chain_ends_at_the_first_doubt_with_the_doubtful_token_or_without(
    confidences: list[float], k: int, p_min: float
) -> None:
    sure = next((i for i, p in enumerate(np.float32(confidences)) if p < p_min - 1e-6), 8)
    near = [i for i, p in enumerate(np.float32(confidences)) if abs(p - p_min) <= 1e-6]
    if near:
        return
    n_dropped, _, _ = grown(confidences, k, p_min=p_min, p_min_mode="drop")
    n_included, table, stats = grown(confidences, k, p_min=p_min, p_min_mode="include")
    assert (n_dropped, n_included) == (min(k, sure), min(k, sure + 1))
    assert len(table.forwarded) == max(0, n_included - 1)  # nothing is computed that no proposal needs
    assert stats["early_stops"] == (n_included < k)


def test_without_a_threshold_tokens_may_be_picked_on_the_device_and_nothing_is_counted() -> None:
    def on_device(stop: EarlyStop, **change: Any) -> bool:
        opening = opening_of(case(**change), ContextOptions(n_ctx=64), "trim", lambda: "trim")
        return chain_context(opening, stop).options.device_sampling

    assert on_device(EarlyStop())
    assert not on_device(EarlyStop(p_min=0.5))
    assert not on_device(EarlyStop(), sampling=Sampling(temperature=0.7))
    assert grown([0.6] * 4, 4)[2] == {}


def test_drawn_tokens_come_with_the_distributions_they_were_drawn_from() -> None:
    sampling = Sampling(temperature=1.0)
    chain, table = Chain(FakeClock(), sampling, EarlyStop(p_min=0.7, p_min_mode="include")), Table([0.9, 0.8, 0.6, 0.9])
    chain.begin(np.random.default_rng(0))
    proposal = grow(chain, table, 4)
    assert proposal.probabilities is not None and proposal.probabilities.shape == (3, 3) and len(proposal.tokens) == 3
    np.testing.assert_allclose(proposal.probabilities[:, 0], [0.9, 0.8, 0.6], rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_past_the_targets_vocabulary_is_proposed(temperature: float) -> None:
    """A drawn token comes from what both know; a picked one that the target lacks ends the chain."""
    chain, table = Chain(FakeClock(), Sampling(temperature=temperature), n_vocab=1), Table([0.9, 0.8, 0.3, 0.9])
    chain.begin(np.random.default_rng(0))
    proposal = grow(chain, table, 4)
    assert proposal.tokens == (0,) * (2 if temperature == 0 else 4)
    rows = None if proposal.probabilities is None else proposal.probabilities.tolist()
    assert rows == (None if temperature == 0 else [[1.0]] * 4)


# --- on models ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Two models of one vocabulary, cut at different lengths."""
    folder = tmp_path_factory.mktemp("sizes")
    files = {str(n_vocab): folder / f"{n_vocab}.gguf" for n_vocab in (480, 600)}
    for name, path in files.items():
        write_random(path, msgspec.structs.replace(TINY["llama"], n_vocab=int(name)), seed=1)
    with closing(Arena(files)) as arena:
        yield arena


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft-model", "draft-tree:depth=3,top_k=4"])
@pytest.mark.parametrize("temperature", [0.0, 50.0])
@pytest.mark.parametrize(("n_target", "n_draft"), [(480, 600), (600, 480)])
def test_vocabularies_of_two_sizes_make_a_pair(
    sizes: Arena, n_target: int, n_draft: int, temperature: float, method: str
) -> None:
    """At a high temperature tokens that only one of them has are drawn as often as any other."""
    target, draft_model, sampling = str(n_target), str(n_draft), Sampling(temperature=temperature)
    proposed: list[int] = []
    with sizes.opened(target, method, 8, draft=draft_model, sampling=sampling) as (_, drafter):
        watched = Watched(drafter)
        for seed in range(4):
            watched.begin(prompt_of(seed), np.random.default_rng(seed))
            watched.observe(Verification(accepted=0, committed=(n_target - 1,)))
            draft = watched.propose(8)
            proposed += draft.tokens if draft.tree is None else draft.tree.tokens
    prompt = (*prompt_of(1), n_target - 1, n_target - 2)
    run = sizes.run(target, method, 8, prompt, 40, draft=draft_model, sampling=sampling)
    if temperature == 0:
        sizes.assert_exact(target, prompt, run)
    assert len(proposed) > 0
    assert max(proposed) < min(n_target, n_draft)
    assert len(run.tokens) == 40


def test_a_draft_of_another_vocabulary_is_refused_by_its_header_before_anything_is_loaded(
    tiny: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("mlsd.engine.llama.model.LlamaModel.__init__", load)
    target = tiny / "llama.gguf"
    for name in ("draft-model", "draft-tree"):
        spec = DrafterSpec(name=name, draft=ModelRef(id="draft"))
        check_target(spec, target, tiny / "llama-noise003.gguf")
        with pytest.raises(EngineError, match="do not share a vocabulary: the target has"):
            check_target(spec, target, foreign)
