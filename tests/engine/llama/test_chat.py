"""Conversations in a model's own template."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlsd.engine.llama import chat
from mlsd.engine.llama.chat import chat_template, chat_tokens, in_turn, render
from mlsd.engine.llama.model import LlamaModel
from mlsd.errors import PromptError

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Iterator[LlamaModel]:
    with LlamaModel(smollm2, vocab_only=True) as opened:
        yield opened


def test_user_and_model_speak_in_turn_and_the_answer_is_opened():
    assert render(PLAIN, in_turn(["a", "b", "c"])) == "<user>a<assistant>b<user>c<go>"


def test_a_template_may_use_what_templates_are_written_for():
    template = "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
    assert render(template + "{% endfor %}{{ strftime_now('%%') }}", in_turn(["a", "b", "c"]), bos="<s>") == "<s>a%"


def test_a_template_that_asks_for_the_date_writes_the_same_prompt_on_another_day(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tomorrow(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Tomorrow":
            return cls(2031, 5, 17, tzinfo=tz)

    monkeypatch.setattr(chat, "chat_template", lambda _: "Today is {{ strftime_now('%d %b %Y') }}. " + PLAIN)
    before = chat_tokens(model, in_turn(["Hello."]))
    monkeypatch.setattr(datetime, "datetime", Tomorrow)
    assert chat_tokens(model, in_turn(["Hello."])) == before
    assert model.detokenize(before).startswith("Today is 26 Jul 2024. <user>Hello.")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{% for %}", "cannot write"),
        ("{{ [1, 2] | random }}", "random"),
        ("{{ lipsum() }}", "lipsum"),
        ("{{ 1 + 'a' }}", ""),
        ("{{ 1 // 0 }}", "zero"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "more than 200,000 times"),
        ("{% macro two(n) %}{% if n %}{{ two(n - 1) }}{{ two(n - 1) }}{% endif %}{% endmacro %}{{ two(99) }}", "times"),
        ("{% macro own() %}{{ own() }}{% endmacro %}{{ own() }}", "recursion"),
    ],
)
def test_a_template_that_refuses_or_is_broken_is_a_clear_error(template: str, reason: str):
    with pytest.raises(PromptError, match=f"chat template.*{reason}"):
        render(template, in_turn(["a"]))


def test_a_template_cannot_reach_out_of_its_sandbox():
    with pytest.raises(PromptError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}", in_turn(["a"]))


def test_smollm2_gets_its_special_tokens_as_tokens(model: LlamaModel):
    tokens = chat_tokens(model, in_turn(["How high is a house?"]))
    text = model.detokenize(tokens)
    assert text.endswith("<|im_start|>user\nHow high is a house?<|im_end|>\n<|im_start|>assistant\n")
    start, *_ = model.tokenize("<|im_start|>", add_special=False, parse_special=True)
    assert tokens.count(start) == text.count("<|im_start|>") >= 2


def test_the_second_turn_holds_the_models_own_answer(model: LlamaModel):
    text = model.detokenize(chat_tokens(model, in_turn(["How high?", "Very high.", "And how wide?"])))
    assert "<|im_start|>assistant\nVery high.<|im_end|>\n<|im_start|>user\nAnd how wide?<|im_end|>" in text


def test_a_model_without_a_template_gets_plain_text(tiny: Path):
    with LlamaModel(tiny / "llama.gguf", vocab_only=True) as model:
        assert chat_template(model) is None
        assert chat_tokens(model, in_turn(["one", "two", "three"])) == model.tokenize("one\n\ntwo\n\nthree")
