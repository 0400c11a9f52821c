"""What a draft cut out of its target costs beside its own passes: the copy of the target's memory each round."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, of_samples
from benchmarks.models import smollm2
from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.drafters.layer_skip.shared_memory import SyncedDraft
from mlsd.drafters.layer_skip.subset import Options, link_plan, plan
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.state import StateLink
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import write_edit

CLOCK = MonotonicClock()
GAMMA, N_PREDICT, REPEATS = 4, 32, 3


def run() -> Iterator[Result]:
    yield from sync_share()


def sync_share() -> Iterator[Result]:
    """Copying keys and values into a draft of 20 of SmolLM2's 30 blocks, as a share of the round, at 512 tokens."""
    cut = plan(Source(smollm2()), Options(fraction=0.33))
    shares, spans = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.gguf"
        write_edit(cut.source, cut.edit, path)
        options = SessionOptions(n_ctx=768, n_threads=1, n_sequences=2, max_outputs=GAMMA + 1)
        with (
            LlamaModel(smollm2()) as model,
            LlamaModel(path) as draft,
            open_session(model, options) as target,
            open_session(draft, options) as second,
        ):
            prompt = np.random.default_rng(0).integers(0, 40_000, 512).tolist()
            link = StateLink(target, second, link_plan(cut, has_axes=False))
            with closing(SyncedDraft(second, link, CLOCK, Chain(CLOCK))) as drafter:
                limits = GenerationLimits(n_predict=N_PREDICT, gamma=GAMMA)
                for _ in range(REPEATS):
                    result = generate(target, drafter, make_rollback("trim", target), prompt, limits, CLOCK)
                    rounds = result.rounds[1:]  # the first copies the whole prompt, once
                    copied_ns = sum(r.rollback_ns for r in rounds)
                    shares.append(100 * copied_ns / sum(r.wall_ns for r in rounds))
                    spans.append(copied_ns / len(rounds) / 1_000)
    yield of_samples("KV sync and rollback, share of a round, SmolLM2", shares, "%", at_most=5)
    yield of_samples("KV sync and rollback of a round", spans, "us")
