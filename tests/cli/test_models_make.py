"""``mlsd models make``: models of random weights, and noisy copies."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.hashes import digest
from tests.cli.conftest import Mlsd


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["models", "make", *arguments], catch_exceptions=False)


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny", "-o", ".", "--only", "gpt"), "no tiny model 'gpt'"),
        (("noise", "missing.gguf", "--noise", "0.1", "-o", "x.gguf"), "missing.gguf"),
        (("synth", "gpt-5", "--dry-run"), "no shape 'gpt-5'"),
        (("synth", "smollm2-135m"), "--output"),
        (("synth", "missing.gguf", "--dry-run"), "missing.gguf"),
        (("synth", "smollm2-135m", "--router-shared", "0.5", "-o", "x.gguf"), "mixture of experts"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(mlsd: Mlsd, arguments: tuple[str, ...], words: str) -> None:
    refused = mlsd("models", "make", *arguments)
    assert refused.code == 2 and words in refused.err and not list(Path().iterdir())
