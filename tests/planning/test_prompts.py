import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.errors import PromptError
from mlsd.planning import prompts

FOUR = ("factual", "code", "reasoning", "chinese")


def by_byte(text: str) -> list[int]:
    return list(text.encode())


def test_the_four_prompts_come_first_and_each_loads_under_its_workload():
    assert prompts.prompt_names()[:4] == FOUR
    for name in prompts.prompt_names():
        prompt = prompts.load_prompt(name)
        assert prompt.key == name and (name not in FOUR or prompt.workload == name)
        assert prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()
        assert prompt.text == prompt.text.strip()


@given(st.text(max_size=60), st.integers(min_value=1, max_value=80))
def test_an_exact_prompt_is_a_prefix_of_the_texts_tokens_or_a_clear_error(text, n_tokens):
    tokens = by_byte(text)
    if n_tokens <= len(tokens):
        assert prompts.exact_prompt(text, n_tokens, by_byte) == tuple(tokens[:n_tokens])
    else:
        with pytest.raises(PromptError, match=f"has {len(tokens)} tokens"):
            prompts.exact_prompt(text, n_tokens, by_byte)


UNKNOWN = ("poetry", "qa-0", "qa-99", "length-0", "length--5", "length-x", "", "Code", "nothing@64")
ENDLESS = ("random-" + "9" * 5000, "length-" + "9" * 5000, "random-9999999", "length-99999", "code@1" + "@1" * 3000)


@pytest.mark.parametrize("name", [*UNKNOWN, *ENDLESS])
def test_an_unknown_name_is_refused_and_the_message_lists_what_exists(name):
    with pytest.raises(PromptError) as caught:
        prompts.load_prompt(name)
    assert all(known in str(caught.value) for known in (*FOUR, "length-N"))


NUMBERS = st.integers(-1, 10**8).map(str) | st.integers(1, 5000).map("9".__mul__) | st.text(max_size=4)


@given(st.sampled_from([*FOUR, "copy", "qa", "random", "length"]), st.none() | NUMBERS, st.lists(NUMBERS, max_size=50))
def test_a_name_is_a_prompt_of_bounded_size_or_refused_before_anything_loads(word, number, depths):
    name = "@".join([word if number is None else f"{word}-{number}", *depths * len(depths)])
    try:
        prompt = prompts.load_prompt(name)
    except PromptError as error:
        assert len(str(error)) < 1000
    else:
        assert len(name) < 50 and max(prompt.n_tokens or 0, prompt.depth) < 2**21


SHA256 = {
    "factual": "716f3474c250d9cb3756194202cec1827d457e3903db64d77572eab93abf705f",
    "code": "1dfb3a6518535d1f264b30f53ec4c9d223993e8298e8ac14b9928029e95a1cd6",
    "reasoning": "7a925a6cf4ea148b7c7c1c09c02cd18afcfe72f2ef40df564c30dcc972389a8b",
    "chinese": "2c7dd7dab93f3a1a962eff1d3b2252602e110a909c1454fd7e81df879643bfbc",
    "length-64": "ef431ed9464f45b08c7cd5c9d81058213180d3c2ca4bf50bf8851165e294cfa2",
    "code@64": "1a95e2bc07eabd231b826409d9a45b15ed51b59d6c08e3ab1b9819150ffe9520",
    "code@4096": "9cdbcdb2a9d9e13d754e1dfdc2ed7214d9ce9a58d3a28ffb3ded2b87b99a8008",
    "qa-1@100000": "7592b38a4c6cef84ede7794d36cf8ce499d968f1ae25d6d992b57449cd3aaf93",
}


@pytest.mark.parametrize("name", SHA256)
def test_a_shipped_prompt_never_changes(name):
    prompt = prompts.load_prompt(name)
    assert prompt.sha256 == SHA256[name], "another id: studies of yesterday resume nothing"
    if prompt.depth:  # long enough at four characters a token
        prompts.exact_prompt(prompt.context, prompt.depth, lambda text: text[::4])


def test_a_prompts_reference_holds_its_identity_but_not_its_text():
    ref = prompts.load_prompt("length-64").ref
    assert (ref.key, ref.n_tokens, ref.workload) == ("length-64", 64, "prose")
    assert ref.sha256 == prompts.load_prompt("length-1024").sha256


def test_a_file_becomes_a_prompt_with_the_hash_of_its_text(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_bytes("\ufeffGrüße,\nworld\n".encode())
    prompt = prompts.prompt_from_file(file)
    assert prompt.text == "Grüße,\nworld\n"
    assert prompt.key == "file:notes"
    assert prompt.sha256 == hashlib.sha256(prompt.text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read"), (b" \n", "is empty"), (b"caf\xe9 au lait", "not UTF-8")]
)
def test_a_file_that_cannot_be_a_prompt_is_refused_by_name(tmp_path, content, message):
    file = tmp_path / "broken.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PromptError, match=message) as caught:
        prompts.prompt_from_file(file)
    assert "broken.txt" in str(caught.value)


def test_a_chat_is_another_prompt_than_its_text_and_is_found_by_its_own_name():
    switches = {
        "code": (False, None),
        "code+chat": (True, None),
        "code+think": (True, True),
        "code+no-think": (True, False),
    }
    named = {name: prompts.load_prompt(name) for name in switches}
    assert len({prompt.sha256 for prompt in named.values()}) == 4
    assert all((prompt.key, prompt.called) == (name, name) for name, prompt in named.items())
    assert {name: (prompt.chat, prompt.think) for name, prompt in named.items()} == switches
    deep = prompts.load_prompt("code+chat@100")
    assert (deep.key, deep.chat, deep.depth, deep.text) == ("code+chat@100", True, 100, named["code"].text)


def test_a_json_file_is_a_chat_that_can_be_asked_for_again(tmp_path):
    place = tmp_path / "talk.json"
    place.write_text('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]')
    found = prompts.find_prompt(f"{place}+no-think@64")
    assert [(one.role, one.content) for one in found.messages] == [("system", "Be brief."), ("user", "Why?")]
    assert (found.key, found.called, found.think) == ("file:talk+no-think@64", f"{place}+no-think@64", False)
    assert prompts.find_prompt(found.called) == found


OF_ROLE = '[{"role": "%s", "content": "a"}]'
NO_CHATS = ('{"role": "user"}', "[]", '[{"content": "a"}]', OF_ROLE % "tool", OF_ROLE % "assistant")


@pytest.mark.parametrize("text", [*NO_CHATS, "[" * 100_000, "Why?"])
def test_a_json_file_that_is_no_chat_is_refused_with_what_to_write(tmp_path, text):
    (tmp_path / "talk.json").write_text(text)
    with pytest.raises(PromptError, match=r"talk\.json") as refused:
        prompts.find_prompt(str(tmp_path / "talk.json"))
    assert '"role": "user"' in refused.value.hint
