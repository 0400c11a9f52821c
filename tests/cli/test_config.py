"""`mlsd.toml` and what the Tab key offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from mlsd.cli.main import cli
from tests.cli.conftest import Ran

Mlsd = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project; commands run in one below it."""
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    for name in ("MLSD_CONFIG", "MLSD_TARGET", "MLSD_THREADS", "MLSD_DATABASE", "MLSD_BUILD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def taken(monkeypatch: pytest.MonkeyPatch, mlsd: Mlsd, *words: str) -> tuple[dict[str, object], str]:
    """What `mlsd breakdown` would work with, and what it says."""
    command = cli.get_command(click.Context(cli), "breakdown")
    got: dict[str, object] = {}
    assert command is not None
    monkeypatch.setattr(command, "callback", lambda **options: got.update(options))
    ran = mlsd("breakdown", *words)
    assert ran.code == 0, ran.err
    return got, ran.err


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mlsd: Mlsd
) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: 8)
    file = folder / "mlsd.toml"
    file.write_text('target = "models/own.gguf"\nthreads = 3\ndatabase = "study.sqlite"\n')
    got, said = taken(monkeypatch, mlsd)
    assert got["target"] == str(folder / "models/own.gguf")
    assert str(got["db"]) == str(folder / "study.sqlite")
    assert got["n_threads"] == 3
    assert f"From {file}: target" in said and "threads 3" in said
    monkeypatch.setenv("MLSD_THREADS", "5")
    got, said = taken(monkeypatch, mlsd, "tiny-dense")
    assert got["target"] == "tiny-dense" and got["n_threads"] == 5
    assert "threads" not in said and "target" not in said
    monkeypatch.setenv("MLSD_CONFIG", "")
    got, said = taken(monkeypatch, mlsd, "tiny-dense", "--n-threads", "7")
    assert got["n_threads"] == 7 and got["db"] is None and "From" not in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tread = 2", "unknown key 'tread'"),
        ("thread = 2", "Did you mean threads?"),
        ("threads = 'two'", "Expected `int"),
        ("threads = ", "not valid TOML"),
        ("threads = 0", "is not at least 1"),
        ("threads = 9223372036854775808", "beyond 64 bits"),
        ("a = " + "[" * 5_000, "nested too deeply"),
        ('database = "\\u0000"', "'\\x00' is not a path"),
        ('target = "~nobody-at-all/x.gguf"', "Could not determine home directory"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(folder: Path, mlsd: Mlsd, text: str, says: str) -> None:
    (folder / "mlsd.toml").write_text(text)
    refused = mlsd("probe", "tiny-dense")
    assert refused.code == 2 and says in refused.err and str(folder / "mlsd.toml") in refused.err
    assert mlsd("--help").code == 0 and str(folder / "mlsd.toml") in mlsd("--help").out


def test_only_a_file_that_was_named_names_a_build(folder: Path, monkeypatch: pytest.MonkeyPatch, mlsd: Mlsd) -> None:
    """A folder that was cloned or unpacked would run its code."""
    (folder / "mlsd.toml").write_text('build = "./evil"')
    assert "names a llama.cpp to load" in mlsd("probe", "tiny-dense").err
    monkeypatch.setenv("MLSD_CONFIG", str(folder / "mlsd.toml"))
    assert "evil is not a build" in mlsd("probe", "tiny-dense").err


def offered(*words: str) -> set[str]:
    *before, last = words
    return {item.value for item in ShellComplete(cli, {}, "mlsd", "_MLSD_COMPLETE").get_completions(before, last)}


def test_tab_offers_ids_methods_profiles_suites_and_prompts() -> None:
    assert {"tiny-dense", "tiny-moe", "tiny-draft"} <= offered("bench", "tiny")
    assert "smollm2-135m" in offered("bench", "tiny-moe", "--draft", "smol")
    assert offered("bench", "tiny-moe", "--drafter", "pl") == {"pld"}
    assert offered("plan", "A", "--profile", "ti") == {"tiny"}
    assert "A" in offered("run", "") and "code" in offered("bench", "tiny-moe", "--prompt", "co")
    assert offered("bench", "./mod") == {"./mod"}  # a path: the shell goes on


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("bench", "tiny-dence"), "tiny-dense"),
        (("bench", "tiny-dense", "--drafter", "pldd"), "pld"),
        (("bench", "tiny-dense", "--drafter", "pld:ngrm=3"), "ngram"),
        (("plan", "A", "--profile", "smolm2"), "smollm2"),
        (("bench", "tiny-dense", "--prompt", "cod"), "code"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_was_meant(mlsd: Mlsd, words: tuple[str, ...], meant: str) -> None:
    refused = mlsd(*words)
    assert refused.code == 2 and f"Did you mean {meant}" in refused.err
