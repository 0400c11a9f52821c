"""`mlsd models` as a person runs it, against a hub on loopback."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from mlsd.drafters import UNAVAILABLE
from mlsd.methods import METHODS
from tests.cli.conftest import Mlsd
from tests.hub_server import HubServer, write_own_entry

MIB = 1 << 20
DATA = b"GGUF" + random.Random(1).randbytes(32 * MIB)  # the client writes 10 MB at a time


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({"model.gguf": DATA}) as running:
        template = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        yield running


def answer(mlsd: Mlsd, *arguments: object) -> Any:
    done = mlsd("models", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture
def entry() -> None:
    write_own_entry(Path(os.environ["MLSD_HOME"]))


@pytest.mark.usefixtures("entry")
def test_pull_show_and_verify_a_model(server: HubServer, mlsd: Mlsd) -> None:
    assert answer(mlsd, "show", "mine")["here"] is False
    (pulled,) = answer(mlsd, "pull", "mine")
    assert pulled["files"][0]["right"] is True
    shown = answer(mlsd, "show", "mine")
    assert (shown["paths"], shown["bytes"]) == (pulled["paths"], len(DATA))
    assert [row["id"] for row in answer(mlsd, "list", "--here") if row["source"] == "huggingface"] == ["mine"]
    assert answer(mlsd, "verify", "mine")[0]["files"][0]["sha256"] == server.sha256("model.gguf")
    Path(pulled["paths"][0]).resolve().write_bytes(DATA[::-1])
    damaged = mlsd("models", "verify", "mine")
    assert damaged.code == 2
    assert "WRONG" in damaged.out
    assert "do not have their hash" in damaged.err


@pytest.mark.usefixtures("entry")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_pull_that_is_ended_goes_on_where_it_stopped(
    server: HubServer, mlsd: Mlsd, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    server.hold_after_bytes = 25 * MIB
    command = [sys.executable, "-m", "mlsd", "models", "pull", "mine"]
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert server.held.wait(60)
        while not any(part.stat().st_size for part in tmp_path.rglob("*.incomplete")):
            assert process.poll() is None
        process.send_signal(number)
        printed = process.communicate(timeout=60)[1]
    assert process.returncode == code and "Traceback" not in printed
    assert number != signal.SIGINT or "what had ended is kept" in printed
    server.hold_after_bytes = None
    server.go_on.set()
    assert answer(mlsd, "show", "mine")["here"] is False
    (pulled,) = answer(mlsd, "pull", "mine")
    assert Path(pulled["paths"][0]).read_bytes() == DATA
    resumed = server.ranges()[-1]
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) > 0


@pytest.mark.usefixtures("entry")
def test_offline_mode_refuses_to_download_and_still_finds_what_is_here(
    server: HubServer, mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused = mlsd("models", "pull", "mine")
    assert refused.code == 2
    assert "offline mode is on" in refused.err
    assert server.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    answer(mlsd, "pull", "mine")
    n_requests = len(server.requests)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert answer(mlsd, "pull", "mine")[0]["files"][0]["right"] is True
    assert answer(mlsd, "show", "mine")["here"] is True
    assert len(server.requests) == n_requests


def test_a_broken_manifest_of_the_user_is_named_and_does_not_block_plain_paths(mlsd: Mlsd, tiny: Path) -> None:
    manifest = Path(os.environ["MLSD_HOME"]) / "gguf_manifest.toml"
    manifest.write_text('[models.x]\nsource = "ftp"\n')
    done = mlsd("models", "list")
    assert done.code == 2
    assert f"{manifest}: models.x.source = 'ftp'" in done.err.replace("\n", " ")
    assert answer(mlsd, "show", tiny / "llama.gguf")["architecture"] == "llama"
    shown = mlsd("models", "show", tiny / "llama.gguf").out
    assert re.search(r"^n_layers +6$", shown, re.M) and re.search(r"^tensor_types +\w+ \d+, \w+ \d+$", shown, re.M)
    blob = shutil.copy(tiny / "llama.gguf", "sha256-0011")  # as Ollama names its files
    assert mlsd("models", "show", blob).out.splitlines()[1:] == shown.splitlines()[1:], "but for its name"


def test_cut_drafts_are_counted_and_cleaned(mlsd: Mlsd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlsd.gguf_tools.surgery.edit import cached_draft

    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))
    cached_draft("a.gguf", lambda path: path.write_bytes(bytes(1500)))
    assert "1.50 kB" in mlsd("models", "list").err
    assert mlsd("models", "clean").out == f"1.50 kB freed in {tmp_path / 'drafts'}.\n"
    assert json.loads(mlsd("models", "clean", "--json").out)["freed_bytes"] == 0
    assert "models clean" not in mlsd("models", "list").err


def test_methods_are_listed_with_their_options_and_presets_and_those_that_cannot_run_say_why(mlsd: Mlsd) -> None:
    listed = mlsd("models", "methods")
    assert listed.code == 0
    assert all(name in listed.out for name in METHODS)
    assert all(f"Not available: {name}: " in listed.err for name in UNAVAILABLE)
    printed = answer(mlsd, "methods")
    assert [method["name"] for method in printed["methods"]] == sorted(METHODS)
    assert {method["name"] for method in printed["unavailable"]} == UNAVAILABLE.keys()
    shown = mlsd("models", "methods", "pld").out
    assert "min_ngram" in shown and "ngram=12, min_ngram=12, match=last" in shown
    window = next(option for option in answer(mlsd, "methods", "lookahead")["options"] if option["name"] == "window")
    assert window == {"name": "window", "meaning": "W: columns", "values": "2 .. 100", "default": 15, "required": False}
    store = answer(mlsd, "methods", "rest")["options"][0]
    assert (store["name"], store["required"], store["default"]) == ("store", True, None)
