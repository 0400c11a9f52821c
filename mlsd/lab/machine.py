"""What runs on a machine of a lab: its card, the same run of suites as by itself, and the database of that run."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from mlsd.engine.context import threads_of
from mlsd.errors import MlsdError
from mlsd.folders import user_dir
from mlsd.hardware import read_conditions, read_environment
from mlsd.measure.parent.blocks import RunOutcome, Watcher
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


class Card(Record, frozen=True, kw_only=True):
    """A machine that joined."""

    environment: Environment
    conditions: Conditions  # as it joined

    @property
    def host(self) -> str:
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


@dataclass
class Process:
    """A process that joined a lab."""

    card: Card
    may_pull: bool
    study: str = ""  # that it measures, or measured last
    doing: Doing | None = None


joined: list[Process] = []  # one, in a process that joined


def join(may_pull: bool) -> Card:
    """Make this process a machine of a lab, and read its card. Raises: WorkerError without llama.cpp."""
    card = Card(environment=read_environment(run_info(EngineOptions())), conditions=read_conditions())
    joined.append(Process(card, may_pull))
    return card


def differences(theirs: Environment, ours: Environment) -> list[str]:
    """In what two installations differ that measure for one study, in words."""
    names = {"mlsd": "mlsd_version", "llama.cpp": "llama_cpp_build", "llama-cpp-python": "llama_cpp_python_version"}
    both = {word: (getattr(theirs, name), getattr(ours, name)) for word, name in names.items()}
    return [f"{word} {there} instead of {here}" for word, (there, here) in both.items() if there != here]


def status(study: str = "", n_known: Mapping[str, int] | None = None) -> tuple[Card, Doing | None, bytes]:
    """A machine, what it is at, and the database of a study where it has more trials than are known of its host.

    Asked of the machine, whatever it does; to send nothing where there is nothing new disturbs no measurement.
    """
    (here,) = joined
    has_more = (
        here.doing is not None and here.study == study and here.doing.n_done > (n_known or {}).get(here.card.host, 0)
    )
    return here.card, here.doing, packed(_path(study)) if has_more else b""


def packed(path: Path) -> bytes:
    """A database as bytes that travel."""
    with Store.open(path) as store, closing(store.copy()) as copy:
        return copy.serialize()


def unpacked(data: bytes) -> Store:
    """The database of such bytes, in memory. Raises: StoreError."""
    path = Path("a database of the lab")
    return Store(path, database.image(data, path))


def _path(study: str) -> Path:
    """Where this machine keeps what it measures for a study until the coordinator has all of it."""
    return user_dir() / "lab" / f"{study}.sqlite"


def discard(study: str) -> None:
    """Remove a study's database, which the coordinator has."""
    for end in ("", "-wal", "-shm"):
        Path(f"{_path(study)}{end}").unlink(missing_ok=True)


def measure(
    request: StudyRequest, cool_down_s: float | None, options: Asked, study: str, earlier: bytes
) -> tuple[RunOutcome | str, bytes]:
    """Run suites here as `mlsd run` does, going on with what the coordinator knows of machines like this one.

    What the run did, or why it ended early, and the database of all that was measured.
    """
    (here,) = joined
    engine = request.overrides.engine
    engine = replace(engine, n_threads=threads_of(engine))
    library = Library(request.library.manifest)
    request = replace(request, library=library, overrides=replace(request.overrides, engine=engine))
    if earlier:
        with Store.open(_path(study)) as store, unpacked(earlier) as theirs:
            merge(store, theirs, key=environment_key(read_environment(run_info(engine))))
    here.study = study
    outcome: RunOutcome | str
    try:
        outcome = run_study(
            request,
            _path(study),
            cool_down_s=cool_down_s,
            watcher=_Counting(here),
            options=options,
            pull=(lambda id_: library.pull(library.manifest.find(id_))) if here.may_pull else None,
        ).outcome
    except MlsdError as error:
        outcome = str(error)
    finally:
        here.doing = None
    return outcome, packed(_path(study))


class _Counting(Watcher):
    """Keeps how far the run is, for those who ask."""

    def __init__(self, here: Process) -> None:
        self._here = here

    def begin(self, n_total: int, n_skipped: int) -> None:
        self._here.doing = Doing(target="", n_total=n_total, n_done=n_skipped)

    def trial(self, slot: Slot, trial: Trial) -> None:
        doing = self._here.doing
        assert doing is not None
        self._here.doing = replace(doing, target=slot.case.target.id, n_done=doing.n_done + 1)
