"""The one door to Dask distributed: a scheduler, machines that join it, and the lab that a coordinator sees.

Dask carries calls and notices who is gone; nothing is moved or tried again. A task is a pickled function, so everything
is encrypted and only who holds the lab's certificate takes part; nothing listens for HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import secrets
import shlex
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from mlsd import __version__
from mlsd.children import end_with_parent, start_child
from mlsd.errors import InputError, LabError, MlsdError, UnsupportedError
from mlsd.folders import user_dir, write_atomically
from mlsd.lab import machine
from mlsd.measure.parent.blocks import RunOutcome, RunSettings
from mlsd.outside import check_regular
from mlsd.planning.question import Asked
from mlsd.planning.request import StudyRequest
from mlsd.records import EngineOptions, Record

PORT = 8786
_KEY = "-----BEGIN PRIVATE KEY-----"
_PULLS = "pulls"  # the resource of a machine that may download
_CONNECT_S, _REJOIN_S = 10.0, 2.0
_MOST_CERTIFICATE = 1 << 20  # characters
_SSH_FAILED = 255
_SHOW_VERSION = "import distributed, cryptography, mlsd; print(mlsd.__version__)"
# Nothing periodic that is not needed: a machine that waits must not disturb what is measured on it.
_QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-ttl": "60s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.admin.tick.interval": "1h",
    "distributed.admin.tick.limit": "2h",
    "distributed.admin.system-monitor.interval": "30s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.low-level-log-length": 4,
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


def certificate_path() -> Path:
    """Where this user's lab certificate lies."""
    return user_dir() / "lab.pem"


def full_address(text: str) -> str:
    """``HOST:PORT`` with tls. Raises: InputError for what is no address, and for plain traffic."""
    scheme, _, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise InputError(f"{text} is no address: {error}.", hint=f"Give tls://HOST:{PORT}.") from None
    if scheme == "tcp":
        raise InputError(f"{text} is plain traffic, and a lab is always encrypted.", hint=f"Give tls://{rest}.")
    if not host or scheme not in ("", "tls"):
        raise InputError(f"{text} is no address.", hint=f"Give tls://HOST:{PORT}.")
    return f"tls://{_in_url(host)}:{port}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def make_certificate(path: Path) -> None:
    """Write a new certificate and its key, good for a year: whoever has the file is let in. Raises: InputError."""
    made = _distributed().Security.temporary()
    write_atomically(path, made.tls_client_cert + made.tls_client_key)  # for its owner alone from the first byte


def _certificate(path: Path | None) -> str:
    """The text of the lab's certificate file. Raises: LabError for a file that is none, or that others may read."""
    path = path or certificate_path()
    try:
        check_regular(path)
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MOST_CERTIFICATE)
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(
            f"The lab's certificate {path} cannot be read: {getattr(error, 'strerror', None) or error}.",
            hint="Copy the file that `mlsd lab start` made, and name it with --certificate.",
        ) from error
    if mode & 0o077:
        raise LabError(
            f"Permissions {mode:04o} for {path} are too open: others can read the key, and whoever has it is let in.",
            hint=f"chmod 600 {shlex.quote(str(path))}, or let `mlsd lab start` make a new one if others did read it.",
        )
    _distributed()
    from cryptography.x509 import load_pem_x509_certificate

    cert, key, _ = text.partition(_KEY)
    try:
        ends = load_pem_x509_certificate(cert.encode() if key else b"").not_valid_after_utc
    except ValueError as error:
        raise LabError(f"{path} is not a lab certificate.", hint="Copy the file that `mlsd lab start` made.") from error
    if ends < datetime.datetime.now(datetime.UTC):
        raise LabError(
            f"The lab's certificate {path} expired on {ends.date()}.",
            hint="Remove it where the lab starts: `mlsd lab start` makes a new one. Copy that to every machine.",
        )
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
    address, path = full_address(f"{_in_url(host)}:{port}"), certificate or certificate_path()
    if not path.exists():
        make_certificate(path)
    text = _certificate(path)

    async def serve() -> None:
        kind = _without_http(_distributed().Scheduler)
        secure = {"protocol": "tls", "security": _security(text)}
        try:
            scheduler = await kind(host=_in_url(host), port=port, dashboard=False, **secure)
        except (OSError, ValueError) as error:
            words = f"No lab can be started at {address}: {error}."
            raise LabError(words, hint="Give another --host or --port.") from error
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
        line = self.line(f"-c {shlex.quote(_SHOW_VERSION)}")
        try:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        except OSError as error:
            raise LabError(f"ssh cannot be run: {error}.", hint="Install OpenSSH's client.") from error
        reason = _first_line("\n".join(reversed(done.stderr.splitlines())))
        if done.returncode == _SSH_FAILED:
            raise LabError(
                f"ssh does not reach {self.host}: {reason}",
                hint=f"`ssh {self.host} true` must work without a question; a Mac lets ssh in under Remote Login.",
            )
        version = done.stdout.strip()
        if done.returncode or version != __version__:
            there = f"has mlsd {version}, not {__version__}" if version and not done.returncode else f"failed: {reason}"
            raise LabError(
                f"{self.python} on {self.host} {there}",
                hint="Install mlsd[lab] there, of this version. A shell that ssh starts reads no profile: name the "
                "interpreter of its environment with --remote-python PATH.",
            )


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
    card = machine.read_card(EngineOptions())
    machine.cards.append(card)
    with contextlib.suppress(OSError):  # where there is no scheduler; a TimeoutError among them
        worker = await kind(
            joining.address, nthreads=1, resources={card.place: 1} | ({_PULLS: 1} if joining.may_pull else {}),
            memory_limit=0, heartbeat_interval="5s", death_timeout=30, name=uuid.uuid4().hex[:12],
            # The address from which it speaks to the scheduler: nobody else needs to reach it.
            host=_in_url(get_ipv6(host) if ":" in host else get_ip(host)), security=_security(joining.certificate),
        )  # fmt: skip
        await worker.finished()


