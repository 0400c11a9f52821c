"""What the probe's findings mean: which strategy is taken, and that each one's time is what it costs."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.probe import (
    ProbeReport,
    Question,
    StrategyResult,
    check,
    choose_strategy,
    kernel_noise,
    probe,
    questions,
)
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.errors import EngineError
from tests.drafters.arena import Arena, prompt_of
from tests.engine.fake import FakeClock, FakeContext, FakeCosts
from tests.engine.native_faults import TREE_FAULTS, native_fault

HYBRIDS = ("qwen35", "qwen35moe", "falcon-h1", "mamba2", "granite-hybrid")
OF_DRAFTS = ("ladder", "device-ladder", "checkpoint")
PASS_NS, ROW_NS = 1_000_000, 10_000
OPTIONS = ContextOptions(n_ctx=256, n_threads=1)


def recurrent(context: Sequence[int]) -> int:
    return (31 * context[0] + sum(context[-16:])) % 256


class OneWindow(FakeContext):
    """A memory that keeps only the positions of its window, and cannot bring an older one back."""

    window = 300

    def truncate(self, n_past: int) -> None:
        super().truncate(n_past)
        if n_past > self.window:
            self.context[0] += 1


def test_the_probe_goes_beyond_the_window() -> None:
    def report(kind: type[FakeContext]) -> ProbeReport:
        clock = FakeClock()
        return probe(lambda options: kind(recurrent, options, clock), ContextOptions(n_ctx=256), clock)

    assert report(FakeContext).target == report(FakeContext).draft == "trim"
    assert "trim" not in (report(OneWindow).target, report(OneWindow).draft)


@pytest.mark.parametrize(
    ("name", "target", "draft"),
    [
        ("llama", "trim", "trim"),
        ("qwen35", "snapshots", "ladder"),
        ("qwen35moe", "snapshots", "ladder"),
        ("falcon-h1", "checkpoint", "ladder"),
    ],
)
def test_the_probe_finds_an_exact_strategy_for_target_and_draft(
    arena: Arena, name: str, target: str, draft: str
) -> None:
    report = arena.report(arena.path(name))
    assert (report.target, report.draft) == (target, draft)
    if target == "trim":  # a cut is free, and no other way is timed
        assert all(result.round_ns is None for result in report.strategies)
    if target == "snapshots":  # a state that single tokens made is wrong there, and the probe finds that
        found = report.result("snapshots", "single")
        assert not found.exact and (found.max_logit_diff or 0) > 1


class ShortOfOne(FakeContext):
    """Snapshots of which the deepest holds another position's state."""

    def truncate(self, n_past: int) -> None:
        depth = self.n_past - n_past
        super().truncate(n_past)
        if depth == self.n_snapshots:
            self.context[-1] += 1


@pytest.mark.parametrize("gamma", [1, 3, 8, 20])
def test_an_arm_is_checked_at_its_gamma_and_every_depth_below(gamma: int) -> None:
    question, options = Question(strategy="snapshots", role="target", gamma=gamma), ContextOptions(n_ctx=256)

    def found(kind: type[FakeContext]) -> bool:
        return check(lambda options: kind(recurrent, options, FakeClock(), recurrent=True), options, question).exact

    assert found(FakeContext) and not found(ShortOfOne)


def test_an_arm_is_checked_once_in_a_text_as_long_as_its_context() -> None:
    class Forgets(FakeContext):
        def truncate(self, n_past: int) -> None:
            super().truncate(n_past)
            if n_past > 1000:
                self.context[-1] += 1

    options = ContextOptions(n_ctx=2048)
    wanted = list(questions(options, "trim", "target", 4))
    results = [check(lambda opened: Forgets(recurrent, opened, FakeClock()), options, one).exact for one in wanted]
    assert [one.where for one in wanted] == ["every depth", "long text"] and results == [True, False]
    assert list(questions(options, "trim", "target", 8))[1] == wanted[1], "it is the same for every gamma"


