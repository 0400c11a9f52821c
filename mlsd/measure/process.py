"""A worker process: how it is started and asked, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mlsd.children import end_session, signal_name, start_child
from mlsd.drafters import user_methods
from mlsd.engine.llama.native import backend_info
from mlsd.errors import InputError, WorkerError
from mlsd.gguf_tools.source import Source
from mlsd.measure import messages
from mlsd.measure.messages import SIGN_S, Event, engine_and_models
from mlsd.records import BackendInfo, EngineOptions

T = TypeVar("T")

_LOG = logging.getLogger("mlsd")  # what a program that shows things may show: signs of life
_FIRST_START = "; a build's first start on a Mac compiles Metal's kernels" if sys.platform == "darwin" else ""

_EVENTS: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_LOG_TAIL_BYTES, _LOG_S = 2_000, 1.0
_MOST_LINE_BYTES = 1 << 28
_LINE_SHOWN_BYTES = 200
# Loading a large model or a first pass may take minutes; silence longer than this is a hang.
PATIENCE_S = 600.0

# The whole environment of the worker processes, which chooses the build they load; None: this process's own.
Variables = Mapping[str, str] | None


def call(work: partial[T], variables: Variables = None, *, doing: str = "at work", patience_s: float = PATIENCE_S) -> T:
    """What a function with these arguments returns in a worker process of its own; see `answers`."""
    with closing(answers(work, variables, doing=doing, patience_s=patience_s)) as returned:
        answer: T = next(returned)
        return answer


def answers(
    work: partial[Any], variables: Variables = None, *, doing: str = "at work", patience_s: float = PATIENCE_S
) -> Generator[Any]:
    """Everything that a function with these arguments yields in a worker process, or what it returns.

    Raises: the worker's own MlsdError, WorkerError when it dies or is silent for so long; what was yielded stands.
    """
    returned = typing.get_type_hints(work.func)["return"]
    decoder = msgspec.json.Decoder(
        typing.get_args(returned)[0] if typing.get_origin(returned) is Iterator else returned
    )
    arguments = inspect.signature(work.func).bind(*work.args, **work.keywords).arguments
    with closing(Worker(f"{work.func.__module__}:{work.func.__name__}", arguments, variables)) as worker:
        for event in worker.events(patience_s, lambda: f"{doing[:1].upper()}{doing[1:]}{_FIRST_START}"):
            if isinstance(event, messages.Finished):
                return
            if isinstance(event, messages.Returned):
                yield decoder.decode(event.value)
            elif isinstance(event, messages.Waiting):
                _LOG.info(event.text)
        reason = worker.exit_reason()
        raise WorkerError(f"The worker process died while {doing}: {reason}", hint=worker.advice())


def run_info(engine: EngineOptions, *, variables: Variables = None, patience_s: float = PATIENCE_S) -> BackendInfo:
    """Ask a worker for the native build and device, so this process never loads the library. Raises: WorkerError."""
    try:
        work = partial(backend_info, engine.n_gpu_layers)
        return call(work, variables, doing="starting llama.cpp", patience_s=patience_s)
    except WorkerError as error:
        error.hint = error.hint or "Reinstall llama-cpp-python; see the README."
        raise


def check_context(arguments: Mapping[str, Any]) -> None:
    """Check the context that a user asked for, before a worker loads anything: llama.cpp would try, and be killed.

    Raises: InputError when it is longer than the target was trained for. What it takes of memory the worker asks.
    """
    engine, models = engine_and_models(arguments)
    if engine is None or engine.n_ctx is None or not models:
        return
    trained = Source(Path(models[0].path)).count("context_length", None)
    if trained is not None and engine.n_ctx > trained:
        name = models[0].ref.id
        raise InputError(
            f"A context of {engine.n_ctx:,} positions is beyond the {trained:,} that {name} was trained for.",
            hint=f"Give --n-ctx {trained} or less; without it a context is as long as the run needs.",
        )


def receive(get: Callable[..., bytes | None], patience_s: float, doing: Callable[[], str]) -> Iterator[Event]:
    """The events of a worker's lines, and `Waiting` every ten seconds without one; `get` is that of their queue.

    Raises: queue.Empty when it is silent for `patience_s`, the worker's own MlsdError, WorkerError.
    """
    silent_s = 0.0
    while True:
        wait_s = min(SIGN_S, patience_s - silent_s)
        try:
            line = get(timeout=wait_s)
        except queue.Empty:
            silent_s += wait_s
            if silent_s >= patience_s:
                raise
            yield messages.Waiting(text=doing())
            continue
        if line is None:
            return
        silent_s = 0.0
        try:
            event = _EVENTS.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WorkerError(
                f"The worker process sent an invalid message: {line[:_LINE_SHOWN_BYTES]!r}.",
                hint="A module that prints when it is imported does this: look for one on PYTHONPATH.",
            ) from error
        if isinstance(event, messages.Refused):
            raise event.error()
        yield event


class Worker:
    """A worker process; close it at the end."""

    def __init__(self, function: str, arguments: Mapping[str, Any], variables: Variables = None) -> None:
        check_context(arguments)
        self._log, self._hung = b"", False
        pipe = subprocess.PIPE
        self._process = start_child("mlsd.measure.worker", stdin=pipe, stdout=pipe, stderr=pipe, variables=variables)
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        encoded = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in arguments.items()}
        # Only methods that are named there: another file may have changed since, or be gone.
        content = msgspec.json.encode(encoded)
        named = {name: at for name, at in user_methods.loaded().items() if msgspec.json.encode(name)[1:-1] in content}
        self.send(messages.Call(function=function, arguments=encoded, methods=named))

    def send(self, message: messages.Call | messages.Turn) -> None:
        """Say one thing more to the worker."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a worker that died at once speaks through its exit_reason
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_MOST_LINE_BYTES):
            self._lines.put(line)
        self._lines.put(None)

    def _listen(self) -> None:
        """Keep the end of what native code prints, which may be without end."""
        assert self._process.stderr is not None
        while chunk := os.read(self._process.stderr.fileno(), 1 << 16):
            self._log = (self._log + chunk)[-_LOG_TAIL_BYTES:]

    def events(self, patience_s: float, doing: Callable[[], str]) -> Iterator[Event]:
        """Events until the worker finishes, dies, or says nothing for `patience_s`; `doing` tells what it is at."""
        try:
            yield from receive(self._lines.get, patience_s, doing)
        except queue.Empty:
            self._hung = True
            self._process.kill()

    def exit_reason(self) -> str:
        """How the worker ended, with the last lines it left behind."""
        code = self._process.wait()
        if self._hung:
            how = "it hung and was killed"
        elif code < 0:
            how = f"killed by {signal_name(-code)}"
            if -code == signal.SIGKILL:
                how += " (too little memory is the usual reason)"
        else:
            how = f"exit code {code}"
        end_session(self._process)  # what it started holds its output open
        self._listener.join(_LOG_S)
        return f"{how}. {self._log.decode('utf-8', 'replace').strip()}".strip()

    def advice(self) -> str:
        """What to do about the way in which the worker ended."""
        code = self._process.wait()
        if code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
            return (
                "llama.cpp ends so on a damaged model (`mlsd models verify` checks one; write or download it again) "
                "and in the driver of a GPU (the page on builds names one)."
            )
        if self._hung:
            return "Try again on an idle machine; a smaller context or model answers sooner."
        return "`mlsd doctor` shows whether the machine has the memory; try a smaller model or context."

    def close(self) -> None:
        """End it, with all that it started."""
        end_session(self._process)
        self._listener.join(_LOG_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
