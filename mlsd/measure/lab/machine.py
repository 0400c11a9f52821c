"""What runs on a machine of a lab: one part of a plan at a time, in a worker process as in any run.

Functions here are called by name through the cluster. A part stops when nobody wants it any more: then its worker
process is killed, so that a coordinator that was interrupted leaves its machines free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import cast

import msgspec
import psutil

from mlsd.errors import MlsdError, ModelFileError
from mlsd.measure.lab.card import Card, Origin, check_origin, read_card
from mlsd.measure.messages import Done, Event, Job, ModelFile
from mlsd.measure.process import run_job
from mlsd.measure.run.runner import machine_lock
from mlsd.models.library import Library
from mlsd.records import EngineOptions, ModelRef, Record

_LOOK_S = 0.5


class Piece(Record, frozen=True, kw_only=True):
    """What crosses to a machine: a job, whose it is, and what the installation there must equal."""

    ticket: str
    job: Job
    origin: Origin
    patience_s: float


class Doing(Record, frozen=True, kw_only=True):
    """What a machine is at."""

    target: str
    n_slots: int
    n_done: int


state: dict[str, Doing | Card] = {}  # of this process: "doing", "card"


def card(engine: EngineOptions, *, may_pull: bool) -> Card:
    """The card of this machine, remembered for those who only ask how it is."""
    found = read_card(engine, may_pull=may_pull)
    state["card"] = found
    return found


def measure(
    piece: Piece, *, may_pull: bool, wanted: Callable[[], bool], say: Callable[[Done], None]
) -> tuple[str | None, bool]:
    """Run a part and say every trial; returns why the rest cannot be measured, and whether only not by this machine.

    It ends early, without a word, when `wanted` says no.
    """
    unfit = True
    try:
        here = state.get("card") or card(piece.job.slots[0].case.engine, may_pull=may_pull)
        assert isinstance(here, Card)
        check_origin(here.origin, piece.origin)
        job = _at_home(piece.job, may_pull=may_pull)
        with machine_lock(), _stopped_when_not(wanted):
            unfit = False
            events = cast("Generator[Event]", run_job(job, patience_s=piece.patience_s))
            with closing(events):
                for event in events:
                    if not wanted():
                        break
                    if isinstance(event, Done):
                        state["doing"] = Doing(target=job.target.ref.id, n_slots=len(job.slots), n_done=event.index + 1)
                        say(event)
    except MlsdError as error:
        return str(error), unfit
    finally:
        state.pop("doing", None)
    return None, False


@contextmanager
def _stopped_when_not(wanted: Callable[[], bool]) -> Iterator[None]:
    """Kill the worker processes of this one as soon as the part is not wanted: a load may say nothing for minutes."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            if not wanted():
                for child in psutil.Process().children():
                    child.kill()

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _at_home(job: Job, *, may_pull: bool) -> Job:
    """The job with the models' places on this machine. Raises: ModelFileError, HubError."""
    library = Library()
    return msgspec.structs.replace(
        job,
        target=_model(library, job.target.ref, may_pull),
        models=tuple(_model(library, model.ref, may_pull) for model in job.models),
    )


def _model(library: Library, ref: ModelRef, may_pull: bool) -> ModelFile:
    entry = library.manifest.find(ref.id)
    if library.locate(entry) is None and may_pull:
        library.pull(entry)
    found = library.resolve(ref.id, make=True)
    if found.ref.sha256 != ref.sha256:
        raise ModelFileError(f"{ref.id} is another file on this machine ({(found.ref.sha256 or '')[:8]}).")
    return ModelFile(ref=ref, path=str(found.path))
