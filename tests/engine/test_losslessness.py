"""A sound run is lossless or a tie; a broken memory is found out, also where the tokens are right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.truth_losslessness import Target, opened
from mlsd.clock import MonotonicClock
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.losslessness import Answers, FedPasses, Gaps, Judge, _chunks, distance, first_difference
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.errors import EngineError, RollbackError
from tests.conftest import ARCHITECTURES
from tests.engine.broken_files import write_nan_norm
from tests.engine.sabotage import FAULTS, leave_ghost

OPTIONS = SessionOptions(n_ctx=256, n_threads=1)
N_PREDICT = 40


def test_the_first_difference_is_found_and_a_missing_token_is_one() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 9, 3), (1, 2, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2


# --- the tokens -------------------------------------------------------------------------------------------------------


def gaps(tokens: tuple[int, ...], *, lead: float, noise: float) -> Gaps:
    """Token 7 leads token 3 by `lead` everywhere when alone; wide passes change that by `noise` at one position."""
    alone = np.zeros((len(tokens), 10), dtype=np.float32)
    alone[:, 7], alone[:, 3] = 8.0, 8.0 - lead
    wide = alone.copy()
    wide[0, 3] += noise
    found = Gaps(tokens)
    found.alone(alone)
    for row in wide:  # as passes bring them, a few at a time
        found.wide(row[None])
    return found


@pytest.mark.parametrize(("noise", "verdict"), [(0.0, "diverged"), (0.9, "diverged"), (1.1, "near_tie")])
def test_a_difference_is_a_tie_up_to_the_noise_of_the_two_best_logits(noise: float, verdict: str) -> None:
    found = gaps((7, 3, 7, 7), lead=1.0, noise=noise).verdict((7, 7, 7, 7))
    assert found.verdict == verdict
    assert (found.first_difference, found.worst_gap, found.top2_gap) == (1, 1.0, 1.0)
    assert found.tolerance == pytest.approx(noise, abs=1e-5)
    assert found.differences_per_1000 == 250


def test_noise_of_tokens_that_are_never_chosen_explains_nothing() -> None:
    alone = np.zeros((3, 10), dtype=np.float32)
    alone[:, 7], alone[:, 3] = 8.0, 7.0
    wide = alone.copy()
    wide[:, 0] += 6.0  # far from the best two
    found = Gaps((7, 3, 7))
    found.alone(alone)
    found.wide(wide)
    assert found.verdict((7, 7, 7)).verdict == "diverged"


def test_more_differences_than_noise_can_make_are_no_ties() -> None:
    n = 200
    tokens = (3,) * 100 + (7,) * 100  # each within the noise that one position has
    assert gaps(tokens, lead=0.5, noise=0.6).verdict((7,) * n).verdict == "diverged"
    assert gaps((3, *(7,) * (n - 1)), lead=0.5, noise=0.6).verdict((7,) * n).verdict == "near_tie"


def test_a_shorter_output_is_no_tie() -> None:
    assert gaps((7,), lead=1.0, noise=100.0).verdict((7, 7)).verdict == "diverged"


def test_a_constant_on_all_logits_is_no_distance() -> None:
    fresh = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    known = Answers(fresh)
    assert distance(known.read(fresh + 5), known.fresh) == pytest.approx(0, abs=1e-5)
    assert distance(known.read(fresh[:, ::-1]), known.fresh) > 0.5
    assert distance(known.read(fresh[:, ::-1]), known.fresh, known.read(fresh[:, ::-1])) == 0


def test_a_pass_is_cut_into_about_equal_ones_that_hold_all_of_the_text() -> None:
    for n, width in itertools.product(range(40), (1, 2, 5, 17)):
        passes = _chunks(FedPasses(prompt=(), tokens=tuple(range(n)), kept=(n,), widths=(n,)), width)
        assert sum(passes.kept) == n and passes.kept == passes.widths
        assert len(passes.kept) == -(-n // width)
        assert not n or (width >= max(passes.kept) and max(passes.kept) - min(passes.kept) <= 1)


# --- the live state ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Target]:
    with opened(request.param, tiny / f"{request.param}.gguf", N_PREDICT) as made:
        yield made


@pytest.mark.parametrize("gamma", [1, 5, 16])
def test_a_sound_run_is_lossless_or_a_tie(target: Target, gamma: int) -> None:
    verdict, _ = target.trial("factual", gamma, wrong=0.3)
    assert verdict.verdict in ("lossless", "near_tie"), verdict
    assert verdict.live_distance is not None and verdict.live_limit is not None
    assert verdict.live_distance <= verdict.live_limit


@pytest.mark.parametrize("gamma", [8, 70])
@pytest.mark.parametrize("commit", ["keep", "redecode"])
def test_a_sound_run_of_trees_is_lossless_or_a_tie(target: Target, gamma: int, commit: str) -> None:
    if target.strategy != "trim":
        with pytest.raises(EngineError, match="recurrent"):
            target.trial("factual", gamma, wrong=0.3, depth=3, commit=commit)
        return
    verdict, _ = target.trial("factual", gamma, wrong=0.3, depth=3, commit=commit)
    assert verdict.verdict in ("lossless", "near_tie"), verdict


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rollback_is_found_out_whatever_its_tokens(target: Target, fault: str, once: bool) -> None:
    if fault == "state-ahead" and not target.model.is_recurrent:
        return
    try:
        verdict, n_faults = target.trial("factual", 4, wrong=0.3, seed=1, fault=fault, once=once)
    except RollbackError:  # a checkpoint that cannot be cut any more ends the trial by itself
        assert target.strategy == "checkpoint"
        return
    assert n_faults == 1 or (n_faults > 1 and not once)
    # One fault may be undone by a later rollback: then tokens and memory equal those of a sound run to the bit.
    undone = once and verdict.verdict == "lossless" and verdict.live_distance == 0.0
    assert verdict.verdict == "diverged" or undone, verdict


def test_a_fault_is_found_in_the_memory_where_every_token_is_right(tiny: Path) -> None:
    with (
        LlamaModel(tiny / "llama.gguf") as model,
        open_session(model, OPTIONS) as session,
        closing(Judge(partial(open_session, model), OPTIONS)) as judge,
    ):
        prompt, limits = tuple(range(20)), GenerationLimits(n_predict=N_PREDICT)
        run = generate(session, NoDrafter(), make_rollback("trim", session), prompt, limits, MonotonicClock())
        assert judge.judge(run, run.tokens, prompt, session, strategy="trim").verdict == "lossless"
        leave_ghost(session, 3)
        found = judge.judge(run, run.tokens, prompt, session, strategy="trim")
        assert (found.verdict, found.first_difference) == ("diverged", None)
        session.truncate(session.n_past - 1)
        found = judge.judge(run, run.tokens, prompt, session, strategy="trim")
        assert (found.verdict, found.n_positions_off) == ("diverged", -1)


def test_judging_leaves_the_memory_as_it_is(tiny: Path) -> None:
    with LlamaModel(tiny / "qwen35.gguf") as model, open_session(model, OPTIONS) as session:
        session.decode(tuple(range(20)))
        with closing(Judge(partial(open_session, model), OPTIONS)) as judge:
            judge.check_finite(session)
        session.decode((20,))
        with open_session(model, OPTIONS) as other:
            other.decode(tuple(range(20)))
            other.decode((20,))
            assert (other.n_past, other.greedy()) == (session.n_past, session.greedy())


def test_logits_that_are_not_finite_are_refused(tiny: Path, tmp_path: Path) -> None:
    write_nan_norm(tiny / "llama.gguf", tmp_path / "nan.gguf")
    with LlamaModel(tmp_path / "nan.gguf") as model, open_session(model, OPTIONS) as session:
        session.decode(tuple(range(20)))
        with closing(Judge(partial(open_session, model), OPTIONS)) as judge:
            for _ in range(2):  # what was opened for the first is not used again
                with pytest.raises(EngineError, match="not finite"):
                    judge.check_finite(session)
