"""Gamma chosen round by round: as fast as the best fixed one where costs are exact, and exact on real targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mlsd.drafters import check_target, resolve_spec
from mlsd.drafters.adaptive import Adaptive, DepthRule, time_passes
from mlsd.drafters.chain import Chain
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Draft, Drafter, NoDrafter, Outcome
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import Logits, SessionOptions
from mlsd.errors import InputError, UnsupportedError
from mlsd.planning.plan import plan_bench
from mlsd.planning.request import bench_request
from mlsd.records import MOST_ADAPTIVE, DrafterSpec
from tests.drafters.arena import Arena
from tests.engine.fake import FakeClock, FakeCosts, FakeSession

N_PREDICT = 600
PASS_NS = 1_000_000


def script(context: Sequence[int]) -> int:
    return (31 * len(context)) % 251 + 1


class Guesses(Drafter):
    """Knows where it is right; without probabilities, like a look-up."""

    def __init__(self, right: np.ndarray) -> None:
        self._right = right

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        self._n = len(prompt)

    def observe(self, outcome: Outcome) -> None:
        self._n += len(outcome.committed)

    def _token(self, i: int) -> int:
        return script(range(self._n + i)) if self._right[self._n + i] else 0

    def propose(self, k: int) -> Draft:
        return Draft(tokens=tuple(self._token(i) for i in range(k)))


class Model(Guesses):
    """The same from passes that cost time, and with probabilities that say something of what is right."""

    def __init__(self, right: np.ndarray, clock: FakeClock, step_ns: int, rule: DepthRule | None = None) -> None:
        super().__init__(right)
        self._clock, self._step_ns, self._chain = clock, step_ns, Chain(clock, rule=rule)
        self._at = 0

    def propose(self, k: int) -> Draft:
        self._at = -1
        self.forward(())
        return Draft(tokens=self._chain.grow(k, self, self.forward)[0])

    def forward(self, tokens: Sequence[int]) -> None:
        self._clock.advance(self._step_ns)
        self._at += 1

    def logits(self) -> Logits:
        confidence = 0.97 if self._right[self._n + self._at] else 0.35
        row = np.full((1, 256), np.log((1 - confidence) / 255), dtype=np.float32)
        row[0, self._token(self._at)] = np.log(confidence)
        return row

    def greedy(self) -> list[int]:
        return [self._token(self._at)]


def pattern(name: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    size = N_PREDICT + 200
    if name == "copies":  # long stretches that are right, and long ones that are not
        return np.repeat(rng.random(size) < 0.5, 30)[:size]
    return rng.random(size) < {"always": 1.0, "never": 0.0, "half": 0.5, "mostly": 0.85}[name]


Make = Callable[[FakeClock, FakeSession, int], Drafter]


def wall_ns(make: Make, row_share: float, gamma: int) -> int:
    clock = FakeClock()
    costs = FakeCosts(pass_ns=PASS_NS, row_ns=int(row_share * PASS_NS))
    session = FakeSession(script, SessionOptions(n_ctx=2048, max_outputs=32), clock, costs)
    drafter = make(clock, session, gamma)
    limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
    run: Generation = generate(session, drafter, make_rollback("trim", session), (1, 2, 3), limits, clock)
    assert run.tokens == tuple(script(range(3 + i)) for i in range(N_PREDICT))
    return run.decode_ns


@pytest.mark.parametrize("row_share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("name", ["always", "never", "half", "mostly", "copies"])
@pytest.mark.parametrize("step_share", [None, 0.05, 0.3])
def test_no_fixed_gamma_is_faster_by_more_than_a_few_rounds(
    name: str, row_share: float, step_share: float | None
) -> None:
    """Beside what learning costs: a few percent of so short a text."""
    right = pattern(name)

    def make(clock: FakeClock, session: FakeSession, gamma: int, *, adaptive: bool = False) -> Drafter:
        rule = DepthRule(time_passes(session, gamma, clock)) if adaptive else None
        inner = Guesses(right) if step_share is None else Model(right, clock, int(step_share * PASS_NS), rule)
        return inner if rule is None else Adaptive(inner, rule, clock)

    best = min(wall_ns(make, row_share, gamma) for gamma in (1, 2, 4, 8, 16))
    auto = wall_ns(lambda *given: make(*given, adaptive=True), row_share, MOST_ADAPTIVE)
    plain = wall_ns(lambda *_: NoDrafter(), row_share, 1)
    # A look-up has no probabilities; of even chances it learns slower than a fixed gamma is right.
    assert best / auto > (0.94 if step_share is None else 0.97)
    assert plain / auto > 0.95


def test_what_drafts_trees_cannot_choose_a_length(arena: Arena) -> None:
    with pytest.raises(UnsupportedError, match="lookahead cannot choose gamma round by round"):
        check_target(DrafterSpec(name="lookahead", options={"gamma": "auto"}), arena.path("llama"))


def test_auto_stands_beside_numbers_or_alone(arena: Arena) -> None:
    target = str(arena.path("llama"))

    def arms(*gamma: object) -> list[tuple[bool, int]]:
        request = bench_request(target=target, drafters=("pld",), gammas=gamma, repeats=1)  # type: ignore[arg-type]
        cases = plan_bench(request).cases().values()
        return [(case.drafter.adaptive, case.gamma) for case in cases if case.arm == "sd"]

    assert sorted(arms(2, 4, "auto")) == [(False, 2), (False, 4), (True, MOST_ADAPTIVE)]
    assert arms("auto") == [(True, MOST_ADAPTIVE)]
    with pytest.raises(InputError, match="gamma"):
        resolve_spec(DrafterSpec(name="pld", options={"gamma": 4}))
