import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli, main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["models", "make", "synth", *arguments], catch_exceptions=False)


def test_a_dry_run_tells_bytes_and_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    figures = json.loads(run("qwen3.5-35b-a3b", "--dry-run", "--json", "-o", str(output)).stdout)
    assert figures["n_parameters"] == 34_660_610_688
    assert figures["expert_parameters"] == 3_145_728
    assert figures["always_read_bytes"] + 8 * 40 * figures["expert_bytes"] == figures["active_bytes"]
    assert figures["excluded"] == ["vision tower", "multi-token-prediction blocks"]
    assert not output.exists()


def test_a_shape_by_name_and_by_gguf(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.gguf"
    assert "4 of 8 layers" in run("qwen35moe", "--layers", "4", "-o", str(output)).stdout
    figures = json.loads(run(str(tiny / "falcon-h1.gguf"), "--json", "-o", str(output)).stdout)
    assert figures["file_bytes"] == output.stat().st_size > figures["n_bytes"]
    assert (figures["quant"], figures["architecture"]) == ("same", "falcon-h1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt-5", "--dry-run"], "no shape 'gpt-5'"),
        (["smollm2-135m"], "--output"),
        (["missing.gguf", "--dry-run"], "missing.gguf"),
        (["smollm2-135m", "--router-shared", "0.5", "-o", "x.gguf"], "mixture of experts"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["models", "make", "synth", *arguments])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())
