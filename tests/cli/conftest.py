"""Running commands as a user does, inside the test's process."""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import pytest

from mlsd.cli import main
from mlsd.cli.main import cli
from mlsd.report.render import terminal
from mlsd.report.render.table import Table
from tests.report.render.narrow import assert_nothing_is_cut


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


Mlsd = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write under results/ of the folder they run in."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture(autouse=True)
def tables_fit_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever table a command prints in a test is shown at three widths first, and no value of it is cut."""
    render = terminal.render

    def checked(table: Table, **options: Any) -> str:
        for width in (80, 120, 200):
            shown = render(table, width=width)
            lines = [line for line in shown.splitlines() if len(line) > width]
            assert not lines, lines
            assert_nothing_is_cut(table, shown)
        return render(table, **options)

    monkeypatch.setattr(terminal, "render", checked)


@pytest.fixture
def mlsd(capfd: pytest.CaptureFixture[str]) -> Mlsd:
    """Run one command line and return what it printed."""

    def run(*arguments: object) -> Ran:
        capfd.readouterr()
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    return run


def drafted(mlsd: Mlsd, *arguments: object) -> dict[str, Any]:
    """The one drafted trial of a short bench of one block."""
    ran = mlsd("bench", *arguments, "--n-threads", 1, "--n-predict", 16, "--repeats", 1, "--json")
    assert ran.code == 0, ran.err
    (drafted_trial,) = [trial for trial in json.loads(ran.out)["trials"] if trial["arm"] == "sd"]
    return dict(drafted_trial)


def parsed(line: str) -> str:
    """The path of the command that click finds in a line, which it parses wholly and does not run."""
    path, *arguments = shlex.split(line)
    context = cli.make_context(path, arguments)
    while isinstance(context.command, click.Group) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = context.command.resolve_command(context, rest)
        assert name is not None and command is not None
        path, context = f"{path} {name}", command.make_context(name, rest, parent=context)
    return path
