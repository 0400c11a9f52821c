"""Every help text: metavars are words, no line holds a shell comment, and two examples end it that work."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from mlsd.cli.main import cli, examples
from tests.cli.conftest import Mlsd, parsed
from tests.cli.test_main import commands

ROOT = Path(__file__).parents[2]
EXAMPLES = examples()
# Examples that need a model of the reader's, a server, another machine or minutes; what is fitted runs once.
NOT_RUN = re.compile(
    r"\.gguf\b|://|self-check|\.store|mac-32gb|--memory|--builds|^mlsd (demo|lab|compare|report|run A"
    r"|record tiny|results --fits --db|models (pull|clean|make (noise|tiny -o)))"
)


WORDS = r"\[?[A-Z_=-]+\]?(\.\.\.)?|\[[a-z0-9|-]+\]|A B TARGET|\[COMMAND\] .*|COMMAND .*"


def test_every_help_is_in_words_and_ends_with_two_examples_that_parse() -> None:
    found = {"mlsd": cli, **{" ".join(("mlsd", *words)): command for words, command in commands(cli)}}
    assert found.keys() == EXAMPLES.keys()
    for path, command in found.items():
        context = click.Context(command, info_name=path, terminal_width=80)
        help_text = command.get_help(context)
        assert "#" not in help_text, "zsh of a Mac takes no comment at its prompt"
        assert not re.search(r"<=|>=|RANGE", help_text), path
        assert help_text.splitlines()[-3:] == ["Examples:", *(f"  {line}" for line in EXAMPLES[path])]
        assert max(map(len, help_text.splitlines())) <= 80, path
        for parameter in command.params:
            metavar = parameter.make_metavar(context)
            assert re.fullmatch(WORDS, metavar)
        for line in EXAMPLES[path]:
            assert parsed(line).startswith(path), line


def test_the_makefile_prints_no_comment_either() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    printed = re.findall(r'echo "([^"]*)"', text) + re.findall(r"^[a-z-]+:.*## (.*)$", text, flags=re.MULTILINE)
    assert len(printed) > 10 and not [line for line in printed if "#" in line]


@pytest.mark.heavy
def test_examples_that_need_neither_model_nor_server_run(mlsd: Mlsd) -> None:
    shutil.copy(next((ROOT / "studies").glob("*.record.json.gz")), "study.record.gz")
    assert mlsd("record", "study.record.gz", "--into", "results/tiny.sqlite").code == 0
    assert mlsd("results", "--format", "csv", "-o", "table.csv").code == 0
    lines = dict.fromkeys(line for pair in EXAMPLES.values() for line in pair if not NOT_RUN.search(line))
    for line in lines:
        ran = mlsd(*shlex.split(line)[1:])
        assert ran.code == (1 if "--strict" in line else 0) and (ran.out or ran.err), (line, ran.err)
    assert len(lines) > 15
