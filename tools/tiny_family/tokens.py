"""The family's tokenizer: byte-level BPE with GPT-2's pre-tokenizer, as llama.cpp has it too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from corpus import END, Document
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1536
_N_EXCERPTS, _EXCERPT = 8, 192
SPECIAL = (END, "<|im_start|>", "<|im_end|>")


def train_tokenizer(docs: list[Document]) -> Tokenizer:
    """Byte-level BPE of `VOCAB_SIZE` tokens learnt on the training part of `docs`; id 0 ends a document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in docs if not d.held_out), trainer=trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, docs: list[Document], part: bool) -> np.ndarray:
    """Token ids (uint16) of the documents with `held_out == part`, each followed by the end token."""
    ids: list[int] = []
    for doc, coded in zip(
        chosen := [d for d in docs if d.held_out == part], tokenizer.encode_batch([d.text for d in chosen]), strict=True
    ):
        assert doc.text is not None
        ids.extend(coded.ids)
        ids.append(0)
    return np.asarray(ids, dtype=np.uint16)


def excerpts(held_out: np.ndarray) -> np.ndarray:
    """Evenly spaced windows of the held-out tokens, uint16 [8, 192]: the ones tests and prompts are made of."""
    starts = np.linspace(0, len(held_out) - _EXCERPT - 1, _N_EXCERPTS).astype(int)
    return np.stack([held_out[s : s + _EXCERPT] for s in starts])


def load(path: Path) -> Tokenizer:
    """The tokenizer saved at `path`."""
    return Tokenizer.from_file(str(path))
