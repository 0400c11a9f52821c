"""What drafting by look-up costs a round."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, of_samples
from mlsd.clock import MonotonicClock
from mlsd.drafters.lookup.pld import PldOptions, PromptLookup
from mlsd.drafters.lookup.rest import Rest, RestOptions
from mlsd.drafters.lookup.suffix_store import SuffixStore, write_store
from mlsd.engine.verify import Verification
from mlsd.records import ModelRef

CLOCK = MonotonicClock()
N_VOCAB = 49_152
STORE_TOKENS = 10_000_000
GAMMA = 8
REPEATS = 5


def run() -> Iterator[Result]:
    yield pld_proposal()
    yield from rest_proposal()


def zipf_text(n: int, seed: int) -> np.ndarray:
    """Tokens with the frequencies of words, copying an earlier stretch now and then, as texts do."""
    rng = np.random.default_rng(seed)
    text = np.minimum(rng.zipf(1.2, n) - 1, N_VOCAB - 1).astype(np.int32)
    for start in rng.integers(n // 10, n - 64, n // 200):
        source = int(rng.integers(0, start - 64))
        text[start : start + 32] = text[source : source + 32]
    return text


def pld_proposal() -> Result:
    """One round of prompt lookup (index the newest tokens, look up, copy) in a context of 8,192 tokens."""
    text = zipf_text(8_192 + 400, 1).tolist()
    drafter = PromptLookup(PldOptions(), CLOCK)
    drafter.begin(text[:8_192], np.random.default_rng(0))
    spans = []
    for token in text[8_192:]:
        drafter.observe(Verification(accepted=0, committed=(token,)))
        started = time.perf_counter_ns()
        drafter.propose(20)
        spans.append((time.perf_counter_ns() - started) / 1_000)
    return of_samples("PLD proposal at 8,192 tokens", spans, "us", at_most=50)


def rest_proposal() -> Iterator[Result]:
    """Building a store of 10 million tokens; then search and tree of 64 nodes for ends of texts it half knows."""
    text = zipf_text(STORE_TOKENS, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        started = time.perf_counter()
        write_store(path, text, n_vocab=N_VOCAB, vocabulary_sha256="", model=ModelRef(id="zipf"))
        yield of_samples("REST store of 10 M tokens built", [time.perf_counter() - started], "s")
        rng = np.random.default_rng(3)
        for span in (4, 16):
            options = RestOptions(store=str(path), span=span)
            drafter = Rest(SuffixStore(path), options, CLOCK, n_nodes=64, as_chain=False)
            spans = []
            for _ in range(400):
                start = int(rng.integers(0, STORE_TOKENS - 64))
                # The last tokens occur in the store, those before them may not have stood there together.
                n_known = int(rng.integers(1, span + 1))
                context = [*rng.integers(0, N_VOCAB, 16).tolist(), *text[start : start + n_known].tolist()]
                drafter.begin(context, rng)
                began = time.perf_counter_ns()
                drafter.propose(64)
                spans.append((time.perf_counter_ns() - began) / 1_000)
            yield of_samples(f"REST search and tree, 10 M tokens, span {span}", spans, "us", at_most=1_000)
