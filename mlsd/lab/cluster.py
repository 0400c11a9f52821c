"""The one door to Dask distributed: a scheduler, machines that join it, and the lab that a coordinator sees.

Dask carries calls, notices who is gone, and gives a lost machine its task again when it is back. A task is a pickled
function, so everything is encrypted and only who holds the lab's certificate takes part; nothing listens for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from mlsd import __version__
from mlsd.children import end_with_parent, start_child
from mlsd.errors import InputError, LabError, UnsupportedError
from mlsd.folders import user_dir, write_atomically
from mlsd.lab import machine
from mlsd.outside import read_given
from mlsd.records import Record

PORT = 8786
MOST_LOSSES = 9  # of a machine that measures; one more, and it is given up
_KEY = "-----BEGIN PRIVATE KEY-----"
_CONNECT_S, _REJOIN_S = 10.0, 2.0
_SSH_FAILED = 255
_SHOW_VERSION = "import distributed, cryptography, mlsd; print(mlsd.__version__)"
# Nothing periodic that is not needed: a machine that waits must not disturb what is measured on it.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": MOST_LOSSES,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.limit": "2h",
    "distributed.admin.system-monitor.interval": "30s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.low-level-log-length": 4,
    "distributed.admin.large-graph-warning-threshold": "1TB",  # a study's database may travel with its task
    "distributed.comm.timeouts.connect": f"{_CONNECT_S}s",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def _distributed() -> Any:
    try:
        import cryptography  # noqa: F401 - distributed asks for it when it is too late to say so
        import dask
        import distributed
    except ImportError as error:
        raise UnsupportedError(f"A lab needs the package {error.name}.", hint="pip install 'mlsd[lab]'") from error
    dask.config.set(_QUIET)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    return distributed


# --- addresses and certificates ---------------------------------------------------------------------------------


def full_address(text: str) -> str:
    """``HOST:PORT`` with tls. Raises: InputError for what is no address, and for plain traffic."""
    scheme, _, rest = text.rpartition("://")
    host, port = None, 0
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port or PORT
    if not host or scheme not in ("", "tls"):
        raise InputError(f"{text} is no address of a lab, whose traffic is encrypted.", hint=f"Give tls://HOST:{PORT}.")
    return f"tls://{_in_url(host)}:{port}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_certificate(path: Path) -> None:
    """Write a new certificate and its key, good for a year: whoever has the file is let in. Raises: InputError."""
    security = _distributed().Security.temporary()
    # For its owner alone from the first byte.
    write_atomically(path, security.tls_client_cert + security.tls_client_key)


def _certificate(path: Path | None) -> str:
    """The text of the lab's certificate file. Raises: LabError for a file that is none, or that others may read."""
    path, hint = (
        path or user_dir() / "lab.pem",
        "Copy the file that `mlsd lab start` made, and name it with --certificate.",
    )
    text = read_given(path, LabError, hint).decode("ascii", "replace")
    if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
        raise LabError(
            f"Permissions {mode:04o} for {path} are too open: others can read the key, and whoever has it is let in.",
            hint=f"chmod 600 {shlex.quote(str(path))}, or let `mlsd lab start` make a new one if others did read it.",
        )
    if _KEY not in text:
        raise LabError(f"{path} is not a lab certificate.", hint=hint)
    return text


def _security(certificate: str) -> Any:
    cert, _, key = certificate.partition(_KEY)
    roles = {f"tls_{role}_{kind}": value for role in ("client", "scheduler", "worker")
             for kind, value in (("cert", cert), ("key", _KEY + key))}  # fmt: skip
    return _distributed().Security(require_encryption=True, tls_ca_file=cert, **roles)


def _without_http(kind: Any) -> Any:
    """A scheduler or worker of Dask that opens no port for HTTP: what it shows there, it shows to everybody."""
    return type(kind.__name__, (kind,), {"start_http_server": lambda *_, **__: None})


# --- the scheduler ----------------------------------------------------------------------------------------------


