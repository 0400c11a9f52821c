"""Gamma chosen anew each round: a token is drafted while its expected gain exceeds what it costs, none where none pays.

With chances p_1, p_2, ... of the next tokens, k drafts commit 1 + sum_j p_1 ... p_j tokens in T_draft(1) k + T(k + 1).
The largest ratio of the two maximises tokens - rate * time at its own rate (Dinkelbach 1967), so a token is weighed at
the rate of the last rounds, and never below that of plain decoding. All is decided before a token is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsd.clock import Clock
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.session import Session
from mlsd.records import Case

# Rows of the passes that are timed; between them lies a line.
_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64)  # fmt: skip
_REPEATS = 3
_N_BEFORE = 8  # positions in memory before a timed pass
_BINS = 10
_PRIOR = 3.0  # tokens that a first guess of a chance counts for
_KEEP = 0.97  # weight of the past after each token, and each round
_FOLLOW = 0.2  # weight of a new time
_CLIP = 1.5  # times the expected one, which a new time counts for at most
# Rounds without a draft before one is tried again, and how many times more where nothing came of it.
_SHORTEST_PAUSE, _LONGEST_PAUSE, _LONGER = 2, 64, 4
_MOST_SNAPSHOTS = 8


def most_drafted(case: Case, rollback: str | None) -> int:
    """Gamma of a case; chosen round by round over snapshots it is capped, as each snapshot costs every pass."""
    return min(case.gamma, _MOST_SNAPSHOTS) if case.drafter.adaptive and rollback == "snapshots" else case.gamma


class DepthRule:
    """What is known of costs and chances; a chain asks it before each token and each pass of its draft."""

    def __init__(self, pass_ns: Sequence[float]) -> None:
        """`pass_ns` are the times of target passes over 1, 2, ... positions."""
        self._pass_ns = list(pass_ns)
        self._step_ns = 0.0  # a pass of the draft, with its share of what comes before and after
        self.asked = False
        self.begin()

    def listen(self) -> None:
        """A chain will ask, which has probabilities."""
        self.asked = True

    def begin(self) -> None:
        """Forget what a text taught; costs stay."""
        self._stood, self._tried = [0.0] * _BINS, [0.0] * _BINS
        self._all = 0.5  # share of all tokens that stood, the newest weighing most
        self._mean = 0.7  # chance of a token not yet seen
        self._n_tokens, self._spent_ns = 4.0, 4.0 * self._pass_ns[0]
        self._bins: list[int] = []
        self.start(0)

    def start(self, k: int) -> None:
        self._k, self._reach, self._bins, self.n_passes = min(k, len(self._pass_ns) - 1), 1.0, [], 0

    @property
    def _rate(self) -> float:
        return max(1 / self._pass_ns[0], self._n_tokens / self._spent_ns)

    def pass_pays(self) -> bool:
        """Whether to make a pass for one more token."""
        return self._gain(self._mean, 1)[0] > 0

    def token_pays(self, confidence: float) -> bool:
        """Whether a token of that probability, the next of the draft, is to be verified."""
        self.n_passes += 1
        place = min(int(confidence * _BINS), _BINS - 1)
        chance = self._chance(place)
        self._mean += (1 - _KEEP) * (chance - self._mean)
        pays = self._gain(chance, 0)[0] > 0
        if pays:
            self._reach *= chance
            self._bins.append(place)
        return pays

    def best_length(self, run: int) -> int:
        """How many tokens to propose where the draft has no probabilities, but was right `run` tokens on end."""
        self._mean = self._chance(_after(run))
        gain, n = self._gain(self._mean, 0)
        n = n if gain > 0 else 0
        self._bins = [_after(run + i) for i in range(max(1, n))]
        return n

    def _chance(self, place: int) -> float:
        """Of tokens like these; at first what a draft's probability says, or else what all tokens say."""
        guess = (place + 0.5) / _BINS if self.asked else self._all
        return (self._stood[place] + _PRIOR * guess) / (self._tried[place] + _PRIOR)

    def _gain(self, chance: float, n_before: int) -> tuple[float, int]:
        """The largest gain of more tokens in this round, the first of that chance and after so many passes; how many.

        Looks beyond the next token: passes get dearer in steps, and behind one several may cost nothing more.
        """
        done, rate = len(self._bins), self._rate
        best, n_best, gain, reach = -np.inf, 0, 0.0, self._reach * chance
        for n in range(done + 1, self._k + 1):
            gain += reach
            reach *= self._mean
            more_ns = self._pass_ns[n] - self._pass_ns[done] + self._step_ns * (n - done - 1 + n_before)
            if (value := gain - rate * more_ns) > best:
                best, n_best = value, n - done
        return best, n_best

    def learn(self, accepted: int, n_verified: int) -> None:
        """So many of the `n_verified` first tokens of this round's draft stood."""
        for i, place in enumerate(self._bins[: min(accepted + 1, n_verified)]):
            self._all += (1 - _KEEP) * ((i < accepted) - self._all)
            self._tried[place] = _KEEP * self._tried[place] + 1
            self._stood[place] = _KEEP * self._stood[place] + (i < accepted)

    def time(self, n_tokens: int, rows: int, pass_ns: float, draft_ns: float) -> None:
        """What a round committed, what the target's pass over `rows` positions took, and what drafting did.

        An interruption by another program counts for little, and the rate is that of rounds without any.
        """
        seen_ns = min(pass_ns, _CLIP * self._pass_ns[rows - 1])
        self._pass_ns[rows - 1] += _FOLLOW * (seen_ns - self._pass_ns[rows - 1])
        if self.n_passes:
            step_ns = draft_ns / self.n_passes
            if self._step_ns:
                step_ns = self._step_ns + _FOLLOW * (min(step_ns, _CLIP * self._step_ns) - self._step_ns)
            self._step_ns = step_ns
        self._n_tokens = _KEEP * self._n_tokens + n_tokens
        self._spent_ns = _KEEP * self._spent_ns + self._pass_ns[rows - 1] + self.n_passes * self._step_ns