def measure_task(request: StudyRequest, settings: RunSettings, options: Asked, study: str, known: bytes) -> RunOutcome:
    """`machine.measure` as a task, which ends with this process when it is cancelled or the scheduler is gone."""
    from distributed import get_worker

    worker = get_worker()
    ticket = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(ticket)
        return task is not None and task.state == "executing" and worker.status.name == "running"

    may_pull = _PULLS in worker.state.total_resources
    return machine.measure(request, settings, options, study, known, may_pull=may_pull, wanted=wanted)


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
                hint = "Its certificate is another one: copy the file that this lab's `mlsd lab start` named."
            raise LabError(f"There is no lab at {address}: {_first_line(cause)}", hint=hint) from error

    def addresses(self) -> set[str]:
        """Of the machines that are here. Raises: LabError without the scheduler."""
        # Not `scheduler_info`: the client's own refreshing empties its list of workers in between.
        try:
            identity = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=_CONNECT_S)
        except (OSError, TimeoutError, RuntimeError) as error:
            raise LabError(
                f"The lab's scheduler is gone: {_first_line(str(error))}",
                hint="What was measured is kept; start a lab again, and the same command goes on.",
            ) from error
        return set(identity["workers"])

    def submit(self, place: str, function: Callable[..., Any], *arguments: Any) -> MachineTask:
        """Let a machine of a place (`Card.place`) do something, as soon as one is here that does nothing else."""
        future = self._client.submit(
            function, *arguments, key=f"{function.__name__}-{secrets.token_hex(16)}", resources={place: 1}, retries=0,
            pure=False,
        )  # fmt: skip
        return MachineTask(future)

    def ask(self, function: Callable[..., Any], *arguments: Any, of: Iterable[str] | None = None) -> dict[str, Any]:
        """What the machines answer at once, whatever they do, by address; one that is gone is left out."""
        workers = None if of is None else list(of)
        if workers == []:
            return {}
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            answers: dict[str, Any] = self._client.run(function, *arguments, workers=workers, on_error="ignore")
            return answers
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(timeout=2)


class MachineTask:
    """What a machine was given to do."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        done: bool = self._future.done()
        return done

    def cancel(self) -> None:
        """Let the machine stop, and wait for no answer."""
        with contextlib.suppress(Exception):
            self._future.cancel(force=True, reason="not wanted")

    def result(self) -> Any:
        """What it gave; None where its machine was lost. Raises: what was raised there."""
        error = self._future.exception()
        if isinstance(error, MlsdError):
            raise error
        return None if error is not None else self._future.result()


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no answer").strip()


def main() -> None:
    """A machine's own process: what to join is read from standard input, and with its end the process ends."""
    line = sys.stdin.buffer.readline()
    end_with_parent()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_machine(msgspec.json.decode(line, type=Joining)))
    os._exit(0)  # a measurement in a thread ends with the process
