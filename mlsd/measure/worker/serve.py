"""The worker process: a Call in on standard input, and of a job its turns; Events out, one JSON text a line.

All native work happens here, so that a crash costs one trial. It ends itself when its parent does: standard input
closes.
"""

import importlib
import itertools
import os
import signal
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from mlsd.children import end_with_parent
from mlsd.clock import Clock, MonotonicClock
from mlsd.drafters import user_methods
from mlsd.engine.context import context_options
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import LIBRARIES_VARIABLE, backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback_choice import Role, RollbackCheck, candidates, kernel_noise
from mlsd.errors import MlsdError, in_one_line
from mlsd.folders import go_to_empty_dir
from mlsd.hardware import read_conditions
from mlsd.measure import messages
from mlsd.measure.messages import SIGN_S, Event, engine_and_models, failed_trial
from mlsd.measure.probe_cache import ProbeCache, check_weights
from mlsd.measure.stage_clock import StageClock
from mlsd.measure.worker.arms import Arms, arm_key, check_uses
from mlsd.measure.worker.footprints import check_memory
from mlsd.planning.job import Job, ModelFile, Slot
from mlsd.records import Anchors, Conditions, EngineOptions, Status, Trial

T = TypeVar("T")

_PROGRESS_PERIOD_NS, _PULSE_NS = 500_000_000, int(SIGN_S * 1e9)
_IDLE_NS = 10_000_000_000  # a pause after which a machine has lowered its clocks
_PROBED_POSITIONS = 1024  # of contexts in which strategies are tried before any arm is known


def main() -> None:
    """Read one job, run it, say what happens."""
    # Ctrl-C is the parent's to handle; it ends the worker when it wants to.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    stages = StageClock.of_process(MonotonicClock())
    _chdir_to_empty()
    out = _private_stdout()
    lines = end_with_parent()
    call = msgspec.json.decode(lines.get(), type=messages.Call)

    def send(event: Event) -> None:
        out.write(msgspec.json.encode(event) + b"\n")

    messages.progress_sink.set(ProgressReports(send, MonotonicClock()))
    try:
        module, _, name = call.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        kinds = typing.get_type_hints(function)
        given = {name: msgspec.json.decode(value, type=kinds[name]) for name, value in call.arguments.items()}
        user_methods.load_again(call.methods)
        for file in engine_and_models(given)[1]:
            check_weights(Path(file.path), file.ref)
        check_memory(given)
        if function is measure_slots:
            turns = (msgspec.json.decode(line, type=messages.Turn) for line in iter(lines.get, None))
            with Arms(given["job"], MonotonicClock(), ProbeCache(), stages) as arms:
                measure_slots(given["job"], send, turns, arms, MonotonicClock())
        else:
            result = function(**given)
            for answer in result if isinstance(result, Iterator) else (result,):
                send(messages.Returned(value=msgspec.Raw(msgspec.json.encode(answer))))
            send(messages.Finished())
    except MlsdError as error:
        send(messages.Refused.of(error))


class ProgressReports:
    """Says now and then what goes on, so that nobody takes it for a hang."""

    def __init__(self, send: Callable[[Event], None], clock: Clock) -> None:
        self._send, self._clock, self._last_ns = send, clock, clock.now_ns()

    def __call__(self, doing: str) -> None:
        if self._clock.now_ns() - self._last_ns > _PULSE_NS:
            self._last_ns = self._clock.now_ns()
            self._send(messages.Waiting(text=doing[:1].upper() + doing[1:]))


def _chdir_to_empty() -> None:
    for name in ("MLSD_HOME", "MLSD_CACHE", LIBRARIES_VARIABLE):
        if named := os.environ.get(name):
            os.environ[name] = str(Path(named).expanduser().absolute())
    go_to_empty_dir()


def _private_stdout() -> BinaryIO:
    """Events keep the real standard output; whatever native code prints goes to standard error."""
    private = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return private


