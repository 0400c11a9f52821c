"""The two-minute test of a machine: what mlsd takes for granted, checked here; a report without personal names."""

from __future__ import annotations

import datetime
import platform
import sys
from pathlib import Path

import msgspec

from mlsd.errors import InputError
from mlsd.folders import asset_path, write_atomically
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.messages import Check, SelfChecked, SelfCheckJob
from mlsd.measure.process import ask
from mlsd.planning.job import ModelFile
from mlsd.records import Conditions, Environment, ModelRef, Record

SCHEMA = 1
_MODELS = ("tiny-dense", "tiny-moe", "tiny-draft")


class SelfCheck(Record, frozen=True, kw_only=True):
    """What can be sent as a bug report, or kept as a record of what has run where."""

    schema: int = SCHEMA
    made: str  # date and time, UTC
    environment: Environment  # without the key of the host
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that said no."""
        return tuple(check for check in self.checks if check.ok is False)


def check_machine() -> SelfCheck:
    """Check this machine with the embedded models; nothing is downloaded.

    Raises: WorkerError when the native library ends the process, LockError is the caller's to raise.
    """
    files = [ModelFile(ref=ModelRef(id=name), path=str(asset_path(f"tiny/{name}.gguf"))) for name in _MODELS]
    before = read_conditions()
    found = ask(SelfCheckJob(models=tuple(files), expected_backend=expected_backend()), SelfChecked)
    environment = read_environment(found.backend)
    return SelfCheck(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=msgspec.structs.replace(environment, host=""),
        checks=(*found.checks, *condition_checks(before, read_conditions())),
    )


def expected_backend(platform_name: str = sys.platform, machine: str | None = None) -> str | None:
    """The backend that a Mac with Apple silicon must have; None where anything may be right."""
    on_apple_silicon = platform_name == "darwin" and (machine or platform.machine()) == "arm64"
    return "Metal" if on_apple_silicon else None


def condition_checks(before: Conditions, after: Conditions) -> tuple[Check, ...]:
    """What power, heat and memory say, before and after the work."""

    def said(name: str, bad: bool | None, words: str) -> Check:
        return Check(name=name, ok=None if bad is None else not bad, answer=words)

    heat = after.thermal_state
    swapped = None
    if before.swap_used_bytes is not None and after.swap_used_bytes is not None:
        swapped = after.swap_used_bytes > before.swap_used_bytes
    return (
        said("power", after.on_battery, {None: "not known", True: "on battery", False: "connected"}[after.on_battery]),
        said(
            "low-power mode",
            after.low_power_mode,
            {None: "the machine has none", True: "on", False: "off"}[after.low_power_mode],
        ),
        said("heat", None if heat is None else heat != "nominal", heat or "not known"),
        said("swap", swapped, {None: "not known", True: "grew meanwhile", False: "did not grow"}[swapped]),
    )


def write_self_check(path: Path, found: SelfCheck) -> None:
    """Write a report. Raises: InputError when the file cannot be written."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")


def read_self_check(path: Path) -> SelfCheck:
    """A report written earlier. Raises: InputError for a file that is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SelfCheck)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} is no self-check: {error}.", hint="Write one: mlsd doctor --self-check -o FILE."
        ) from error
