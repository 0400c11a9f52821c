"""Prompts as tokens of a target; in conversations its own earlier answers stand between the user's turns.

An answer is the target's plain output, written once and not timed: all arms of a block go on from one history, with a
temperature that of the plain arm in the same repeat. Each trial records the history it saw (`Trial.earlier`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from mlsd.clock import Clock
from mlsd.engine.context import context_options
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback
from mlsd.planning.job import Job, prompt_key
from mlsd.planning.prompts import Prompt, exact_prompt
from mlsd.records import Case, Record, Sampling

_GREEDY = Sampling()


def trial_rng(sampling: Sampling, repeat: int) -> np.random.Generator:
    """Where the random choices of a trial come from: the same for every arm of a repeat."""
    return np.random.default_rng([sampling.seed, repeat])


class PromptTokens(Record, frozen=True, kw_only=True):
    """A prompt as one trial sees it."""

    tokens: tuple[int, ...]
    earlier: tuple[str, ...] = ()  # the target's answers inside it

    @property
    def sha256(self) -> str:
        """Of the tokens as little-endian 32-bit numbers."""
        return hashlib.sha256(np.asarray(self.tokens, dtype="<i4").tobytes()).hexdigest()


class Prompts:
    """The prompts of all slots of a job, known before anything is measured."""

    def __init__(self, model: LlamaModel, job: Job, n_predict: int, clock: Clock) -> None:
        """Tokenize, and let the target answer what was said before, in `n_predict` tokens at most."""
        self._model, self._engine, self._n_predict, self._clock = model, job.engine, n_predict, clock
        self._texts = job.prompts
        self._answers: dict[tuple[tuple[int, ...], Sampling, int], str] = {}
        self._known: dict[tuple[str, Sampling, int], PromptTokens] = {}
        for slot in job.slots:
            key = self._key(slot.case, slot.repeat)
            if key not in self._known:
                name, sampling, repeat = key
                self._known[key] = self._read(job.prompts[name], sampling, repeat)
        self.longest = max(len(prompt.tokens) for prompt in self._known.values())

    def _key(self, case: Case, repeat: int) -> tuple[str, Sampling, int]:
        name = prompt_key(case.prompt)
        varies = bool(self._texts[name].earlier) and not case.sampling.greedy
        return (name, case.sampling, repeat) if varies else (name, _GREEDY, 0)

    def of(self, case: Case, repeat: int) -> PromptTokens:
        return self._known[self._key(case, repeat)]

    def of_any_repeat(self, case: Case) -> tuple[int, ...]:
        """Tokens of the case's prompt in some repeat: for work whose output nobody reads."""
        name = prompt_key(case.prompt)
        return next(prompt.tokens for key, prompt in self._known.items() if key[0] == name)

    def greedy(self, sha256: str) -> tuple[int, ...] | None:
        """The prompt of that hash under greedy decoding, if the job has it."""
        prompts = (known for (_, sampling, _), known in self._known.items() if sampling == _GREEDY)
        return next((prompt.tokens for prompt in prompts if prompt.sha256 == sha256), None)

    def _read(self, prompt: Prompt, sampling: Sampling, repeat: int) -> PromptTokens:
        """A prompt cut to its `n_tokens`.

        Raises: PromptError when the text is too short, or when the model's template refuses the conversation.
        """
        model = self._model
        if prompt.depth:
            alone = self._read(msgspec.structs.replace(prompt, depth=0), sampling, repeat)
            has_bos = model.vocabulary.adds_bos and alone.tokens[:1] == (model.vocabulary.bos,)
            before = exact_prompt(prompt.context, prompt.depth, model.tokenize)
            return msgspec.structs.replace(alone, tokens=(*before, *alone.tokens[has_bos:]))
        if prompt.chat:
            return self._conversation(prompt, sampling, repeat)
        if prompt.random:
            return PromptTokens(tokens=random_tokens(model, prompt.n_tokens or 1))
        if prompt.n_tokens is None:
            return PromptTokens(tokens=model.tokenize(prompt.text))
        return PromptTokens(tokens=exact_prompt(prompt.text, prompt.n_tokens, model.tokenize))

    def _conversation(self, prompt: Prompt, sampling: Sampling, repeat: int) -> PromptTokens:
        from mlsd.engine.llama.chat import chat_tokens, in_turn  # plain prompts need no template engine

        if prompt.messages:
            said = [(message.role, message.content) for message in prompt.messages]
            return PromptTokens(tokens=chat_tokens(self._model, said, prompt.think))
        turns: list[str] = []
        for turn in prompt.earlier:
            turns.append(turn)
            key = (chat_tokens(self._model, in_turn(turns), prompt.think), sampling, repeat)
            if key not in self._answers:
                self._answers[key] = self._answer(*key)
            turns.append(self._answers[key])
        tokens = chat_tokens(self._model, in_turn([*turns, prompt.text]), prompt.think)
        return PromptTokens(tokens=tokens, earlier=tuple(turns[1::2]))

    def _answer(self, prompt: tuple[int, ...], sampling: Sampling, repeat: int) -> str:
        """The answer up to its end token, or `n_predict` tokens of it, or what the trained context has room for."""
        n_predict = self._n_predict
        if self._model.n_ctx_train:
            n_predict = min(n_predict, self._model.n_ctx_train - len(prompt))
        if n_predict <= 0:  # the later turn cannot fit either; it fails as a trial of its own
            return ""
        options = context_options(msgspec.structs.replace(self._engine, n_ctx=None), len(prompt) + n_predict)
        limits = GenerationLimits(n_predict=n_predict, ignore_eog=False)
        with open_context(self._model, msgspec.structs.replace(options, device_sampling=sampling.greedy)) as context:
            rollback, rng = make_rollback("trim", context), trial_rng(sampling, repeat)
            run = generate(context, NoDrafter(), rollback, prompt, limits, self._clock, sampling=sampling, rng=rng)
        return answer_text(self._model, run.tokens)


def answer_text(model: LlamaModel, tokens: Sequence[int]) -> str:
    """What a user reads of an output: the text before its end token."""
    end = next((i for i, token in enumerate(tokens) if model.is_end(token)), len(tokens))
    return model.detokenize(tokens[:end]).strip()


def random_tokens(model: LlamaModel, n_tokens: int) -> tuple[int, ...]:
    """So many tokens of the model's vocabulary, the same ones every time; none of them ends or steers a text."""
    vocabulary = model.vocabulary
    first = [vocabulary.bos] if vocabulary.adds_bos and vocabulary.bos is not None else []
    drawn = np.random.default_rng(0).permutation(vocabulary.n_tokens).tolist() * (1 + n_tokens // vocabulary.n_tokens)
    plain = (token for token in drawn if not model.is_control(token))
    return (*first, *itertools.islice(plain, n_tokens))[:n_tokens]
