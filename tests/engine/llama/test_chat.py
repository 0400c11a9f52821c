"""Conversations in a model's own template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlsd.engine.llama.chat import chat_template, chat_tokens, render
from mlsd.engine.llama.model import LlamaModel
from mlsd.errors import PromptError

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2, vocab_only=True) as opened:
        yield opened


def test_user_and_model_speak_in_turn_and_the_answer_is_opened():
    assert render(PLAIN, ["a", "b", "c"]) == "<user>a<assistant>b<user>c<go>"


def test_a_template_may_use_what_templates_are_written_for():
    template = "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    assert render(template + "{% endfor %}{{ strftime_now('%%') }}", ["a", "b", "c"], bos="<s>") == "<s>a%"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for %}", "cannot write"),
        ("{{ 1 + 'a' }}", ""),
    ],
)
def test_a_template_that_refuses_or_is_broken_is_a_clear_error(template: str, reason: str):
    with pytest.raises(PromptError, match=f"chat template.*{reason}"):
        render(template, ["a"])


def test_a_template_cannot_reach_out_of_its_sandbox():
    with pytest.raises(PromptError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}", ["a"])


def test_smollm2_gets_its_special_tokens_as_tokens(model: LlamaModel):
    tokens = chat_tokens(model, ["How high is a house?"])
    text = model.detokenize(tokens)
    assert text.endswith("<|im_start|>user\nHow high is a house?<|im_end|>\n<|im_start|>assistant\n")
    start, *_ = model.tokenize("<|im_start|>", add_special=False, parse_special=True)
    assert tokens.count(start) == text.count("<|im_start|>") >= 2


def test_the_second_turn_holds_the_models_own_answer(model: LlamaModel):
    text = model.detokenize(chat_tokens(model, ["How high?", "Very high.", "And how wide?"]))
    assert "<|im_start|>assistant\nVery high.<|im_end|>\n<|im_start|>user\nAnd how wide?<|im_end|>" in text


def test_a_model_without_a_template_gets_plain_text(tiny: Path):
    with LlamaModel(tiny / "llama.gguf", vocab_only=True) as model:
        assert chat_template(model) is None
        assert chat_tokens(model, ["one", "two", "three"]) == model.tokenize("one\n\ntwo\n\nthree")