def measure_slots(
    job: Job,
    send: Callable[[Event], None],
    turns: Iterable[messages.Turn],
    arms: Arms,
    clock: Clock,
    conditions: Callable[[], Conditions] = read_conditions,
) -> None:
    """Measure a job block by block, each a turn; a slot that fails becomes a failed trial."""
    if job.strict:
        check_arms(job, arms)
    blocks = _BlockRunner(job, arms, send, clock, conditions)
    arms.stages.switch("resting")  # and storing: what is between turns is the parent's
    for turn in turns:
        with arms.stages.of("other"):
            answer = blocks.measure(turn)
        send(msgspec.structs.replace(answer, stages=arms.stages.take()))


def check_arms(job: Job, arms: Arms) -> None:
    """Open every arm. One that cannot run leaves failed trials with its reason beside the others.

    Raises: MlsdError of the first, where plain decoding cannot run, or nothing that is drafted.
    """
    problems, n_drafted = list[MlsdError](), sum(case.arm == "sd" for case in job.cases.values())
    for case in job.cases.values():
        try:
            arms.check(case)
        except MlsdError as error:
            if case.arm == "ar":
                raise
            problems.append(error)
    if problems and len(problems) == n_drafted:
        raise problems[0]


def probe_model(model: ModelFile, engine: EngineOptions, gammas: tuple[int, ...]) -> messages.Probed:
    """Try every rollback strategy at these gammas, as arms with contexts of that length would; and what they get."""
    checks, chosen = list[RollbackCheck](), list[messages.ChosenRollback]()
    cache, info = ProbeCache(), backend_info(engine.n_gpu_layers)
    options = context_options(engine, _PROBED_POSITIONS)
    with LlamaModel(Path(model.path), n_gpu_layers=engine.n_gpu_layers) as loaded:
        for role, gamma in itertools.product(typing.get_args(Role), gammas):
            exact: str | None = None
            for name in candidates(role, recurrent=loaded.is_recurrent, backend=info.backend):
                checks.append(check_uses(cache, model.ref, options, loaded, name, role, gamma))
                exact = exact or (name if checks[-1].exact else None)
                if exact == "trim":
                    break  # a cut is free, so no other one is worth trying
            chosen.append(messages.ChosenRollback(role=role, gamma=gamma, strategy=exact))
        noise = max(kernel_noise(partial(open_context, loaded), options).values())
    return messages.Probed(
        model=model.ref,
        backend=info.backend,
        device=info.device,
        n_ctx=options.n_ctx,
        kernel_noise=noise,
        checks=tuple(checks),
        chosen=tuple(chosen),
    )


