"""A machine of a lab: what it says of itself, whether it may take part, and how it measures a part of a plan."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import psutil

from mlsd.errors import MlsdError, ModelFileError
from mlsd.folders import asset_path, data_path, free_bytes
from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_conditions, read_environment
from mlsd.hardware.budget import memory_budget
from mlsd.measure.bench import Bench
from mlsd.measure.heat import CleanAnchors
from mlsd.measure.messages import BlockMeasured
from mlsd.measure.parent.blocks import machine_lock
from mlsd.measure.parent.disturbance import BlockJudge
from mlsd.measure.parent.memory import fit_here
from mlsd.measure.process import run_info
from mlsd.models.library import Library
from mlsd.planning.job import Job, ModelFile
from mlsd.records import Conditions, EngineOptions, Environment, ModelFacts, ModelRef, Record
from mlsd.store.rows import environment_key
from mlsd.version import __version__

_POLL_S = 0.5


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
    free_disk_bytes: int  # where downloads go
    device_bytes: int | None = None  # memory that the device states
    conditions: Conditions

    @property
    def key(self) -> str:
        return environment_key(self.environment)

    @property
    def name(self) -> str:
        return f"{self.environment.chip or self.environment.machine}, {self.environment.backend} ({self.key[:8]})"

    def lacks(self, models: tuple[ModelRef, ...]) -> tuple[ModelRef, ...]:
        """Models that cannot run there: not there by hash, and no room or no leave to bring them; or too large."""
        budget, weights = memory_budget(self.environment, self.device_bytes), sum(ref.n_bytes or 0 for ref in models)
        if budget is not None and weights > budget.limit_bytes:
            return models
        there = {facts.ref.sha256 for facts in self.models}
        missing = tuple(ref for ref in models if ref.sha256 not in there)
        needed = sum(ref.n_bytes or 0 for ref in missing)
        return tuple(
            ref for ref in missing if needed > self.free_disk_bytes or not (self.may_pull or ref.id in self.makes)
        )


def read_card(engine: EngineOptions, *, may_pull: bool = False) -> Card:
    """The card of this machine, remembered for those who only ask how it is. Raises: WorkerError without llama.cpp."""
    backend, library = run_info(engine), Library()
    environment = read_environment(backend)
    models, makes = [], []
    for entry in library.manifest:
        with suppress(MlsdError):  # a file that cannot be read is not there
            if library.locate(entry) is not None:
                model = library.resolve(entry.id)
                models.append(model_facts(model.path, ref=model.ref))
            elif library.can_make(entry):
                makes.append(entry.id)
    state["card"] = card = Card(
        environment=environment,
        origin=read_origin(environment),
        models=tuple(models),
        makes=tuple(makes),
        may_pull=may_pull,
        free_disk_bytes=free_bytes(library.hub.cache_dir),
        device_bytes=backend.memory_bytes,
        conditions=read_conditions(),
    )
    return card


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
    words = ("mlsd", "llama.cpp", "llama-cpp-python", "suites and prompts")
    both = zip(words, msgspec.structs.astuple(theirs), msgspec.structs.astuple(ours), strict=True)
    return [f"{word} {str(one)[:16]} instead of {str(other)[:16]}" for word, one, other in both if one != other]


# --- measuring ------------------------------------------------------------------------------------------------


class Ended(Record, frozen=True, kw_only=True):
    """A machine is through with a part of a plan."""

    error: str | None = None  # why the rest of it cannot be measured
    unfit: bool = False  # it is the machine that cannot: others may


class Doing(Record, frozen=True, kw_only=True):
    """What a machine is at."""

    target: str
    n_slots: int
    n_done: int


state: dict[str, Doing | Card] = {}  # of this process: "doing", "card"
_clean: CleanAnchors = {}  # read here while it was cool


def measure(
    job: Job, origin: Origin, *, may_pull: bool, wanted: Callable[[], bool], say: Callable[[BlockMeasured], None]
) -> Ended:
    """Measure a part for an installation and say every block.

    A block that was disturbed is measured again here. It ends early, without a word, when `wanted` says no.
    """
    unfit = True
    try:
        here = state.get("card") or read_card(job.engine, may_pull=may_pull)
        assert isinstance(here, Card)
        if found := differences(here.origin, origin):
            return Ended(error=f"This machine measures for no other installation: {'; '.join(found)}.", unfit=unfit)
        library = Library()
        target, *models = (_model(library, file.ref, may_pull) for file in job.files)
        job = msgspec.structs.replace(job, target=target, models=tuple(models))
        with machine_lock(), _stopped_when_not(wanted):
            _, (job,) = fit_here((job,), cool_down_s=job.cool_down_s)
            unfit, left, n_done = False, deque(job.blocks), 0
            judge = BlockJudge(on_device=here.environment.backend != "CPU", clean=_clean)
            judge.begin(job)
            with Bench(job) as bench:
                while left and judge.rest(bench, lambda why: None, lambda: not wanted()) and wanted():
                    measured = bench.measure(left[0])
                    n_done = max(n_done, *(place + 1 for place in measured.slots))
                    state["doing"] = Doing(target=job.target.ref.id, n_slots=len(job.slots), n_done=n_done)
                    for block, trials, again in judge.judge(bench, left.popleft(), measured):
                        if again:
                            left.appendleft(block)
                        else:
                            say(msgspec.structs.replace(measured, trials=trials))
    except MlsdError as error:
        return Ended(error=str(error), unfit=unfit)
    finally:
        state.pop("doing", None)
    return Ended()


@contextmanager
def _stopped_when_not(wanted: Callable[[], bool]) -> Iterator[None]:
    """Kill the worker processes of this one as soon as the part is not wanted: a load may say nothing for minutes."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(_POLL_S):
            if not wanted():
                for child in psutil.Process().children():
                    child.kill()

    watch = threading.Thread(target=poll, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _model(library: Library, ref: ModelRef, may_pull: bool) -> ModelFile:
    """Where a model lies on this machine. Raises: ModelFileError, HubError."""
    entry = library.manifest.find(ref.id)
    if library.locate(entry) is None and may_pull:
        library.pull(entry)
    found = library.resolve(ref.id, make=True)
    if found.ref.sha256 != ref.sha256:
        raise ModelFileError(f"{ref.id} is another file on this machine ({(found.ref.sha256 or '')[:8]}).")
    return ModelFile(ref=ref, path=str(found.path))
