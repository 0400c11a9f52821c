"""A lab is closed: it listens where its own machines speak from, and lets in who has its certificate."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from mlsd.errors import LabError
from mlsd.lab.cluster import Cluster, make_certificate
from mlsd.lab.machine import status
from mlsd.servers.connection import is_loopback
from tests.lab.processes import Processes, lab, wait_for

pytestmark = pytest.mark.heavy
SocketAddress = tuple[str, int]


def listening(processes: Processes) -> list[SocketAddress]:
    """Where the processes of a lab listen, their children's included."""
    assert processes.scheduler is not None
    roots = [psutil.Process(p.pid) for p in (processes.scheduler, *processes.machines.values())]
    every = [one for root in roots for one in (root, *root.children(recursive=True))]
    return [
        (found.laddr.ip, found.laddr.port)
        for one in every
        for found in one.net_connections("inet")
        if found.status == psutil.CONN_LISTEN or found.type == socket.SOCK_DGRAM
    ]


@pytest.fixture(scope="module")
def open_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with lab(tmp_path_factory.mktemp("closed"), 1) as processes:
        with processes.cluster() as cluster:
            wait_for(lambda: len(cluster.ask(status)) == 1, "the machine does not join")
        yield processes


def test_a_lab_on_loopback_listens_there_alone_at_one_port_a_process(open_lab: Processes) -> None:
    addresses = listening(open_lab)
    assert all(is_loopback(host) for host, _ in addresses), addresses
    assert len(addresses) == 2


def answer(address: SocketAddress, sent: bytes) -> bytes:
    """What somebody gets who speaks plainly to a port."""
    with socket.create_connection(address, timeout=5) as peer:
        peer.sendall(sent)
        with suppress(OSError):
            return peer.recv(4096)
    return b""


def test_who_speaks_plainly_or_has_no_certificate_is_refused_at_every_port(open_lab: Processes, tmp_path: Path) -> None:
    strangers = tmp_path / "other.pem"
    make_certificate(strangers)
    for address in listening(open_lab):
        assert not answer(address, b"GET /info/main/workers.html HTTP/1.0\r\n\r\n").startswith(b"HTTP")
        for certificate in (None, strangers):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if certificate is not None:
                context.load_cert_chain(certificate)
            with (
                socket.create_connection(address, timeout=5) as peer,
                pytest.raises((ssl.SSLError, ConnectionError)),
                context.wrap_socket(peer) as inside,
            ):
                inside.recv(1)  # in TLS 1.3 the other side refuses after our handshake
    with pytest.raises(LabError, match="There is no lab"):
        Cluster(open_lab.address, strangers)


def test_a_machine_that_is_spoken_to_in_plain_runs_no_pickled_function(open_lab: Processes, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = (
        "import asyncio, sys, pathlib\n"
        "from distributed.core import rpc\n"
        "from distributed.protocol.pickle import dumps\n"
        "async def main():\n"
        "    async with rpc(sys.argv[1], timeout=5) as peer:\n"
        "        await peer.run(function=dumps(pathlib.Path.touch), args=dumps((pathlib.Path(sys.argv[2]),)))\n"
        "asyncio.run(asyncio.wait_for(main(), 10))\n"
    )
    for host, port in listening(open_lab):
        line = [sys.executable, "-c", code, f"tcp://{host}:{port}", str(ran)]
        assert subprocess.run(line, capture_output=True, timeout=60).returncode != 0
    assert not ran.exists()