def _after(run: int) -> int:
    return min(run.bit_length(), _BINS - 1)


class Adaptive(Drafter):
    """A drafter whose drafts are as long as pays."""

    def __init__(self, inner: Drafter, rule: DepthRule, clock: Clock) -> None:
        """`inner` asks the rule itself where its draft has probabilities."""
        self._inner, self._rule, self._clock = inner, rule, clock
        self.rollback_name, self.fell_back = inner.rollback_name, inner.fell_back
        self._reset()

    def _reset(self) -> None:
        self._draft, self._unverified = Draft(), Draft()
        self._run = 0  # tokens that stood on end, of a draft without probabilities
        self._pause = self._n_paused = _SHORTEST_PAUSE
        self._in_round = False
        self._n_plain = self._drafted_ns = self._draft_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """A new text: nothing is known of it."""
        self._rule.begin()
        self._reset()
        self._inner.begin(prompt, rng)

    def propose(self, k: int) -> Draft:
        """As many tokens as pay, at most `k`."""
        started_ns = self._clock.now_ns()
        self._in_round = True
        self._rule.start(k)
        self._unverified = Draft()
        self._draft = self._by_confidence(k) if self._rule.asked else self._by_history(k)
        self._n_plain += not self._draft.n_proposed
        self._drafted_ns = self._clock.now_ns()
        self._draft_ns = self._drafted_ns - started_ns
        return self._draft

    def _by_confidence(self, k: int) -> Draft:
        if self._n_paused < self._pause and not self._rule.pass_pays():
            self._n_paused += 1
            return Draft()
        return self._inner.propose(k)

    def _by_history(self, k: int) -> Draft:
        n = min(k, self._rule.best_length(self._run))
        draft = self._inner.propose(max(1, n))
        if n:
            return draft
        self._unverified = draft  # what comes says whether its first token would have stood
        return Draft(mark_ns=draft.mark_ns)

    def observe(self, outcome: Outcome) -> None:
        """Learn from what stood and what it took."""
        observed_ns = self._clock.now_ns()
        self._inner.observe(outcome)
        now_ns = self._clock.now_ns()
        n_proposed = self._draft.n_proposed
        if self._in_round:
            n_right, n_seen = outcome.accepted, n_proposed
            if seen := self._unverified.tokens[:1]:
                n_right, n_seen = int(seen == outcome.committed[:1]), 1
            self._rule.learn(n_right, n_seen)
            self._run = self._run + n_right if 0 < n_seen == n_right else 0
            if self._rule.n_passes:  # it was tried: again sooner where something came of it
                self._n_paused = 0
                self._pause = _SHORTEST_PAUSE if outcome.accepted else min(_LONGER * self._pause, _LONGEST_PAUSE)
            draft_ns = self._draft_ns + now_ns - observed_ns
            pass_ns, n_rows = observed_ns - self._drafted_ns, self._draft.n_rows
            self._rule.time(len(outcome.committed), n_rows, pass_ns, draft_ns)
        self._draft, self._in_round = Draft(), False

    def stats(self) -> dict[str, float]:
        return {**self._inner.stats(), "plain_rounds": float(self._n_plain)}

    @property
    def failed_native_calls(self) -> int:
        return self._inner.failed_native_calls

    def close(self) -> None:
        self._inner.close()


def time_passes(session: Session, gamma: int, clock: Clock) -> list[float]:
    """T(1) to T(gamma + 1) in ns, the fastest of a few passes each; the session is empty afterwards."""
    widths = [width for width in _WIDTHS if width <= gamma] + [gamma + 1]
    best = dict.fromkeys(widths, np.inf)
    for _ in range(_REPEATS):
        for width in widths:
            tokens = [(11 + i) % session.tokenizer.vocabulary.n_tokens for i in range(_N_BEFORE + width)]
            session.clear()
            session.decode(tokens[:_N_BEFORE])
            started_ns = clock.now_ns()
            session.decode(tokens[_N_BEFORE:], n_outputs=width)
            session.greedy()
            best[width] = min(best[width], clock.now_ns() - started_ns)
    session.clear()
    return [float(t) for t in np.interp(range(1, gamma + 2), widths, [best[width] for width in widths])]
