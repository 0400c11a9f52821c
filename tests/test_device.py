"""On a device that is not the CPU: its own buffers, passes that end later, states copied to it and back.

`python -m tools.native_builds --rpc --out DIR` builds the smallest such device in half a minute: llama.cpp's rpc-server
over loopback. It prints MLSD_DEVICE_LIBRARIES=FOLDER, under which these tests run; without it they are skipped by name.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlsd.records import Trial
from mlsd.store.store import Store
from tests.lab.processes import free_port
from tests.needs import needed

pytestmark = pytest.mark.device
needed("device")

ROOT = Path(__file__).parents[1]
LIBRARIES = "MLSD_DEVICE_LIBRARIES"
EXACTNESS = ("tests/engine/test_exact.py", "tests/drafters/test_exactness.py")
CLOSES_ONE_OF_TWO = """
import sys
from pathlib import Path
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.context import ContextOptions

options = ContextOptions(n_ctx=256, n_threads=1)
with LlamaModel(Path(sys.argv[1])) as model, open_context(model, options) as session:
    other, answers = open_context(model, options), set()
    for _ in range(3):
        session.clear()
        session.decode((1, 2, 3))
        answers.add(tuple(session.greedy()))
        other.close()
print(len(answers))
"""


class Device:
    """The server and the environment in which mlsd uses it."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "tests.rpc_server", str(folder), self.endpoint]
        self.server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LLAMA_CPP_LIB_PATH": str(folder),
            "MLSD_RPC_SERVER": self.endpoint,
            "MLSD_CACHE": str(cache / "cache"),
            "MLSD_HOME": str(cache / "home"),
        }
        self._wait()

    def _wait(self) -> None:
        host, _, port = self.endpoint.partition(":")
        for _ in range(600):
            assert self.server.poll() is None, "the server ended"
            try:
                socket.create_connection((host, int(port)), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        pytest.fail("the server does not answer")

    def mlsd(self, *arguments: object, place: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mlsd", *map(str, arguments)],
            cwd=place,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )

    def json(self, *arguments: object, place: Path) -> Any:
        done = self.mlsd(*arguments, "--json", place=place)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def stored(database: Path) -> list[Trial]:
    """Every trial that was kept."""
    with Store.open(database) as store:
        return [row.trial for row in store.trials()]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    started = Device(Path(os.environ[LIBRARIES]), tmp_path_factory.mktemp("device"))
    yield started
    started.server.kill()
    started.server.wait()


def test_the_device_is_named_and_so_is_its_memory(device: Device, tmp_path: Path) -> None:
    found = device.json("doctor", place=tmp_path)
    assert found["environment"]["backend"] == "RPC"
    assert found["environment"]["device"] == device.endpoint
    assert found["budget"]["basis"] == "what the device states" and found["budget"]["limit_bytes"] > 0


def test_a_tiny_suite_b_is_valid(device: Device, tmp_path: Path) -> None:
    small = ("--prompt", "code", "--repeats", 1, "--n-predict", 16, "--gamma", "4,16", "--n-threads", 1)
    found = device.json("run", "B", "--profile", "tiny", *small, "--db", "b.sqlite", place=tmp_path)
    assert (found["outcome"]["n_ok"], found["outcome"]["n_failed"]) == (6, 0)
    listed = device.mlsd("results", "trials", "--db", "b.sqlite", place=tmp_path)
    assert listed.returncode == 0 and "INVALID" not in listed.stdout


def test_the_self_check_holds(device: Device, tmp_path: Path) -> None:
    done = device.mlsd("doctor", "self-check", "-o", "check.json", place=tmp_path)
    checks = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["checks"]
    # Power and swap are this machine's, whatever the device does.
    own = [check for check in checks if check["name"] not in ("power", "low-power mode", "heat", "swap")]
    assert [check for check in own if check["ok"] is False] == [], done.stdout
    assert checks[0]["answer"] == f"RPC: {device.endpoint}"


@pytest.mark.heavy
def test_every_exactness_test_of_the_suite_passes(device: Device) -> None:
    """Twelve minutes, in one process: contexts are opened and closed beside others that go on."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *EXACTNESS],
        cwd=ROOT, env=device.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_a_closed_context_leaves_the_graph_of_another_at_work(device: Device, tiny: Path) -> None:
    """Where the server forgot the graph and the client did not know it, this process was aborted."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSES_ONE_OF_TWO, tiny / "llama.gguf"],
        cwd=ROOT, env=device.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr[-3000:]


def test_a_device_that_dies_leaves_no_valid_trial(device: Device, tiny: Path, tmp_path: Path) -> None:
    own = Device(Path(os.environ[LIBRARIES]), tmp_path)
    command = [
        sys.executable, "-m", "mlsd", "bench", str(tiny / "qwen35.gguf"), "--drafter", "pld", "--gamma", "4",
        "--repeats", "200", "--n-predict", "64", "--db", "dies.sqlite", "--json",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, env=own.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[4/"):
                break
        own.server.kill()
        own.server.wait()
        process.communicate(timeout=300)
    trials = stored(tmp_path / "dies.sqlite")
    valid = [trial for trial in trials if trial.valid]
    failed = [trial for trial in trials if trial.status == "failed"]
    assert len(valid) >= 4 and failed and not any(trial.valid for trial in failed)
    assert len({trial.tokens for trial in valid}) == 1, "nothing that is valid is stale"
