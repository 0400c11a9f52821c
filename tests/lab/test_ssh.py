"""A machine that joins through ssh, against a real sshd on this machine with a key that lives as long as the test."""

import getpass
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mlsd import __version__
from mlsd.errors import LabError
from mlsd.lab.cluster import Cluster, Remote, make_certificate
from mlsd.lab.machine import status
from tests.lab.processes import ROOT, answers, end, free_port, wait_for, words_of
from tests.needs import needed

pytestmark = [pytest.mark.ssh, pytest.mark.heavy]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """A server that lets one new key in, and an `ssh` on the PATH that knows both, as ~/.ssh/config would."""
    program = needed("sshd")
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    host_key = (folder / "host.pub").read_text()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    home = folder / "machine"
    home.mkdir()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
        f'SetEnv "PYTHONPATH={ROOT}" MLSD_HOME={home} MLSD_CACHE={home}\n'
    )
    (folder / "config").write_text(
        f"Host here\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {folder}/known\n"
        f"Host closed\n  HostName 127.0.0.1\n  Port {free_port()}\n"
        f"Host stranger\n  HostName 127.0.0.1\n  Port {port}\n  UserKnownHostsFile /dev/null\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True) if os.geteuid() == 0 else None
    server = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{wrapper.parent}:{path}"
    try:
        wait_for(lambda: answers(port), "sshd does not listen")
        yield server
    finally:
        os.environ["PATH"] = path
        for child in psutil.Process(server.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it may have ended since it was counted
                child.kill()
        end(server)


@pytest.mark.usefixtures("sshd")
@pytest.mark.parametrize(
    ("remote", "reason"),
    [
        (Remote(host="closed"), "ssh does not reach closed: .*refused"),
        (Remote(host="stranger"), "ssh does not reach stranger: .*verification failed"),
        (Remote(host="-oProxyCommand=false"), "ssh does not reach -oProxyCommand=false"),
        (Remote(host="here", python="/nowhere/python"), "/nowhere/python on here failed: .*(not found|No such file)"),
        (Remote(host="here", python="env -u PYTHONPATH python3 -S"), "on here failed: .*No module named"),
        (Remote(host="here", python="echo 0.0.1 #"), f"on here has mlsd 0.0.1.*, not {__version__}"),
    ],
)
def test_a_machine_that_cannot_join_is_named_before_a_lab_starts(remote: Remote, reason: str) -> None:
    with pytest.raises(LabError, match=f"(?s){reason}"):
        remote.check()


def test_a_machine_of_ssh_joins_encrypted_comes_back_and_leaves_with_the_lab(
    sshd: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    certificate, port = tmp_path / "lab.pem", free_port()
    make_certificate(certificate)
    line = [sys.executable, "-m", "mlsd", "lab", "start", "--host", "127.0.0.1", "--port", str(port), "--ssh", "here",
            "--certificate", str(certificate), "--remote-python", shlex.quote(sys.executable)]  # fmt: skip
    lab = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    address = f"tls://127.0.0.1:{port}"

    def machines() -> list[psutil.Process]:
        below = psutil.Process(sshd.pid).children(recursive=True)
        return [process for process in below if "mlsd.lab" in words_of(process)]

    try:
        assert lab.stdout is not None
        assert lab.stdout.readline().startswith(f"mlsd lab join {address}".encode())
        with Cluster(address, certificate) as cluster:
            wait_for(lambda: len(cluster.ask(status)) == 1, "the machine does not join")
            (first,) = machines()
            with suppress(psutil.NoSuchProcess):
                first.kill()
            wait_for(lambda: first not in machines() and len(cluster.ask(status)) == 1, "it does not come back")
        lab.send_signal(signal.SIGINT)
        assert lab.wait(timeout=30) == 130
        wait_for(lambda: not machines(), "a machine is left behind", 20)
    finally:
        lab.kill()
        lab.communicate()
