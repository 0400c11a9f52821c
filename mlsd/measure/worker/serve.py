"""The worker process: one Job in on standard input, Events out on standard output, one JSON text a line.

Behind a job of trials come its turns, one by one, so that its caller can choose by what was measured.

All native work happens here, so that a crash, an abort or an out-of-memory kill costs one trial and not the suite.
Run as ``python -m mlsd.measure.worker``. It ends itself when its parent does: standard input then closes.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from mlsd.children import end_with_parent
from mlsd.clock import MonotonicClock
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_session
from mlsd.engine.probe import probe
from mlsd.engine.session import session_options
from mlsd.errors import MlsdError
from mlsd.hardware import read_conditions
from mlsd.measure.cool_down import CoolDown
from mlsd.measure.messages import (
    QUESTIONS,
    CalibrateJob,
    Done,
    Event,
    Finished,
    Info,
    InfoJob,
    Loaded,
    Probed,
    ProbeJob,
    Progress,
    Refused,
    Started,
    Turn,
    Work,
    failed_trial,
)
from mlsd.measure.worker.arms import Arms, arm_key
from mlsd.measure.worker.calibrate import Calibration
from mlsd.measure.worker.probe_cache import ProbeCache, check_weights
from mlsd.planning.job import Job, ModelFile, Slot
from mlsd.records import Trial

_PROGRESS_PERIOD_NS = 500_000_000


def main() -> None:
    """Read one job, run it, say what happens."""
    # Ctrl-C is the parent's to handle; it ends the worker when it wants to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    out = _private_stdout()
    lines = end_with_parent()
    work = msgspec.json.decode(lines.get(), type=Work)
    send = _Sender(out)
    try:
        for file in _models_of(work):
            check_weights(Path(file.path), file.ref)
        if isinstance(work, Job):
            run_slots(work, send, iter(lambda: msgspec.json.decode(lines.get(), type=Turn).slots, ()))
        elif isinstance(work, CalibrateJob):
            calibrate(work, send)
        else:
            module, _, name = QUESTIONS[type(work)].handler.partition(":")
            send(getattr(importlib.import_module(f"mlsd.measure.worker.{module}"), name)(work))
    except MlsdError as error:
        send(Refused.of(error))


def _models_of(work: Work) -> Iterable[ModelFile]:
    """The models of any work."""
    for name in ("target", "draft", "model"):
        if isinstance(file := getattr(work, name, None), ModelFile):
            yield file


def _private_stdout() -> BinaryIO:
    """Events keep the real standard output; whatever native code prints goes to standard error."""
    private = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return private


class _Sender:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def __call__(self, event: Event) -> None:
        self._out.write(msgspec.json.encode(event) + b"\n")


def run_slots(job: Job, send: Callable[[Event], None], turns: Iterable[Sequence[int]]) -> None:
    """Run the slots of a job, turn by turn; a slot that fails becomes a failed trial.

    Raises: MlsdError when the job cannot start at all.
    """
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        if job.strict:
            for case in {slot.case_id: slot.case for slot in job.slots}.values():
                arms.check(case)
        runner = _SlotRunner(job, arms, send)
        for index in itertools.chain.from_iterable(turns):
            runner.run(index)
    send(Finished())


def find_backend(job: InfoJob) -> Info:
    """The native build and device."""
    return Info(backend=backend_info(job.engine.n_gpu_layers))


def probe_model(job: ProbeJob) -> Probed:
    """Load a model and probe it now, whatever the cache says; the cache then knows the result."""
    options = session_options(job.engine, 1)
    with LlamaModel(Path(job.model.path), n_gpu_layers=job.engine.n_gpu_layers) as model:
        report = probe(partial(open_session, model), options)
    ProbeCache().put(job.model.ref, options, report)
    info = backend_info(job.engine.n_gpu_layers)
    return Probed(model=job.model.ref, backend=info.backend, device=info.device, report=report)


def calibrate(job: CalibrateJob, send: _Sender) -> None:
    """Time passes, a repeat at a time; then ask a mixture for its experts, outside everything timed."""
    with closing(Calibration(job, MonotonicClock(), ProbeCache())) as calibration:
        for repeat in calibration.repeats():
            send(repeat)
        if job.windows and job.n_experts:
            send(calibration.coverage())
        send(calibration.spent())
    send(Finished())


class _SlotRunner:
    def __init__(self, job: Job, arms: Arms, send: Callable[[Event], None]) -> None:
        self._job, self._arms, self._send = job, arms, send
        self._warm: set[bytes] = set()
        self._block: int | None = None
        self._first = True
        self._plain: Slot | None = None  # the newest one that was measured
        self._heat = CoolDown(lambda: read_conditions().thermal_state, time.sleep, self._feel)
        backend = backend_info(job.slots[0].case.engine.n_gpu_layers)
        # A GPU compiles its pipelines when a pass of a width is first run, and some widths come late in a trial.
        self._whole_warm_up = backend.backend != "CPU"
        send(Loaded(load_ns=arms.load_ns, backend=backend))

    def run(self, index: int) -> None:
        slot = self._job.slots[index]
        self._cool_down(slot)
        self._send(Started(index=index))
        arm = arm_key(slot.case)
        try:
            if (plain := self._arms.refer(slot)) is not None:
                self._warm.add(arm_key(plain))
            if arm not in self._warm or not self._arms.is_open(slot.case):
                self._arms.warm_up(slot.case, whole=self._whole_warm_up and arm not in self._warm)
                self._warm.add(arm)
            trial = self._measure(index, slot)
        except MlsdError as error:
            trial = failed_trial(slot, str(error))
        except Exception:  # noqa: BLE001 - the worker boundary: whatever went wrong is this trial's reason
            trial = failed_trial(slot, traceback.format_exc(limit=-4))
        if trial.status == "failed":
            self._warm.discard(arm)  # its contexts may be new ones
        self._send(Done(index=index, trial=trial))

    def _measure(self, index: int, slot: Slot) -> Trial:
        last_ns = time.monotonic_ns()

        def on_round(n_tokens: int) -> None:
            nonlocal last_ns
            if time.monotonic_ns() - last_ns > _PROGRESS_PERIOD_NS:
                last_ns = time.monotonic_ns()
                self._send(Progress(index=index, n_tokens=n_tokens))

        trial = self._arms.run(slot, conditions=read_conditions(), keep_text=self._job.keep_text, on_round=on_round)
        if slot.case.arm == "ar":
            self._plain = slot
        self._heat.heard(trial)
        if self._first:
            trial = msgspec.structs.replace(trial, load_ns=self._arms.load_ns)
            self._first = False
        return trial

    def _cool_down(self, slot: Slot) -> None:
        if self._block not in (None, slot.block):
            rested = self._job.cool_down_s if self._job.cool_down_s is not None else self._heat.rest()
            if self._job.cool_down_s:
                time.sleep(self._job.cool_down_s)
            if rested:
                # An idle machine lowers its clocks; every arm is warmed again before it is measured.
                self._warm.clear()
        self._block = slot.block

    def _feel(self) -> None:
        """Decode plainly again, only to learn how fast the machine is now."""
        if self._plain is not None:
            trial = self._arms.run(self._plain, keep_text=False)
            self._heat.heard(trial)
