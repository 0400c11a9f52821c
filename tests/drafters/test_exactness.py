"""Whatever a drafter proposes, the output is the target's: an oracle is believed, noise is not, a liar is found out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.rollback import make_rollback
from mlsd.engine.tree import merge
from mlsd.engine.verify import Proposal, Verification
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.methods import METHODS
from mlsd.records import Sampling
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import CLOCK, Arena, Run, Watched, first, prompt_of
from tests.drafters.head_arena import TABLES, TARGETS, Mixed

N_PREDICT = 40
N_REAL = 20
# Trees stay below 64 rows: from there on the CPU's attention takes another kernel, and equal becomes nearly equal.
TREES = "draft-tree:top_k=8"  # a target made for trees; the drafters of this file replace the method's own
# Methods that are tried with a temperature on llama with a near draft.
SAMPLED = ("draft-model", "draft-tree:depth=2,top_k=4")


class Guesser(Drafter):
    """Proposes from a known output (an oracle), at random, or either; as a chain or as a tree of several paths."""

    def __init__(
        self, known: Sequence[int] = (), *, right: float = 1.0, n_paths: int = 0, depth: int = 8, seed: int = 0
    ) -> None:
        """Trees have `n_paths` paths of `depth` tokens; their target is made for a gamma of as many nodes."""
        self._known, self._right, self._n_paths, self._seed = known, right, n_paths, seed
        self._depth = depth
        self._n_committed = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._rng = np.random.default_rng(self._seed)
        self._n_committed = 0

    def _path(self, k: int, right: float) -> tuple[int, ...]:
        true = list(self._known[self._n_committed : self._n_committed + k])
        true += [0] * (k - len(true))
        return tuple(t if self._rng.random() < right else int(self._rng.integers(0, 256)) for t in true)

    def propose(self, k: int) -> Proposal:
        if not self._n_paths:
            return Proposal(tokens=self._path(k, self._right))
        depth = min(k, self._depth)
        paths = [self._path(depth, 0.0) for _ in range(self._n_paths - 1)]
        paths.insert(int(self._rng.integers(0, self._n_paths)), self._path(depth, self._right))
        return Proposal(tree=merge(paths, self._n_paths * depth, depth))

    def observe(self, verification: Verification) -> None:
        self._n_committed += len(verification.committed)


class Cell(NamedTuple):
    """A method on a target, and what its run shows besides the target's own output."""

    target: str
    method: str  # as after --drafter
    gamma: int
    draft: str | None = None
    shows: str = ""  # of SHOWS
    seeds: Sequence[int] = ()  # prompts to try until one shows it; the one of gamma's number without
    clear: bool = False  # of a prompt whose output hangs on no rounding
    home: str = "arena"  # the fixture that has the models


def longest(run: Run) -> int:
    return max(proposed for proposed, _ in run.counts)


