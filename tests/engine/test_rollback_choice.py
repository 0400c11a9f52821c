"""Which rollback strategy a model gets: the first of a table that is exact as an arm will use it."""

import itertools
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from mlsd.engine.context import ContextOptions, Logits
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.rollback_choice import (
    Prefix,
    Role,
    RollbackCheck,
    RollbackUse,
    candidates,
    check_rollback,
    choose_strategy,
    first_exact,
    kernel_noise,
    uses,
)
from mlsd.errors import EngineError
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from tests.drafters.arena import Arena, prompt_of
from tests.engine.fake import FakeClock, FakeContext
from tests.engine.native_faults import TREE_FAULTS, native_fault

HYBRIDS = ("qwen35", "qwen35moe", "falcon-h1", "mamba2", "granite-hybrid")
OF_DRAFTS = ("ladder", "device-ladder", "checkpoint")
KEEP_SNAPSHOTS = ("qwen35", "qwen35moe", "lfm2", "nemotron-h")
OPTIONS = ContextOptions(n_ctx=256, n_threads=1)


def next_token(context: Sequence[int]) -> int:
    return (31 * context[0] + sum(context[-16:])) % 256


def check_fake(kind: type[FakeContext], options: ContextOptions, use: RollbackUse, *, recurrent: bool) -> RollbackCheck:
    return check_rollback(lambda own: kind(next_token, own, FakeClock(), recurrent=recurrent), options, use)


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TINY_SET))
def test_every_architecture_has_an_exact_strategy_and_nearly_always_the_first(tiny: Path, name: str) -> None:
    with LlamaModel(tiny / f"{name}.gguf") as model:
        find = partial(first_exact, partial(open_context, model), OPTIONS, gamma=4, recurrent=model.is_recurrent)
        target, draft = find("target"), find("draft")
    if not model.is_recurrent:
        assert (target, draft) == ("trim", "trim")
    else:
        assert draft == "ladder"
        assert target == ("snapshots" if name in KEEP_SNAPSHOTS else "checkpoint")


def test_on_a_device_ladders_stay_there_and_a_draft_never_gets_snapshots() -> None:
    assert candidates("draft", recurrent=True, backend="Metal")[0] == "device-ladder"
    assert set(candidates("draft", recurrent=True)) == set(OF_DRAFTS)
    assert "snapshots" not in candidates("draft", recurrent=True, backend="CUDA")


@pytest.mark.parametrize("strategy", OF_DRAFTS)
@pytest.mark.parametrize("name", HYBRIDS)
def test_every_strategy_of_a_hybrid_draft_is_exact(tiny: Path, name: str, strategy: str) -> None:
    with LlamaModel(tiny / f"{name}.gguf") as model:
        use = RollbackUse(strategy=strategy, role="draft", gamma=8)
        check = check_rollback(partial(open_context, model), OPTIONS, use)
    assert check.exact and check.reason is None
    # No position is decoded again: what comes back is what was there.
    assert strategy == "checkpoint" or check.max_logit_diff == 0.0


