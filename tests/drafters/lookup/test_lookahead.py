"""Lookahead: its window learns what the target says, its pool is accepted, its output is the target's own."""

import numpy as np
import pytest

from mlsd.drafters.lookup.lookahead import Lookahead, LookaheadOptions
from mlsd.engine.tree import ROOT, layout
from mlsd.engine.verify import Verification
from mlsd.records import Sampling
from tests.drafters.arena import Arena, prompt_of
from tests.engine.fake import FakeClock

N_PREDICT = 48


def begun(window: int, ngram: int, guesses: int = 2) -> Lookahead:
    options = LookaheadOptions(window=window, ngram=ngram, guesses=guesses)
    drafter = Lookahead(options, FakeClock(), n_candidates=16)
    drafter.begin((1, 2, 3), np.random.default_rng(0))
    drafter.observe(Verification(accepted=0, committed=(50,)))
    return drafter


@pytest.mark.parametrize(("window", "ngram"), [(2, 3), (5, 4), (7, 5)])
def test_the_window_is_a_tree_with_one_leaf_a_column(window: int, ngram: int) -> None:
    tree = begun(window, ngram).propose(9).tree
    assert tree is not None
    assert tree.n_candidates == 0
    assert len(tree.tokens) == window * (ngram - 1) - 1
    plan = layout(tree)
    assert plan.n_leaves == window
    leaves = [i for i in range(len(tree.tokens)) if i not in tree.parents]
    # The last token of column i stands i + N - 2 places after the root: i along level 0, then down the levels.
    assert [plan.depths[leaf] for leaf in leaves] == [column + ngram - 2 for column in range(window)]


def test_an_ngram_is_a_column_and_the_targets_token_after_it() -> None:
    drafter = begun(2, 3)
    tree = drafter.propose(9).tree
    assert tree is not None
    upper = tree.tokens[0]  # level 1 of column 0, below the root
    drafter.observe(Verification(accepted=0, committed=(50,), window=(60, 61)))
    proposed = drafter.propose(9).tree
    assert proposed is not None
    assert proposed.tokens[: proposed.n_candidates] == (upper, 60)
    # The window moved up: its level 1 is now what the target said.
    assert proposed.tokens[proposed.n_candidates] == 60


def test_the_pool_keeps_the_newest_ngrams_and_proposes_them_first() -> None:
    drafter = begun(2, 3, guesses=2)
    for end in (70, 71, 72):
        drafter.propose(9)
        drafter.observe(Verification(accepted=0, committed=(50,), window=(end, end)))
    tree = drafter.propose(9).tree
    assert tree is not None
    firsts = [tree.tokens[i] for i in range(tree.n_candidates) if tree.parents[i] == ROOT]
    assert firsts == [71, 70]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_of_both_branches_are_counted(arena: Arena, temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    run = arena.run("llama", "lookahead:window=10,ngram=4,guesses=10", 30, prompt_of(3), 60, sampling=sampling)
    wide = [r for r in run.generation.rounds if r.rows > 1]
    assert run.stats["window_rows"] == 29 * len(wide)
    assert run.stats["candidate_rows"] == run.proposed
    assert sum(r.rows for r in wide) == len(wide) + run.stats["window_rows"] + run.stats["candidate_rows"]
    assert len(run.tokens) == 60
