"""``mlsd draft-from``: what it writes, prints and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlsd.gguf_tools.read import model_facts
from tests.cli.conftest import Ran

Mlsd = Callable[..., Ran]


def test_a_draft_is_written_described_and_measured(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    result = mlsd("draft-from", tiny / "llama.gguf", "--skip", "1,3-4", "-o", out, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    facts = model_facts(out)
    assert answer["layers"] == [0, 2, 5]
    assert (answer["n_parameters"], answer["weight_bytes"]) == (facts.n_parameters, facts.weight_bytes)
    assert answer["sha256"] == facts.ref.sha256
    timed = mlsd(
        *("bench", tiny / "llama.gguf", "--draft", out, "--gamma", 2, "--n-threads", 1),
        *("--n-predict", 16, "--repeats", 1, "--json"),
    )
    assert timed.code == 0, timed.err
    sd = next(trial for trial in json.loads(timed.out)["trials"] if trial["arm"] == "sd")
    assert sd["valid"] is True
    assert sd["decode_tok_s"] > 0


def test_the_answer_names_the_blocks_the_parameters_and_the_bytes(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    result = mlsd("draft-from", tiny / "llama.gguf", "--exit", 3, "-o", tmp_path / "half.gguf")
    assert "Blocks 0-2 of 0-5" in result.out
    assert "parameters" in result.out
    assert "of the model" in result.out


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("llama", ("--skip", "2,6"), "no block 6: the model has blocks 0 to 5"),
        ("llama", (), "Nothing says"),
        ("llama", ("--keep", "0", "--exit", 2), "exclude each other"),
        ("llama", ("--component", "recurrent"), "no recurrent part"),
        ("qwen35", ("--component", "attention"), "no parallel blocks"),
        ("qwen35", ("--keep", "0-2"), "ends the process"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_is_written(
    mlsd: Mlsd, tiny: Path, tmp_path: Path, model: str, options: tuple[str, ...], words: str
) -> None:
    out = tmp_path / "draft.gguf"
    result = mlsd("draft-from", tiny / f"{model}.gguf", *options, "-o", out)
    assert result.code == 2
    assert words in result.err
    assert not out.exists()
