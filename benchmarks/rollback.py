"""What might be cheaper than the ways to roll back that mlsd has; rounds of a fixed script, in random order.

Of a target without snapshots: checkpoint and replay against verifying in two halves (the second only where the first
stands), against taking the kept tokens in with the next bonus token (the rest only where the first proposal is right),
and against plain decoding of as many tokens, which no draft's time is added to. Of a hybrid draft: the ladder against
sequences that are forked before each token. Tokens are made up: they do not change what is timed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.harness import Result, interleaved, of_samples, ratios
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.engine.llama.open import open_session
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.session import SessionOptions
from mlsd.folders import asset_path
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.gguf_tools.synthetic.write import write_random


class ProcessorClock:
    """Of the calling thread; with one thread llama.cpp computes in it."""

    def now_ns(self) -> int:
        return time.thread_time_ns()


CLOCK = ProcessorClock()
TARGETS, GAMMAS, ACCEPTANCE = ("falcon-h1", "mamba2", "granite-hybrid"), (4, 8), (0.3, 0.6, 0.9)
DEPTH, ROUNDS, REPEATS = 48, 24, 9


class Target:
    """A session that rolls back in one of these ways; a round gets the number of tokens that stand."""

    def __init__(self, session: LlamaSession, gamma: int) -> None:
        self.session, self.gamma, self.n_pending = session, gamma, 0

    def decode(self, n: int, n_outputs: int) -> None:
        """A pass."""
        self.session.decode(range(17, 17 + n), n_outputs=n_outputs)
        if n_outputs:
            self.session.greedy()

    def attempt(self, n: int, n_outputs: int, n_kept: int) -> None:
        """A pass from which so many stay; the memory is then as before it where not all do."""
        self.session.save_state()
        n_past = self.session.n_past
        self.decode(n, n_outputs)
        if n_kept < n:
            self.session.load_state()
            self.session.truncate(n_past)

    def replay(self, accepted: int) -> None:
        """A checkpoint, and the kept tokens once more."""
        self.attempt(1 + self.gamma, 1 + self.gamma, 1 + accepted)
        if accepted < self.gamma:
            self.decode(1 + accepted, 0)

    def halves(self, accepted: int) -> None:
        """The second half only where the first stands."""
        first = self.gamma // 2
        self.attempt(1 + first, 1 + first, 1 + accepted)
        if accepted < first:
            self.decode(1 + accepted, 0)
            return
        self.attempt(self.gamma - first, self.gamma - first, accepted - first)
        if first < accepted < self.gamma:
            self.decode(accepted - first, 0)

    def catch_up(self, accepted: int) -> None:
        """Kept tokens wait for the next round."""
        n_before = int(not self.n_pending)  # the newest token, where the pass that verifies takes it in as well
        if self.n_pending:
            self.decode(self.n_pending + 1, 1)
            self.n_pending = 0
            if not accepted:
                return
        self.attempt(n_before + self.gamma, n_before + self.gamma, n_before + accepted)
        if accepted < self.gamma:
            self.n_pending = n_before + accepted

    def plain(self, accepted: int) -> None:
        """As many tokens one by one."""
        for _ in range(1 + accepted):
            self.decode(1, 1)


class Fork:
    """Sequence 1 + i keeps the memory as it was before the draft's token i."""

    def __init__(self, session: LlamaSession) -> None:
        self._session, self._native, self._n_marked, self._n = session, library(), 0, 0

    def mark(self) -> None:
        """Free the forks."""
        for sequence in range(1, 1 + self._n):
            self._native.llama_memory_seq_rm(self._session.memory, sequence, -1, -1)
        self._n_marked, self._n = self._session.n_past, 0

    def step(self) -> None:
        """One more."""
        self._n += 1
        self._native.llama_memory_seq_cp(self._session.memory, 0, self._n, 0, self._session.n_past)

    def rewind(self, n_past: int, _: Sequence[int]) -> None:
        """Take the place of one."""
        if n_past < self._session.n_past:
            self._native.llama_memory_seq_rm(self._session.memory, 0, -1, -1)
            self._native.llama_memory_seq_cp(self._session.memory, 1 + n_past - self._n_marked, 0, 0, n_past)
            self._session.n_past = n_past


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        for name in TARGETS:
            write_random(path := Path(folder) / f"{name}.gguf", TINY_SET[name], seed=1)
            with LlamaModel(path) as model:
                for gamma in GAMMAS:
                    yield from targets(name, model, gamma)
    for name in ("tiny-draft", "tiny-moe"):
        with LlamaModel(asset_path(f"tiny/{name}.gguf")) as model:
            for gamma in GAMMAS:
                yield from drafts(name, model, gamma)


