"""What a machine of a lab says of itself, and whether it may take part."""

from __future__ import annotations

import hashlib
import shutil

from mlsd import __version__
from mlsd.errors import InputError, MlsdError
from mlsd.folders import asset_path, data_path, user_dir
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.process import run_info
from mlsd.measure.store.rows import environment_key
from mlsd.models.library import Library
from mlsd.models.manifest import MadeEntry
from mlsd.records import Conditions, EngineOptions, Environment, ModelFacts, ModelRef, Record


class Origin(Record, frozen=True, kw_only=True):
    """What must be equal wherever parts of one plan are measured."""

    mlsd_version: str
    llama_cpp_build: str | None
    llama_cpp_python_version: str | None
    suites_sha256: str  # of the suites and prompts that mlsd ships


class Card(Record, frozen=True, kw_only=True):
    """A machine that joined."""

    environment: Environment
    origin: Origin
    models: tuple[ModelFacts, ...]  # of the manifest, that lie there
    makes: tuple[str, ...]  # of the manifest, that can be made there of what lies there
    may_pull: bool  # and download the others
    free_disk_bytes: int | None
    conditions: Conditions

    @property
    def key(self) -> str:
        """Equal for machines that may share the cases of a plan."""
        return environment_key(self.environment)

    @property
    def name(self) -> str:
        """The machine for people."""
        return f"{self.environment.chip or self.environment.machine}, {self.environment.backend} ({self.key[:8]})"

    def lacks(self, models: tuple[ModelRef, ...]) -> tuple[ModelRef, ...]:
        """Models that cannot run there: not there by hash, and no room or no leave to bring them; or too large."""
        memory = self.environment.memory_bytes
        if memory is not None and sum(ref.n_bytes or 0 for ref in models) > memory:
            return models
        there = {facts.ref.sha256 for facts in self.models}
        missing = tuple(ref for ref in models if ref.sha256 not in there)
        needed = sum(ref.n_bytes or 0 for ref in missing)
        room = self.free_disk_bytes is None or needed <= self.free_disk_bytes
        return tuple(ref for ref in missing if not room or not (self.may_pull or ref.id in self.makes))


def read_card(engine: EngineOptions, *, may_pull: bool = False) -> Card:
    """The card of this machine. Raises: WorkerError when llama.cpp does not start here."""
    environment = read_environment(run_info(engine))
    try:
        user_dir().mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(user_dir()).free
    except OSError:
        free = None
    models, makes = _models_here()
    return Card(
        environment=environment,
        origin=read_origin(environment),
        models=models,
        makes=makes,
        may_pull=may_pull,
        free_disk_bytes=free,
        conditions=read_conditions(),
    )


def read_origin(environment: Environment) -> Origin:
    """What of this installation must equal the others'."""
    running = hashlib.sha256()
    for folder in (data_path("suites"), asset_path("prompts")):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".toml", ".txt", ".jsonl"):
                running.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return Origin(
        mlsd_version=__version__,
        llama_cpp_build=environment.llama_cpp_build,
        llama_cpp_python_version=environment.llama_cpp_python_version,
        suites_sha256=running.hexdigest(),
    )


def differences(theirs: Origin, ours: Origin) -> list[str]:
    """In what two installations differ, in words."""
    words = {
        "mlsd_version": "mlsd",
        "llama_cpp_build": "llama.cpp",
        "llama_cpp_python_version": "llama-cpp-python",
        "suites_sha256": "suites and prompts",
    }
    return [
        f"{words[name]} {str(getattr(theirs, name))[:16]} instead of {str(getattr(ours, name))[:16]}"
        for name in Origin.__struct_fields__
        if getattr(theirs, name) != getattr(ours, name)
    ]


def check_origin(theirs: Origin, ours: Origin) -> None:
    """Raises: InputError with what differs."""
    if found := differences(theirs, ours):
        raise InputError(
            f"This machine cannot measure for another installation: {'; '.join(found)}.",
            hint="Install the same version on both.",
        )


def _models_here() -> tuple[tuple[ModelFacts, ...], tuple[str, ...]]:
    library, found, makes = Library(), [], []
    for entry in library.manifest:
        try:
            if library.locate(entry) is not None:
                model = library.resolve(entry.id)
                found.append(model_facts(model.path, ref=model.ref))
            elif isinstance(entry, MadeEntry) and library.locate(library.manifest.bases(entry)[-1]) is not None:
                makes.append(entry.id)
        except MlsdError:  # a file that cannot be read is not there
            continue
    return tuple(found), tuple(makes)
