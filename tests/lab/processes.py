"""A lab of real processes on this machine: a scheduler, machines with folders of their own, and a coordinator."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mlsd.lab.cluster import Cluster, make_certificate

ROOT = Path(__file__).parents[2]
# A test may say which machine a process claims to be.
_JOIN = """
import sys
import mlsd.hardware as hardware
claimed = sys.argv.pop(1)
hardware.host_key = lambda identity: claimed
from mlsd.lab.cluster import main
main()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


class Processes:
    """Everything that runs for one lab."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.address = f"tls://127.0.0.1:{self.port}"
        self.certificate = folder / "lab.pem"
        make_certificate(self.certificate)
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.machines: dict[str, subprocess.Popen[bytes]] = {}

    def env(self, name: str) -> dict[str, str]:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        return {**os.environ, "MLSD_HOME": str(home), "MLSD_CACHE": str(home), "PYTHONPATH": str(ROOT)}

    def start(self) -> None:
        line = [sys.executable, "-m", "mlsd", "lab", "start", "--host", "127.0.0.1", "--port", str(self.port),
                "--certificate", str(self.certificate)]  # fmt: skip
        self.scheduler = subprocess.Popen(line, env=self.env("scheduler"), cwd=ROOT, stdout=subprocess.DEVNULL)
        wait_for(lambda: answers(self.port), "the scheduler does not answer")

    def join(self, name: str, claimed: str = "a" * 16) -> None:
        """A machine's process, as `mlsd lab join` starts it; kept joined by `rejoin`."""
        certificate = self.certificate.read_text()
        asked = json.dumps({"address": self.address, "certificate": certificate, "may_pull": False}) + "\n"
        process = subprocess.Popen(
            [sys.executable, "-c", _JOIN, claimed], env=self.env(name), cwd=ROOT, stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        process.stdin.write(asked.encode())
        process.stdin.flush()
        self.machines[name] = process

    def rejoin(self, claimed: str = "a" * 16) -> None:
        """What `mlsd lab join` does when the process under it ended."""
        for name, process in list(self.machines.items()):
            if process.poll() is not None:
                end(process)
                self.join(name, claimed)

    def run(self, database: Path, *options: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "mlsd", "run", *options, "--lab", self.address, "--db", str(database),
                "--certificate", str(self.certificate)]  # fmt: skip
        with (self.folder / "output.log").open("ab") as log:
            return subprocess.Popen(line, env=self.env("coordinator"), cwd=ROOT, stdout=log, stderr=log)

    def cluster(self) -> Cluster:
        """The lab as its user sees it."""
        return Cluster(self.address, self.certificate)

    def output(self) -> str:
        """What the coordinators said."""
        return (self.folder / "output.log").read_text("utf-8", "replace")[-3000:]

    def close(self) -> None:
        for process in (*self.machines.values(), self.scheduler):
            if process is not None:
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


@contextmanager
def lab(folder: Path, n_machines: int, claimed: tuple[str, ...] = ("a" * 16,)) -> Iterator[Processes]:
    processes = Processes(folder)
    try:
        processes.start()
        for i in range(n_machines):
            processes.join(f"machine{i}", claimed[i % len(claimed)])
        yield processes
    finally:
        processes.close()


def wait_for(holds: Callable[[], bool], otherwise: str, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, otherwise
        time.sleep(0.1)


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing where it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def answers(port: int) -> bool:
    with socket.socket() as peer:
        return peer.connect_ex(("127.0.0.1", port)) == 0
