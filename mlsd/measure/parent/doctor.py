"""What this machine can measure: its card, its present state, which profiles fit; and the test of what is taken for
granted, whose report names nobody.
"""

import datetime
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from mlsd.errors import InputError, ManifestError, SuiteError
from mlsd.folders import asset_path, free_bytes, write_atomically
from mlsd.hardware import read_conditions, read_environment, read_machine
from mlsd.hardware.budget import Fit, MemoryBudget, memory_budget
from mlsd.measure.messages import Check
from mlsd.measure.parent.checks import condition_warnings
from mlsd.measure.parent.memory import LoadMemory, Sized, ask_memory, judge_loads, size_models
from mlsd.measure.process import call, run_info
from mlsd.measure.worker.self_check import self_check
from mlsd.models.library import Library
from mlsd.planning.job import Job, ModelFile
from mlsd.planning.plan import expand, known_models
from mlsd.planning.suite import Profile, Suite, load_profiles, load_suites, suite_names
from mlsd.records import Conditions, EngineOptions, Environment, ModelRef, QualityWarning, Record
from mlsd.units import format_bytes

AT_ONCE = "E"  # the suite whose drafts lie in memory all at once


class ProfileFit(Record, frozen=True, kw_only=True):
    """Whether the models of a profile fit into this machine."""

    profile: str
    title: str
    verdict: Fit
    why: str
    memory: LoadMemory | None  # of the load that needs most
    n_models: int
    n_downloaded: int
    missing_bytes: int | None  # still to download or make; None where a size is not even estimated
    estimated: tuple[str, ...] = ()  # models whose size nobody stated: from parameters and quantization


class Diagnosis(Record, frozen=True, kw_only=True):
    """Everything `mlsd doctor` says."""

    environment: Environment
    missing: dict[str, str]  # field of the environment -> why it is None
    conditions: Conditions
    free_disk_bytes: int
    budget: MemoryBudget | None
    profiles: tuple[ProfileFit, ...]
    warnings: tuple[QualityWarning, ...]


def examine() -> Diagnosis:
    """Read this machine and judge every profile; the free disk is that of the folder that downloads go to."""
    backend, library = run_info(EngineOptions()), Library()
    machine, conditions = read_machine(backend), read_conditions()
    environment, free = machine.environment, free_bytes(library.hub.cache_dir)
    budget = memory_budget(environment, backend.memory_bytes)
    fits = profile_fits(tuple(load_profiles().values()), load_suites(suite_names()), library, budget, free)
    return Diagnosis(
        environment=environment,
        missing=machine.missing,
        conditions=conditions,
        free_disk_bytes=free,
        budget=budget,
        profiles=fits,
        warnings=tuple(condition_warnings([conditions], environment, at_rest=True)),
    )


