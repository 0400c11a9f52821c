"""The draft length that adapts: llama.cpp's rule step by step, and as an arm of its own."""

from pathlib import Path

import pytest
from click import BadParameter
from hypothesis import given
from hypothesis import strategies as st

from mlsd.cli.commands.bench import bench as command
from mlsd.drafters import find_method, resolve_spec
from mlsd.drafters.adaptive import AdaptiveLength
from mlsd.errors import InputError
from mlsd.measure.parent.requests import bench
from mlsd.planning.question import parse_drafter
from mlsd.planning.request import bench_request
from mlsd.records import EngineOptions, Status
from mlsd.trials.arms import arm_of


def lengths(least: int, most: int, *rounds: tuple[int, int]) -> list[int]:
    """The length after each of these rounds, given as proposed and accepted."""
    length, drafts = AdaptiveLength(least, most), []
    for proposed, accepted in rounds:
        length.learn(proposed, accepted)
        drafts.append(length.tokens)
    return drafts


def whole(least: int, most: int, n_rounds: int) -> list[int]:
    """The same where every draft is as long as it may be, and stands."""
    length, drafts = AdaptiveLength(least, most), []
    for _ in range(n_rounds):
        length.learn(length.tokens, length.tokens)
        drafts.append(length.tokens)
    return drafts


def test_it_grows_after_as_many_whole_drafts_as_the_rule_says() -> None:
    drafts = whole(1, 12, 50)
    assert [drafts.index(n) + 1 for n in range(2, 13)] == [2, 7, 17, 22, 26, 29, 31, 33, 35, 37, 39]
    assert drafts[-1] == 12


def test_one_short_teaches_nothing_and_k_short_takes_k_minus_one() -> None:
    assert lengths(3, 12, *[(3, 2)] * 99)[-1] == 3
    assert lengths(2, 12, (2, 2), (2, 1), (2, 2), (2, 2), (2, 2), (0, 0), (2, 2))[-2:] == [2, 3]
    up = [(3, 3)] * 10 + [(4, 4)] * 5
    assert lengths(3, 12, *up)[-1] == 5
    assert lengths(3, 12, *up, *[(5, 1)] * 8)[-2:] == [5, 5]  # 24 of 25
    assert lengths(3, 12, *up, *[(5, 1)] * 9)[-1] == 4
    assert lengths(3, 12, *up, *[(5, 0)] * 40)[-1] == 3
    assert whole(3, 4, 40)[-1] == 4 and AdaptiveLength(8, 2).tokens == 2


def test_a_draft_that_ended_early_and_stood_takes_half_of_what_it_is_short() -> None:
    up = [(3, 3)] * 10 + [(4, 4)] * 5
    assert lengths(3, 12, *up, *[(2, 2)] * 12)[-2:] == [5, 5]  # -2 each, of 25
    assert lengths(3, 12, *up, *[(2, 2)] * 13)[-1] == 4
    assert lengths(3, 12, *up, *[(4, 4)] * 25)[-2:] == [5, 4]  # -1 each


@pytest.mark.slow
@given(
    st.integers(1, 8), st.integers(1, 16), st.integers(2, 200), st.lists(st.floats(0, 1), min_size=200, max_size=200)
)
def test_a_draft_that_the_end_of_an_output_cuts_changes_no_later_one(
    least: int, most: int, n_predict: int, shares: list[float]
) -> None:
    """One that stands whole ends the output, and after another fewer tokens are left than the length can shrink to."""

    def proposals(*, learns_of_cuts: bool) -> list[int]:
        length, left, proposed = AdaptiveLength(least, most), n_predict, list[int]()
        for share in shares:
            if left < 2:
                break
            proposed.append(min(length.tokens, left - 1))
            accepted = round(share * proposed[-1])
            if learns_of_cuts or proposed[-1] == length.tokens:
                length.learn(proposed[-1], accepted)
            left -= accepted + 1
        return proposed

    assert proposals(learns_of_cuts=True) == proposals(learns_of_cuts=False)


@pytest.mark.parametrize("drafter", ["draft-tree:adaptive=3", "eagle3-tree:adaptive=3"])
def test_the_size_of_a_tree_does_not_adapt(drafter: str) -> None:
    with pytest.raises(InputError, match="has no option 'adaptive'"):
        resolve_spec(parse_drafter(drafter))


def test_every_method_that_drafts_chains_takes_it_and_says_what_it_means() -> None:
    assert [option.name for option in find_method("dflash").info().options] == ["adaptive"]
    with pytest.raises(InputError, match="adaptive = -1: Expected `int` >= 0"):
        resolve_spec(parse_drafter("pld:adaptive=-1"))


@pytest.mark.slow
def test_adaptive_among_gammas_is_an_arm_with_a_name_whose_drafts_follow_the_rule(tmp_path: Path) -> None:
    request = bench_request(
        "tiny-dense", drafters=("oracle",), gammas=(2, "adaptive"), prompts=("copy",), n_predict=96, repeats=1,
        engine=EngineOptions(n_threads=1),
    )  # fmt: skip
    result = bench(request, tmp_path / "bench.sqlite")
    names = {arm_of(arm.case).setting: arm for arm in result.results}
    assert set(names) == {"plain", "oracle, gamma 2", "oracle (adaptive 3), gamma 12"}
    trial = next(row.trial for row in result.trials if "adaptive" in row.case.drafter.options)
    assert trial.status is Status.VALID
    rounds = trial.rounds
    wanted = [3, *lengths(3, 12, *((each.proposed, each.accepted) for each in rounds))]
    left = [96 - 2 - sum(r.committed for r in rounds[:i]) for i in range(len(rounds))]
    assert [each.proposed for each in rounds] == [min(n, k) for n, k in zip(wanted, left, strict=False)]
    assert [each.proposed for each in rounds[9:16]] == [3, 4, 4, 4, 4, 4, 5]  # always right, so it grew


def test_the_option_takes_the_word_among_numbers_and_no_other() -> None:
    (gammas,) = (option for option in command.params if option.name == "gammas")
    assert gammas.type.convert("2, adaptive,8", None, None) == (2, "adaptive", 8)
    with pytest.raises(BadParameter, match="not a list of integers"):
        gammas.type.convert("2,automatic", None, None)
    with pytest.raises(InputError, match="no gamma 'automatic'"):
        bench_request("tiny-dense", drafters=("pld",), gammas=("automatic",))
