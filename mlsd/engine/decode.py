"""The loop: draft, verify, accept, roll back. Plain decoding is the same loop with a drafter that proposes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mlsd.clock import Clock
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.rollback import Rollback
from mlsd.engine.session import Session
from mlsd.engine.verify import ChainVerifier, TreeVerifier, draw, probabilities
from mlsd.errors import CapacityError
from mlsd.records import Record, Round, Sampling

# Brings a prompt into an empty session, the last token's output included; whether its memory was there already.
Prefill = Callable[[Session, Sequence[int]], bool]


class GenerationLimits(Record, frozen=True, kw_only=True):
    """When a generation ends."""

    n_predict: int  # output tokens, the first included
    gamma: int = 0  # the most tokens proposed a round
    ignore_eog: bool = True  # go on after an end-of-generation token, so that arms have equal lengths


class Generation(Record, frozen=True, kw_only=True):
    """One finished generation."""

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    prefill_ns: int | None  # target: prompt in, first token out; None: its memory was there
    draft_prefill_ns: int | None
    decode_ns: int  # first token to last
    ended_by_eog: bool
    past: tuple[int, ...] = ()  # what the target's memory should hold after the prompt: all but the newest token


def check_capacity(n_ctx: int, n_prompt: int, limits: GenerationLimits) -> None:
    """Refuse before any work what cannot fit: prompt and output share the context. Raises: CapacityError."""
    needed = n_prompt + limits.n_predict
    if needed > n_ctx:
        raise CapacityError(
            f"A prompt of {n_prompt} tokens and {limits.n_predict} output tokens need {needed} positions; "
            f"the context has {n_ctx}.",
            hint="Give a shorter prompt, a smaller --n-predict or a larger --n-ctx.",
        )


def generate(
    session: Session,
    drafter: Drafter,
    rollback: Rollback,
    prompt: Sequence[int],
    limits: GenerationLimits,
    clock: Clock,
    *,
    sampling: Sampling | None = None,
    rng: np.random.Generator | None = None,
    on_round: Callable[[int], None] | None = None,
    prefill: Prefill | None = None,
) -> Generation:
    """Generate up to `n_predict` tokens after `prompt`; `on_round` receives the output's length after each round."""
    check_capacity(session.n_ctx, len(prompt), limits)
    loop = _Loop(session, drafter, rollback, limits, clock, sampling or Sampling(), rng or np.random.default_rng(0))
    return loop.run(prompt, on_round, prefill)


class _Loop:
    """State of one generation: `output` is committed, its last token is not yet in the target's memory."""

    def __init__(
        self,
        session: Session,
        drafter: Drafter,
        rollback: Rollback,
        limits: GenerationLimits,
        clock: Clock,
        sampling: Sampling,
        rng: np.random.Generator,
    ) -> None:
        self._session, self._drafter = session, drafter
        self._chain = ChainVerifier(session, rollback, sampling, rng)
        self._tree = TreeVerifier(session, sampling, rng)
        self._limits, self._clock, self._sampling, self._rng = limits, clock, sampling, rng
        self._output: list[int] = []
        self._round_end_ns = 0
        self._ended_by_eog = False
        self._kept: tuple[int, ...] = ()  # accepted in the last round, also behind an end-of-generation token
        self._n_before = 0  # output tokens before that round

    def run(self, prompt: Sequence[int], on_round: Callable[[int], None] | None, prefill: Prefill | None) -> Generation:
        now = self._clock.now_ns
        self._session.clear()
        t0 = now()
        self._drafter.begin(prompt, self._rng)
        t1 = now()
        known = prefill is not None and prefill(self._session, prompt)
        if prefill is None:
            self._session.decode(prompt)
        first = self._pick_first()
        self._commit((first,))
        t2 = now()
        self._drafter.observe(Outcome(accepted=0, committed=(first,)))
        rounds: list[Round] = []
        t3 = self._round_end_ns = now()
        while not self._finished:
            rounds.append(self._round())
            if on_round is not None:
                on_round(len(self._output))
        return Generation(
            tokens=tuple(self._output),
            rounds=tuple(rounds),
            prefill_ns=None if known else t2 - t1,
            # A drafter that reads the target's own rows can take in the prompt only after the target has.
            draft_prefill_ns=None if known else (t1 - t0) + (t3 - t2),
            decode_ns=self._round_end_ns - t3,
            ended_by_eog=self._ended_by_eog,
            past=(*self._output[: self._n_before], *self._kept),
        )

    @property
    def _finished(self) -> bool:
        return self._ended_by_eog or len(self._output) >= self._limits.n_predict

    def _round(self) -> Round:
        now = self._clock.now_ns
        # A round begins where the one before ended, so that the rounds of a generation sum to its decode time.
        t0 = self._round_end_ns
        # One place is the bonus token's, so that no round can overshoot n_predict.
        k = min(self._limits.gamma, self._limits.n_predict - len(self._output) - 1)
        t_draft = now()
        draft = self._drafter.propose(k) if k > 0 else Draft()
        t1 = now()
        verifier = self._chain if draft.tree is None else self._tree
        verifier.mark(draft)
        t2 = now()
        verifier.run(self._output[-1], draft)
        t3 = now()
        verified = verifier.accept(draft)
        t4 = now()
        self._n_before, self._kept = len(self._output), verified.tokens
        committed = self._commit((*verified.tokens, verified.bonus))
        n_replayed = verifier.keep(draft)
        accepted = min(len(verified.tokens), len(committed))
        self._drafter.observe(Outcome(accepted=accepted, committed=committed, riders=verified.riders))
        t5 = now()
        draft_ns = t1 - t_draft - draft.mark_ns
        rollback_ns = draft.mark_ns + (t2 - t1) + (t5 - t4)
        self._round_end_ns = now()
        return Round(
            proposed=draft.n_proposed,
            accepted=accepted,
            committed=len(committed),
            rows=draft.n_rows + n_replayed,
            draft_ns=draft_ns,
            verify_ns=t3 - t2,
            rollback_ns=rollback_ns,
            sample_ns=t4 - t3,
            other_ns=self._round_end_ns - t0 - draft_ns - rollback_ns - (t4 - t2),
        )

    def _pick_first(self) -> int:
        if self._sampling.greedy:
            return self._session.greedy()[0]
        return draw(probabilities(self._session.logits(), self._sampling)[0], self._rng)

    def _commit(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Add tokens to the output; an end-of-generation token is the last one, unless it is ignored."""
        if not self._limits.ignore_eog:
            for i, token in enumerate(tokens):
                if self._session.tokenizer.is_end(token):
                    tokens = tokens[: i + 1]
                    self._ended_by_eog = True
                    break
        self._output.extend(tokens)
        return tokens
