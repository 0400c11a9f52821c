"""Corpus to token files: `tokenizer.json`, `train.npy`, `held_out.npy` and `corpus.json` in the run folder."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
from corpus import digest, documents
from tokens import VOCAB_SIZE, encode, train_tokenizer


def prepare(run: Path, stdlib: Path | None = None) -> None:
    """Read the corpus, learn the tokenizer on its training part and encode both parts."""
    run.mkdir(parents=True, exist_ok=True)
    docs = documents(stdlib)
    tokenizer = train_tokenizer(docs)
    tokenizer.save(str(run / "tokenizer.json"))
    parts = {"train": encode(tokenizer, docs, False), "held_out": encode(tokenizer, docs, True)}
    for name, tokens in parts.items():
        np.save(run / f"{name}.npy", tokens)
    told = {
        "source": f"CPython {platform.python_version()} standard library",
        "licence": "PSF-2.0",
        "sha256": digest(docs),
        "files": len(docs),
        "n_bytes": sum(len(d.text.encode()) for d in docs),
        "vocab_size": VOCAB_SIZE,
        "train_tokens": len(parts["train"]),
        "held_out_tokens": len(parts["held_out"]),
        "held_out_files": [d.name for d in docs if d.held_out],
    }
    (run / "corpus.json").write_text(json.dumps(told, indent=1) + "\n")
