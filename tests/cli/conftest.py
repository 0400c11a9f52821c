"""Running commands as a user does, inside the test's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mlsd.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands write under results/ of the folder they run in."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


@pytest.fixture
def mlsd(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
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
