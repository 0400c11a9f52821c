"""The loop on a scripted context: what it counts, what it times, when it stops."""

from collections.abc import Sequence

import pytest

from mlsd.drafters.chain import Chain
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.rollback import make_rollback
from mlsd.errors import EngineError
from tests.engine.fake import FakeClock, FakeContext, FakeCosts

PROMPT = (5, 6, 7)
MS = 1_000_000


def truth(context: Sequence[int]) -> int:
    """A next token that depends on the whole context, so that a wrong memory shows at once. Never the end token."""
    value = 17
    for token in context:
        value = (value * 31 + token + 1) % 65_521
    return 1 + value % 250


def fallible(wrong_every: int):  # type: ignore[no-untyped-def]
    """A draft that errs at every `wrong_every`-th context length."""

    def script(context: Sequence[int]) -> int:
        token = truth(context)
        return token if len(context) % wrong_every else 1 + token % 250

    return script


def run(
    *,
    gamma: int = 0,
    n_predict: int = 20,
    draft_script=truth,  # type: ignore[no-untyped-def]
    recurrent: bool = False,
    target_strategy: str = "trim",
    draft_strategy: str = "trim",
    target_costs: FakeCosts | None = None,
    draft_costs: FakeCosts | None = None,
    n_ctx: int = 128,
    target_script=truth,  # type: ignore[no-untyped-def]
    ignore_eog: bool = True,
) -> Generation:
    clock = FakeClock()
    options = ContextOptions(n_ctx=n_ctx, n_snapshots=gamma + 1 if target_strategy == "snapshots" else 0)
    target = FakeContext(target_script, options, clock, target_costs, recurrent=recurrent)
    if gamma:
        draft = FakeContext(draft_script, ContextOptions(n_ctx=n_ctx), clock, draft_costs, recurrent=recurrent)
        drafter = ChainDrafter(OwnMemory(draft, make_rollback(draft_strategy, draft), clock), Chain(clock))
    limits = GenerationLimits(n_predict=n_predict, gamma=gamma, ignore_eog=ignore_eog)
    return generate(
        target, drafter if gamma else NoDrafter(), make_rollback(target_strategy, target), PROMPT, limits, clock
    )


PLAIN = run(n_predict=40).tokens


@pytest.mark.parametrize(
    ("gamma", "n_predict", "rounds"),  # proposed, accepted, committed and decoded
    [(0, 20, [(0, 0, 1, 1)] * 19), (4, 21, [(4, 4, 5, 5)] * 4), (8, 12, [(8, 8, 9, 9), (1, 1, 2, 2)])],
    ids=["plain", "an identical draft", "no more than is left"],
)
def test_rounds_commit_what_is_accepted_and_a_token_more(
    gamma: int, n_predict: int, rounds: list[tuple[int, ...]]
) -> None:
    result = run(gamma=gamma, n_predict=n_predict)
    assert len(result.tokens) == n_predict
    assert [(r.proposed, r.accepted, r.committed, r.rows) for r in result.rounds] == rounds


def test_the_parts_of_a_round_are_timed_apart_and_sum_to_the_whole() -> None:
    result = run(
        gamma=4,
        n_predict=21,
        target_costs=FakeCosts(pass_ns=10 * MS, row_ns=1 * MS, sample_ns=3 * MS),
        draft_costs=FakeCosts(pass_ns=2 * MS, sample_ns=0),
    )
    first = result.rounds[0]
    assert first.verify_ns == 14 * MS
    assert first.draft_ns == 4 * 2 * MS
    assert first.sample_ns == 3 * MS
    assert first.rollback_ns == first.other_ns == 0
    assert sum(r.wall_ns for r in result.rounds) == result.decode_ns


def test_saving_and_loading_state_counts_as_rollback() -> None:
    costs = FakeCosts(pass_ns=10 * MS, state_ns=1 * MS, truncate_ns=MS // 2)
    result = run(
        gamma=4,
        n_predict=21,
        draft_script=fallible(1),
        recurrent=True,
        target_strategy="checkpoint",
        draft_strategy="checkpoint",
        target_costs=costs,
        draft_costs=FakeCosts(pass_ns=0),
    )
    # save, load, cut, and the one confirmed token decoded again
    assert result.rounds[0].rollback_ns == 1 * MS + 1 * MS + MS // 2 + 10 * MS
    assert result.rounds[0].rows == 5 + 1


def test_prefill_is_not_part_of_decoding() -> None:
    result = run(n_predict=3, target_costs=FakeCosts(pass_ns=10 * MS))
    assert (result.prefill_ns, result.decode_ns) == (10 * MS, 20 * MS)


def test_generation_ends_at_an_accepted_end_token() -> None:
    def ends(context: Sequence[int]) -> int:
        return 0 if len(context) == len(PROMPT) + 6 else truth(context)

    result = run(gamma=4, target_script=ends, draft_script=ends, ignore_eog=False)
    assert result.ended_by_eog
    assert result.tokens == (*PLAIN[:6], 0)
    assert result.rounds[-1].committed == result.rounds[-1].accepted


def test_the_end_token_is_a_token_like_any_other_when_it_is_ignored() -> None:
    result = run(target_script=lambda context: 0, n_predict=5)
    assert result.tokens == (0,) * 5


def test_a_prompt_that_cannot_fit_is_refused_before_any_work() -> None:
    with pytest.raises(EngineError, match="3 tokens and 126 output tokens need 129 positions; the context has 128"):
        run(n_predict=126)


def test_snapshots_refuse_to_roll_back_a_draft_that_decoded_token_by_token() -> None:
    with pytest.raises(EngineError, match="Snapshots reach 0 positions back"):
        run(gamma=4, draft_script=fallible(1), recurrent=True, target_strategy="checkpoint", draft_strategy="snapshots")


def test_what_warms_a_device_behind_the_prompt_is_in_no_time() -> None:
    clock = FakeClock()
    target = FakeContext(truth, ContextOptions(n_ctx=128), clock, FakeCosts(pass_ns=MS))
    order = list[int]()

    def warm() -> None:
        order.append(target.n_past)
        clock.advance(10**12)

    limits = GenerationLimits(n_predict=20)
    result = generate(target, NoDrafter(), make_rollback("trim", target), PROMPT, limits, clock, warm=warm)
    assert result.tokens == run(n_predict=20).tokens and order == [len(PROMPT)]
    assert max(result.decode_ns, result.prefill_ns or 0, result.draft_prefill_ns or 0) < 10**12
