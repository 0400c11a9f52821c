"""The two-minute test of a machine: what mlsd takes for granted, checked here; a report without personal names."""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mlsd.errors import InputError
from mlsd.folders import asset_path, write_atomically
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.messages import Check, SelfChecked, SelfCheckJob
from mlsd.measure.process import call
from mlsd.measure.run.checks import condition_warnings
from mlsd.models.library import Library
from mlsd.planning.job import ModelFile
from mlsd.records import Conditions, Environment, ModelRef, Record

SCHEMA = 1
_MODELS = ("tiny-dense", "tiny-moe", "tiny-draft")
_CONDITIONS = (  # name of the check, code of the warning against it, and the field of Conditions that must be known
    ("power", "on_battery", "on_battery"),
    ("low-power mode", "low_power_mode", "low_power_mode"),
    ("heat", "throttled", "thermal_state"),
    ("swap", "swap_growth", "swap_used_bytes"),
)


class SelfCheck(Record, frozen=True, kw_only=True):
    """What can be sent as a bug report, or kept as a record of what has run where."""

    schema: int = SCHEMA
    made: str  # date and time, UTC
    environment: Environment  # without the key of the host
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.ok is False)


def check_machine() -> SelfCheck:
    """Check this machine with the embedded models; nothing is downloaded."""
    files = [ModelFile(ref=ModelRef(id=name), path=str(asset_path(f"tiny/{name}.gguf"))) for name in _MODELS]
    before = read_conditions()
    job = SelfCheckJob(models=tuple(files), at_hand=tuple(_at_hand()), expected_backend=expected_backend())
    found = call("self_check:self_check", job, SelfChecked, doing="checking this machine")
    environment = read_environment(found.backend)
    return SelfCheck(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=msgspec.structs.replace(environment, host=""),
        checks=(*found.checks, *condition_checks(before, read_conditions(), environment)),
    )


def _at_hand() -> Iterator[ModelFile]:
    """The models of the manifest that are on this machine; ids of a person's own files may name somebody."""
    library = Library()
    for entry in library.manifest.models.values():
        if entry.source not in ("asset", "path") and (paths := library.locate(entry)) is not None:
            yield ModelFile(ref=ModelRef(id=entry.id), path=str(paths[0]))


def expected_backend(platform_name: str = sys.platform, machine: str | None = None) -> str | None:
    """The backend that a Mac with Apple silicon must have; None where anything may be right."""
    on_apple_silicon = platform_name == "darwin" and (machine or platform.machine()) == "arm64"
    return "Metal" if on_apple_silicon else None


def condition_checks(
    before: Conditions, after: Conditions, environment: Environment | None = None
) -> tuple[Check, ...]:
    """What power, heat and memory show, before and after the work."""
    doubts = {doubt.code: doubt.message for doubt in condition_warnings([before, after], environment)}
    return tuple(
        Check(name=name, ok=None, answer="not known")
        if getattr(after, field) is None
        else Check(name=name, ok=code not in doubts, answer=doubts.get(code, "nothing against it"))
        for name, code, field in _CONDITIONS
    )


def write_self_check(path: Path, found: SelfCheck) -> None:
    """Write a report. Raises: InputError when the file cannot be written."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")


def read_self_check(path: Path) -> SelfCheck:
    """A report written earlier. Raises: InputError for any other file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SelfCheck)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} is not a self-check: {error}.", hint="Write one: mlsd doctor --self-check -o FILE."
        ) from error
