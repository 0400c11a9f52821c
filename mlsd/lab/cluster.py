"""The one door to Dask distributed: a scheduler, machines that join it, and the lab that a coordinator sees.

Dask carries messages and notices who is gone, and decides nothing: no nanny, no stealing, no retries. A task is a
pickled function, so everything is encrypted and only who holds the lab's certificate takes part; nothing listens for
HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import queue
import shlex
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mlsd.children import end_with_parent, start_child
from mlsd.errors import InputError, LabError, UnsupportedError
from mlsd.folders import user_dir, write_atomically
from mlsd.lab import machine
from mlsd.lab.machine import Card, Doing, Ended, Origin
from mlsd.measure.messages import BlockMeasured
from mlsd.outside import check_regular
from mlsd.planning.job import Job
from mlsd.records import EngineOptions, Record
from mlsd.version import __version__

PORT = 8786
_TOPIC = "mlsd-trials"
_KEY = "-----BEGIN PRIVATE KEY-----"
_PULLS = "pulls"  # the resource of a machine that may download
_CONNECT_S = 10.0
_REJOIN_S = 2.0
_CARD_S = 60.0  # to wait for the first machines' cards
_MOST_CERTIFICATE = 1 << 20  # characters
_SSH_FAILED = 255
_SHOW_VERSION = "import distributed, cryptography, mlsd; print(mlsd.__version__)"
_GOES_ON = "What was measured is kept; start a lab again, and the same command goes on."
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


def own_host(address: str) -> str:
    """The address from which this machine speaks to another: there the other reaches it, and nobody else needs to.

    Raises: OSError where there is no way to it.
    """
    parts = urlsplit(address)
    found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)
    # IPv4 first: a link-local address of IPv6 means nothing without the name of the interface.
    for family, kind, protocol, _, place in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        with socket.socket(family, kind, protocol) as probe, contextlib.suppress(OSError):
            probe.connect(place)  # of datagrams: nothing is sent
            return _in_url(str(probe.getsockname()[0]))
    raise OSError(f"there is no way to {parts.hostname}")


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


async def open_scheduler(host: str, port: int, certificate: str) -> Any:
    """A scheduler that listens. Raises: OSError, ValueError where it cannot."""
    kind = _without_http(_distributed().Scheduler)
    return await kind(host=_in_url(host), port=port, protocol="tls", dashboard=False, security=_security(certificate))


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
    address = full_address(f"{_in_url(host)}:{port}")
    path = certificate or certificate_path()
    if not path.exists():
        make_certificate(path)
    text = _certificate(path)

    async def serve() -> None:
        try:
            scheduler = await open_scheduler(host, port, text)
        except (OSError, ValueError) as error:
            raise LabError(
                f"No lab can be started at {address}: {error}.", hint="Give another --host or --port."
            ) from error
        on_start(scheduler.address, path)
        joining = Joining(address=scheduler.address, certificate=text, may_pull=may_pull)
        for remote in remotes:
            connect = partial(
                subprocess.Popen, remote.line("-m mlsd.lab"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
            )
            arguments = (connect, joining, partial(on_loss, remote.host))
            threading.Thread(target=_keep_joined, args=arguments, daemon=True).start()
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
    Cluster(address, certificate).close()  # says what is wrong, where something is
    joining = Joining(address=address, certificate=_certificate(certificate), may_pull=may_pull)
    begin = partial(start_child, "mlsd.lab", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    _keep_joined(begin, joining, on_loss)


def _keep_joined(
    begin: Callable[[], subprocess.Popen[bytes]], joining: Joining, on_loss: Callable[[str], None]
) -> None:
    """Run a machine's process, and after every loss anew; `on_loss` hears its last words."""
    while True:
        process = begin()
        assert process.stdin is not None and process.stderr is not None
        words: deque[bytes] = deque(maxlen=1)
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(joining) + b"\n")
                process.stdin.flush()
            words.extend(process.stderr)
            process.wait()
        finally:
            process.kill()
            process.communicate()
        on_loss(b"".join(words).decode("utf-8", "replace").strip())
        time.sleep(_REJOIN_S)


