"""Where mlsd keeps its files, and a clear word where it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from mlsd.cli import main
from mlsd.engine.llama.build.loaded import linked
from mlsd.errors import InputError, LockError
from mlsd.folders import cache_dir, replacing, update_json, user_dir, write_atomically
from mlsd.gguf_tools.surgery.edit import cached_draft
from mlsd.hashes import digest, file_sha256
from mlsd.measure.parent.blocks import machine_lock
from mlsd.store.rowcodec import without_folders


@pytest.fixture
def on_a_machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A home of nobody's, the platform of the parameter, and no variable that names a folder."""
    for name in ("MLSD_HOME", "MLSD_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr(platformdirs, "PlatformDirs", request.param)


@pytest.mark.parametrize("on_a_machine", [Unix], indirect=True)
@pytest.mark.usefixtures("on_a_machine")
def test_linux_keeps_models_with_data_and_the_rest_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (user_dir(), cache_dir()) == (Path("/home/jane/.local/share/mlsd"), Path("/home/jane/.cache/mlsd"))
    monkeypatch.setenv("XDG_DATA_HOME", "/x/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert (user_dir(), cache_dir()) == (Path("/x/data/mlsd"), Path("/x/cache/mlsd"))


@pytest.mark.parametrize("on_a_machine", [MacOS], indirect=True)
@pytest.mark.usefixtures("on_a_machine")
def test_macos_keeps_them_under_library() -> None:
    assert user_dir() == Path("/home/jane/Library/Application Support/mlsd")
    assert cache_dir() == Path("/home/jane/Library/Caches/mlsd")


@pytest.mark.parametrize("on_a_machine", [Unix, MacOS], indirect=True)
@pytest.mark.usefixtures("on_a_machine")
def test_the_variables_of_mlsd_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_HOME", "~/mine")
    monkeypatch.setenv("MLSD_CACHE", "/tmp/cache")
    assert (user_dir(), cache_dir()) == (Path("/home/jane/mine"), Path("/tmp/cache"))


@pytest.mark.parametrize("on_a_machine", [Unix, MacOS], indirect=True)
@pytest.mark.usefixtures("on_a_machine")
def test_a_user_id_without_a_home_learns_which_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(SystemExit, match="2"):
        main(["models", "list"])
    assert f"User {os.getuid()} has no home folder.\nSet MLSD_HOME to a folder" in capsys.readouterr().err
    assert without_folders("in /srv/m.gguf") == "in m.gguf"


@pytest.fixture
def odd_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a home that cannot be folders, whoever asks: a file stands in their way."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("MLSD_HOME", str(tmp_path / "file" / "home"))
    return tmp_path / "file"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "command"),
    [
        (variable, command)
        for variable in ("MLSD_CACHE", "MLSD_HOME")
        for command in ("doctor", "doctor model tiny-dense", "bench tiny-dense --draft tiny-draft", "models list")
    ]
    + [("MLSD_CACHE", "doctor builds"), ("MLSD_HOME", "models pull tiny-dense")],
)
def test_a_file_where_a_folder_must_be_is_named_by_every_command_that_writes_there(
    variable: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, str(file / ("below" if command in ("models list", "doctor builds") else "")))
    with pytest.raises(SystemExit, match="2"):
        main(command.split())
    printed = capsys.readouterr().err
    assert f"{file} is not a folder.\nSet {variable} to a folder that you may write." in printed
    assert "Traceback" not in printed


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))
    for name in ("builds", "drafts", "run.lock"):
        (tmp_path / name).mkdir() if name == "run.lock" else (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"builds.* cannot be written"):
        linked("key", {})
    with pytest.raises(InputError, match=r"drafts.* cannot be written"):
        cached_draft("x.gguf", lambda path: None)
    with pytest.raises(LockError, match=r"run\.lock cannot be written.*MLSD_CACHE"), machine_lock():
        pass


@pytest.mark.parametrize("name", ["a.json", "x" * 300])
def test_a_small_file_that_cannot_be_written_is_named(odd_folder: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be (written|read)"):
        update_json(odd_folder / name, dict[str, int], lambda value: None)
    with pytest.raises(InputError, match="cannot be written"):
        write_atomically(odd_folder.with_name("x" * 300), "text")
    assert [path.name for path in odd_folder.parent.iterdir()] == ["file"]


def test_an_error_inside_the_lock_is_not_blamed_on_the_lock() -> None:
    with pytest.raises(PermissionError), machine_lock():
        raise PermissionError("of something else")


def test_a_hash_needs_no_home_to_remember_it(odd_folder: Path) -> None:
    assert file_sha256(odd_folder) == digest(odd_folder)


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"old")

    def change(*_: object) -> None:
        file.write_bytes(b"new")
        os.utime(file, (1, 1))

    file_sha256(file, on_bytes=change)
    assert file_sha256(file) == digest(file)


def test_a_large_file_that_is_mostly_a_hole_is_not_hashed_for_hours(tmp_path: Path) -> None:
    hollow = tmp_path / "m.gguf"
    hollow.touch()
    os.truncate(hollow, 1 << 31)
    with pytest.raises(InputError, match="mostly a hole"):
        file_sha256(hollow)


def test_what_a_killed_writer_left_is_removed_by_the_next_write_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    script = f"""
import os
from pathlib import Path
from mlsd.folders import replacing
with replacing(Path({str(tmp_path / "a")!r}), ""):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert len(list(tmp_path.glob(".mlsd.*.part"))) == 1
    old, new = tmp_path / ".mlsd.0123abcd.part", tmp_path / ".mlsd.ffffffff-1-0123abcd.part"
    for part in (old, new):
        part.touch()
    os.utime(old, (0, 0))
    with replacing(tmp_path / "b", "") as living:
        write_atomically(tmp_path / "c", "text")
        assert set(tmp_path.glob(".mlsd.*.part")) == {living, new}
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c", new.name}