def profile_fits(
    profiles: Sequence[Profile],
    suites: Sequence[Suite],
    library: Library,
    budget: MemoryBudget | None,
    free_disk_bytes: int,
) -> tuple[ProfileFit, ...]:
    """Judge the load of each profile that is heaviest, and compare the bytes to download with the disk.

    A suite that holds all of its drafts at once is judged by itself: the others are a study without it.
    """
    models: dict[str, Sized] = {}
    heaviest: dict[tuple[str, bool], Job] = {}  # by profile, and whether it is of the suite that is judged by itself
    problems: dict[str, str] = {}
    used = dict[str, tuple[str, ...]]()  # ids that some suite loads: no other is downloaded
    for profile in profiles:
        used[profile.name] = tuple(dict.fromkeys(profile.roles.values()))
        try:
            models |= size_models(used[profile.name], library)
            loaded = set[str]()
            for at_once in (False, True):
                measured = [suite for suite in suites if (suite.name == AT_ONCE) is at_once]
                # Models that a suite names by id are in every profile, and no reason to choose one.
                of_profile = {*profile.roles.values()}
                planned = expand(measured, profile, known_models(library)).loads
                loads = [load for load in planned if {ref.id for ref in load.refs} <= of_profile]
                ids = {ref.id: None for load in loads for ref in load.refs}
                models |= size_models(ids, library)  # named by id
                loaded |= set(ids)
                if loads:
                    heaviest[profile.name, at_once] = sorted(loads, key=lambda load: _weight(load, models))[-1]
        except (ManifestError, SuiteError) as error:
            problems[profile.name] = error.message
            continue
        if (profile.name, False) in heaviest:
            used[profile.name] = tuple(id_ for id_ in used[profile.name] if id_ in loaded)
        else:
            problems[profile.name] = "no suite uses its models"
    _, memory = ask_memory(tuple(heaviest.values()), models, EngineOptions())
    judged = dict(zip(heaviest, judge_loads(memory, budget), strict=True))
    fits = []
    for profile in profiles:
        study, together = judged.get((profile.name, False)), judged.get((profile.name, True))
        to_load = used[profile.name]
        sized = [models[id_] for id_ in to_load if id_ in models]
        to_get = [model.n_bytes for model in sized if model.path is None]
        missing = None if None in to_get or len(sized) < len(to_load) else sum(size or 0 for size in to_get)
        whole = study or together
        verdict, why = (whole.verdict, whole.why) if whole else ("unknown", problems.get(profile.name, ""))
        if verdict not in ("unknown", "does not fit") and missing and missing > free_disk_bytes:
            verdict = "does not fit"
            why = f"{format_bytes(missing)} to download or make, {format_bytes(free_disk_bytes)} of disk free"
        if study is not None and together is not None and together.verdict != study.verdict:
            why = f"{why}; suite {AT_ONCE}, all drafts at once, {together.verdict}: {together.why}"
        fits.append(
            ProfileFit(
                profile=profile.name,
                title=profile.title,
                verdict=verdict,
                why=why,
                memory=whole,
                n_models=len(to_load),
                n_downloaded=sum(model.path is not None for model in sized),
                missing_bytes=missing,
                estimated=tuple(model.id for model in sized if model.estimated),
            )
        )
    return tuple(fits)


def _weight(load: Job, models: Mapping[str, Sized]) -> float:
    """Bytes of a load's models; one whose size nobody knows is the heaviest."""
    sizes = [models[id_].n_bytes for id_ in {ref.id for ref in load.refs}]
    return math.inf if None in sizes else sum(size or 0 for size in sizes)


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
    work = partial(self_check, tuple(files), expected_backend())
    backend, checks = call(work, doing="checking this machine")
    environment = read_environment(backend)
    return SelfCheck(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        environment=msgspec.structs.replace(environment, host=""),
        checks=(*checks, *condition_checks(before, read_conditions(), environment)),
    )


def expected_backend(platform_name: str = sys.platform, machine: str | None = None) -> str | None:
    """The backend that a Mac with Apple silicon must have; None where anything may be right."""
    on_apple_silicon = platform_name == "darwin" and (machine or platform.machine()) == "arm64"
    return "Metal" if on_apple_silicon else None


def condition_checks(
    before: Conditions, after: Conditions, environment: Environment | None = None
) -> tuple[Check, ...]:
    """What power, heat and memory show, before and after the work."""
    against = {warning.code: warning.message for warning in condition_warnings([before, after], environment)}
    return tuple(
        Check(name=name, ok=None, answer="not known")
        if getattr(after, field) is None
        else Check(name=name, ok=code not in against, answer=against.get(code, "nothing against it"))
        for name, code, field in _CONDITIONS
    )


def write_self_check(path: Path, check: SelfCheck) -> None:
    """Write a report. Raises: InputError when the file cannot be written."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(check)).decode() + "\n")


def read_self_check(path: Path) -> SelfCheck:
    """A report written earlier. Raises: InputError for any other file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SelfCheck)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} is not a self-check: {error}.", hint="Write one: mlsd doctor self-check -o FILE."
        ) from error
