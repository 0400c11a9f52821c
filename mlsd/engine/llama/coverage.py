"""Which experts a model's routers choose, read by the scheduler's callback: slower, so never in a timed pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.taps import ReadTap, TappedSession
from mlsd.engine.session import SessionOptions
from mlsd.errors import EngineError, UnsupportedError

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

_CHOSEN = re.compile(r"ffn_moe_topk-(\d+)")
_CHUNK = 64  # positions of one pass: every one of them is an output, and a row of logits may be a megabyte


class RouterSession(TappedSession):
    """A session that remembers which experts each position of the last decode chose."""

    def __init__(self, model: LlamaModel, options: SessionOptions) -> None:
        """`options` as for timing; the widths are set here."""
        self._parts: dict[int, list[Ids]] = {}
        self._reader = ReadTap(lambda name: _CHOSEN.fullmatch(name) is not None, self._collect)
        widths = {"max_outputs": _CHUNK, "n_batch": max(_CHUNK, 128)}
        super().__init__(model, msgspec.structs.replace(options, device_sampling=False, **widths))

    def _collect(self, name: str, values: npt.NDArray[Any]) -> None:
        found = _CHOSEN.fullmatch(name)
        assert found is not None
        self._parts.setdefault(int(found[1]), []).append(values)

    def chosen(self, tokens: Sequence[int]) -> dict[int, Ids]:
        """Append `tokens` and return the expert numbers by layer, shape (len(tokens), K).

        Every position is asked for an output, because the last layer computes no other. Raises UnsupportedError for a
        model without routed experts.
        """
        self._parts = {}
        with self.tapped(self._reader):
            for start in range(0, len(tokens), _CHUNK):
                part = tokens[start : start + _CHUNK]
                self.decode(part, n_outputs=len(part))
        layers = {layer: np.concatenate(parts) for layer, parts in sorted(self._parts.items())}
        if not layers:
            raise UnsupportedError(
                f"{self.model.path.name} chose no experts while it decoded.",
                hint="Expert coverage exists only for a mixture of experts.",
            )
        short = [layer for layer, ids in layers.items() if len(ids) != len(tokens)]
        if short:
            raise EngineError(
                f"Layer {short[0]} reported the experts of {len(layers[short[0]])} of {len(tokens)} rows."
            )
        return layers


def distinct_counts(ids: Ids, window: int) -> Counter[int]:
    """Distinct experts in each window of so many consecutive rows of `ids` (n, K) -> number of windows."""
    return Counter(len(np.unique(ids[i : i + window])) for i in range(len(ids) - window + 1))
