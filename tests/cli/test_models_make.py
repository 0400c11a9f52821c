"""``mlsd models make``: models of random weights, and noisy copies."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from mlsd.gguf_tools.read import model_facts, trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.hashes import digest
from mlsd.planning.prompts import load_prompt
from tests.cli.conftest import Mlsd, drafted


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["models", "make", *arguments], catch_exceptions=False)


@pytest.mark.slow
def test_tiny_writes_the_whole_set_and_lists_it_as_json(tmp_path: Path) -> None:
    files = json.loads(run("tiny", "-o", str(tmp_path), "--json").stdout)["files"]
    assert len(TINY_SET) == 17
    assert {file["name"] for file in files} == {
        f"{name}{suffix}" for name in TINY_SET for suffix in ("", "-noise003", "-noise01", "-other")
    }
    assert all(digest(Path(file["path"])) == file["sha256"] for file in files)


def test_a_dry_run_tells_bytes_and_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    figures = json.loads(run("synth", "qwen3.5-35b-a3b", "--dry-run", "--json", "-o", str(output)).stdout)
    assert figures["n_parameters"] == 34_660_610_688
    assert figures["expert_parameters"] == 3_145_728
    assert figures["always_read_bytes"] + 8 * 40 * figures["expert_bytes"] == figures["active_bytes"]
    assert figures["excluded"] == ["vision tower", "multi-token-prediction blocks"]
    assert not output.exists()


def test_a_shape_by_name_and_by_gguf(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    assert "4 of 8 layers" in run("synth", "qwen35moe", "--layers", "4", "-o", str(output)).stdout
    figures = json.loads(run("synth", str(tiny / "falcon-h1.gguf"), "--json", "-o", str(output)).stdout)
    assert figures["file_bytes"] == output.stat().st_size > figures["n_bytes"]
    assert (figures["quant"], figures["architecture"]) == ("same", "falcon-h1")


def test_noise_tells_what_it_wrote(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    command = ("noise", str(tiny / "llama.gguf"), "--noise", "0.05", "-o", str(output))
    assert "weights changed by 5 %" in run(*command).stdout
    assert output.is_file()
    assert json.loads(run(*command, "--json").stdout)["sha256"] == digest(output)


def test_a_draft_is_written_described_and_measured(mlsd: Mlsd, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    result = mlsd("models", "make", "subset", tiny / "llama.gguf", "--skip", "1,3-4", "-o", out, "--json")
    assert result.code == 0, result.err
    answer = json.loads(result.out)
    facts = model_facts(out)
    assert answer["layers"] == [0, 2, 5]
    assert (answer["n_parameters"], answer["weight_bytes"]) == (facts.n_parameters, facts.weight_bytes)
    assert answer["sha256"] == facts.ref.sha256
    sd = drafted(mlsd, tiny / "llama.gguf", "--draft", out, "--gamma", 2)
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
    sd = drafted(mlsd, model, "--drafter", answer["drafter"], "--gamma", 2)
    assert sd["valid"] is sd["timed"] is True and sd["stats"]["sync_ns"] > 0