async def open_machine(joining: Joining) -> Any:
    """Dask's worker of a machine, joined. Raises: OSError where there is no scheduler."""
    kind = _without_http(_distributed().Worker)
    resources = {"machine": 1} | ({_PULLS: 1} if joining.may_pull else {})
    return await kind(
        joining.address, nthreads=1, resources=resources, memory_limit=0, heartbeat_interval="5s", death_timeout=30,
        name=uuid.uuid4().hex[:12], host=own_host(joining.address), security=_security(joining.certificate),
    )  # fmt: skip


async def _serve_machine(joining: Joining) -> None:
    machine.read_card(EngineOptions(), may_pull=joining.may_pull)
    try:
        worker = await open_machine(joining)
    except OSError:  # a TimeoutError among them
        return
    await worker.finished()


# --- tasks, called by name on a machine -------------------------------------------------------------------------


def card_task(engine: bytes) -> bytes:
    """The machine's card for contexts like these."""
    from distributed import get_worker

    options = msgspec.json.decode(engine, type=EngineOptions)
    return msgspec.json.encode(machine.read_card(options, may_pull=_PULLS in get_worker().state.total_resources))


def measure_task(job: bytes, origin: bytes) -> tuple[list[bytes], bytes]:
    """Measure a part; blocks are told as they come, and once more at the end, should one have been lost."""
    from distributed import get_worker

    worker, encoded = get_worker(), list[bytes]()
    ticket = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(ticket)
        return task is not None and task.state == "executing" and worker.status.name == "running"

    def say(done: BlockMeasured) -> None:
        encoded.append(msgspec.json.encode(done))
        worker.log_event(_TOPIC, (ticket, encoded[-1]))

    what = msgspec.json.decode(job, type=Job), msgspec.json.decode(origin, type=Origin)
    end = machine.measure(*what, may_pull=_PULLS in worker.state.total_resources, wanted=wanted, say=say)
    return encoded, msgspec.json.encode(end)


def doing_task() -> bytes:
    """The last card and what the machine is at, without disturbing it."""
    return msgspec.json.encode((machine.state.get("card"), machine.state.get("doing")))


class Posted(Record, frozen=True, kw_only=True):
    """A word that a coordinator left at the scheduler."""

    words: str
    failures: tuple[str, ...]


# --- the coordinator's side -------------------------------------------------------------------------------------


