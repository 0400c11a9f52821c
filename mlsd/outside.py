"""The one parser of what comes from outside: bytes into a record with types and ranges, or one message."""

import errno
import functools
import math
import os
import re
import stat
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from mlsd.children import end_session
from mlsd.errors import InputError, MlsdError
from mlsd.redact import redact, redacted, secrets

T = TypeVar("T")

# Sums and products of these still fit into 64 bits.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Nanoseconds = Annotated[int, Meta(ge=0, le=10**18)]
Name = Annotated[str, Meta(max_length=1_000)]

MOST_FILE_BYTES = 256 << 20  # of a file that is read whole: a suite, a table, a prompt, tasks
_PROGRAM_BYTES = 1 << 20  # of what a program prints that is asked something
_SHOWN = 200
_POLL_S = 0.02  # while a program runs


def parse(data: bytes | str, kind: type[T], sender: str, error: type[MlsdError] = InputError, *, hint: str = "") -> T:
    """JSON as a record, without the secrets that it may repeat.

    Raises: `error` with the sender, and the field that does not fit.
    """
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    try:
        # An escape may hide a secret from a search in the bytes.
        if any(secret.encode() in data or b"\\" in data for secret in secrets()):
            data = msgspec.json.encode(redacted(msgspec.json.decode(data)))
        value: T = _decoder(kind).decode(data)  # type: ignore[arg-type]  # a class can be hashed
        return value
    except msgspec.ValidationError as misfit:
        raise error(f"{sender} has a value that cannot be used: {redact(str(misfit))}.", hint=hint) from misfit
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:
        raise error(f"{sender} is not valid JSON: {excerpt(data)!r}.", hint=hint) from broken
    except RecursionError as deep:
        raise error(f"{sender} is JSON that is nested too deeply.", hint=hint) from deep


def convert(
    values: Any,
    kind: type[T],
    where: str,
    error: type[MlsdError] = InputError,
    *,
    key: str = "",
    forms: Mapping[str, str] = {},
    hint: str = "Correct the file and try again.",
) -> T:
    """A record of plain values, like a table of a file; `key` is that of the values themselves in it.

    `forms` say in words what texts of these last keys must be, where a pattern decides.

    Raises: `error` with where, key, value and what is wrong with it.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as misfit:
        problem, _, inner = str(misfit).partition(" - at `$")
        inner = inner.rstrip("`").lstrip(".")
        whole = ".".join(filter(None, (key, inner)))
        value = _value_at(values, inner)
        form = forms.get(whole.rpartition(".")[2])
        if form is not None and isinstance(value, str) and problem.startswith("Expected `str`"):
            problem = f"it {form}"
        location = f"{whole} = {value!r:.200}" if inner else key
        raise error(f"{where}: {': '.join(filter(None, (location, problem)))}.", hint=hint) from misfit


def _value_at(values: Any, key: str) -> Any:
    """The value at a msgspec path like ``parts[1].gammas[0]``; ``[...]`` stands for some value of a table."""
    for name, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+|\.\.\.)\]", key):
        if index == "...":
            break
        values = values[name] if name else values[int(index)]
    return values


def read_toml(path: Path, error: type[MlsdError]) -> dict[str, Any]:
    """The table of a TOML file that somebody named. Raises: `error` that names the file and what is wrong with it."""
    try:
        return parse_toml(read_given(path, error, "Give the path of a TOML file."))
    except UnicodeDecodeError as misfit:
        raise error(f"{path} is not UTF-8 text (byte {misfit.start}).", hint="Save it as UTF-8.") from misfit
    except tomllib.TOMLDecodeError as misfit:
        raise error(f"{path} is not valid TOML: {misfit}.", hint="Correct the file and try again.") from misfit


def excerpt(data: bytes) -> str:
    """The beginning of what somebody sent, without secrets."""
    return redact(data[:100_000].decode("utf-8", "replace"))[:_SHOWN].strip()


@functools.cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def check_regular(path: Path) -> int:
    """Bytes of a file. Raises: OSError for what is none, like a pipe or a device, which may wait or go on for ever."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return status.st_size


def read_file(path: Path) -> bytes:
    """A whole file that somebody named. Raises: OSError, also for no regular file and for more than the limit.

    What a file states as its size is read: one of the system that states none may go on for ever.
    """
    if (n_bytes := check_regular(path)) > MOST_FILE_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MOST_FILE_BYTES:,} bytes", str(path))
    with path.open("rb") as file:
        return file.read(n_bytes)


def read_given(path: Path, kind: type[MlsdError], hint: str = "", what: str = "") -> bytes:
    """`read_file`, whatever stops it as an error of that kind."""
    try:
        return read_file(path)
    except OSError as error:
        raise kind(f"{what}{path} cannot be read: {error.strerror or error}.", hint=hint) from error


def read_text(path: Path, what: str, kind: type[MlsdError], example: str) -> str:
    """The text of a UTF-8 file that somebody named. Raises: an error of that kind, which says what it should be."""
    try:
        return read_given(path, kind, f"Give the path of {example}.", f"{what} ").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise kind(f"{what} {path} is not UTF-8 text (byte {error.start}).", hint="Save it as UTF-8.") from error


def output_of(
    command: Sequence[str], *, timeout_s: float, variables: Mapping[str, str] | None = None, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """What a program that somebody named prints; all that it started is ended.

    Raises: OSError for one that does not run, or is not done after `timeout_s` or `_PROGRAM_BYTES`.
    """
    until = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables, cwd=cwd, start_new_session=True
        )
        try:
            while process.poll() is None:  # a child that it leaves behind is not waited for
                if time.monotonic() > until:
                    raise TimeoutError(errno.ETIMEDOUT, f"it was not done after {timeout_s:g} s")
                _check_printed(out, err)
                time.sleep(_POLL_S)
        finally:
            end_session(process)
        _check_printed(out, err)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def _check_printed(*files: IO[bytes]) -> None:
    if max(os.fstat(file.fileno()).st_size for file in files) > _PROGRAM_BYTES:
        raise OSError(errno.EFBIG, f"it printed more than {_PROGRAM_BYTES:,} bytes")


def parse_toml(data: bytes) -> dict[str, Any]:
    """TOML as Python has it.

    Raises: UnicodeDecodeError; tomllib.TOMLDecodeError, also for what is nested too deeply, and for numbers beyond all
        use.
    """
    try:
        table = tomllib.loads(data.decode("utf-8"))
        _check_numbers(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from error
    except ValueError as error:  # more digits than Python reads
        raise tomllib.TOMLDecodeError("it holds a number of too many digits") from error
    return table


def _check_numbers(value: Any) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_numbers(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise tomllib.TOMLDecodeError(f"{item} is not a number that can be used")
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise tomllib.TOMLDecodeError("it holds a whole number beyond 64 bits")
