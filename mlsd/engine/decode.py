"""The loop: draft, verify, accept, roll back. Plain decoding is the same loop with a drafter that proposes nothing."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.engine.context import Context
from mlsd.engine.drafter import Drafter
from mlsd.engine.rollback import Rollback, Target
from mlsd.engine.verify import NOTHING, Accept, Outputs, Verification, acceptance_rule
from mlsd.errors import EngineError
from mlsd.records import Record, Round, Sampling

# Brings a prompt into an empty context; what gives the outputs behind it: that context, where it was read anew.
Prefill = Callable[[Context, Sequence[int]], Outputs]


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
    draft_prefill_ns: int  # the drafter: prompt and first token in, or its memory back
    decode_ns: int  # first token to last
    ended_by_eog: bool
    past: tuple[int, ...] = ()  # what the target's memory should hold after the prompt: all but the newest token


def check_capacity(n_ctx: int, n_prompt: int, limits: GenerationLimits) -> None:
    """Refuse before any work what cannot fit: prompt and output share the context. Raises: EngineError."""
    needed = n_prompt + limits.n_predict
    if needed > n_ctx:
        raise EngineError(
            f"A prompt of {n_prompt} tokens and {limits.n_predict} output tokens need {needed} positions; "
            f"the context has {n_ctx}.",
            hint="Give a shorter prompt, a smaller --n-predict or a larger --n-ctx.",
        )


def generate(
    context: Context,
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
    warm: Callable[[], None] | None = None,
) -> Generation:
    """Generate up to `n_predict` tokens after `prompt`; `on_round` receives the output's length after each round.

    `warm` is called once the prompt is there, directly before the clock of decoding starts.
    """
    check_capacity(context.n_ctx, len(prompt), limits)
    rng, now = rng or np.random.default_rng(0), clock.now_ns
    rule = acceptance_rule(sampling or Sampling(), rng)
    loop = _Loop(Target(context, rollback, clock), drafter, rule, limits, clock)
    context.clear()
    t0 = now()
    drafter.begin(prompt, rng)
    t1 = now()
    outputs: Outputs = context
    if prefill is None:
        context.decode(prompt)
    else:
        outputs = prefill(context, prompt)
    first = loop.commit(rule(NOTHING, outputs))
    is_held = outputs is not context
    t2 = now()
    drafter.observe(first)
    rounds: list[Round] = []
    t3 = now()
    if warm is not None:
        warm()
    t4 = loop.end_ns = now()
    while not loop.ended_by_eog and len(loop.output) < limits.n_predict:
        rounds.append(loop.round())
        if on_round is not None:
            on_round(len(loop.output))
    return Generation(
        tokens=tuple(loop.output),
        rounds=tuple(rounds),
        prefill_ns=None if is_held else t2 - t1,
        # A drafter that reads the target's own rows can take in the prompt only after the target has.
        draft_prefill_ns=(t1 - t0) + (t3 - t2),
        decode_ns=loop.end_ns - t4,
        ended_by_eog=loop.ended_by_eog,
        past=(*loop.output[: loop.n_before], *loop.accepted),
    )


class _Loop:
    """State of one generation: `output` is committed, its last token is not yet in the target's memory."""

    def __init__(self, target: Target, drafter: Drafter, rule: Accept, limits: GenerationLimits, clock: Clock) -> None:
        self._target, self._drafter, self._accept = target, drafter, rule
        self._gamma, self._n_predict, self._ignore_eog = limits.gamma, limits.n_predict, limits.ignore_eog
        self._now = clock.now_ns
        self.output: list[int] = []
        self.n_before = 0  # output tokens before the last round
        self.accepted: tuple[int, ...] = ()  # accepted in it, also behind an end-of-generation token
        self.ended_by_eog = False
        self.end_ns = 0  # of the last round, where the next one begins: so rounds sum to the time of decoding

    def round(self) -> Round:
        """Draft, verify, accept, roll back."""
        target, drafter, now, begin_ns = self._target, self._drafter, self._now, self.end_ns
        self.n_before = len(self.output)
        # One place is the bonus token's, so that no round can overshoot n_predict.
        k = min(self._gamma, self._n_predict - self.n_before - 1)
        t0 = now()
        proposal = drafter.propose(k) if k > 0 else NOTHING
        t1 = now()
        outputs = target.verify(self.output[-1], proposal)
        t2 = now()
        verification = self._accept(proposal, outputs)
        t3 = now()
        target.rollback(verification)
        committed = self.commit(verification)
        t4 = now()
        drafter.observe(committed)
        t5 = now()
        draft_ns = t1 - t0 - proposal.rollback_ns
        rollback_ns = proposal.rollback_ns + target.rollback_ns + (t5 - t4)
        self.end_ns = now()
        return Round(
            proposed=proposal.n_proposed,
            accepted=committed.accepted,
            committed=len(committed.committed),
            rows=target.n_rows,
            draft_ns=draft_ns,
            verify_ns=target.pass_ns,
            rollback_ns=rollback_ns,
            sample_ns=t3 - t2,
            other_ns=self.end_ns - begin_ns - draft_ns - target.pass_ns - rollback_ns - (t3 - t2),
        )

    def commit(self, verification: Verification) -> Verification:
        """Add to the output what stands; an end-of-generation token is the last one, unless it is ignored."""
        tokens = verification.committed
        self.accepted = tokens[: verification.accepted]
        if not self._ignore_eog:
            is_end = self._target.context.tokenizer.is_end
            n = next((i for i, token in enumerate(tokens, 1) if is_end(token)), None)
            if n is not None:
                self.ended_by_eog, tokens = True, tokens[:n]
                verification = msgspec.structs.replace(
                    verification, accepted=min(verification.accepted, n), committed=tokens
                )
        self.output.extend(tokens)
        return verification