def start(
    host: str,
    port: int,
    certificate: Path | None,
    on_start: Callable[[str, Path], None],
    remotes: Sequence[Remote] = (),
    on_loss: Callable[[str, str], None] = lambda name, words: None,
    *,
    may_pull: bool = False,
) -> None:
    """Run a scheduler until it is ended; `on_start` hears its address and certificate. Remote machines join it.

    Raises: LabError when it cannot listen, or for a machine that ssh does not reach or that has not this mlsd.
    """
    for remote in remotes:
        remote.check()
    address, path = full_address(f"{_in_url(host)}:{port}"), certificate or user_dir() / "lab.pem"
    if not path.exists():
        make_certificate(path)
    text = _certificate(path)

    async def serve() -> None:
        kind = _without_http(_distributed().Scheduler)
        security = _security(text)
        try:
            scheduler = await kind(host=_in_url(host), port=port, dashboard=False, protocol="tls", security=security)
        except (OSError, ValueError) as error:
            reason = f"No lab can be started at {address}: {error}."
            raise LabError(reason, hint="Give another --host or --port, or another certificate.") from error
        on_start(scheduler.address, path)
        joining = Joining(address=scheduler.address, certificate=text, may_pull=may_pull)
        for remote in remotes:
            begin, lost = partial(_piped, remote.line("-m mlsd.lab")), partial(on_loss, remote.host)
            threading.Thread(target=_keep_joined, args=(begin, joining, lost), daemon=True).start()
        await scheduler.finished()

    asyncio.run(serve())


# --- a machine --------------------------------------------------------------------------------------------------


