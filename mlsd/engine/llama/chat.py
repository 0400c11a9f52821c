"""Conversations as tokens: the chat template of a model's GGUF, rendered in a sandbox, as somebody else wrote it."""

import datetime
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import library
from mlsd.errors import PromptError

# The day that every template is told: what Llama 3.2's writes where it has no clock. Today's would be another prompt.
TEMPLATE_DAY = datetime.datetime(2024, 7, 26)
THINKING = "enable_thinking"  # the variable of Qwen's templates, and of those that follow it
_MOST_STEPS = 200_000  # of all loops and macros of one rendering; templates of models take some hundreds
_ROLES = ("user", "assistant")
Messages = Sequence[tuple[str, str]]  # role and content of each


def chat_tokens(model: LlamaModel, messages: Messages, think: bool | None = None) -> tuple[int, ...]:
    """Token ids of a conversation, up to where the model's answer begins.

    A model without a template gets plain text, an empty line between each. Raises: PromptError when the template
    refuses the conversation.
    """
    template = chat_template(model)
    if template is None:
        return model.tokenize("\n\n".join(content for _, content in messages))
    vocabulary = model.vocabulary
    bos = "" if vocabulary.bos is None else model.token_text(vocabulary.bos)
    eos = "" if vocabulary.eos is None else model.token_text(vocabulary.eos)
    text = render(template, messages, think, bos=bos, eos=eos)
    if bos and text.startswith(bos):  # most templates write it themselves, and the tokenizer must not repeat it
        return model.tokenize(text, add_special=False, parse_special=True)
    return model.tokenize(text, parse_special=True)


def chat_template(model: LlamaModel) -> str | None:
    """The template in the model's metadata (``tokenizer.chat_template``); None without one."""
    text: bytes | None = library().llama_model_chat_template(model.handle, None)
    return None if text is None else text.decode("utf-8", "replace")


def in_turn(turns: Sequence[str]) -> Messages:
    """The texts of user and model in turn, the user's first, as messages."""
    return [(_ROLES[i % 2], text) for i, text in enumerate(turns)]


def render(template: str, messages: Messages, think: bool | None = None, *, bos: str = "", eos: str = "") -> str:
    """A conversation as `template` writes it, for Hugging Face's `apply_chat_template`; `think` sets its switch.

    Raises: PromptError when the template refuses it, or has no switch.
    """
    if think is not None and THINKING not in template:
        raise PromptError("The model's chat template has no switch for thinking.", hint="Use --chat without --think.")
    switches = {} if think is None else {THINKING: think}
    spoken = [{"role": role, "content": content} for role, content in messages]
    try:
        compiled = _compiled(template)
        compiled.environment.extensions[_Steps.identifier].left = _MOST_STEPS
        text: str = compiled.render(
            messages=spoken, add_generation_prompt=True, bos_token=bos, eos_token=eos, **switches
        )
    except Exception as error:  # a program of somebody else may end in any
        raise PromptError(
            f"The model's chat template cannot write this conversation: {error}.",
            hint="Use a plain prompt: --prompt with a text, or a text file.",
        ) from error
    return text


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Steps])
    del environment.filters["random"], environment.globals["lipsum"]  # another prompt each time
    environment.globals |= {"raise_exception": _refuse, "strftime_now": TEMPLATE_DAY.strftime}
    tree = environment.parse(template)
    repeated: Any
    for repeated in tree.find_all((nodes.For, nodes.Macro)):
        step = environment.extensions[_Steps.identifier].attr("step")
        repeated.body.insert(0, nodes.ExprStmt(nodes.Call(step, [], [], None, None), lineno=repeated.lineno))
    return environment.from_string(tree)


class _Steps(Extension):
    """Counts what a template repeats: one that never ends would hold the program, where nobody can stop it."""

    left = _MOST_STEPS

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            _refuse(f"it repeats something more than {_MOST_STEPS:,} times")


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
