"""Conversations as tokens: the chat template of a model's GGUF, rendered in a sandbox, as somebody else wrote it."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.errors import PromptError

# The day that every template is told: what Llama 3.2's writes where it has no clock. Today's would be another prompt.
TEMPLATE_DAY = datetime.datetime(2024, 7, 26)
_ROLES = ("user", "assistant")


def chat_tokens(model: LlamaModel, turns: Sequence[str]) -> tuple[int, ...]:
    """Token ids of a conversation, up to where the model's answer begins.

    `turns` are the texts of user and model in turn, the user's first and last. A model without a template gets them as
    plain text, an empty line between each. Raises: PromptError when the template refuses the conversation.
    """
    template = chat_template(model)
    if template is None:
        return model.tokenize("\n\n".join(turns))
    vocabulary = model.vocabulary
    bos = "" if vocabulary.bos is None else model.token_text(vocabulary.bos)
    eos = "" if vocabulary.eos is None else model.token_text(vocabulary.eos)
    text = render(template, turns, bos=bos, eos=eos)
    if bos and text.startswith(bos):  # most templates write it themselves, and the tokenizer must not repeat it
        return model.tokenize(text, add_special=False, parse_special=True)
    return model.tokenize(text, parse_special=True)


def chat_template(model: LlamaModel) -> str | None:
    """The template in the model's metadata (``tokenizer.chat_template``); None without one."""
    text: bytes | None = library().llama_model_chat_template(model.handle, None)
    return None if text is None else text.decode("utf-8", "replace")


def render(template: str, turns: Sequence[str], *, bos: str = "", eos: str = "") -> str:
    """A conversation as `template` writes it, for Hugging Face's `apply_chat_template`. Raises: PromptError."""
    messages = [{"role": _ROLES[i % 2], "content": text} for i, text in enumerate(turns)]
    try:
        compiled = _compiled(template)
        text: str = compiled.render(messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos)
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise PromptError(
            f"The model's chat template cannot write this conversation: {error}.",
            hint="Use a plain prompt: --prompt with a text, or a text file.",
        ) from error
    return text


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    del environment.filters["random"], environment.globals["lipsum"]  # another prompt each time
    environment.globals |= {"raise_exception": _refuse, "strftime_now": TEMPLATE_DAY.strftime}
    return environment.from_string(template)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
