"""Text as tokens, and whether a draft model speaks the target's language: the same ids for the same texts."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

from mlsd.errors import EngineError
from mlsd.records import Record

# Fine-tuned copies of one family pad their vocabulary differently; as in llama.cpp (common/speculative).
MAX_SIZE_DIFFERENCE = 128
_FIRST_COMPARED_TOKEN = 5  # the ids below are control tokens, which families spell differently


class Vocabulary(Record, frozen=True, kw_only=True):
    """What must agree between a target and a draft."""

    kind: int  # the engine's number of the tokenizer type
    n_tokens: int
    bos: int | None
    eos: int | None
    adds_bos: bool
    adds_eos: bool


class Tokenizer(Protocol):
    """A model, as far as its texts go."""

    vocabulary: Vocabulary

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> tuple[int, ...]:
        """Token ids of `text`."""

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special ones spelled out; bytes that are not UTF-8 become U+FFFD."""

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of one token."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""


def check_vocabularies(target: Tokenizer, draft: Tokenizer) -> None:
    """Compare type, size, special tokens and every shared token. Raises: EngineError with the first difference."""
    ours, theirs = target.vocabulary, draft.vocabulary
    tokens = [[side.token_text(i) for i in range(side.vocabulary.n_tokens)] for side in (target, draft)]
    check_token_lists((str(ours.kind), str(theirs.kind)), tokens)
    for name, used in (("bos", ours.adds_bos or theirs.adds_bos), ("eos", ours.adds_eos or theirs.adds_eos)):
        if getattr(ours, f"adds_{name}") != getattr(theirs, f"adds_{name}"):
            raise _error(f"only one of them adds {name} to a prompt")
        if used and getattr(ours, name) != getattr(theirs, name):
            raise _error(f"{name} is token {getattr(ours, name)} in the target, {getattr(theirs, name)} in the draft")


def check_token_lists(kinds: Sequence[str], tokens: Sequence[Sequence[str]]) -> None:
    """Compare what the headers of a target and of its draft say. Raises: EngineError with the first difference."""
    (ours, theirs), (target, draft) = kinds, tokens
    if ours != theirs:
        raise _error(f"their tokenizers are of different types ({ours or 'none'} and {theirs or 'none'})")
    if abs(len(target) - len(draft)) > MAX_SIZE_DIFFERENCE:
        raise _error(f"the target has {len(target)} tokens, the draft {len(draft)}")
    for token, (text, other) in enumerate(zip(target, draft, strict=False)):
        if text != other and token >= _FIRST_COMPARED_TOKEN:
            raise _error(f"token {token} is {text!r} in the target and {other!r} in the draft")


def vocabulary_sha256(tokenizer: Tokenizer) -> str:
    """A hash (hex) of the tokenizer's type and of the text of every token; equal for models that share ids."""
    vocabulary = tokenizer.vocabulary
    running = hashlib.sha256(f"{vocabulary.kind} {vocabulary.n_tokens}".encode())
    for token in range(vocabulary.n_tokens):
        running.update(b"\0" + tokenizer.token_text(token).encode("utf-8", "replace"))
    return running.hexdigest()


def _error(difference: str) -> EngineError:
    return EngineError(
        f"Target and draft do not share a vocabulary: {difference}.",
        hint="Choose a draft of the target's own family; look-up methods (pld, ngram-cache) need none.",
    )
