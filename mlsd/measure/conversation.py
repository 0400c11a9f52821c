"""Prompts that are conversations: the target's own earlier answers stand between the user's turns.

An answer is the target's plain greedy output, written once and not timed. Greedy speculative output is the same, so
every arm goes on from the same history, and a later turn is a prompt like any other, prefilled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from mlsd.clock import Clock
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.llama import LlamaModel
from mlsd.engine.rollback import make_rollback
from mlsd.engine.session import SessionOptions
from mlsd.engine.threads import default_threads
from mlsd.measure.job import PromptText
from mlsd.records import EngineOptions

_CONTEXT_STEP = 256  # contexts are rounded up, as llama.cpp does


class PlainAnswers:
    """Greedy answers of a model, each written once."""

    def __init__(self, model: LlamaModel, engine: EngineOptions, n_predict: int, clock: Clock) -> None:
        self._model, self._engine, self._n_predict, self._clock = model, engine, n_predict, clock
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, prompt: Sequence[int]) -> str:
        """The answer up to its end token, or `n_predict` tokens of it, or what the trained context has room for."""
        key = tuple(prompt)
        if key not in self._known:
            n_predict = self._n_predict
            if self._model.n_ctx_train:
                n_predict = min(n_predict, self._model.n_ctx_train - len(key))
            # Without room for an answer the later turn cannot fit either; it fails as a trial of its own.
            self._known[key] = self._write(key, n_predict) if n_predict > 0 else ""
        return self._known[key]

    def _write(self, prompt: tuple[int, ...], n_predict: int) -> str:
        options = SessionOptions(
            n_ctx=-(-(len(prompt) + n_predict) // _CONTEXT_STEP) * _CONTEXT_STEP,
            n_batch=self._engine.n_batch,
            n_ubatch=self._engine.n_ubatch,
            n_threads=self._engine.n_threads or default_threads(),
            n_gpu_layers=self._engine.n_gpu_layers,
            flash_attention=self._engine.flash_attention,
            device_sampling=True,
        )
        limits = GenerationLimits(n_predict=n_predict, ignore_eog=False)
        with closing(self._model.session(options)) as session:
            rollback = make_rollback("trim", session)
            tokens = generate(session, NoDrafter(), rollback, prompt, limits, self._clock).tokens
        return answer_text(self._model, tokens)


def answer_text(model: LlamaModel, tokens: Sequence[int]) -> str:
    """What a user reads of an output: the text before its end token."""
    end = next((i for i, token in enumerate(tokens) if model.is_end(token)), len(tokens))
    return model.detokenize(tokens[:end]).strip()


def conversation_tokens(model: LlamaModel, prompt: PromptText, answers: PlainAnswers) -> tuple[int, ...]:
    """The tokens of a chat prompt; `answers` gives the target's text after each of the earlier turns.

    Raises: PromptError when the model's template refuses the conversation.
    """
    from mlsd.engine.chat import chat_tokens  # plain prompts need no template engine

    said: list[str] = []
    for turn in prompt.earlier:
        said.append(turn)
        said.append(answers(chat_tokens(model, said)))
    return chat_tokens(model, [*said, prompt.text])
