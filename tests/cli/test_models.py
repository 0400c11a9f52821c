"""`mlsd models` as a person runs it: in a process of its own, against a hub on loopback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran
from tests.hub_server import REPO, HubServer

MIB = 1 << 20
DATA = b"GGUF" + random.Random(1).randbytes(32 * MIB)  # the client writes 10 MB at a time


@pytest.fixture
def server() -> Iterator[HubServer]:
    with HubServer({"model.gguf": DATA}) as running:
        yield running


@pytest.fixture
def environment(server: HubServer, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "MLSD_HOME": str(tmp_path / "me")}


def mlsd(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlsd", "models", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def answer(environment: dict[str, str], *arguments: str) -> Any:
    done = mlsd(environment, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def add(environment: dict[str, str]) -> None:
    answer(environment, "add", "mine", "--repo", REPO, "--file", "model.gguf", "--architecture", "llama")


def test_add_pull_show_where_and_verify_a_model(server: HubServer, environment: dict[str, str]) -> None:
    add(environment)
    assert answer(environment, "show", "mine")["here"] is False
    (pulled,) = answer(environment, "pull", "mine")
    assert pulled["files"][0]["right"] is True
    assert answer(environment, "where", "mine")["path"] == pulled["paths"][0]
    assert answer(environment, "show", "mine")["bytes"] == len(DATA)
    assert [row["id"] for row in answer(environment, "list", "--here") if row["source"] == "huggingface"] == ["mine"]
    assert answer(environment, "verify", "mine")[0]["files"][0]["sha256"] == server.sha256("model.gguf")
    Path(pulled["paths"][0]).resolve().write_bytes(DATA[::-1])
    damaged = mlsd(environment, "verify", "mine")
    assert damaged.returncode == 2
    assert "WRONG" in damaged.stdout
    assert "do not have their hash" in damaged.stderr


def test_a_pull_that_is_killed_goes_on_where_it_stopped(server: HubServer, environment: dict[str, str]) -> None:
    add(environment)
    server.hold_after_bytes = 25 * MIB
    command = [sys.executable, "-m", "mlsd", "models", "pull", "mine"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert server.held.wait(60)
        hub_home = Path(environment["HF_HOME"])
        while not any(part.stat().st_size for part in hub_home.rglob("*.part")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    server.hold_after_bytes = None
    server.go_on.set()
    assert answer(environment, "show", "mine")["here"] is False
    (pulled,) = answer(environment, "pull", "mine")
    assert Path(pulled["paths"][0]).read_bytes() == DATA
    resumed = server.ranges()[-1]
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) > 0


def test_offline_mode_refuses_to_download_and_still_finds_what_is_here(
    server: HubServer, environment: dict[str, str]
) -> None:
    add(environment)
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    refused = mlsd(offline, "pull", "mine")
    assert refused.returncode == 2
    assert "offline mode is on" in refused.stderr
    assert server.requests == []
    answer(environment, "pull", "mine")
    n_requests = len(server.requests)
    assert answer(offline, "pull", "mine")[0]["files"][0]["right"] is True
    assert answer(offline, "where", "mine")
    assert len(server.requests) == n_requests


def test_bad_input_is_one_message_and_exit_code_2(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    for arguments, said in (
        (("show", "nope"), "No model has the id 'nope'"),
        (("where", "qwen3.5-9b-q8_0"), "Run `mlsd models pull qwen3.5-9b-q8_0`"),
        (("pull", "qwen3.5-9b-q8_0"), "has no repository unsloth/Qwen3.5-9B-GGUF"),
        (("verify", "qwen3.5-9b-q8_0"), "not on this machine"),
        (("list", "--role", "boss"), "No model has the role 'boss'"),
        (("add", "x"), "exactly one of --path, --repo and --base"),
        (("add", "x", "--repo", "a/b", "--file", "c"), "--architecture is needed"),
        (("add", "x", "--base", "nope", "--quant", "Q8_0"), "No model has the id 'nope'"),
        (("add", "x", "--base", "smollm2-135m", "--quant", "Q9"), "models.x.type = 'Q9'"),
        (("add", "x", "--path", str(tmp_path / "text.gguf")), "not a GGUF"),
        (("add", "x", "--path", str(tmp_path / "gone.gguf")), "gone.gguf"),
    ):
        done = mlsd(environment, *arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr, arguments
        assert "Traceback" not in done.stderr
    assert not Path(environment["MLSD_HOME"], "gguf_manifest.toml").exists()


def test_a_broken_manifest_of_the_user_is_named_and_does_not_block_plain_paths(
    environment: dict[str, str], tmp_path: Path
) -> None:
    manifest = Path(environment["MLSD_HOME"]) / "gguf_manifest.toml"
    manifest.parent.mkdir()
    manifest.write_text('[models.x]\nsource = "ftp"\n')
    done = mlsd(environment, "list")
    assert done.returncode == 2
    assert f"{manifest}: models.x.source = 'ftp'" in done.stderr
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    assert answer(environment, "where", str(model))["path"] == str(model)


def test_cut_drafts_are_counted_and_cleaned(
    mlsd: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlsd.gguf_tools.surgery.draft_cache import cached_draft

    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))
    cached_draft("a.gguf", lambda path: path.write_bytes(bytes(1500)))
    assert "1.50 kB" in mlsd("models", "list").err
    assert mlsd("models", "clean").out == f"1.50 kB freed in {tmp_path / 'drafts'}.\n"
    assert json.loads(mlsd("models", "clean", "--json").out)["freed_bytes"] == 0
    assert "models clean" not in mlsd("models", "list").err
