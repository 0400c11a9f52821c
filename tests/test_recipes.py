"""Each recipe of docs/architecture.md, "Add something", is followed in a copy, and what it adds works."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlsd.servers.endpoint import connect
from mlsd.servers.programs import PROGRAMS, Program
from tests.servers.fake import FakeServer

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "notebooks" / "data" / "tiny.sqlite"
PAGE = "a recipe of docs/architecture.md, `Add something`, is out of date"
Edit = Callable[[str, str, str], None]
Python = Callable[..., str]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a recipe edits."""
    skipped = shutil.ignore_patterns("__pycache__", "tiny", "published")
    shutil.copytree(ROOT / "mlsd", tmp_path / "mlsd", ignore=skipped)
    for name in ("mlsd/assets/tiny", "mlsd/audits/published"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "suites", tmp_path / "suites")
    shutil.copy(ROOT / "gguf_manifest.toml", tmp_path)
    return tmp_path


@pytest.fixture
def edit(tree: Path) -> Edit:
    """Put lines behind the one that a recipe names."""

    def insert(name: str, behind: str, lines: str) -> None:
        text = (tree / name).read_text(encoding="utf-8")
        assert text.count(behind) >= 1, f"{name} has no line {behind!r} any more: {PAGE}"
        (tree / name).write_text(text.replace(behind, f"{behind}\n{lines}", 1), encoding="utf-8")

    return insert


@pytest.fixture
def python(tree: Path) -> Python:
    """What Python prints that imports the copy."""

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{PAGE}:\n{done.stderr[-2000:]}"
        return done.stdout

    return run


def test_the_copy_is_what_runs(tree: Path, python: Python) -> None:
    assert python("-c", "import mlsd; print(mlsd.__file__)").strip() == str(tree / "mlsd" / "__init__.py")


@pytest.mark.slow
def test_a_method_is_one_file_and_one_line(tree: Path, edit: Edit, python: Python) -> None:
    shutil.copy(ROOT / "docs" / "new_method.py", tree / "mlsd" / "drafters" / "lookup" / "new_method.py")
    line = "METHODS: dict[str, KnownMethod] = {"
    edit("mlsd/methods.py", line, '    "bigram": KnownMethod("lookup.new_method", "look-up"),')
    assert "Source:" in python("-m", "mlsd", "models", "methods", "bigram")


@pytest.mark.slow
def test_a_chip_is_one_line(edit: Edit, python: Python) -> None:
    edit("mlsd/hardware/chips.py", "CHIPS: tuple[Chip, ...] = (", '    *_bins("Apple M9", (12,), 180, 32),')
    asked = ("audit", "speed", "25", "--model", "Qwen3.5-9B Q4_K_M", "--chip", "M9")
    assert "180" in python("-m", "mlsd", *asked, "--json")


@pytest.mark.slow
def test_a_column_of_arms_is_one_line(edit: Edit, python: Python) -> None:
    line = '    column("decision", "", "the effect in words, or why the arm left the race"),'
    edit("mlsd/trials/fields.py", line, '    column("twice", "n", "twice the trials", lambda arm: 2 * arm.n_trials),')
    assert '"twice": ' in python("-m", "mlsd", "results", "arms", "--db", str(STUDY), "--json")


def test_a_field_of_a_trial_is_one_line(edit: Edit, python: Python) -> None:
    line = "    n_prompt: Few | None = None"
    text = (ROOT / "mlsd" / "records.py").read_text(encoding="utf-8")
    assert line in text.partition("class Trial(")[2].partition("\nclass ")[0]
    edit(
        "mlsd/records.py",
        text[: text.index(line, text.index("class Trial("))].rpartition("\n")[0],
        "    watts: float | None = None",
    )
    code = (
        "import sqlite3; from pathlib import Path; from mlsd.store.store import Store\n"
        "Store.open(Path('new.sqlite')).close()\n"
        "print([row[1] for row in sqlite3.connect('new.sqlite').execute('PRAGMA table_xinfo(trial)')])"
    )
    assert "'watts'" in python("-c", code)


@pytest.mark.slow
def test_a_model_is_one_entry(tree: Path, python: Python) -> None:
    with (tree / "gguf_manifest.toml").open("a", encoding="utf-8") as file:
        file.write(
            '\n[models."new-model"]\nsource = "synth"\nshape = "qwen3.5-0.8b"\nname = "New"\narchitecture = "qwen35"\n'
            'quantization = "Q8_0"\nparameters = 752_393_024\nparameters_active = 752_393_024\nroles = ["draft"]\n'
        )
    assert "new-model" in python("-m", "mlsd", "models", "show", "new-model")


@pytest.mark.slow
def test_a_suite_is_one_file(tree: Path, python: Python) -> None:
    text = (tree / "suites" / "b.toml").read_text(encoding="utf-8")
    (tree / "suites" / "h.toml").write_text(text.replace('name = "B"', 'name = "H"'), encoding="utf-8")
    assert '"H": ' in python("-m", "mlsd", "run", "H", "--profile", "tiny", "--dry-run", "--json")


def test_a_command_is_one_file_one_line_and_its_examples(tree: Path, edit: Edit, python: Python) -> None:
    (tree / "mlsd" / "cli" / "commands" / "greet.py").write_text(
        '"""`mlsd greet`."""\n\nimport click\n\nfrom mlsd.cli.output import say\n\n\n'
        '@click.command()\ndef greet() -> None:\n    """Print a greeting."""\n    say("Hello.")\n',
        encoding="utf-8",
    )
    edit("mlsd/cli/main.py", '    "Start": {', '        "greet": "Print a greeting.",')
    with (tree / "mlsd" / "assets" / "examples.toml").open("a", encoding="utf-8") as file:
        file.write('"mlsd greet" = """\nmlsd greet\nmlsd greet -q\n"""\n')
    assert "Print a greeting" in python("-m", "mlsd", "greet", "--help")
    assert python("-m", "mlsd", "greet") == "Hello.\n"


def test_a_server_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def owned(path: str, value: object) -> Any:
        return (
            {**value, "data": [{"id": "m", "owned_by": "new"}]}
            if "/models" in path and isinstance(value, dict)
            else value
        )

    monkeypatch.setattr("mlsd.servers.endpoint.PROGRAMS", (Program(name="new server", value="new"), *PROGRAMS))
    with FakeServer("openai") as server:
        server.value = owned
        assert connect(server.url, 5.0).server.program.name == "new server"