# What a run shows, given its gamma.
SHOWS: dict[str, Callable[[Run, int], bool]] = {
    "": lambda run, gamma: True,
    "steps are proposals": lambda run, gamma: run.stats["draft_steps"] == run.proposed,
    "proposes": lambda run, gamma: run.proposed > 0,
    "steps are some proposals": lambda run, gamma: run.stats["draft_steps"] == run.proposed > 0,
    "is rejected": lambda run, gamma: run.proposed > run.accepted,
    "is accepted": lambda run, gamma: run.accepted > 0,
    "fits": lambda run, gamma: longest(run) <= gamma,
    "some stand": lambda run, gamma: 0 < run.accepted < run.proposed,
    # The likeliest of all nodes is the target's own next token.
    "is always right": lambda run, gamma: longest(run) <= gamma and all(n > 0 for k, n in run.counts if k),
    "is right": lambda run, gamma: (
        all(k == n for k, n in run.counts) and len(run.counts) == -(-(N_PREDICT - 1) // (gamma + 1))
    ),
    "is never right": lambda run, gamma: (
        run.accepted == 0
        and len(run.counts) == N_PREDICT - 1
        and run.proposed == sum(min(gamma, N_PREDICT - 2 - done) for done in range(N_PREDICT - 1))
    ),
    "stops early": lambda run, gamma: run.proposed > 0 and run.stats["early_stops"] > 0,
    "adapts": lambda run, gamma: longest(run) > 1,
} | {
    f"blocks of {n}": lambda run, gamma, n=n: (
        run.stats["draft_steps"] == sum(k > 0 for k, _ in run.counts) > 0 and longest(run) == min(gamma, n)
    )  # type: ignore[misc]
    for n in (3, 5, 6, 7)
}
EAGLE3_TREE = "eagle3-tree:depth=3,top_k=4,commit=redecode"
MIXTURES = ("qwen35moe", "qwen3moe", "qwen3next", "deepseek2", "gpt-oss", "kimi-linear")
# A Markov head proposes from the newest token's position too, unless the file says that it is a bonus slot.
DFLASH = {"dflash-markov": 5, "dflash-bonus": 6, "dflash-causal": 3, "dflash-selector": 5}
COMMITS = ("redecode", "keep")
CELLS = [
    *(Cell(name, "mtp", k, shows="steps are proposals", home="blocks")
      for name in ("qwen35", "qwen35moe", *TABLES) for k in (1, 2, 4)),
    *(Cell(name, "dflash", k, f"{name}-dflash", "blocks of 7", home="heads")
      for name in TARGETS for k in (1, 2, 4, 12)),
    *(Cell("llama", "dflash", 6, draft, f"blocks of {n}", (5,), home="heads") for draft, n in DFLASH.items()),
    *(Cell(name, "eagle3", k, f"{name}-eagle3", "steps are some proposals", home="heads")
      for name in TARGETS for k in (1, 2, 4, 8)),
    *(Cell("llama", "eagle3", 4, f"eagle3-{kind}", seeds=(5,), home="heads") for kind in ("wide", "reduced", "norms")),
    Cell("llama", EAGLE3_TREE, 9, "llama-eagle3", home="heads"),
    *(Cell("llama", f"draft-tree:{shape},commit=redecode", k, draft, shows, clear=True)
      for draft, shows in (("llama", "is always right"), ("llama-noise01", "fits"), ("llama-other", "fits"))
      for k, shape in ((6, "depth=2,top_k=3"), (24, "depth=4,top_k=5"))),
    *(Cell(name, f"draft-tree:depth=3,top_k=4,commit={commit}", 16, f"{name}-noise01", seeds=(4,))
      for name in TINY_ATTENTION for commit in COMMITS),
    *(Cell(name, f"rest:store=shipped,commit={commit}", 16, seeds=(4,))
      for name in TINY_ATTENTION for commit in COMMITS),
    *(Cell("llama", f"lookahead:{shape},commit=redecode", 16, seeds=(seed,))
      for shape in ("window=4,ngram=3,guesses=3", "window=8,ngram=5,guesses=6") for seed in (1, 2)),
    *(Cell(name, "ngram-cache", 6, None, "is rejected", range(24)) for name in ARCHITECTURES),
    *(Cell(name, method, k, None, "is rejected", range(k, k + 24))
      for name in ARCHITECTURES for method in ("pld", "pld:match=last,full=true,ngram=2") for k in (3, 10)),
    *(Cell(name, f"expert-skip:{options}", 3, None, "proposes")
      for name in MIXTURES for options in ("mode=own", "mode=sync", "experts=1")),
    *(Cell(name, f"expert-skip:mode={mode},skip=2", 3, None, "proposes")
      for name in ("qwen35moe", "qwen3moe") for mode in ("own", "sync")),
    *(Cell(name, f"kangaroo:adapter=ADAPTERS/{name}{kind},p_min={(0.0, 0.2)[k % 2]}", k, None,
           "steps are proposals", (3,))
      for name in ("llama", "qwen2") for kind in (",exit=2", "-identity,exit=5") for k in (1, 3, 8)),
    *(Cell(name, f"draft-model:p_min={p_min},p_min_mode={mode}", 6, f"{name}-noise01", "stops early", range(24))
      for name in ("llama", "qwen35", "falcon-h1") for mode, p_min in (("include", 0.1), ("drop", 0.5))),
    *(Cell(name, "draft-model:adaptive=1", 6, f"{name}-noise003", "adapts", range(24))
      for name in ("llama", "qwen35", "falcon-h1")),
    *(Cell(name, f"{method}:adaptive=1", 6, draft, "proposes", range(24), home=home)
      for name, method, draft, home in (("qwen35", "mtp", None, "blocks"), ("llama", "eagle3", "llama-eagle3", "heads"),
                                        ("llama", "dflash", "llama-dflash", "heads"), ("llama", "pld", None, "arena"))),
    *(Cell(name, "layer-skip:mode=sync,skip=1,p_min=0.1", 5, None, "stops early", range(24)) for name in ARCHITECTURES),
    *(Cell(name, "oracle", 4, None, "is right", (7,), clear=True) for name in ARCHITECTURES),
    *(Cell(name, "random", 4, None, "is never right", (7,), clear=True) for name in ARCHITECTURES),
]  # fmt: skip


# Of random models, so of many runs some must show it.
DRAWN = [
    Cell("qwen35", "mtp", 3, shows="some stand", home="blocks"),
    *(Cell("llama", method, 8, f"llama-{head}", "proposes", home="heads")
      for method, head in (("eagle3", "eagle3"), ("eagle3-tree:depth=2,top_k=6", "eagle3"), ("dflash", "dflash"))),
    Cell("llama", "draft-model", 6, "llama-noise003", "is accepted"),
    Cell("qwen3moe", "expert-skip:experts=1", 3, shows="some stand"),
    *(Cell("llama", f"layer-skip:mode={mode},skip=4", 3, shows="some stand") for mode in ("own", "sync")),
]  # fmt: skip
STANDS = "The red house stands by the"
REPEATS = "The red house stands by the old river, and the green house stands by the new road.\n" * 4 + "The red house"
PLANETS = "<|im_start|>user\nName the planets of the solar system.<|im_end|>\n<|im_start|>assistant\n"
# On SmolLM2: method, gamma, draft and text.
REAL = [
    ("draft-tree:depth=2,top_k=3", 6, "near", STANDS),
    ("eagle3", 4, "eagle3", STANDS),
    ("eagle3-tree:depth=3,top_k=4", 4, "eagle3", STANDS),
    ("dflash", 4, "dflash", STANDS),
    ("pld:preset=smollm2", 15, None, REPEATS),
    ("ngram-cache", 8, None, REPEATS),
    ("lookahead:window=5,ngram=4,guesses=5", 15, None, "Q: List the numbers from one to thirty.\nA: 1, 2, 3, 4, 5,"),
    # Found by `mlsd models make subset --search greedy --fraction 0.33`.
    ("layer-skip:mode=sync,skip=3+4+6+7+10+11+14+17+25+26", 2, None, PLANETS),
]


def test_every_method_is_in_the_matrix() -> None:
    assert {cell.method.partition(":")[0] for cell in CELLS} == set(METHODS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell[:4])))