@pytest.mark.parametrize("tree", ["keep", "redecode"])
def test_trees_are_checked_on_every_path(tiny: Path, tree: Literal["keep", "redecode"]) -> None:
    options = msgspec.structs.replace(OPTIONS, tree=tree, n_sequences=8)
    question = Question(strategy="trim", role="target", gamma=8, where="tree")
    with LlamaModel(tiny / "llama.gguf") as model:
        honest = check(partial(open_context, model), options, question)
        assert honest.exact, honest
        for fault in TREE_FAULTS:
            with native_fault(fault):
                assert not check(partial(open_context, model), options, question).exact, fault


@pytest.mark.parametrize("strategy", ["ladder", "device-ladder"])
def test_a_ladders_wrong_rung_is_found(tiny: Path, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question(strategy=strategy, role="draft", gamma=4)
    with LlamaModel(tiny / "qwen35.gguf") as model:
        assert check(partial(open_context, model), OPTIONS, question).exact
        real = LlamaContext.load_state
        monkeypatch.setattr(LlamaContext, "load_state", lambda self, place=None: real(self, place and place - 1))
        assert not check(partial(open_context, model), OPTIONS, question).exact


def test_a_strategy_that_fails_its_check_is_replaced_by_the_next_and_never_taken_when_asked_for() -> None:
    report = findings(ladder={2: 100, 8: 700}, checkpoint={2: 200, 8: 900})

    def tried(name: str) -> StrategyResult:
        return msgspec.structs.replace(report.result(name, "single"), exact=name != "ladder", reason="it is off")

    assert choose_strategy("m", "draft", 4, "auto", lambda: report) == "ladder"
    assert choose_strategy("m", "draft", 4, "auto", lambda: report, tried) == "checkpoint"
    batch = msgspec.structs.replace(
        report, strategies=tuple(msgspec.structs.replace(one, history="batch") for one in report.strategies)
    )

    def of_batch(name: str) -> StrategyResult:
        return msgspec.structs.replace(tried(name), history="batch")

    with pytest.raises(EngineError, match="it is off"):
        choose_strategy("m", "target", 4, "ladder", lambda: batch, of_batch)


def test_probe_and_self_check_measure_one_noise(tiny: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model:
        by_width = kernel_noise(partial(open_context, model), OPTIONS)
        assert probe(partial(open_context, model), OPTIONS, FakeClock()).kernel_noise == max(by_width.values())
    assert max(by_width) > 64, "kernels change at 64 rows"


def findings(**round_ns: dict[int, int]) -> ProbeReport:
    """A report of strategies that are exact after single tokens and cost so much."""
    strategies = tuple(
        StrategyResult(name=name.replace("_", "-"), history="single", exact=True, max_logit_diff=0.0, round_ns=costs)
        for name, costs in round_ns.items()
    )
    return ProbeReport(strategies=strategies, kernel_noise=0.0, tolerance=1.0, control_diff=9.0)


def test_the_cheapest_is_taken_at_each_gamma_but_not_for_a_little_and_never_snapshots_for_a_draft() -> None:
    report = findings(snapshots={2: 1, 8: 2}, ladder={2: 100, 8: 700}, checkpoint={2: 200, 8: 500})
    assert [report.best("draft", gamma) for gamma in (1, 2, 4, 5, 6, 8, 16)] == ["ladder"] * 3 + ["checkpoint"] * 4
    assert report.best("target", 4) is None
    assert findings(ladder={2: 100, 8: 400}, checkpoint={2: 98, 8: 392}).draft == "ladder"
    assert findings(checkpoint={2: 98, 8: 392}, ladder={2: 100, 8: 400}).draft == "checkpoint"


@pytest.mark.parametrize(("state_ns", "expected"), [(0, "ladder"), (5 * PASS_NS, "checkpoint")])
def test_what_a_state_costs_decides_between_saving_many_and_decoding_again(state_ns: int, expected: str) -> None:
    clock = FakeClock()
    costs = FakeCosts(pass_ns=PASS_NS, row_ns=ROW_NS, state_ns=state_ns)

    report = probe(
        lambda options: FakeContext(recurrent, options, clock, costs, recurrent=True), ContextOptions(n_ctx=256), clock
    )
    assert report.best("draft", 8) == expected
    ladder, again = report.result("ladder", "single"), report.result("checkpoint", "single")
    for gamma in (2, 8):
        # gamma passes, gamma - 1 states saved and, where something was rejected, one loaded.
        n_states = gamma - 1 + (gamma > 2)
        assert ladder.round_ns is not None and ladder.round_ns[gamma] == gamma * PASS_NS + n_states * state_ns
        n_again = gamma // 2 if gamma > 2 else 0
        assert again.round_ns is not None
        assert again.round_ns[gamma] == gamma * PASS_NS + n_again * ROW_NS + (1 + (gamma > 2)) * state_ns


def test_snapshots_are_timed_with_as_many_as_a_round_of_that_gamma_keeps() -> None:
    copy_ns = 7_000

    def snapshots_ns(copy_ns: int) -> dict[int, int]:
        clock = FakeClock()

        class Copying(FakeContext):
            def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
                super().decode(tokens, n_outputs=n_outputs)
                clock.advance(self.n_snapshots * copy_ns)

        costs = FakeCosts(pass_ns=PASS_NS, row_ns=ROW_NS)
        report = probe(
            lambda options: Copying(recurrent, options, clock, costs, recurrent=True), ContextOptions(n_ctx=256), clock
        )
        found = report.result("snapshots", "batch").round_ns
        assert found is not None
        return found

    free, copied = snapshots_ns(0), snapshots_ns(copy_ns)
    assert {gamma: copied[gamma] - free[gamma] for gamma in free} == {2: 2 * copy_ns, 8: 8 * copy_ns}


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_strategy_of_a_hybrid_draft_is_exact_and_timed(tiny: Path, name: str) -> None:
    with closing(LlamaModel(tiny / f"{name}.gguf")) as model:
        report = probe(partial(open_context, model), OPTIONS)
    for strategy in OF_DRAFTS:
        found = report.result(strategy, "single")
        assert found.exact and found.max_logit_diff is not None
        # No position is decoded again: what comes back is what was there.
        assert strategy == "checkpoint" or found.max_logit_diff == 0.0
        assert found.round_ns is not None and 0 < found.round_ns[2] < found.round_ns[8]
    assert report.draft in OF_DRAFTS


@pytest.mark.parametrize("sample_ns", [0, 5_000])
def test_greedy_tokens_are_picked_where_a_plain_round_is_shorter(sample_ns: int) -> None:
    clock = FakeClock()

    def opened(options: ContextOptions) -> FakeContext:
        costs = FakeCosts(pass_ns=PASS_NS, sample_ns=0 if options.device_sampling else sample_ns)
        return FakeContext(recurrent, options, clock, costs)

    report = probe(opened, ContextOptions(n_ctx=256), clock)
    assert (report.device_round_ns, report.host_round_ns) == (PASS_NS, PASS_NS + sample_ns)
    assert report.samples_on_device
    assert not msgspec.structs.replace(report, device_round_ns=PASS_NS + sample_ns + 1).samples_on_device


@pytest.mark.parametrize("gamma", [1, 4, 16])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_draft_on_a_ladder_proposes_what_one_that_replays_proposes(arena: Arena, name: str, gamma: int) -> None:
    prompt, draft, runs = prompt_of(gamma, n=12), f"{name}-noise003", {}
    for strategy in OF_DRAFTS:
        runs[strategy] = arena.run(name, "draft-model", gamma, prompt, 48, draft=draft, draft_rollback=strategy)
        arena.assert_exact(name, prompt, runs[strategy])
    assert runs["ladder"].counts == runs["device-ladder"].counts
    arena.assert_same_counts(draft, runs["ladder"], runs["checkpoint"])  # unless a replay rounds otherwise


@pytest.mark.parametrize("strategy", ["ladder", "device-ladder"])
def test_a_ladder_has_as_many_rungs_as_it_was_opened_with(arena: Arena, strategy: str) -> None:
    with open_context(arena.model("qwen35"), rollback_options(strategy, OPTIONS, 2)) as context:
        context.decode(prompt_of(1))
        ladder = make_rollback(strategy, context)
        ladder.mark()
        for token in (1, 2):
            ladder.step()
            context.decode((token,))
        with pytest.raises(EngineError, match="place 2 of 2"):
            ladder.step()
        with pytest.raises(EngineError, match="no saved state"):
            context.load_state(7)
