"""What drafting by look-up costs, and whether prompt lookup pays on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, interleaved, of_samples, ratios
from benchmarks.models import smollm2
from mlsd.clock import MonotonicClock
from mlsd.drafters.lookup.pld import Options as PldOptions
from mlsd.drafters.lookup.pld import PromptLookup
from mlsd.drafters.lookup.rest import Options as RestOptions
from mlsd.drafters.lookup.rest import Rest
from mlsd.drafters.lookup.suffix_store import SuffixStore, write_store
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.engine.verify import Verification
from mlsd.planning.prompts import COPY, load_prompt
from mlsd.records import ModelRef

CLOCK = MonotonicClock()
N_VOCAB = 49_152
STORE_TOKENS = 10_000_000
GAMMA = 8
REPEATS = 5


def run() -> Iterator[Result]:
    yield pld_proposal()
    yield from rest_proposal()
    yield from pld_against_plain()


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


def pld_against_plain() -> Iterator[Result]:
    """Prompt lookup over plain decoding where the output repeats its input, next to what verifying two rows costs."""
    options = SessionOptions(n_ctx=1_024, n_threads=1, max_outputs=GAMMA + 1)
    with LlamaModel(smollm2()) as model, open_session(model, options) as session:
        prompt = model.tokenize(load_prompt(COPY).text)

        def speed(name: str) -> float:
            last[name] = result = _generate(session, arms[name], prompt)
            return (len(result.tokens) - 1) / result.decode_ns

        last: dict[str, Generation] = {}
        arms: dict[str, Drafter] = {"pld": PromptLookup(PldOptions(), CLOCK), "ar": NoDrafter()}
        figures = interleaved({name: partial(speed, name) for name in arms}, REPEATS)
        widths = interleaved({str(w): partial(_pass_ms, session, prompt, w) for w in (1, 2, GAMMA + 1)}, 9)
    rounds = last["pld"].rounds
    yield of_samples("PLD over AR tok/s, copying a passage (SmolLM2)", ratios(figures["pld"], figures["ar"]), "ratio")
    yield of_samples("... its MGL", [1 + sum(r.accepted for r in rounds) / len(rounds)], "tokens")
    yield of_samples("... T(2)/T(1)", ratios(widths["2"], widths["1"]), "ratio")
    yield of_samples(f"... T({GAMMA + 1})/T(1)", ratios(widths[str(GAMMA + 1)], widths["1"]), "ratio")


def _generate(session: LlamaSession, drafter: Drafter, prompt: tuple[int, ...]) -> Generation:
    limits = GenerationLimits(n_predict=96, gamma=GAMMA)
    return generate(session, drafter, make_rollback("trim", session), prompt, limits, CLOCK)


def _pass_ms(session: LlamaSession, prompt: tuple[int, ...], width: int) -> float:
    session.clear()
    session.decode(prompt)
    spans = []
    for _ in range(3):
        started = time.perf_counter_ns()
        session.decode(prompt[:width], n_outputs=width)
        spans.append((time.perf_counter_ns() - started) / 1e6)
        session.truncate(len(prompt))
    return min(spans)
