"""A model with weights that are no numbers measures nothing, though its logits may look well.

Quantized kernels take a NaN for some number, so no logit need show one. llama.cpp can look at every weight while it
loads; that takes as long as reading the file, so it is done once a file and not in the load that is timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from mlsd.engine.llama.model import LlamaModel
from mlsd.folders import cache_dir
from mlsd.measure.messages import ModelFile, Work
from mlsd.records import ModelRef


def check_weights(path: Path, ref: ModelRef) -> None:
    """Look at every weight of a file, unless this was done before; a file without a hash is looked at each time.

    Raises: ModelFileError naming a tensor that holds NaN or infinite values.
    """
    done = None if ref.sha256 is None else cache_dir() / "weights" / ref.sha256[:24]
    if done is not None and done.exists():
        return
    LlamaModel(path, n_gpu_layers=0, check_weights=True).close()
    if done is not None:
        with contextlib.suppress(OSError):  # it is then looked at again
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()


def models_of(work: Work) -> Iterable[ModelFile]:
    """The models of any work."""
    for name in ("target", "draft", "model"):
        if isinstance(file := getattr(work, name, None), ModelFile):
            yield file
