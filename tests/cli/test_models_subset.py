"""``mlsd models make subset``: what it writes, prints and refuses."""

import json
from pathlib import Path

import msgspec
import pytest

from mlsd.gguf_tools.read import model_facts, trunk_layers
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.planning.prompts import load_prompt
from tests.cli.conftest import Mlsd


def test_a_draft_is_written_described_and_measured(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    result = mlsd("models", "make", "subset", tiny / "llama.gguf", "--skip", "1,3-4", "-o", out, "--json")
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


@pytest.mark.parametrize("name", ["qwen35moe", "falcon-h1"])
def test_a_searched_draft_of_a_hybrid_is_written_and_timed_with_the_models_own_memory(
    mlsd: Mlsd, tiny: Path, tmp_path: Path, name: str
) -> None:
    text, out, model = tmp_path / "text.txt", tmp_path / "draft.gguf", tiny / f"{name}.gguf"
    text.write_text(load_prompt("reasoning").text * 2, encoding="utf-8")
    search = ("--search", "greedy", "--fraction", 0.25, "--text", text, "--n-threads", 1)
    result = mlsd("models", "make", "subset", model, *search, "-o", out, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    skipped = answer["calibration"]["skipped"]
    assert answer["layers"] == [layer for layer in range(answer["n_layers_model"]) if layer not in skipped]
    assert trunk_layers(Source(out)) == len(answer["layers"])
    assert answer["drafter"] == "layer-skip:mode=sync,skip=" + "+".join(map(str, skipped))
    options = ("--gamma", 2, "--n-threads", 1, "--n-predict", 16, "--repeats", 1, "--json")
    timed = mlsd("bench", model, "--drafter", answer["drafter"], *options)
    assert timed.code == 0, timed.err
    sd = next(trial for trial in json.loads(timed.out)["trials"] if trial["arm"] == "sd")
    assert sd["valid"] is True
    assert sd["stats"]["sync_ns"] > 0
    assert sd["timed"] is True


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("llama", ("--skip", "2,6"), "no block 6: the model has blocks 0 to 5"),
        ("llama", (), "The blocks of the draft are not given"),
        ("qwen35", ("--keep", "0-2"), "ends the process"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_is_written(
    mlsd: Mlsd, tiny: Path, tmp_path: Path, model: str, options: tuple[str, ...], words: str
) -> None:
    out = tmp_path / "draft.gguf"
    result = mlsd("models", "make", "subset", tiny / f"{model}.gguf", *options, "-o", out)
    assert result.code == 2
    assert words in result.err
    assert not out.exists()


@pytest.mark.parametrize("method", ["mtp", "layer-skip:exit=5"])
def test_self_speculative_methods_are_measured_by_name(mlsd: Mlsd, tmp_path: Path, method: str) -> None:
    model = tmp_path / "with-block.gguf"
    write_random(model, msgspec.structs.replace(TINY["qwen35"], n_mtp_blocks=1), seed=4)
    options = ("--gamma", 2, "--n-threads", 1, "--n-predict", 16, "--repeats", 1, "--json")
    result = mlsd("bench", model, "--drafter", method, *options)
    assert result.code == 0, result.err
    sd = next(trial for trial in json.loads(result.out)["trials"] if trial["arm"] == "sd")
    assert sd["valid"] is True
    assert sd["fell_back"] is None
