"""What runs on a machine of a lab: its card, the same run of suites as by itself, and the database of that run."""

import gzip
import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from mlsd.engine.context import threads_of
from mlsd.errors import StoreError
from mlsd.folders import user_dir
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.parent.blocks import RunOutcome, RunSettings, Watcher
from mlsd.measure.parent.requests import run_study
from mlsd.measure.process import run_info
from mlsd.models.library import Library
from mlsd.planning.job import Slot
from mlsd.planning.question import Asked
from mlsd.planning.request import StudyRequest
from mlsd.records import Conditions, EngineOptions, Environment, Record, Trial
from mlsd.store import database
from mlsd.store.merge import merge
from mlsd.store.rows import environment_key
from mlsd.store.store import Store

_POLL_S = 0.5


class Card(Record, frozen=True, kw_only=True):
    """A machine that joined."""

    environment: Environment
    conditions: Conditions  # as it joined

    @property
    def place(self) -> str:
        """Equal for all that joins from one machine."""
        return f"host {self.environment.host}"

    @property
    def name(self) -> str:
        key = environment_key(self.environment)
        return f"{self.environment.chip or self.environment.machine}, {self.environment.backend} ({key[:8]})"


class Doing(Record, frozen=True, kw_only=True):
    """How far a machine is with a run."""

    target: str
    n_total: int  # trials
    n_done: int


doing: dict[str, Doing] = {}  # of this process, by the name of a study: one, or none
cards: list[Card] = []  # of this process: as it joined


def read_card(engine: EngineOptions) -> Card:
    """The card of this machine for contexts like these. Raises: WorkerError without llama.cpp."""
    return Card(environment=read_environment(run_info(engine)), conditions=read_conditions())


def differences(theirs: Environment, ours: Environment) -> list[str]:
    """In what two installations differ that measure for one study, in words."""
    names = {"mlsd": "mlsd_version", "llama.cpp": "llama_cpp_build", "llama-cpp-python": "llama_cpp_python_version"}
    both = {word: (getattr(theirs, name), getattr(ours, name)) for word, name in names.items()}
    return [f"{word} {there} instead of {here}" for word, (there, here) in both.items() if there != here]


def status() -> tuple[Card, Doing | None]:
    """The machine and what it is at, without disturbing it."""
    return cards[0], next(iter(doing.values()), None)


def packed(store: Store) -> bytes:
    """A database as bytes that travel."""
    with closing(store.copy()) as copy:
        return gzip.compress(copy.serialize(), compresslevel=1)


def unpacked(data: bytes) -> Store:
    """The database of such bytes, in memory. Raises: StoreError."""
    path = Path("a database of the lab")
    return Store(path, database.image(gzip.decompress(data), path))


def _path(study: str) -> Path:
    """Where this machine keeps what it measures for a study until the coordinator has all of it."""
    return user_dir() / "lab" / f"{study}.sqlite"


def measured(study: str, n_known: int | None = None) -> tuple[Doing | None, bytes] | None:
    """How far this machine is with a study, and the database of what it measured; None where there is none yet.

    The database is empty while no trial was measured beyond `n_known`: to pack it would disturb what is measured.
    """
    now = doing.get(study)
    if now is not None and now.n_done == n_known:
        return now, b""
    with suppress(StoreError), Store.open(_path(study), create=False, read_only=True) as store:
        return now, packed(store)
    return None


def discard(study: str) -> None:
    """Remove a study's database, which the coordinator has."""
    for end in ("", "-wal", "-shm"):
        Path(f"{_path(study)}{end}").unlink(missing_ok=True)


def measure(
    request: StudyRequest, settings: RunSettings, options: Asked, study: str, known: bytes, *, may_pull: bool,
    wanted: Callable[[], bool],
) -> RunOutcome:  # fmt: skip
    """Run suites here as `mlsd run` does, going on with what the coordinator knows of machines like this one.

    This process ends as soon as the run is not `wanted`. Raises: what `run_study` raises.
    """
    engine = request.overrides.engine
    engine = msgspec.structs.replace(engine, n_threads=threads_of(engine))
    overrides, library = msgspec.structs.replace(request.overrides, engine=engine), Library(request.library.manifest)
    request = msgspec.structs.replace(request, library=library, overrides=overrides)
    if known:
        with Store.open(_path(study)) as store, unpacked(known) as theirs:
            merge(store, theirs, key=environment_key(read_card(engine).environment))
    over = threading.Event()

    def end_when_not_wanted() -> None:
        while not over.wait(_POLL_S):
            if not wanted():
                os._exit(0)  # and with it the worker, whose standard input closes

    threading.Thread(target=end_when_not_wanted, daemon=True).start()
    try:
        return run_study(
            request,
            _path(study),
            settings=msgspec.structs.replace(settings, fresh=False),  # nothing is there that counts no more
            watcher=_Counting(study),
            options=options,
            pull=(lambda id_: library.pull(library.manifest.find(id_))) if may_pull else None,
        ).outcome
    finally:
        over.set()
        doing.pop(study, None)


class _Counting(Watcher):
    """Keeps how far the run is, for those who ask."""

    def __init__(self, study: str) -> None:
        self._study = study

    def begin(self, n_total: int, n_skipped: int) -> None:
        doing[self._study] = Doing(target="", n_total=n_total, n_done=n_skipped)

    def trial(self, slot: Slot, trial: Trial) -> None:
        now = doing[self._study]
        doing[self._study] = Doing(target=slot.case.target.id, n_total=now.n_total, n_done=now.n_done + 1)