def test_output_equals_plain_decoding(
    arena: Arena, heads: Arena, blocks: Arena, adapters: dict[str, Path], cell: Cell
) -> None:
    home = {"arena": arena, "heads": heads, "blocks": blocks}[cell.home]
    method = cell.method.replace("ADAPTERS/", f"{adapters['llama'].parent}/")

    def run(seed: int) -> Run:
        prompt = home.clear_prompt(cell.target, seed, N_PREDICT) if cell.clear else prompt_of(seed)
        made = home.run(cell.target, method, cell.gamma, prompt, N_PREDICT, draft=cell.draft)
        home.assert_exact(cell.target, prompt, made)
        return made

    first(map(run, cell.seeds or (cell.gamma,)), lambda made: SHOWS[cell.shows](made, cell.gamma))


@pytest.mark.heavy
@pytest.mark.parametrize(("method", "gamma", "draft", "text"), REAL, ids=lambda value: str(value)[:12])
def test_a_real_model_keeps_its_output_and_accepts_drafts(
    real_arena: Arena, method: str, gamma: int, draft: str | None, text: str
) -> None:
    """Random heads are accepted where tokens of the known output stand in front of what they propose."""
    prompt = real_arena.model("smollm2").tokenize(text)
    plain = real_arena.plain("smollm2", prompt, N_REAL) if draft in ("eagle3", "dflash") else None
    wrap = Watched if plain is None else lambda inner: Mixed(inner, plain)
    run = real_arena.run("smollm2", method, gamma, prompt, N_REAL, draft=draft, wrap=wrap)
    real_arena.assert_exact("smollm2", prompt, run)
    assert run.accepted > 0


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    right=st.floats(0.5, 1.0),
    n_paths=st.integers(1, 6),
    depth=st.integers(1, 6),
    commit=st.sampled_from(["keep", "redecode"]),
)
def test_trees_that_are_right_now_and_then_leave_the_output_alone(
    arena: Arena, seed: int, right: float, n_paths: int, depth: int, commit: str
) -> None:
    # Cells of a kept path lie, and are summed, in another order: at a tie that would choose another token.
    prompt = arena.clear_prompt("llama", seed % 4, N_PREDICT)
    drafter = Guesser(arena.plain("llama", prompt, N_PREDICT), right=right, n_paths=n_paths, depth=depth, seed=seed)
    run = arena.run("llama", f"{TREES},commit={commit}", n_paths * depth, prompt, N_PREDICT, drafter=drafter)
    arena.assert_exact("llama", prompt, run)


