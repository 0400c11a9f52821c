"""Kangaroo: the target's first blocks draft, a small trained adapter bridges to its head, and doubt ends a draft.

Source: Liu et al. 2024 (arXiv 2404.18911). The adapter is the user's own file. Blocks and adapter become one draft
model, whose memory is what the paper's would be: the first blocks of both compute the same from the same tokens. The
paper's verification goes on from the exit; here the target's pass computes its first blocks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from mlsd.clock import Clock
from mlsd.drafters import DrafterBench
from mlsd.drafters.draft_model import DraftModel
from mlsd.drafters.options import SMALL_MODEL_STUDY, Choice, Preset, Span, read_options
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import Logits, Session
from mlsd.engine.verify import Probabilities, draw, probabilities
from mlsd.errors import InputError
from mlsd.gguf_tools.adapter import Adapter
from mlsd.gguf_tools.draft_cache import cached_draft
from mlsd.gguf_tools.kangaroo import compose
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery import write_edit
from mlsd.records import DrafterSpec, OptionValue, Record, Sampling
from mlsd.userdir import file_sha256


class Options(Record, frozen=True, kw_only=True):
    """Options of Kangaroo."""

    adapter: str  # folder with config.json and model.safetensors, or the path of the latter
    exit: Annotated[int, Meta(ge=1)] = 2  # the first so many blocks draft; what the adapter was trained behind
    p_min: Annotated[float, Meta(ge=0, le=1)] = 0.6  # the draft ends behind a likeliest token below it (softmax)
    content: str = ""  # what the adapter holds; filled in when the spec is resolved


OPTIONS = Options
SPACE = {"gamma": Span(low=1, high=8), "p_min": Choice(values=(0.0, 0.3, 0.5, 0.6, 0.7, 0.8), unless=("preset",))}


def _preset(steps: int, p_min: float) -> Preset:
    return Preset(gamma=steps, values={"exit": 2, "p_min": p_min}, source=SMALL_MODEL_STUDY)


# Steps (gamma), exit layer and threshold.
PRESETS = {
    "qwen2.5-1.5b": _preset(7, 0.6),
    "smollm2": _preset(7, 0.7),
    "llama-3.2-1b": _preset(4, 0.8),
    "vicuna-7b": _preset(6, 0.3),
}


def fill_in(spec: DrafterSpec) -> dict[str, OptionValue]:
    """The content of the adapter, so that another one under the same name is another case.

    Raises: InputError when it is missing, damaged or none, before any model is loaded.
    """
    return {"content": Adapter(Path(read_options(spec, Options, PRESETS).adapter)).content}


def check_target(spec: DrafterSpec, target_path: Path) -> None:
    """Refuse a target that the adapter does not fit, from headers alone.

    Raises: InputError, ModelFileError.
    """
    own = read_options(spec, Options, PRESETS)
    compose(Source(target_path), Adapter(Path(own.adapter)), own.exit)


def drafting_part(spec: DrafterSpec) -> DrafterSpec:
    """What of the spec decides which weights draft: the threshold and the adapter's place do not."""
    own = read_options(spec, Options, PRESETS)
    return msgspec.structs.replace(spec, options={"exit": own.exit, "content": own.content or own.adapter})


def drafting_file(spec: DrafterSpec, target_path: Path) -> Path:
    """The file of the draft, composed now if it is not there. Raises: InputError, ModelFileError."""
    return composed_file(target_path, read_options(spec, Options, PRESETS))


def make(bench: DrafterBench) -> KangarooDraft:
    """Compose the draft, or find it where such drafts are kept, and open it.

    Raises: InputError for an adapter that was replaced since the spec was resolved, and what `check_target` raises.
    """
    own = read_options(bench.spec, Options, PRESETS)
    path = composed_file(bench.target_path, own)
    strategy = bench.draft_rollback(path)
    # Confidence is read from logits; without a threshold the device picks the tokens.
    on_device = bench.sampling.greedy and own.p_min == 0
    options = msgspec.structs.replace(bench.options, device_sampling=on_device, max_outputs=1)
    session = bench.open_model(path).session(options)
    try:
        rollback = make_rollback(strategy, session)
        return KangarooDraft(session, rollback, bench.clock, sampling=bench.sampling, p_min=own.p_min)
    except BaseException:
        session.close()
        raise


def composed_file(target_path: Path, options: Options) -> Path:
    """The draft of a target and an adapter, written once and kept for the next time."""
    source, adapter = Source(target_path), Adapter(Path(options.adapter))
    if options.content not in ("", adapter.content):
        raise InputError(
            f"{adapter.path} holds {adapter.content}, not {options.content}: it was replaced.",
            hint="Start the measurement again; its numbers belong to another adapter.",
        )
    edit = compose(source, adapter, options.exit)
    recipe = f"{file_sha256(target_path)} {adapter.content} {options.exit}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return cached_draft(f"{target_path.stem}-kangaroo-{digest}.gguf", lambda path: write_edit(source, edit, path))


class KangarooDraft(DraftModel):
    """A chain that ends behind the first token of which the draft is not sure enough; that token is still proposed."""

    name = "kangaroo"

    def __init__(self, session: Session, rollback: Rollback, clock: Clock, *, sampling: Sampling, p_min: float) -> None:
        super().__init__(session, rollback, clock, sampling=sampling)
        self._p_min = p_min
        self._n_stops = self._confidence_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Decode the prompt."""
        super().begin(prompt, rng)
        self._n_stops = self._confidence_ns = 0

    def _chain_greedy(self, k: int) -> tuple[int, ...]:
        if self._p_min == 0:
            return super()._chain_greedy(k)
        session = self._session
        tokens: list[int] = []
        while True:
            row = session.logits()[0]
            tokens.append(int(row.argmax()))
            if len(tokens) >= k or self._doubts(row):
                return tuple(tokens)
            self._forward(tokens[-1:])

    def _chain_sampled(self, k: int) -> tuple[tuple[int, ...], Probabilities]:
        if self._p_min == 0:
            return super()._chain_sampled(k)
        session = self._session
        rows: list[Probabilities] = []
        tokens: list[int] = []
        while True:
            row = session.logits()[0]
            rows.append(probabilities(row[None], self._sampling)[0])
            tokens.append(draw(rows[-1], self._rng))
            # Doubt is in the row, not in the token drawn: which tokens are verified must not depend on the draw.
            if len(tokens) >= k or self._doubts(row):
                return tuple(tokens), np.stack(rows)
            self._forward(tokens[-1:])

    def _doubts(self, row: Logits) -> bool:
        started_ns = self._clock.now_ns()
        in_doubt = top_probability(row) < self._p_min
        self._confidence_ns += self._clock.now_ns() - started_ns
        self._n_stops += in_doubt
        return in_doubt

    def stats(self) -> dict[str, float]:
        """Draft passes, drafts that ended in doubt, and the time of finding out."""
        return {
            **super().stats(),
            "early_stops": float(self._n_stops),
            "confidence_ns": float(self._confidence_ns),
        }


def top_probability(row: Logits) -> float:
    """The largest probability of the softmax of a row of logits: 1 / sum(exp(logit - largest))."""
    return float(1.0 / np.exp(row - row.max()).sum(dtype=np.float64))
