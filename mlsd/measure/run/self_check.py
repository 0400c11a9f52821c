"""The two-minute test of a machine: what mlsd takes for granted, checked here; a report without personal names."""

from __future__ import annotations

import datetime
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mlsd.errors import InputError, LockError, MlsdError
from mlsd.folders import asset_path, write_atomically
from mlsd.hardware import MachineFacts, read_conditions, read_environment, read_machine
from mlsd.measure.messages import BuildFits, BuildJob, Check, SelfChecked, SelfCheckJob
from mlsd.measure.process import ask
from mlsd.measure.run.checks import check_run, condition_warnings
from mlsd.measure.run.runner import machine_lock
from mlsd.models.library import Library
from mlsd.models.manifest import AssetEntry, PathEntry
from mlsd.planning.job import ModelFile
from mlsd.records import Conditions, Environment, ModelRef, Record, Trial

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
        return tuple(check for check in self.checks if check.ok is False)


def check_machine() -> SelfCheck:
    """Check this machine with the embedded models; nothing is downloaded."""
    files = [ModelFile(ref=ModelRef(id=name), path=str(asset_path(f"tiny/{name}.gguf"))) for name in _MODELS]
    before = read_conditions()
    job = SelfCheckJob(models=tuple(files), at_hand=tuple(_at_hand()), expected_backend=expected_backend())
    found = ask(job, SelfChecked)
    environment = read_environment(found.backend)
    return SelfCheck(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=msgspec.structs.replace(environment, host=""),
        checks=(*found.checks, *condition_checks(before, read_conditions())),
    )


def _at_hand() -> Iterator[ModelFile]:
    """The models of the manifest that are on this machine; ids of a person's own files may name somebody."""
    library = Library()
    for entry in library.manifest.models.values():
        if not isinstance(entry, AssetEntry | PathEntry) and (paths := library.locate(entry)) is not None:
            yield ModelFile(ref=ModelRef(id=entry.id), path=str(paths[0]))


def expected_backend(platform_name: str = sys.platform, machine: str | None = None) -> str | None:
    """The backend that a Mac with Apple silicon must have; None where anything may be right."""
    on_apple_silicon = platform_name == "darwin" and (machine or platform.machine()) == "arm64"
    return "Metal" if on_apple_silicon else None


def condition_checks(before: Conditions, after: Conditions) -> tuple[Check, ...]:
    """What power, heat and memory say, before and after the work."""
    grew = None
    if before.swap_used_bytes is not None and after.swap_used_bytes is not None:
        grew = after.swap_used_bytes > before.swap_used_bytes
    heat = after.thermal_state
    states: dict[str, tuple[bool | None, str, str, str]] = {  # whether it is bad; words for not known, bad, good
        "power": (after.on_battery, "not known", "on battery", "connected"),
        "low-power mode": (after.low_power_mode, "the machine has none", "on", "off"),
        "heat": (None if heat is None else heat != "nominal", "not known", heat or "", heat or ""),
        "swap": (grew, "not known", "grew meanwhile", "did not grow"),
    }
    return tuple(
        Check(name=name, ok=None if bad is None else not bad, answer=unknown if bad is None else yes if bad else no)
        for name, (bad, unknown, yes, no) in states.items()
    )


# --- before a record ----------------------------------------------------------------------------------------------

LEAST_BLOCKS = 3  # fewer give no interval
# What a reader compares a record by, and what the audit bounds its times with.
_CARD = {"chip": "chip", "peak_bandwidth_gb_s": "peak bandwidth (GB/s)"}


def check_before_record(trials: Sequence[Trial] = ()) -> tuple[Check, ...]:
    """What would keep a record of this machine, or of these trials, from being believed; measures nothing."""
    try:
        fits = ask(BuildJob(), BuildFits)
        build = Check(name="build", ok=True, answer=f"{fits.backend.build} on {fits.backend.device} passes the gate")
        machine = read_machine(fits.backend)
    except MlsdError as error:
        build, machine = Check(name="build", ok=False, answer=str(error)), read_machine()
    try:
        with machine_lock():
            busy = None
    except LockError as error:
        busy = str(error)
    return (*machine_checks(machine, read_conditions(), busy), build, *trial_checks(trials, machine.environment))


def machine_checks(machine: MachineFacts, now: Conditions, busy: str | None = None) -> tuple[Check, ...]:
    """Power, heat, load and other runs at this moment, and what the machine's card lacks."""
    *state, _swap = condition_checks(now, now)
    load = "not known" if now.load_1min is None else f"{now.load_1min:.1f} over the last minute"
    found = condition_warnings([now], machine.environment, at_rest=True)
    warning = {doubt.code: f"{doubt.message} {doubt.advice}" for doubt in found}.get("background_load")
    return (
        *state,
        Check(name="load", ok=None if now.load_1min is None else warning is None, answer=warning or load),
        Check(name="other runs", ok=busy is None, answer=busy or "none"),
        *(
            Check(
                name="card",
                subject=words,
                ok=None if getattr(machine.environment, name) is None else True,
                answer=machine.missing.get(name) or str(getattr(machine.environment, name)),
            )
            for name, words in _CARD.items()
        ),
    )


def trial_checks(trials: Sequence[Trial], environment: Environment | None = None) -> tuple[Check, ...]:
    """Whether there are enough blocks for intervals, and each doubt that the trials raise."""
    if not trials:
        return (Check(name="blocks", ok=None, answer=f"none yet; measure at least {LEAST_BLOCKS} (--repeats)"),)
    blocks = Counter(trial.case_id for trial in trials if trial.valid and not trial.disturbed)
    few = sum(blocks[case] < LEAST_BLOCKS for case in {trial.case_id for trial in trials})
    shortage = f"{few} of {len({trial.case_id for trial in trials})} cases have fewer than {LEAST_BLOCKS} that count"
    doubts = check_run(trials, environment)
    return (
        Check(name="blocks", ok=not few, answer=shortage if few else f"at least {min(blocks.values())} of every case"),
        *(
            Check(name="trials", subject=code, ok=False, answer=f"{matching[0].message} {matching[0].advice}")
            for code in dict.fromkeys(doubt.code for doubt in doubts)
            if (matching := [doubt for doubt in doubts if doubt.code == code])
        ),
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
