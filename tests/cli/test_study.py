"""`make study`: from nothing to a report in one command, killed on the way and gone on with."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import HubServer, stand_ins_of, write_manifest
from tools.install import launcher

ROOT = Path(__file__).parents[2]
PROFILE = "mac-16gb"
QUICK = "--yes --prompt code --gamma 4 --repeats 1 --n-predict 8 --n-threads 1"


@pytest.fixture(scope="module")
def stand_ins(tiny: Path) -> dict[str, bytes]:
    return stand_ins_of(PROFILE, tiny)


@pytest.fixture
def hub(stand_ins: dict[str, bytes]) -> Iterator[HubServer]:
    with HubServer(stand_ins) as running:
        yield running


@pytest.fixture
def checkout(hub: HubServer, tmp_path: Path) -> Path:
    """This checkout, but for its manifest: the same ids, sizes and hashes of the stand-ins."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("mlsd", "tools", "pyproject.toml", "constraints.txt", "suites"):
        (checkout / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "Makefile", checkout)
    write_manifest(hub, checkout / "gguf_manifest.toml")
    (checkout / "ready").mkdir()
    (checkout / "ready/.ready").touch()  # what is installed is what runs the tests
    (checkout / "ready/bin").mkdir()
    python = checkout / "ready/bin/python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    launcher(checkout / "ready/bin/mlsd", checkout)
    return checkout


def study(hub: HubServer, checkout: Path, arguments: str = QUICK) -> subprocess.Popen[str]:
    variables = [f"PROFILE={PROFILE}", f"ARGS={arguments}", "VENV=ready", "COSTS_S=0"]
    environment = {
        **os.environ,
        "HOME": str(checkout.parent / "nobody"),
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(checkout.parent / "hf"),
        "MLSD_HOME": str(checkout.parent / "me"),
    }
    return subprocess.Popen(
        ["make", "study", *variables],
        cwd=checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> str:
    """End the command and everything that it started, as losing power does; what it had said."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.communicate(timeout=60)[1]


def asked_for(hub: HubServer) -> set[str]:
    """Models that were downloaded, at least in part."""
    paths = [path for method, path, _ in hub.requests if method == "GET" and "/resolve/" in path]
    return {path.rpartition("/")[2].removesuffix(".gguf") for path in paths}


@pytest.mark.heavy
def test_from_nothing_to_a_report_in_one_command_killed_twice_on_the_way(hub: HubServer, checkout: Path) -> None:
    hub.hold_after_bytes = min(map(len, hub.files.values())) // 2
    with study(hub, checkout) as first:
        assert hub.held.wait(120), kill(first)
        said = kill(first)
    needed = {name.removesuffix(".gguf") for name in hub.files} - {"qwen3.5-2b-q4_k_m"}  # drafts for mixtures only
    assert all(f"{name}: " in said for name in needed), said
    assert "to download or make" in said and "at 100 Mbit/s" in said
    hub.hold_after_bytes = None
    hub.go_on.set()

    with study(hub, checkout) as second:
        assert second.stderr is not None
        for line in second.stderr:
            if line.startswith("[2/"):
                break
        else:
            pytest.fail(f"no trial was measured: {second.wait()}")
        kill(second)
    brought = asked_for(hub)
    assert 1 <= len(brought) < len(needed), "the first trials did not wait for the models of others"

    hub.limits = {"HEAD": [{"Retry-After": "1"}], "GET": [{"Retry-After": "1"}]}
    with study(hub, checkout) as third:
        out, said = third.communicate(timeout=300)
    assert third.returncode == 0, said
    assert all(f"{name}: " not in said.partition("In all")[0] for name in brought), "nothing is shown twice"
    assert said.count("Rate limited. Waiting 2.0s") == 2, said
    assert asked_for(hub) == needed
    whole = [range_ for range_ in hub.ranges() if range_ in (None, "bytes=0-")]
    assert len(needed) < len(whole) <= len(needed) + 3, "nothing comes twice but what was limited or cut off"
    assert "0 failed" in said and "0 left" in said
    assert int(said.rpartition(" done before")[0].rpartition(" ")[2]) >= 2
    assert (checkout / f"results/{PROFILE}.sqlite").is_file()
    assert "Report: report/report.html" in out and (checkout / "report/report.html").is_file()


def test_a_download_that_nobody_agreed_to_does_not_begin(hub: HubServer, checkout: Path) -> None:
    with study(hub, checkout, QUICK.replace("--yes ", "")) as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Add --yes" in said and "to download or make" in said
    assert not hub.requests
