"""What a target says: its continuations of many excerpts, drawn by llama.cpp from the file that ships, with its odds.

A draft that follows a target is asked about the target's own words, so these rows are what acceptance is made of. Many
sequences run in one batch; at every position, the prompt's too, the target's largest odds are kept: no torch model has
to run again to teach from them.

Excerpts come from the packages, a package as likely as any other, from their descriptions and from the standard
library. A smaller part is only read, twice as wide, so that far positions stay known.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from corpus import Document, digest
from packages import TAUGHT, UNSEEN, documents, fetch, is_prose
from tokens import encode
from tokens import load as load_tokenizer
from train import budget

from mlsd.engine.llama.native import library

N_TOP = 16
SPOKEN_WIDTH, READ_WIDTH = 256, 512
TEXTS = 3200
"""Spoken rows a target; a tenth as many are read. `run/budget.json` may lower it as `speech`."""
SEEDS = {"tiny-dense": 11, "tiny-moe": 12}
_SEQUENCES = 64
_SHORTEST, _LONGEST = 16, 176
_SAMPLED_SHARE = 0.3
_CHARACTERS = 250_000
_KINDS = {"packages": 0.6, "descriptions": 0.1, "standard library": 0.3}


class Speaker:
    """One llama.cpp context in which up to `_SEQUENCES` texts of `width` tokens grow side by side."""

    def __init__(self, path: Path, width: int) -> None:
        self._native = native = library()
        self._model = native.llama_model_load_from_file(str(path).encode(), native.llama_model_default_params())
        params = native.llama_context_default_params()
        params.n_seq_max = _SEQUENCES
        params.n_ctx = width * _SEQUENCES
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = False
        self._context = native.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot open {path} for {_SEQUENCES} texts of {width} tokens")
        self._n_vocab = native.llama_vocab_n_tokens(native.llama_model_get_vocab(self._model))
        self._batch = native.llama_batch_init(params.n_batch, 0, 1)
        self._n_batch = params.n_batch

    def logits(self, tokens: np.ndarray, positions: np.ndarray, sequences: np.ndarray) -> np.ndarray:
        """Logits [n, vocabulary] after each of the tokens, which go to the places named beside them."""
        found = []
        for start in range(0, len(tokens), self._n_batch):
            part = slice(start, start + self._n_batch)
            n = len(tokens[part])
            for i, (token, position, sequence) in enumerate(
                zip(tokens[part].tolist(), positions[part].tolist(), sequences[part].tolist(), strict=True)
            ):
                self._batch.token[i], self._batch.pos[i] = token, position
                self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, sequence
                self._batch.logits[i] = 1
            self._batch.n_tokens = n
            if code := self._native.llama_decode(self._context, self._batch):
                raise SystemExit(f"llama_decode says {code}")
            address: Any = self._native.llama_get_logits(self._context)
            view = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (n, self._n_vocab))
            found.append(view.copy())
        return np.concatenate(found)

    def clear(self) -> None:
        """Forget every text."""
        self._native.llama_memory_clear(self._native.llama_get_memory(self._context), True)

    def close(self) -> None:
        """Free what llama.cpp holds."""
        self._native.llama_batch_free(self._batch)
        self._native.llama_free(self._context)
        self._native.llama_model_free(self._model)


def speak(
    path: Path, prompts: list[np.ndarray], width: int, sampled_share: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Every prompt continued to `width` tokens by the target at `path`, with its odds at each position.

    `tokens` uint16 [n, width]; `ids` uint16 and `odds` float16 [n, width, N_TOP], the largest probabilities for the
    token after each position. `sampled_share` of the texts are drawn at temperature 1, the others are greedy.
    """
    tokens = np.zeros((len(prompts), width), dtype=np.uint16)
    ids = np.zeros((len(prompts), width, N_TOP), dtype=np.uint16)
    odds = np.zeros((len(prompts), width, N_TOP), dtype=np.float16)
    sampled = rng.random(len(prompts)) < sampled_share
    speaker = Speaker(path, width)
    for start in range(0, len(prompts), _SEQUENCES):
        rows = np.arange(start, min(start + _SEQUENCES, len(prompts)))
        speaker.clear()
        ends = np.array([len(prompts[r]) for r in rows])
        last = np.zeros(len(rows), dtype=np.int64)
        for i, r in enumerate(rows):
            n = ends[i]
            tokens[r, :n] = prompts[r]
            logits = speaker.logits(prompts[r], np.arange(n), np.full(n, i))
            top, shares = largest(logits)
            ids[r, :n], odds[r, :n] = top, shares
            last[i] = chosen(logits[-1:], sampled[r : r + 1], rng)[0]
        print(f"{rows[-1] + 1} of {len(prompts)} texts read by {path.stem}", flush=True)
        while len(alive := np.flatnonzero(ends < width)):
            tokens[rows[alive], ends[alive]] = last[alive]
            logits = speaker.logits(last[alive], ends[alive], alive)
            top, shares = largest(logits)
            ids[rows[alive], ends[alive]], odds[rows[alive], ends[alive]] = top, shares
            last[alive] = chosen(logits, sampled[rows[alive]], rng)
            ends[alive] += 1
    speaker.close()
    return {"tokens": tokens, "ids": ids, "odds": odds, "starts": np.array([len(p) for p in prompts])}