@pytest.mark.parametrize("cell", DRAWN, ids=lambda cell: cell.method)
def test_with_a_temperature_distributions_decide_what_of_a_draft_stands(
    arena: Arena, heads: Arena, blocks: Arena, cell: Cell
) -> None:
    def run(seed: int) -> Run:
        drawn, rng = Sampling(temperature=1.0), np.random.default_rng(seed)
        home, gamma = {"arena": arena, "heads": heads, "blocks": blocks}[cell.home], cell.gamma
        return home.run(
            cell.target, cell.method, gamma, prompt_of(1), N_PREDICT, draft=cell.draft, sampling=drawn, rng=rng
        )

    made = first(map(run, range(24)), lambda made: SHOWS[cell.shows](made, cell.gamma))
    assert len(made.tokens) == N_PREDICT


@pytest.fixture(scope="module")
def plain_draws(arena: Arena) -> list[int]:
    """The second and third tokens of plain sampling over many seeds."""
    with arena.opened("llama", "pld", 8, sampling=DRAWS, drafter=NoDrafter()) as (context, drafter):
        return drawn(context, drafter, arm=0)[0]


DRAWS = Sampling(temperature=1.0)


def drawn(context: LlamaContext, drafter: Drafter, *, arm: int) -> tuple[list[int], int]:
    """Second and third tokens over 800 seeds, and how many drafted tokens were accepted."""
    tokens, accepted = [], 0
    limits, rollback = GenerationLimits(n_predict=4, gamma=8), make_rollback("trim", context)
    for seed in range(800):
        rng = np.random.default_rng([seed, arm])
        result = generate(context, drafter, rollback, prompt_of(8), limits, CLOCK, sampling=DRAWS, rng=rng)
        tokens += result.tokens[1:3]
        accepted += sum(r.accepted for r in result.rounds)
    return tokens, accepted


@pytest.mark.heavy
@pytest.mark.parametrize("method", SAMPLED)
def test_sampled_output_follows_the_targets_distribution(arena: Arena, plain_draws: list[int], method: str) -> None:
    """Against plain sampling, in bins of equal probability."""
    with arena.opened("llama", method, 8, sampling=DRAWS, draft="llama-noise01") as (context, drafter):
        draws, accepted = drawn(context, drafter, arm=1)
    assert accepted > 0
    borders = np.unique(np.quantile(plain_draws, np.linspace(0, 1, 9)[1:-1]))
    expected, observed = (
        np.bincount(np.searchsorted(borders, tokens), minlength=len(borders) + 1) for tokens in (plain_draws, draws)
    )
    # Both samples are random: the variance of a difference is twice that of one, so the statistic is halved.
    statistic = float(((observed - expected) ** 2 / (observed + expected)).sum())
    assert chi2.sf(statistic, df=len(borders)) > 1e-4
