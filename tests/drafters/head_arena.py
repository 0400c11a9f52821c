"""Targets with drafting heads of random weights, and drafters that mix in tokens of a known output.

Random heads are almost never accepted, so a method is shown to be exact at each number of accepted tokens by putting
the plain output's own tokens in front of what the head proposes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.drafters.model_drafter import ChainDrafter
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.rollback import make_rollback
from mlsd.engine.tree import merge
from mlsd.engine.verify import Proposal, Verification
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.table import read_tables
from tests.drafters.arena import CLOCK, Arena, Watched
from tests.engine.fake import path_to
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3

TARGETS = ("llama", "qwen35", "qwen35moe")
# The last of qwen35's layers is the row after its last block; llama's graph gives that out to no one.
EAGLE_LAYERS = {"llama": (1, 3, 5), "qwen35": (2, 4, 8), "qwen35moe": (0, 5, 7)}
BLOCK_LAYERS = {"llama": (1, 5), "qwen35": (0, 3, 7), "qwen35moe": (6,)}
N_VOCAB_DRAFT = 96
N_PREDICT = 32
TABLES = read_tables(next_token=True)  # models with a next-token block

Rows = npt.NDArray[np.float32]


class MtpArena(Arena):
    """Targets loaded with their next-token blocks."""

    load: ClassVar[dict[str, bool]] = {"load_mtp": True}


class FirstRows(ChainDrafter):
    """Keeps the logits of each round's first proposal, and the text it was made for."""

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        super().begin(prompt, rng)
        self.first: list[tuple[tuple[int, ...], Rows]] = []

    def propose(self, k: int) -> Proposal:
        self.memory.read(self.memory.news())
        self.first.append((tuple(self.memory.text), self.memory.model.logits()[0].copy()))
        return super().propose(k)


def make_arena(tiny: Path, folder: Path) -> Arena:
    """The tiny targets and, for each, the heads ``NAME-eagle3`` and ``NAME-dflash``; llama has their variants too."""
    files = {name: tiny / f"{name}.gguf" for name in (*TARGETS, "falcon-h1")}
    sources = {name: Source(files[name]) for name in TARGETS}

    def add(name: str, write: Callable[..., None], target: str, layers: Sequence[int], **options: object) -> None:
        files[name] = folder / f"{name}.gguf"
        write(files[name], sources[target], layers, **options)

    for name in TARGETS:
        add(f"{name}-eagle3", write_random_eagle3, name, EAGLE_LAYERS[name])
        add(f"{name}-dflash", write_random_dflash, name, BLOCK_LAYERS[name])
    layers: tuple[int, ...] = EAGLE_LAYERS["llama"]
    add("eagle3-wide", write_random_eagle3, "llama", layers, n_embd=96)
    add("eagle3-reduced", write_random_eagle3, "llama", layers, n_vocab_draft=N_VOCAB_DRAFT)
    add("eagle3-norms", write_random_eagle3, "llama", layers, norm_before=True)
    layers = BLOCK_LAYERS["llama"]
    add("dflash-markov", write_random_dflash, "llama", layers, markov=True, n_block=5)
    add("dflash-bonus", write_random_dflash, "llama", layers, markov=True, anchor=False, n_vocab_draft=N_VOCAB_DRAFT)
    add("dflash-causal", write_random_dflash, "llama", layers, causal=True, n_block=4)
    add("dflash-selector", write_random_dflash, "llama", layers, n_candidates=5, n_block=6)
    return Arena(files)


class Mixed(Watched):
    """A method's drafter that is helped by a known output; keeps the texts it drafted for.

    0, 1, .. k known tokens in turn stand first in a draft, and after them none that is right: so many are accepted.
    """

    def __init__(self, inner: Drafter, known: Sequence[int]) -> None:
        super().__init__(inner)
        self.known = tuple(known)

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        super().begin(prompt, rng)
        self._prompt, self._n_known = tuple(prompt), 0
        self.texts: list[tuple[int, ...]] = []
        self.wanted: list[int] = []  # known tokens in front of each draft

    def propose(self, k: int) -> Proposal:
        draft, n_true = super().propose(k), len(self.texts) % (k + 1)
        self.texts.append((*self._prompt, *self.known[: self._n_known]))
        true, rest = self.known[self._n_known :][:n_true], self.known[self._n_known + n_true :][:1]
        if draft.tree is not None:
            n_nodes = len(draft.tree.tokens)
            n_true = min(n_true, n_nodes)
            paths = [path_to(draft.tree, node) for node in range(n_nodes)]
            paths = [path for path in paths if path[: len(true) + 1] != (*true, *rest)]
            draft = msgspec.structs.replace(draft, tree=merge([true, *paths] if true else paths, n_nodes, k))
        else:
            wrong = draft.tokens[len(true) :]
            if wrong[:1] == rest:
                wrong = tuple((token + 1) % 256 for token in rest) + wrong[1:]
            draft = msgspec.structs.replace(draft, tokens=(*true, *wrong), probabilities=None)
        self.wanted.append(n_true)
        self._draft = draft
        return draft

    def observe(self, verification: Verification) -> None:
        super().observe(verification)
        self._n_known += len(verification.committed)


def mixed_run(arena: Arena, name: str, context: LlamaContext, drafter: Drafter, gamma: int) -> tuple[Generation, Mixed]:
    """A generation in which each round accepts what was mixed in; its output is plain decoding's, token for token."""
    prompt = arena.clear_prompt(name, gamma, N_PREDICT)
    mixed = Mixed(drafter, arena.plain(name, prompt, N_PREDICT))
    rollback = make_rollback(arena.strategy(arena.path(name), "target"), context)
    limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
    result = generate(context, mixed, rollback, prompt, limits, CLOCK)
    assert result.tokens == mixed.known
    assert [r.accepted for r in result.rounds if r.proposed] == mixed.wanted  # what was mixed in, and no more
    return result, mixed