def largest(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `N_TOP` likeliest tokens of each row, likeliest first, and their probabilities."""
    top = np.argpartition(logits, -N_TOP, axis=-1)[:, -N_TOP:]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(logits, top, 1), axis=1), 1)
    peak = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - peak).sum(axis=1, keepdims=True)
    return top, np.exp(np.take_along_axis(logits, top, 1) - peak) / total


def chosen(logits: np.ndarray, sampled: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The next token of each row: its likeliest, or one drawn at temperature 1 where `sampled` says so."""
    # The largest of logits with Gumbel noise is a draw from their softmax.
    logits[sampled] += rng.gumbel(size=(int(sampled.sum()), logits.shape[1]))
    return logits.argmax(axis=1)


def sources(run: Path) -> dict[str, list[np.ndarray]]:
    """Token arrays to cut excerpts from, by kind: a package each, all descriptions, the corpus of the targets.

    Leaves `packages.json` in the run folder: what was read and on what the family will be measured.
    """
    tokenizer = load_tokenizer(run / "tokenizer.json")
    found = [documents(wheel) for wheel in fetch(TAUGHT, run / "packages")]
    code = [part_of([d for d in docs if not is_prose(d)]) for docs in found]
    prose = [d for docs in found for d in docs if is_prose(d)]
    told = {
        "taught": TAUGHT,
        "unseen": UNSEEN,
        "files": sum(map(len, code)) + len(prose),
        "n_bytes": sum(len(d.text.encode()) for docs in (*code, prose) for d in docs),
        "sha256": digest([d for docs in (*code, prose) for d in docs]),
    }
    (run / "packages.json").write_text(json.dumps(told, indent=1) + "\n")
    return {
        "packages": [encode(tokenizer, docs, False) for docs in code],
        "descriptions": [encode(tokenizer, prose, False)],
        "standard library": [np.load(run / "train.npy")],
    }


def part_of(docs: list[Document]) -> list[Document]:
    """Modules in the order of their names' hashes up to `_CHARACTERS`: large packages need not be read whole."""
    ordered = sorted(docs, key=lambda d: hashlib.sha256(d.name.encode()).digest())
    before = np.cumsum([0, *(len(d.text) for d in ordered)])
    return [d for d, n in zip(ordered, before[:-1], strict=True) if n < _CHARACTERS]


def excerpt(texts: dict[str, list[np.ndarray]], length: int, rng: np.random.Generator) -> np.ndarray:
    """`length` tokens in a row of some text, its kind drawn by `_KINDS`."""
    kind = rng.choice(list(_KINDS), p=list(_KINDS.values()))
    tokens = texts[kind][rng.integers(len(texts[kind]))]
    start = rng.integers(0, len(tokens) - length)
    return tokens[start : start + length]


def write(target: str, run: Path) -> None:
    """What the target writes, and what it reads, with its odds."""
    path, rng = run / "targets" / f"{target}.gguf", np.random.default_rng(SEEDS[target])
    n = budget("speech", run, TEXTS)
    texts = sources(run)
    spoken = [excerpt(texts, rng.integers(_SHORTEST, _LONGEST), rng) for _ in range(n)]
    read = [excerpt(texts, READ_WIDTH, rng) for _ in range(n // 10)]
    np.savez(run / f"{target}.spoken.npz", **speak(path, spoken, SPOKEN_WIDTH, _SAMPLED_SHARE, rng))
    np.savez(run / f"{target}.read.npz", **speak(path, read, READ_WIDTH, 0.0, rng))