def script(gamma: int, acceptance: float) -> list[int]:
    """How many proposals stand in each round."""
    rng = random.Random(gamma)
    return [next((i for i in range(gamma) if rng.random() >= acceptance), gamma) for _ in range(ROUNDS)]


def timed(session: LlamaSession, play: Callable[[], None]) -> float:
    """A repeat from the same depth, without the prompt."""
    session.clear()
    session.decode(range(17, 17 + DEPTH))
    began_ns = CLOCK.now_ns()
    play()
    return CLOCK.now_ns() - began_ns


def targets(name: str, model: LlamaModel, gamma: int) -> Iterator[Result]:
    options = SessionOptions(n_ctx=1024, n_threads=1, max_outputs=gamma + 1, device_sampling=False)
    with ExitStack() as stack:
        ways = {
            way: Target(stack.enter_context(open_session(model, options)), gamma)
            for way in ("replay", "halves", "catch_up", "plain")
        }
        for acceptance in ACCEPTANCE:
            rounds = script(gamma, acceptance)

            def play(way: str, rounds: Sequence[int] = rounds) -> float:
                target = ways[way]
                target.n_pending = 0

                def whole() -> None:
                    for accepted in rounds:
                        getattr(target, way)(accepted)

                return timed(target.session, whole)

            for way in ways:
                play(way)
            spans = interleaved({way: partial(play, way) for way in ways}, REPEATS)
            for way in ("halves", "catch_up", "plain"):
                title = f"{name}, gamma {gamma}, {100 * acceptance:.0f} % right: {way} over replay"
                yield of_samples(title, ratios(spans[way], spans["replay"]), "ratio")


def drafts(name: str, model: LlamaModel, gamma: int) -> Iterator[Result]:
    base = SessionOptions(n_ctx=1024, n_threads=1)
    with ExitStack() as stack:
        sessions = {
            way: stack.enter_context(open_session(model, rollback_options(way, base, gamma)))
            for way in ("ladder", "device-ladder", "checkpoint")
        }
        forked = stack.enter_context(open_session(model, SessionOptions(n_ctx=1024, n_threads=1, n_sequences=gamma)))
        strategies = {way: make_rollback(way, session) for way, session in sessions.items()} | {"fork": Fork(forked)}
        sessions["fork"] = forked

        def play(way: str) -> float:
            session, strategy = sessions[way], strategies[way]

            def rounds() -> None:
                n_text = session.n_past
                for accepted in script(gamma, 0.6):
                    n_text += 1
                    session.decode(range(17, 17 + n_text - session.n_past))
                    strategy.mark()
                    for _ in range(gamma - 1):
                        strategy.step()
                        session.decode((17,))
                    n_text = min(session.n_past, n_text + accepted)
                    strategy.rewind(n_text, ())

            return timed(session, rounds)

        for way in sessions:
            play(way)
        spans = interleaved({way: partial(play, way) for way in sessions}, REPEATS)
        for way in ("device-ladder", "checkpoint", "fork"):
            title = f"{name} drafting, gamma {gamma}, 60 % right: {way} over ladder"
            yield of_samples(title, ratios(spans[way], spans["ladder"]), "ratio")
