"""Targets with drafting heads of random weights, and drafters that mix in tokens of a known output.

Random heads are almost never accepted, so a method is shown to be exact at each number of accepted tokens by putting
the plain output's own tokens in front of what the head proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.tree import merge
from mlsd.gguf_tools.source import Source
from tests.drafters.arena import Arena
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3

TARGETS = ("llama", "qwen35", "qwen35moe")
# The last of qwen35's layers is the row after its last block; llama's graph gives that out to no one.
EAGLE_LAYERS = {"llama": (1, 3, 5), "qwen35": (2, 4, 8), "qwen35moe": (0, 5, 7)}
BLOCK_LAYERS = {"llama": (1, 5), "qwen35": (0, 3, 7), "qwen35moe": (6,)}
N_VOCAB_DRAFT = 96

Rows = npt.NDArray[np.float32]


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


class Mixed(Drafter):
    """A method's drafter that is helped, or misled, by a known output; keeps the texts it drafted for."""

    def __init__(self, inner: Drafter, known: Sequence[int], *, n_true: int | None = None) -> None:
        """`n_true` known tokens stand first in every draft (a wrong one with -1); None: 0, 1, .. k in turn."""
        self.inner, self.known, self.n_true = inner, tuple(known), n_true
        self.texts: list[tuple[int, ...]] = []
        self._prompt: tuple[int, ...] = ()
        self._n_known = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self.inner.begin(prompt, rng)
        self._prompt, self._n_known, self.texts = tuple(prompt), 0, []

    def propose(self, k: int) -> Draft:
        draft = self.inner.propose(k)
        wanted = len(self.texts) % (k + 1) if self.n_true is None else self.n_true
        self.texts.append((*self._prompt, *self.known[: self._n_known]))
        true = self.known[self._n_known : self._n_known + min(k, max(0, wanted))]
        if draft.tree is not None:
            n_nodes, tree = len(draft.tree.tokens), draft.tree
            paths = [_path(tree.tokens, tree.parents, node) for node in range(n_nodes)]
            return msgspec.structs.replace(draft, tree=merge([true, *paths] if true else paths, n_nodes, k))
        own = draft.tokens[len(true) :]
        if wanted < 0:
            own = ((self.known[self._n_known] + 1) % 256, *own[1:])
        return msgspec.structs.replace(draft, tokens=(*true, *own))

    def observe(self, outcome: Outcome) -> None:
        self.inner.observe(outcome)
        self._n_known += len(outcome.committed)

    def stats(self) -> dict[str, float]:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()


def _path(tokens: Sequence[int], parents: Sequence[int], node: int) -> tuple[int, ...]:
    return (*(_path(tokens, parents, parents[node]) if parents[node] >= 0 else ()), tokens[node])