def test_snapshots_after_single_tokens_are_found_wrong(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There llama.cpp says that it went back, and did not."""
    monkeypatch.setattr("mlsd.engine.rollback.Snapshots.rewind", lambda self, n, _: self._context.truncate(n) or 0)
    with LlamaModel(tiny / "qwen35.gguf") as model:
        use = RollbackUse(strategy="snapshots", role="draft", gamma=4)
        check = check_rollback(partial(open_context, model), OPTIONS, use)
    assert not check.exact and check.max_logit_diff is not None and check.max_logit_diff > 1


def chosen(role: Role, wanted: str, exact: Sequence[str]) -> str:
    def check(name: str) -> RollbackCheck:
        return RollbackCheck(strategy=name, role=role, gamma=4, exact=name in exact, reason="it is off")

    return choose_strategy("m", role, 4, wanted, candidates(role, recurrent=True), check)


def test_a_strategy_that_is_not_exact_is_replaced_by_the_next_and_never_taken_when_asked_for() -> None:
    assert chosen("draft", "auto", OF_DRAFTS) == "ladder"
    assert chosen("draft", "auto", ("checkpoint",)) == "checkpoint"
    assert chosen("target", "trim", ("trim",)) == "trim", "what is named is tried, whatever the table says"
    assert chosen("draft", "device-ladder", OF_DRAFTS) == "device-ladder"
    assert chosen("draft", "snapshots", OF_DRAFTS) == "ladder", "a draft has its own"
    assert chosen("target", "unchecked", ()) == "unchecked"
    with pytest.raises(EngineError, match=r"Rollback 'checkpoint' is not exact for m as a target.*: it is off"):
        chosen("target", "checkpoint", ("snapshots",))
    with pytest.raises(EngineError, match=r"No rollback is exact .*snapshots: it is off; checkpoint: it is off\."):
        chosen("target", "auto", ())


# --- checks -----------------------------------------------------------------------------------------------------------


class WrongAt(FakeContext):
    """Snapshots of which one depth holds another position's state."""

    depth = 0

    def truncate(self, n_past: int) -> None:
        depth = self.n_past - n_past
        super().truncate(n_past)
        if depth == self.depth:
            self.context[-1] += 1


@pytest.mark.parametrize("gamma", [1, 3, 8, 20])
def test_a_rollback_is_checked_at_depth_1_the_middle_and_gamma(gamma: int) -> None:
    use = RollbackUse(strategy="snapshots", role="target", gamma=gamma)
    assert check_fake(FakeContext, OPTIONS, use, recurrent=True).exact
    for depth in {1, (gamma + 1) // 2, gamma}:
        kind = type("Wrong", (WrongAt,), {"depth": depth})
        assert not check_fake(kind, OPTIONS, use, recurrent=True).exact


class ForgetsFrom(FakeContext):
    """A memory whose cuts are wrong behind a position: a window that was left, or an overflow."""

    first = 300

    def truncate(self, n_past: int) -> None:
        super().truncate(n_past)
        if n_past > self.first:
            self.context[-1] += 1


@pytest.mark.parametrize(("n_ctx", "window", "n_uses"), [(256, 0, 1), (512, 300, 2), (256, 300, 1), (1024, 0, 2)])
def test_a_text_that_fills_the_context_is_tried_where_it_is_long_or_leaves_a_window(
    n_ctx: int, window: int, n_uses: int
) -> None:
    options = ContextOptions(n_ctx=n_ctx)
    wanted = list(uses(options, window, "trim", "target", 4))
    results = [check_fake(ForgetsFrom, options, use, recurrent=False).exact for use in wanted]
    assert results == [True, False][:n_uses]
    assert list(uses(options, window, "trim", "target", 2))[1:] == wanted[1:], "it is the same for every gamma"


def test_rounding_is_measured_behind_the_text_where_it_counts() -> None:
    """Passes of several tokens round otherwise behind long texts only, as kernels do; the same cut is exact there."""

    class RoundsBehind(FakeContext):
        def logits(self) -> Logits:
            rows = super().logits()
            return rows + (0.5 * (len(rows) > 1) if self.n_past > 200 else 0.0)

    options = ContextOptions(n_ctx=1024)
    short, long = (
        check_fake(RoundsBehind, options, use, recurrent=False) for use in uses(options, 0, "trim", "target", 4)
    )
    assert short.exact and long.exact
    assert short.tolerance is not None and short.tolerance < 0.1 and long.tolerance == pytest.approx(1.0)


def test_where_rounding_hides_everything_the_check_says_so() -> None:
    class Noisy(FakeContext):
        def logits(self) -> Logits:
            rows = super().logits()
            return rows + 20.0 * (len(rows) > 1)

    check = check_fake(Noisy, OPTIONS, RollbackUse(strategy="trim", role="target", gamma=4), recurrent=False)
    assert check.exact and check.reason is not None and check.reason.startswith("cannot be told")


def test_a_text_that_leaves_a_sliding_window_is_tried_on_a_real_one(tiny: Path) -> None:
    with LlamaModel(tiny / "gemma3.gguf") as model:
        assert 0 < model.window < OPTIONS.n_ctx
        for role in ("target", "draft"):
            asked = list(uses(OPTIONS, model.window, "trim", role, 8))
            assert [use.behind for use in asked] == ["short text", "long text"]
            assert all(check_rollback(partial(open_context, model), OPTIONS, use).exact for use in asked)
            with native_fault("ghost"):
                assert not any(check_rollback(partial(open_context, model), OPTIONS, use).exact for use in asked)


@pytest.mark.parametrize(("n_read", "n_long_passes"), [(300, 0), (40, 1), (600, 1)])
def test_a_long_text_goes_on_from_what_another_context_read_where_that_is_most_of_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, n_read: int, n_long_passes: int
) -> None:
    widths, decode, options = list[int](), LlamaContext.decode, ContextOptions(n_ctx=512, n_threads=1)
    use = RollbackUse(strategy="snapshots", role="target", gamma=8, behind="long text")

    def counted(context: LlamaContext, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        widths.append(len(tokens))
        decode(context, tokens, n_outputs=n_outputs)

    with LlamaModel(tiny / "qwen35.gguf") as model:
        with closing(open_context(model, msgspec.structs.replace(options, n_ctx=1024))) as context:
            tokens = tuple(itertools.islice(itertools.cycle(range(11, 211)), n_read))
            context.decode(tokens)
            prefix = Prefix(tokens, context.copy_memory())
        monkeypatch.setattr(LlamaContext, "decode", counted)
        honest = check_rollback(partial(open_context, model), options, use, prefix)
        assert honest.exact and sum(width > 200 for width in widths) == n_long_passes
        monkeypatch.setattr("mlsd.engine.rollback.Snapshots.rewind", lambda self, n, _: self._context.truncate(n) or 0)
        wrong = RollbackUse(strategy="snapshots", role="draft", gamma=8, behind="long text")
        assert not check_rollback(partial(open_context, model), options, wrong, prefix).exact


@pytest.mark.parametrize("tree", ["keep", "redecode"])
def test_trees_are_checked_on_paths_of_several_lengths(tiny: Path, tree: Literal["keep", "redecode"]) -> None:
    options = msgspec.structs.replace(OPTIONS, tree=tree, n_sequences=8)
    use = list(uses(options, 0, "trim", "target", 8))[-1]
    assert use.behind == "tree"
    with LlamaModel(tiny / "llama.gguf") as model:
        honest = check_rollback(partial(open_context, model), options, use)
        assert honest.exact, honest
        for fault in TREE_FAULTS:
            with native_fault(fault):
                assert not check_rollback(partial(open_context, model), options, use).exact, fault


@pytest.mark.parametrize("strategy", ["ladder", "device-ladder"])
def test_a_ladders_wrong_rung_is_found(tiny: Path, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use = RollbackUse(strategy=strategy, role="draft", gamma=4)
    with LlamaModel(tiny / "qwen35.gguf") as model:
        assert check_rollback(partial(open_context, model), OPTIONS, use).exact
        real = LlamaContext.load_state
        monkeypatch.setattr(LlamaContext, "load_state", lambda self, place=None: real(self, place and place - 1))
        assert not check_rollback(partial(open_context, model), OPTIONS, use).exact


def test_noise_is_measured_on_both_sides_of_where_kernels_change(tiny: Path) -> None:
    with LlamaModel(tiny / "llama.gguf") as model:
        by_width = kernel_noise(partial(open_context, model), OPTIONS)
    assert max(by_width) > 64, "kernels change at 64 rows"


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