class _BlockRunner:
    def __init__(
        self,
        job: Job,
        arms: Arms,
        send: Callable[[Event], None],
        clock: Clock,
        conditions: Callable[[], Conditions],
    ) -> None:
        self._job, self._arms, self._send, self._clock, self._conditions = job, arms, send, clock, conditions
        # A GPU compiles its pipelines when a pass of a width is first run, and some widths come late in a trial. What
        # is compiled stays so; what is warm does not outlast a rest.
        self._compiled, self._warm = set[bytes](), set[bytes]()
        self._load_ns: int | None = arms.load_ns  # until the first trial has it
        self._ended_ns: int | None = None  # when the last block did
        self._anchor_cases = sorted(job.cases.values(), key=lambda case: case.gamma)  # the widest last
        self._is_device = arms.backend.backend != "CPU"

    def measure(self, turn: messages.Turn) -> messages.BlockMeasured:
        """Every slot of a block, one after the other, and the anchor behind it; or both anchors alone."""
        self._arms.one_arm = turn.one_arm
        if not turn.slots:
            with self._arms.stages.of("resting"):
                return messages.BlockMeasured(trials=(), anchors=self._anchors(both=True))
        if self._ended_ns is not None and self._clock.now_ns() - self._ended_ns > _IDLE_NS:
            self._warm.clear()
        trials = self._trials(turn.slots)
        self._ended_ns = self._clock.now_ns()
        with self._arms.stages.of("resting"):
            anchors = self._anchors(both=False) if self._job.cool_down_s is None else None
        return messages.BlockMeasured(trials=trials, anchors=anchors)

    def _trials(self, slots: Sequence[Slot]) -> tuple[Trial, ...]:
        """Run every slot, then judge, by the plain outputs of the block; an arm that runs again is judged before.

        So is plain decoding, which is its own reference, and reads a longer prompt when an arm behind it is checked.
        """
        arms = [arm_key(slot.case) for slot in slots]
        done = list[Trial | Callable[[], Trial]]()
        for index, slot in enumerate(slots):
            at_once = self._arms.one_arm or slot.case.arm == "ar" or arms[index] in arms[index + 1 :]
            judge = self._or_failed(slot, partial(self._measure, slot, at_once=at_once))
            done.append(self._judged(slot, judge) if at_once else judge)
        judged = [self._judged(slot, judge) for slot, judge in zip(slots, done, strict=True)]
        trials = [
            self._or_failed(slot, partial(self._arms.confirm, slot, trial))
            for slot, trial in zip(slots, judged, strict=True)
        ]
        first = next((index for index, trial in enumerate(trials) if trial.status is not Status.FAILED), None)
        if first is not None:
            trials[first] = msgspec.structs.replace(trials[first], load_ns=self._load_ns)
            self._load_ns = None
        return tuple(trials)

    def _measure(self, slot: Slot, *, at_once: bool) -> Callable[[], Trial]:
        self._send(messages.Started(slot=slot))
        arm, on_round = arm_key(slot.case), self._progress(slot)
        conditions = self._conditions()  # takes a while, in which a GPU gets cold: before what warms it
        if at_once:
            self._refer(slot)  # which may close this arm, where memory holds one
        if arm not in self._warm or not self._arms.is_open(slot.case):
            self._arms.warm_up(slot.case, whole=self._is_device and arm not in self._compiled, on_round=on_round)
            self._is_ready(arm)
        return self._arms.measure(slot, conditions=conditions, on_round=on_round, warm=self._is_device)

    def _judged(self, slot: Slot, judge: Trial | Callable[[], Trial]) -> Trial:
        """The trial of what was measured; where no plain output is known, that is written first."""
        if isinstance(judge, Trial):
            return judge

        def work() -> Trial:
            self._refer(slot)
            return judge()

        return self._or_failed(slot, work)

    def _refer(self, slot: Slot) -> None:
        if (ready := self._arms.refer(slot)) is not None:
            self._is_ready(arm_key(ready))

    def _or_failed(self, slot: Slot, work: Callable[[], T]) -> T | Trial:
        """What the work gives, or a failed trial with the reason why it gave nothing."""
        try:
            return work()
        except MlsdError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - the worker boundary: whatever went wrong is this trial's reason
            traceback.print_exc()
            reason = in_one_line(error)
        self._warm.discard(arm_key(slot.case))  # its contexts may be new ones
        self._compiled.discard(arm_key(slot.case))
        return failed_trial(slot, reason)

    def _is_ready(self, arm: bytes) -> None:
        self._warm.add(arm)
        self._compiled.add(arm)

    def _progress(self, slot: Slot) -> Callable[[int], None]:
        last_ns = self._clock.now_ns()

        def on_round(n_tokens: int) -> None:
            nonlocal last_ns
            if self._clock.now_ns() - last_ns > _PROGRESS_PERIOD_NS:
                last_ns = self._clock.now_ns()
                self._send(messages.Progress(slot=slot, n_tokens=n_tokens))

        return on_round

    def _anchors(self, *, both: bool) -> Anchors | None:
        """By the widest arm that can run."""
        while self._anchor_cases:
            try:
                return self._arms.read_anchors(self._anchor_cases[-1], both=both)
            except MlsdError:
                self._anchor_cases.pop()
        return None
