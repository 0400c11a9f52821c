import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli, main
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.hashes import digest


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), catch_exceptions=False)


def test_tiny_writes_the_whole_set_and_lists_it_as_json(tmp_path: Path) -> None:
    files = json.loads(run("models", "make", "tiny", "-o", str(tmp_path), "--json").stdout)["files"]
    assert len(TINY_SET) == 17
    assert {file["name"] for file in files} == {
        f"{name}{suffix}" for name in TINY_SET for suffix in ("", "-noise003", "-noise01", "-other")
    }
    assert all(digest(Path(file["path"])) == file["sha256"] for file in files)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["models", "make", "tiny", "-o", "{}", "--only", "gpt"], "no tiny model 'gpt'"),
        (["models", "make", "noise", "{}/missing.gguf", "--noise", "0.1", "-o", "{}/x.gguf"], "missing.gguf"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([argument.format(tmp_path) for argument in arguments])
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed


def test_noise_tells_what_it_wrote(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "draft.gguf"
    command = ("models", "make", "noise", str(tiny / "llama.gguf"), "--noise", "0.05", "-o", str(output))
    assert "weights changed by 5 %" in run(*command).stdout
    assert output.is_file()
    assert json.loads(run(*command, "--json").stdout)["sha256"] == digest(output)
