"""The tiny models behave: text comes back from tokens, states are stable, drafts are as close as they say."""

import numpy as np
import pytest

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.write import MIN_VOCAB, byte_spellings, merges

PROMPT = "Why is the sky blue? 天空为什么是蓝色的?"
N_PREDICT = 96


def session(model):
    return open_context(
        model, ContextOptions(n_ctx=512, n_threads=1, n_batch=256, max_outputs=32, device_sampling=False)
    )


def greedy(path):
    """Prompt, greedy continuation, and its logits, one token at a time."""
    with LlamaModel(path) as model, session(model) as context:
        prompt = context.tokenizer.tokenize(PROMPT)
        context.decode(prompt)
        rows = [context.logits()[0]]
        for _ in range(N_PREDICT - 1):
            context.decode([int(rows[-1].argmax())])
            rows.append(context.logits()[0])
    return prompt, np.array(rows)


def forced(path, prompt, tokens):
    """Logits of another model before each of `tokens`, decoded in batches of 16."""
    with LlamaModel(path) as model, session(model) as context:
        context.decode(prompt)
        rows = [context.logits()]
        for start in range(0, len(tokens) - 1, 16):
            part = tokens[start : min(start + 16, len(tokens) - 1)]
            context.decode(part, n_outputs=len(part))
            rows.append(context.logits())
    return np.concatenate(rows)


@pytest.mark.parametrize("name", TINY)
def test_greedy_text_varies_and_drafts_are_as_close_as_their_names_say(name, tiny):
    prompt, rows = greedy(tiny / f"{name}.gguf")
    tokens = rows.argmax(axis=1)
    assert np.isfinite(rows).all()
    assert len(set(tokens[:64].tolist())) > 30, "a random model that repeats itself tests nothing"

    # In units of the logits' own spread; how often the likeliest token is the same is the processor's to say.
    distance = {
        suffix: spread(forced(tiny / f"{name}{suffix}.gguf", prompt, tokens) - rows) / spread(rows)
        for suffix in ("", "-noise003", "-noise01", "-other")
    }
    assert distance[""] < 0.01 < distance["-noise003"] < 0.3
    assert 1.5 * distance["-noise003"] < distance["-noise01"] < 0.6
    assert 1 < distance["-other"] < 1.7  # of two that know nothing of each other: the square root of two


def spread(rows):
    return float((rows - rows.mean(axis=1, keepdims=True)).std())


@pytest.mark.parametrize("text", ["", "plain text", "tabs\tand\nlines\r\n", "naïve 你好 🙂 \x00", "<|endoftext|>"])
def test_any_text_survives_the_tokenizer(text, tiny):
    with LlamaModel(tiny / "llama.gguf") as model:
        tokens = model.tokenize(text)
        assert model.detokenize(tokens) == text
        assert not any(model.is_end(token) for token in tokens), "special tokens are text unless asked for"
        assert len(model.tokenize("the data of the model")) < 10, "merges shorten English text"
        (end,) = model.tokenize("<|endoftext|>", parse_special=True)
        assert model.is_end(end)


def test_the_vocabulary_has_no_token_twice():
    tokens = byte_spellings() + [pair.replace(" ", "") for pair in merges()]
    assert len(set(tokens)) == len(tokens) < MIN_VOCAB
