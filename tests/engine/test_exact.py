"""Greedy speculative decoding through the real llama.cpp writes what the target alone writes, token for token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlsd.clock import MonotonicClock
from mlsd.drafters.draft_model import DraftModel
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Draft, Drafter, NoDrafter, Outcome
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.losslessness import Judge
from mlsd.engine.probe import ProbeReport, probe
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.session import SessionOptions
from mlsd.records import Losslessness, Sampling
from tests.conftest import ARCHITECTURES
from tests.engine.fake import FakeClock

OPTIONS = SessionOptions(n_ctx=256, n_threads=1)
CLOCK = MonotonicClock()
N_PREDICT = 48


class Bench:
    """Loaded models and their probes, shared by the tests of this file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[str, LlamaModel] = {}
        self._reports: dict[str, ProbeReport] = {}
        self._judges: dict[str, Judge] = {}
        self.verdict: Losslessness | None = None  # of the newest speculative run

    def model(self, name: str) -> LlamaModel:
        if name not in self._models:
            self._models[name] = LlamaModel(self._folder / f"{name}.gguf")
        return self._models[name]

    def report(self, name: str) -> ProbeReport:
        if name not in self._reports:
            # A clock that stands: of exact strategies the first is chosen, whatever this machine is busy with.
            self._reports[name] = probe(partial(open_session, self.model(name)), OPTIONS, FakeClock())
        return self._reports[name]

    def judge(self, name: str) -> Judge:
        if name not in self._judges:
            self._judges[name] = Judge(partial(open_session, self.model(name)), OPTIONS)
        return self._judges[name]

    def plain(self, name: str, prompt: Sequence[int], sampling: Sampling | None = None, seed: int = 0) -> Generation:
        greedy = sampling is None or sampling.greedy
        options = SessionOptions(n_ctx=256, n_threads=1, device_sampling=greedy)
        with open_session(self.model(name), options) as session:
            return generate(
                session,
                NoDrafter(),
                make_rollback("trim", session),
                prompt,
                GenerationLimits(n_predict=N_PREDICT),
                CLOCK,
                sampling=sampling,
                rng=np.random.default_rng(seed),
            )

    def speculate(
        self,
        target: str,
        draft: str,
        gamma: int,
        prompt: Sequence[int],
        *,
        strategy: str | None = None,
        draft_strategy: str | None = None,
    ) -> Generation:
        target_strategy = strategy or self.report(target).target
        draft_strategy = draft_strategy or self.report(draft).draft
        assert target_strategy
        assert draft_strategy
        wide = rollback_options(target_strategy, msgspec.structs.replace(OPTIONS, max_outputs=gamma + 1), gamma)
        climbing = rollback_options(draft_strategy, OPTIONS, gamma - 1)
        with open_session(self.model(target), wide) as session, open_session(self.model(draft), climbing) as second:
            drafter = DraftModel(second, make_rollback(draft_strategy, second), CLOCK)
            limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
            run = generate(session, drafter, make_rollback(target_strategy, session), prompt, limits, CLOCK)
            reference = self.plain(target, prompt).tokens
            self.verdict = self.judge(target).judge(run, reference, prompt, session, strategy=target_strategy)
            return run

    def assert_lossless(self) -> None:
        assert self.verdict is not None and self.verdict.verdict in ("lossless", "near_tie"), self.verdict

    def close(self) -> None:
        for opened in (*self._judges.values(), *self._models.values()):
            opened.close()


@pytest.fixture(scope="module")
def bench(tiny: Path) -> Iterator[Bench]:
    with closing(Bench(tiny)) as made:
        yield made


def prompt_of(seed: int, n: int = 12) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(seed).integers(0, 256, n))


def acceptance(result: Generation) -> float:
    return sum(r.accepted for r in result.rounds) / sum(r.proposed for r in result.rounds)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_probe_finds_an_exact_strategy_for_target_and_draft(bench: Bench, architecture: str) -> None:
    expected = {
        "llama": ("trim", "trim"),
        "qwen35": ("snapshots", "ladder"),
        "qwen35moe": ("snapshots", "ladder"),
        "falcon-h1": ("checkpoint", "ladder"),
    }
    report = bench.report(architecture)
    assert (report.target, report.draft) == expected[architecture]


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_snapshots_lie_after_single_token_decodes_and_the_probe_sees_it(bench: Bench, architecture: str) -> None:
    result = bench.report(architecture).result("snapshots", "single")
    assert not result.exact
    assert result.max_logit_diff is not None
    assert result.max_logit_diff > 1.0


@pytest.mark.parametrize("architecture", ["qwen35", "falcon-h1"])
def test_checkpoints_are_exact_for_a_hybrid_target_too(bench: Bench, architecture: str) -> None:
    prompt = prompt_of(3)
    result = bench.speculate(architecture, f"{architecture}-noise01", 4, prompt, strategy="checkpoint")
    bench.assert_lossless()
    assert sum(r.rows for r in result.rounds) > sum(1 + r.proposed for r in result.rounds), "no replay was counted"


class FreshDraft(Drafter):
    """The slow, surely correct drafter: it decodes its whole context anew for every proposal."""

    def __init__(self, model: LlamaModel) -> None:
        self._session = open_session(model, OPTIONS)
        self._context: list[int] = []

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._context = list(prompt)

    def propose(self, k: int) -> Draft:
        tokens: list[int] = []
        while len(tokens) < k:
            self._session.clear()
            self._session.decode([*self._context, *tokens])
            tokens += self._session.greedy()
        return Draft(tokens=tuple(tokens))

    def observe(self, outcome: Outcome) -> None:
        self._context += outcome.committed

    def close(self) -> None:
        self._session.close()


@pytest.mark.heavy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_rolled_back_draft_proposes_what_a_fresh_one_would(bench: Bench, architecture: str) -> None:
    prompt, gamma = prompt_of(7), 4
    target, draft = bench.model(architecture), bench.model(f"{architecture}-noise01")
    rolled_back = bench.speculate(architecture, f"{architecture}-noise01", gamma, prompt)
    strategy = bench.report(architecture).target or ""
    options = SessionOptions(n_ctx=256, n_threads=1, max_outputs=gamma + 1, n_snapshots=gamma + 1)
    with open_session(target, options) as session, closing(FreshDraft(draft)) as fresh:
        limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
        slow = generate(session, fresh, make_rollback(strategy, session), prompt, limits, CLOCK)
    counts = [[(r.proposed, r.accepted) for r in run.rounds] for run in (rolled_back, slow)]
    if bench.report(f"{architecture}-noise01").kernel_noise == 0:  # or drafts may take the other of two equal tokens
        assert counts[0] == counts[1]
    assert sum(accepted for _, accepted in counts[0]) > 0


def test_a_verifier_that_keeps_a_wrong_token_is_found_out(bench: Bench) -> None:
    prompt = prompt_of(5)
    with open_session(bench.model("llama"), OPTIONS) as session:
        trim = make_rollback("trim", session)
        run = generate(session, NoDrafter(), trim, prompt, GenerationLimits(n_predict=N_PREDICT), CLOCK)
        forged = (*run.tokens[:10], (run.tokens[10] + 1) % 256, *run.tokens[11:])
        wrong = msgspec.structs.replace(run, tokens=forged, past=forged[:-1])
        verdict = bench.judge("llama").judge(wrong, run.tokens, prompt, session, strategy="trim")
    assert verdict.verdict == "diverged"
    assert verdict.first_difference == 10
    assert verdict.top2_gap is not None
    assert verdict.worst_gap is not None
    assert verdict.worst_gap > (verdict.tolerance or 0)
