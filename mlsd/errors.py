"""The one error tree of mlsd; the library raises from it, only `mlsd.cli` turns it into text and an exit code.

Every message says what happened and where; `hint` says what to do next.
"""

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path

_SAID = 200  # letters of what a stranger's error says


def did_you_mean(word: str, names: Iterable[str], n: int = 2) -> str:
    """The question whether a similar name was meant, with a space after it; empty without one."""
    by_lower = {name.lower(): name for name in names}
    close = [by_lower[name] for name in difflib.get_close_matches(word.lower(), by_lower, n=n, cutoff=0.55)]
    return f"Did you mean {' or '.join(close)}? " if close else ""


def choose(word: str, names: Iterable[str], more: str = "") -> str:
    """The hint for an unknown name: similar names, and all names."""
    every = tuple(names)
    return f"{did_you_mean(word, every)}Choose from {', '.join(every)}{more}."


def in_one_line(error: BaseException, file: Path | None = None) -> str:
    """Any error as ``KeyError: 3 (mine.py, line 12)``: the last line of that file on its way, else of any."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename or '?').name}, line {error.lineno})"
    steps = traceback.extract_tb(error.__traceback__)
    at = next((step for step in reversed(steps) if file is None or step.filename == str(file)), None)
    where = "" if at is None else f" ({Path(at.filename).name}, line {at.lineno})"
    said = " ".join(str(error).split())[:_SAID]
    return f"{type(error).__name__}{f': {said}' if said else ''}{where}"


class MlsdError(Exception):
    """Base of every error that mlsd raises on purpose.

    `exit_code` is what the command line exits with; `hint` is the next step for the user, or an empty string.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InputError(MlsdError):
    """Something the user gave cannot be used."""


class ManifestError(InputError):
    """An entry of gguf_manifest.toml is missing or wrong."""


class SuiteError(InputError):
    """A suite, a profile or a role is unknown or wrong."""


class PromptError(InputError):
    """A prompt name is unknown or a prompt file cannot be read."""


class TaskError(InputError):
    """A task file has a broken line or an unknown category."""


class TableError(InputError):
    """A table to import or audit has missing, unknown or unreadable columns."""


class ModelFileError(InputError):
    """A GGUF is missing, truncated, not a GGUF, or cannot serve the request."""


class EngineError(MlsdError):
    """The inference engine refused or failed: no room in the context, no exact rollback, no shared vocabulary."""


class NativeError(EngineError):
    """A call of llama.cpp or a device failed; `log` holds the native lines that explain it."""

    def __init__(self, message: str, *, code: int | None = None, log: tuple[str, ...] = (), hint: str = "") -> None:
        tail = "".join(f"\n  llama.cpp: {line}" for line in log[-6:])
        super().__init__(message + tail, hint=hint)
        self.code = code
        self.log = log


class UnsupportedError(EngineError):
    """A drafter, an architecture and a backend that cannot work together."""


class HubError(MlsdError):
    """A model could not be downloaded or verified."""


class RevisionError(HubError):
    """A repository does not have the revision that was asked for."""


class StoreError(MlsdError):
    """The results database cannot be read or written."""


class DatabaseLockedError(StoreError):
    """Another program holds the results database."""


class WorkerError(MlsdError):
    """The worker process crashed, hung or was killed."""


class ServerError(MlsdError):
    """A server that mlsd asks refused, failed, stalled, or said what cannot be."""


class LockError(MlsdError):
    """Another run holds this machine."""


class LabError(MlsdError):
    """A lab cannot be reached, does not let us in, or has no machine to measure on."""


class AnalysisError(MlsdError):
    """The data cannot answer the question."""
