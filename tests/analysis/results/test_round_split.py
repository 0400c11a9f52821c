"""What the parts of a round are made of, on rounds of known times."""

from typing import Any

import msgspec
import pytest

from mlsd.analysis.results.round_split import RoundSplit, round_split
from mlsd.records import Round, Trial
from mlsd.trials.rates import sums
from tests.analysis import studies

MS = 1_000_000
CASE = studies.case(studies.MOE, "code", 4)
LOOKED = {"match_rounds": 1.0, "no_match_rounds": 2.0, "match_propose_ns": 3.0 * MS, "no_match_propose_ns": 2.0 * MS}


def made(proposed: int, draft_ms: float = 1.0, rollback_ms: float = 2.0) -> Round:
    return Round(
        proposed=proposed,
        accepted=0,
        committed=1,
        rows=1 + proposed,
        draft_ns=int(draft_ms * MS),
        verify_ns=10 * MS,
        rollback_ns=int(rollback_ms * MS),
        sample_ns=MS // 2,
        other_ns=0,
    )


def trial(*rounds: Round, **more: Any) -> Trial:
    return msgspec.structs.replace(
        studies.trial(CASE, 0, 0, 0), rounds=rounds, rollback_target="checkpoint", rollback_draft="checkpoint", **more
    )


def split_of(*trials: Trial) -> RoundSplit:
    rounds = [sums([one]) for each in trials for one in each.rounds]
    return round_split(studies.as_measured((CASE, each) for each in trials), rounds)


def test_rollback_is_sync_the_drafts_part_and_what_is_left_for_the_target() -> None:
    stats = {"sync_ns": 1.0 * MS, "draft_rollback_ns": 2.0 * MS, "draft_forward_ns": 1.5 * MS}
    split = split_of(trial(made(4), made(4), stats=stats))
    assert split.rounds == 2
    assert split.inside_ms["draft"] == {"draft forward": 0.75}
    assert split.inside_ms["rollback"] == {"sync": 0.5, "draft's checkpoint": 1.0, "target's checkpoint": 0.5}
    assert sum(split.inside_ms["rollback"].values()) == split.ms_per_round["rollback"]
    assert (split.with_proposal, split.without_proposal) == (None, None)
    assert split.timed


def test_rounds_with_and_without_a_proposal_are_split_with_their_look_ups() -> None:
    split = split_of(trial(made(4, draft_ms=3), made(0, 1, 0), made(0, 1, 0), stats=LOOKED))
    assert split.with_proposal is not None and split.without_proposal is not None
    assert (split.with_proposal.rounds, split.without_proposal.rounds) == (1, 2)
    assert (split.with_proposal.ms["look-up"], split.without_proposal.ms["look-up"]) == (3.0, 1.0)
    assert (split.with_proposal.ms["round"], split.without_proposal.ms["round"]) == (15.5, 11.5)
    assert split.inside_ms["draft"]["look-up"] == pytest.approx(5 / 3)


def test_search_and_tree_stand_apart_where_a_method_times_both() -> None:
    stats = {
        **LOOKED,
        "match_search_ns": 1.0 * MS,
        "no_match_search_ns": 2.0 * MS,
        "search_ns": 3.0 * MS,
        "tree_ns": 2.0 * MS,
    }
    split = split_of(trial(made(4, 3), made(0), made(0), stats=stats))
    assert split.with_proposal is not None and split.without_proposal is not None
    assert (split.with_proposal.ms["search"], split.with_proposal.ms["tree"]) == (1.0, 2.0)
    assert (split.without_proposal.ms["search"], split.without_proposal.ms["tree"]) == (1.0, 0.0)
    assert split.inside_ms["draft"] == {"search": 1.0, "tree": pytest.approx(2 / 3)}