class Remote(Record, frozen=True, kw_only=True):
    """A machine that this user's `ssh` reaches without a question, as ~/.ssh/config may say how."""

    host: str
    python: str = "python3"  # as a command of a shell there

    def line(self, arguments: str) -> list[str]:
        """The command that runs an interpreter there with these arguments, and ends with its standard input."""
        quiet = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15")
        options = [word for option in quiet for word in ("-o", option)]
        return ["ssh", "-T", *options, "--", self.host, f"{self.python} -P {arguments}"]

    def check(self) -> None:
        """Raises: LabError where it cannot join, with what to do."""
        try:
            done = subprocess.run(
                self.line(f"-c {shlex.quote(_SHOW_VERSION)}"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace",
            )  # fmt: skip
        except OSError as error:
            raise LabError(f"ssh cannot be run: {error}.", hint="Install OpenSSH's client.") from error
        reason, version = first_line("\n".join(reversed(done.stderr.splitlines()))), done.stdout.strip()
        if done.returncode == _SSH_FAILED:
            hint = f"`ssh {self.host} true` must work without a question; a Mac lets ssh in under Remote Login."
            raise LabError(f"ssh does not reach {self.host}: {reason}", hint=hint)
        if done.returncode or version != __version__:
            there = f"failed: {reason}" if done.returncode else f"has mlsd {version}, not {__version__}"
            hint = "Install mlsd[lab] there, of this version, and name its interpreter with --remote-python PATH."
            raise LabError(f"{self.python} on {self.host} {there}", hint=hint)


class Joining(Record, frozen=True, kw_only=True):
    """What a machine's own process is told."""

    address: str
    certificate: str  # the text of the file: a machine behind ssh needs no copy
    may_pull: bool


def join(address: str, certificate: Path | None, *, may_pull: bool, on_loss: Callable[[str], None]) -> None:
    """Let this machine measure for a lab until interrupted; after a loss it joins again. Raises: LabError at first."""
    address = full_address(address)
    Cluster(address, certificate).__exit__()  # says what is wrong, where something is
    joining = Joining(address=address, certificate=_certificate(certificate), may_pull=may_pull)
    begin = partial(start_child, "mlsd.lab", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _keep_joined(begin, joining, on_loss)


_piped = partial(subprocess.Popen[bytes], stdin=subprocess.PIPE, stderr=subprocess.PIPE)


def _keep_joined(
    begin: Callable[[], subprocess.Popen[bytes]], joining: Joining, on_loss: Callable[[str], None]
) -> None:
    """Run a machine's process, and after every loss anew; `on_loss` hears its last line."""
    while True:
        process, last = begin(), b""
        assert process.stdin is not None and process.stderr is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(joining) + b"\n")
                process.stdin.flush()
            for last in process.stderr:  # noqa: B007 - the last one is wanted
                pass
        finally:
            process.kill()
            process.communicate()
        on_loss(last.decode("utf-8", "replace").strip())
        time.sleep(_REJOIN_S)


async def _serve_machine(joining: Joining) -> None:
    from distributed.utils import get_ip, get_ipv6

    host = urlsplit(joining.address).hostname or ""
    kind = _without_http(_distributed().Worker)
    card = machine.join(joining.may_pull)
    with contextlib.suppress(OSError):  # where there is no scheduler; a TimeoutError among them
        worker = await kind(
            joining.address, nthreads=1, resources={card.host: 1}, plugins=(_end_with_task(),), memory_limit=0,
            heartbeat_interval="5s", death_timeout=30, name=uuid.uuid4().hex[:12],
            # The address from which it speaks to the scheduler: nobody else needs to reach it.
            host=_in_url(get_ipv6(host) if ":" in host else get_ip(host)), security=_security(joining.certificate),
        )  # fmt: skip
        await worker.finished()


def _end_with_task() -> Any:
    """A plugin that ends this process when what it measures is not wanted any more: nothing else can stop a thread."""

    class EndWithTask(_distributed().WorkerPlugin):  # type: ignore[misc]
        def transition(self, key: object, start: str, finish: str, **_: object) -> None:
            if start == "executing" and finish in ("released", "cancelled"):
                os._exit(0)

    return EndWithTask()


# --- the coordinator's side -------------------------------------------------------------------------------------


class Cluster:
    """The machines of a lab through its scheduler."""

    def __init__(self, address: str, certificate: Path | None) -> None:
        """Connect. Raises: LabError for a host that does not answer or does not let us in."""
        address = full_address(address)
        security = _security(_certificate(certificate))
        try:
            self._client = _distributed().Client(address, security=security, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            cause = f"{error} {error.__cause__ or ''}"
            hint = "Check the address, and that `mlsd lab start` runs there."
            if "certificate" in cause.lower() or "ssl" in cause.lower():
                hint = "Copy the certificate that its `mlsd lab start` named; one that expired: remove it there first."
            raise LabError(f"There is no lab at {address}: {first_line(cause)}", hint=hint) from error

    def submit(self, host: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Let a machine (`Card.host`) do something, as soon as it is here and does nothing else: Dask's future."""
        return self._client.submit(function, *arguments, resources={host: 1}, pure=False)

    def wait(self, futures: Sequence[Any], timeout_s: float) -> None:
        """Until one of them is done, or so long."""
        cancelled = _distributed().client.FuturesCancelledError  # by a scheduler that lost them
        with contextlib.suppress(TimeoutError, cancelled), self._client.as_current():
            _distributed().wait(futures, timeout=timeout_s, return_when="FIRST_COMPLETED")

    def cancel(self, futures: Sequence[Any]) -> None:
        """Let machines stop, and wait for no answer."""
        with contextlib.suppress(Exception):  # there may be no scheduler any more
            self._client.cancel(futures, force=True, reason="not wanted")

    def ask(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """What the machines answer at once, whatever they do, by address; one that is gone is left out.

        Raises: LabError without the scheduler.
        """
        try:
            answers: dict[str, Any] = self._client.run(function, *arguments, on_error="ignore")
        except (OSError, TimeoutError, RuntimeError) as error:
            raise LabError(
                f"The lab's scheduler is gone: {first_line(str(error))}",
                hint="What was measured is kept; start a lab again, and the same command goes on.",
            ) from error
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(timeout=2)


def first_line(text: str) -> str:
    """The first line of a text that says something."""
    return next((line for line in text.splitlines() if line.strip()), "no answer").strip()


def main() -> None:
    """A machine's own process: what to join is read from standard input, and with its end the process ends."""
    line = sys.stdin.buffer.readline()
    end_with_parent()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_machine(msgspec.json.decode(line, type=Joining)))
    os._exit(0)  # a measurement in a thread ends with the process
