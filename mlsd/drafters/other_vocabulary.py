"""Drafting with a model of any vocabulary: what it writes becomes text, and that text the target's tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np

from mlsd.clock import Clock
from mlsd.drafters.chain import Chain, Doubt
from mlsd.drafters.draft_model import DraftModel, chain_context, open_second
from mlsd.drafters.method import DrafterSetup, Method, Read
from mlsd.drafters.recipe import Context, Opening
from mlsd.engine.drafter import Draft, Outcome
from mlsd.engine.llama.session import LlamaSession
from mlsd.engine.rollback import Rollback, make_rollback
from mlsd.engine.session import Session
from mlsd.engine.vocabulary import Tokenizer
from mlsd.errors import VocabularyError
from mlsd.records import Sampling

_ANCHOR = 8  # tokens before a piece of text with which it is read, as its first token depends on them
_BROKEN = "\ufffd"  # bytes that are no whole character yet


class TextDraft(DraftModel):
    """A chain of the draft's tokens, proposed as the tokens that the target would write the same text with."""

    def __init__(
        self, target: Session, session: Session, rollback: Rollback, clock: Clock, chain: Chain, read: Read
    ) -> None:
        super().__init__(session, rollback, clock, chain, read)
        self._ours, self._theirs = target.tokenizer, session.tokenizer
        self._text: list[int] = []  # target tokens whose text the draft has
        self._pending: list[int] = []
        self._n_marked = self._n_lost = self._text_ns = 0

    def begin(self, prompt: Sequence[int], rng: np.random.Generator) -> None:
        """Read the prompt as text."""
        super().begin((), rng)
        vocabulary = self._ours.vocabulary
        has_bos = vocabulary.adds_bos and tuple(prompt[:1]) == (vocabulary.bos,)
        self._text, self._pending = [], list(prompt[has_bos:])
        self._n_marked = self._n_lost = self._text_ns = 0
        self._take_in()
        self._read(self._session, self._context)

    def _take_in(self) -> bool:
        """Turn the newest target tokens into the draft's; False while their last character is not whole."""
        anchor = self._text[-_ANCHOR:]
        before, whole = (self._ours.detokenize(tokens) for tokens in (anchor, [*anchor, *self._pending]))
        if whole.endswith(_BROKEN) or not whole.startswith(before):
            return False
        own = self._theirs.detokenize(self._context[-_ANCHOR:])
        self._context += _tokens(self._theirs, own, whole[len(before) :], first=not self._context)
        self._text += self._pending
        self._pending = []
        return True

    def propose(self, k: int) -> Draft:
        """At most `k` tokens of the target for what the draft writes."""
        started_ns = self._clock.now_ns()
        is_whole = self._take_in()
        self._text_ns += self._clock.now_ns() - started_ns
        self._n_marked = len(self._context)
        if not is_whole or self._session.n_past == self._n_marked:
            return Draft()
        draft = super().propose(k)
        started_ns = self._clock.now_ns()
        proposed = self._translate(draft.tokens)[:k]
        self._text_ns += self._clock.now_ns() - started_ns
        self._n_lost += not proposed
        return Draft(tokens=proposed, mark_ns=draft.mark_ns)

    def _translate(self, own: Sequence[int]) -> tuple[int, ...]:
        end = next((i for i, token in enumerate(own) if self._theirs.is_end(token)), len(own))
        anchor = self._context[-_ANCHOR:]
        before, whole = (self._theirs.detokenize(tokens) for tokens in (anchor, [*anchor, *own[:end]]))
        written = whole[len(before) :].rstrip(_BROKEN) if whole.startswith(before) else ""
        return tuple(_tokens(self._ours, self._ours.detokenize(self._text[-_ANCHOR:]), written))

    def observe(self, outcome: Outcome) -> None:
        """Forget what was drafted; what was committed comes back as text."""
        self._pending += outcome.committed
        if self._drafted and self._session.n_past > self._n_marked:
            self._timed(partial(self._rollback.rewind, self._n_marked, ()))
        self._drafted = ()

    def stats(self) -> dict[str, float]:
        """A draft model's; and the time of translating, and rounds whose text gave the target no token."""
        own = {"translate_ns": float(self._text_ns), "untranslated_rounds": float(self._n_lost)}
        return {**super().stats(), **own}


def _tokens(model: Tokenizer, before: str, text: str, *, first: bool = False) -> list[int]:
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
    chain = Chain(setup.clock, None, own)

    def translating(session: LlamaSession) -> TextDraft:
        for side in (setup.target, session):
            _check_text(side.tokenizer)
        rollback = make_rollback(setup.draft.rollback or "", session)
        return TextDraft(setup.target, session, rollback, setup.clock, chain, setup.read)

    return open_second(setup, setup.draft, translating)


def _contexts(opening: Opening, own: Doubt) -> tuple[Context, ...]:
    return opening.with_draft(chain_context(dataclasses.replace(opening, sampling=Sampling()), own))


def _check_text(model: Tokenizer) -> None:
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
    contexts=_contexts,
    needs="draft",
)
