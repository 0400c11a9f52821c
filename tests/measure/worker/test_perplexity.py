"""Perplexity and distance: known answers, and the command."""

import json
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.measure.worker.perplexity import log_softmax, total_variation
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd, mlsd

__all__ = ["mlsd"]  # the fixture


def test_distributions_of_known_logits_and_their_distance() -> None:
    rows = log_softmax(np.array([[0.0, log(3.0)]], dtype=np.float32))
    assert np.exp(rows[0]) == pytest.approx([0.25, 0.75])
    p, q, padded = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]]), np.log([[0.5, 0.25, 0.25]])
    assert total_variation(p, q)[0] == pytest.approx(0.4)
    assert total_variation(p, padded)[0] == pytest.approx(0.25)


@given(st.lists(st.lists(st.floats(-30, 30), min_size=2, max_size=6), min_size=2, max_size=2))
def test_distance_is_symmetric_and_between_zero_and_one(logits: list[list[float]]) -> None:
    p, q = (log_softmax(np.array([row], dtype=np.float32)) for row in logits)
    distance = total_variation(p, q)[0]
    assert -1e-12 <= distance <= 1 + 1e-12
    assert distance == pytest.approx(total_variation(q, p)[0])
    assert total_variation(p, p)[0] == 0


def answer(mlsd: Mlsd, *arguments: object) -> dict[str, object]:
    result = mlsd("models", "distance", *arguments, "--n-threads", 1, "--n-tokens", 100, "--json")
    assert result.code == 0, result.err
    return dict(json.loads(result.out))


def test_a_draft_is_as_far_as_its_weights_are(mlsd: Mlsd, tiny: Path) -> None:
    far = answer(mlsd, tiny / "llama.gguf", "--draft", tiny / "llama-other.gguf")
    near = answer(mlsd, tiny / "llama.gguf", "--draft", tiny / "llama-noise003.gguf")
    same = answer(mlsd, tiny / "llama.gguf", "--draft", tiny / "llama.gguf")
    assert same["total_variation"] == 0
    assert (same["ratio"], same["agreement"]) == (1, 1)
    assert 0 < near["total_variation"] < far["total_variation"]  # type: ignore[operator]
    assert near["agreement"] > far["agreement"]  # type: ignore[operator]


def test_a_random_model_is_no_wiser_than_its_vocabulary(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Some words, and then a few more of them. " * 10)
    draft = tiny / "qwen35-noise01.gguf"
    found = answer(mlsd, tiny / "qwen35.gguf", "--draft", draft, "--text", text, "--n-ctx", 40)
    assert min(found["perplexity"], found["draft_perplexity"]) > 256  # type: ignore[type-var, operator]
    assert found["n_tokens"] == 97, "each of three windows gives its first token away"


def test_a_comparison_is_kept_where_it_is_asked_for(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    database, target = tmp_path / "s.sqlite", tiny / "qwen35.gguf"
    first = answer(mlsd, target, "--drafter", "layer-skip:component=recurrent", "--db", database)
    again = answer(mlsd, target, "--drafter", "layer-skip:mode=own,component=recurrent", "--db", database)
    other = answer(mlsd, target, "--draft", tiny / "qwen35-noise01.gguf", "--db", database)
    with Store.open(database, read_only=True) as store:
        kept = list(store.distances())
    assert [d.ratio for d in kept] == [first["ratio"], other["ratio"]], "the mode does not change what drafts"
    assert again == first
    assert kept[0].total_variation == first["total_variation"]
    assert len({d.target_key for d in kept}) == len({d.text_sha256 for d in kept}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--db", "s.sqlite"), "either --draft or --drafter"),
        (("--drafter", "pld", "--db", "s.sqlite"), "pld drafts with no model of its own"),
        (("--drafter", "layer-skip:skip=99"), "no block 99"),
        (("--drafter", "layer-skip:exit=2", "--draft", "x.gguf"), "either --draft or --drafter"),
        (("--drafter", "layer-skip:exit=1", "--n-ctx", "1"), "leaves no token to predict"),
    ],
)
def test_what_cannot_be_compared_is_refused(mlsd: Mlsd, tiny: Path, options: tuple[str, ...], words: str) -> None:
    result = mlsd("models", "distance", tiny / "llama.gguf", *options)
    assert result.code == 2
    assert words in result.err


def test_models_of_other_tokenizers_are_not_compared(mlsd: Mlsd, tiny: Path, foreign: Path) -> None:
    result = mlsd("models", "distance", tiny / "llama.gguf", "--draft", foreign, "--n-threads", 1)
    assert result.code == 2
    assert "do not share a vocabulary" in result.err