class Cluster:
    """The machines of a lab through its scheduler."""

    def __init__(self, address: str, certificate: Path | None, engine: EngineOptions | None = None) -> None:
        """Connect. Raises: LabError for a host that does not answer or does not let us in."""
        distributed = _distributed()
        address = full_address(address)
        security = _security(_certificate(certificate))
        try:
            self._client = distributed.Client(address, security=security, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            cause = f"{error} {error.__cause__ or ''}"
            hint = "Check the address, and that `mlsd lab start` runs there."
            if "certificate" in cause.lower() or "ssl" in cause.lower():
                hint = "Its certificate is another one: copy the file that this lab's `mlsd lab start` named."
            raise LabError(f"There is no lab at {address}: {_first_line(cause)}", hint=hint) from error
        self._engine = msgspec.json.encode(engine or EngineOptions())
        self._cards: dict[str, Any] = {}  # by address: the future of a card, later the card, None if it is none
        self._futures: dict[str, Any] = {}  # by ticket, which is the task's key
        self._arrived: queue.SimpleQueue[tuple[str, BlockMeasured | Ended]] = queue.SimpleQueue()
        self._client.subscribe_topic(_TOPIC, self._on_event)

    def machines(self) -> Mapping[str, Card]:
        """Machines that are here and have shown their card; waits a moment for those that just came."""
        # Not `scheduler_info`: the client's own refreshing empties its list of workers in between.
        with _gone():
            identity = self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=_CONNECT_S)
        self._cards = {
            address: self._cards.get(address)
            or self._submit(card_task, self._engine, address=address, key=f"card-{uuid.uuid4().hex}")
            for address in identity["workers"]
        }
        waiting = [future for future in self._cards.values() if not isinstance(future, Card)]
        until_s = time.monotonic() + (_CARD_S if len(waiting) == len(self._cards) else 0)
        while not all(future.done() for future in waiting) and time.monotonic() < until_s:
            time.sleep(0.05)
        for address, future in self._cards.items():
            if not isinstance(future, Card) and future.done():
                self._cards[address] = _decoded(future.result(), Card) if future.status == "finished" else None
        return {address: card for address, card in self._cards.items() if isinstance(card, Card)}

    def submit(self, address: str, ticket: str, job: Job, origin: Origin) -> None:
        """Let one machine measure a part for this installation; what comes of it is received with the ticket."""
        encoded = map(msgspec.json.encode, (job, origin))
        future = self._futures[ticket] = self._submit(measure_task, *encoded, address=address, key=ticket)
        future.add_done_callback(lambda done: self._on_end(ticket, done))

    def cancel(self, ticket: str) -> None:
        """Let a machine stop, and wait for no answer."""
        future = self._futures.pop(ticket, None)
        if future is not None:
            with contextlib.suppress(Exception):
                future.cancel(force=True, reason="not wanted")

    def receive(self, timeout_s: float) -> Iterator[tuple[str, BlockMeasured | Ended]]:
        """What was said since, by ticket, waiting so long for the first. Raises: LabError without the scheduler."""
        if self._client.status not in ("running", "connecting"):
            raise LabError("The lab's scheduler is gone.", hint=_GOES_ON)
        with contextlib.suppress(queue.Empty):
            yield self._arrived.get(timeout=timeout_s)
            while True:
                yield self._arrived.get_nowait()

    def post(self, name: str, words: str, failures: Sequence[str]) -> None:
        """Leave a word at the scheduler for those who ask for the lab's status."""
        posted = Posted(words=words, failures=tuple(failures))
        with _gone():
            self._client.set_metadata(["mlsd", name], msgspec.to_builtins(posted))

    def doing(self) -> dict[str, tuple[Card | None, Doing | None]]:
        answers = self._client.run(doing_task, on_error="ignore")
        return {a: _decoded(answer, tuple[Card | None, Doing | None]) or (None, None) for a, answer in answers.items()}

    def posted(self) -> dict[str, Posted]:
        """The words that coordinators left."""
        found = self._client.get_metadata(["mlsd"], default={})
        try:
            return msgspec.convert(found, dict[str, Posted])
        except msgspec.ValidationError:
            return {}

    def close(self) -> None:
        self._client.close(timeout=2)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, function: Any, *arguments: bytes, address: str, key: str) -> Any:
        return self._client.submit(
            function, *arguments, key=key, workers=[address], allow_other_workers=False, resources={"machine": 1},
            retries=0, pure=False,
        )  # fmt: skip

    def _on_event(self, event: tuple[float, Any]) -> None:
        with contextlib.suppress(msgspec.ValidationError):  # of no mlsd
            self._put(*msgspec.convert(event[1], tuple[str, bytes]))

    def _put(self, ticket: str, encoded: bytes) -> None:
        done = _decoded(encoded, BlockMeasured)
        if done is not None:
            self._arrived.put((ticket, done))

    def _on_end(self, ticket: str, future: Any) -> None:
        end = None
        with contextlib.suppress(Exception):
            blocks, said = msgspec.convert(future.result(), tuple[list[bytes], bytes])
            end = _decoded(said, Ended)
            for encoded in blocks:
                self._put(ticket, encoded)
        self._futures.pop(ticket, None)
        self._arrived.put((ticket, end or Ended()))


def _decoded(encoded: Any, kind: Any) -> Any:
    """What a machine said, None where that is something else: its trials are then not measured."""
    try:
        return msgspec.json.decode(encoded, type=kind)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError):
        return None


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Raises: LabError where the scheduler does not answer."""
    try:
        yield
    except (OSError, TimeoutError, RuntimeError) as error:
        raise LabError(f"The lab's scheduler is gone: {_first_line(str(error))}", hint=_GOES_ON) from error


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "no answer").strip()


def main() -> None:
    """A machine's own process: what to join is read from standard input, and with its end the process ends."""
    line = sys.stdin.buffer.readline()
    end_with_parent()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_machine(msgspec.json.decode(line, type=Joining)))
    os._exit(0)  # a measurement in a thread ends with the process
