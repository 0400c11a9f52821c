"""Drafting with a model of any vocabulary: what it writes is matched with the target as text.

The draft reads the text so far in its own tokens; what it goes on with is turned into text, and that into the target's
tokens. They are proposals like any others: where the two cut a word differently they are rejected, never wrong. New
text only ever adds tokens to the draft's memory, so that any strategy of rollback serves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.draft_model import open_beside
from mlsd.drafters.method import DrafterSetup, Method
from mlsd.engine.drafter import Draft, Drafter, Outcome
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import Session
from mlsd.errors import VocabularyError

_ANCHOR = 8  # tokens before a piece of text with which it is read, as its first token depends on them
_BROKEN = "\ufffd"  # bytes that are no whole character yet


class TextDraft(Drafter):
    """A chain of the draft's tokens, proposed as the tokens that the target would write the same text with."""

    def __init__(self, target: Session, session: Session, rollback: Rollback, clock: Clock, chain: Chain) -> None:
        self._target, self._session, self._rollback = target, session, rollback
        self._clock, self._chain = clock, chain
        self.rollback_name = rollback.name
        self._reset(())

    def _reset(self, prompt: Sequence[int]) -> None:
        self._read: list[int] = []  # target tokens whose text the draft has
        self._pending = list(prompt)
        self._context: list[int] = []  # the draft's tokens of that text
        self._n_marked: int | None = None
        self._n_steps = self._n_catch_up = self._n_lost = self._forward_ns = self._text_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Read the prompt as text."""
        vocabulary = self._target.vocabulary
        has_bos = vocabulary.adds_bos and tuple(prompt[:1]) == (vocabulary.bos,)
        self._session.clear()
        self._chain.begin(rng)
        self._reset(prompt[1:] if has_bos else prompt)
        self._take_in()
        if self._context:
            self._session.decode(self._context, n_outputs=0)

    def _take_in(self) -> bool:
        """Turn the newest target tokens into the draft's; False while their last character is not whole."""
        started_ns = self._clock.now_ns()
        anchor = self._read[-_ANCHOR:]
        before, whole = (self._target.detokenize(tokens) for tokens in (anchor, [*anchor, *self._pending]))
        is_whole = not whole.endswith(_BROKEN) and whole.startswith(before)
        if is_whole:
            own = self._session.detokenize(self._context[-_ANCHOR:])
            new = _tokens(self._session, own, whole[len(before) :], first=not self._context)
            self._context += new
            self._read += self._pending
            self._pending = []
        self._text_ns += self._clock.now_ns() - started_ns
        return is_whole

    def propose(self, k: int) -> Draft:
        """At most `k` tokens of the target for what the draft writes."""
        if k < 1 or not self._take_in():
            return Draft()
        catch_up = self._context[self._session.n_past :]
        if not catch_up:
            return Draft()
        self._forward(catch_up)
        self._n_catch_up += len(catch_up)
        started_ns = self._clock.now_ns()
        self._rollback.mark()
        self._rollback.step()
        mark_ns = self._clock.now_ns() - started_ns
        self._n_marked = self._session.n_past
        own, _ = self._chain.grow(k, self._session, self._forward)
        started_ns = self._clock.now_ns()
        proposed = self._translate(own)[:k]
        self._text_ns += self._clock.now_ns() - started_ns
        self._n_lost += not proposed
        return Draft(tokens=proposed, mark_ns=mark_ns)

    def _translate(self, own: Sequence[int]) -> tuple[int, ...]:
        end = next((i for i, token in enumerate(own) if self._session.is_end(token)), len(own))
        anchor = self._context[-_ANCHOR:]
        before, whole = (self._session.detokenize(tokens) for tokens in (anchor, [*anchor, *own[:end]]))
        written = whole[len(before) :].rstrip(_BROKEN) if whole.startswith(before) else ""
        return tuple(_tokens(self._target, self._target.detokenize(self._read[-_ANCHOR:]), written))

    def _forward(self, tokens: Sequence[int]) -> None:
        started_ns = self._clock.now_ns()
        self._session.decode(tokens)
        self._forward_ns += self._clock.now_ns() - started_ns
        self._n_steps += 1

    def observe(self, outcome: Outcome) -> None:
        """Forget what was drafted; what was committed comes back as text."""
        self._pending += outcome.committed
        if self._n_marked is not None and self._session.n_past > self._n_marked:
            self._rollback.rewind(self._n_marked, ())
        self._n_marked = None

    def stats(self) -> dict[str, float]:
        """Passes of the draft, the time of translating, and rounds whose text gave the target no token."""
        return {
            **self._chain.stats(),
            "draft_steps": float(self._n_steps),
            "catch_up_rows": float(self._n_catch_up),
            "draft_forward_ns": float(self._forward_ns),
            "translate_ns": float(self._text_ns),
            "untranslated_rounds": float(self._n_lost),
        }

    @property
    def failed_native_calls(self) -> int:
        """Failures that an unchecked session ignored."""
        return self._session.failed_native_calls

    def close(self) -> None:
        """Free the draft's context."""
        self._session.close()


def _tokens(model: Session, before: str, text: str, *, first: bool = False) -> list[int]:
    """The tokens of `text` behind `before`; by itself where the two share a token."""
    if not text:
        return []
    if first:
        return list(model.tokenize(text))
    head = model.tokenize(before, add_special=False)
    whole = model.tokenize(before + text, add_special=False)
    return list(whole[len(head) :] if whole[: len(head)] == head else model.tokenize(text, add_special=False))


def _open(setup: DrafterSetup, own: Doubt) -> TextDraft:
    # Drawn or not, a proposal is one token for the target, so the likeliest is drafted at any temperature.
    chain = Chain(setup.clock, None, own, rule=setup.rule)
    strategy = setup.draft_rollback(setup.second)
    session = open_beside(setup, setup.second, chain, strategy=strategy)
    try:
        for side in (setup.target, session):
            _check_text(side)
        return TextDraft(setup.target, session, make_rollback(strategy, session), setup.clock, chain)
    except BaseException:
        session.close()
        raise


def _check_text(model: Session) -> None:
    """Raises: VocabularyError for a model whose tokens are no text."""
    sample = "One text, two vocabularies."
    if sample not in model.detokenize(model.tokenize(sample, add_special=False)):
        raise VocabularyError(
            "Target and draft have no text in common: one of them has no tokenizer that gives a text back.",
            hint="Use models with a tokenizer of their own.",
        )


METHOD = Method(
    name="text-draft",
    summary="Drafting with a model of any other vocabulary: what it writes is matched with the target as text.",
    source=(
        "Timor et al. 2025, lossless speculative decoding for heterogeneous vocabularies (arXiv 2502.05202), exact "
        "matching; transformers' universal assisted decoding"
    ),
    options=Doubt,
    open=_open,
    needs="draft",
)
