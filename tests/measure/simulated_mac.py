"""A Mac that becomes hot, sleeps and loses a worker, by a clock that worker and parent both live by.

Its worker runs the code of the real one over scripted sessions, and the parent reads it through the code of the real
pipe: a worker that says nothing for longer than the parent's patience is lost here as it is there.
"""

from __future__ import annotations

import itertools
import queue
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from mlsd.drafters.chain import Chain
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import GenerationLimits, generate
from mlsd.engine.drafter import NoDrafter
from mlsd.engine.rollback import make_rollback
from mlsd.measure.bench import Bench, Report
from mlsd.measure.messages import Call, Event, Turn, progress_sink, trial_of
from mlsd.measure.process import Worker, receive
from mlsd.measure.stage_clock import StageClock
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.saved_prompts import read_in_passes
from mlsd.measure.worker.serve import ProgressReports, measure_slots
from mlsd.planning.job import Job, ModelFile, Slot
from mlsd.planning.prompts import Prompt
from mlsd.records import Anchors, BackendInfo, Case, Conditions, Losslessness, ModelRef, Status, Trial
from tests.engine.fake import FakeClock, FakeContext
from tests.engine.test_decode import PROMPT, truth
from tests.measure.examples import case

MS = 1_000_000
# After a pause of 200 ms decoding is 11 to 12 % slower (llama.cpp 10119), and warm some hundred passes later.
PAUSE_NS, COLD, WARM_PASSES = 200 * MS, 0.115, 120
METAL = BackendInfo(
    backend="Metal", device="Apple M4", devices=(), binding_version="0", build="b1", system_info="", memory_bytes=None
)


class Mac:
    """Its time, its heat and its accidents; passes are counted from the beginning."""

    def __init__(
        self,
        *,
        episodes: Iterable[tuple[int, float]] = (),
        sleep_at: int | None = None,
        dies_at: int | None = None,
        state: Callable[[], str | None] = lambda: None,
        load_s: float = 0.0,
        prompt_s: float = 0.0,
        n_prompt: int = 0,
        pass_s: float = 0.0,
    ) -> None:
        """`episodes`: from a trial on, hot until it rested for so many seconds. `sleep_at`, `dies_at`: trials.

        `load_s` and `prompt_s`: what loading a model and reading a prompt take, without a word. `n_prompt` tokens more
        are read in passes of 512, which take `pass_s` each.
        """
        self.n_prompt, self.pass_s = n_prompt, pass_s
        self.load_s, self.prompt_s = load_s, prompt_s
        self.waited_ns: int | None = None  # how far the parent is that waits for a silent worker
        self.clock, self._left, self._sleep_at, self.dies_at = FakeClock(), list(episodes), sleep_at, dies_at
        self.state = state
        self.events_received: list[tuple[float, Event]] = []
        self.warmed: list[tuple[str, bool]] = []  # arm, whole
        self.order: list[str] = []  # of what belongs to trials
        self.measured: list[tuple[int, int, bool]] = []  # block, repeat, whether it was hot
        self.n_trials, self._rest_needed_s, self.n_workers, self.n_anchor_passes = 0, 0.0, 0, 0
        self._cold, self._worked_ns = 0.0, -PAUSE_NS
        self._sleep = self.clock.sleep
        self.clock.sleep = self._cool  # type: ignore[method-assign]

    def _cool(self, span_s: float) -> None:
        self._sleep(span_s)
        self._rest_needed_s = max(0.0, self._rest_needed_s - span_s)

    @property
    def is_hot(self) -> bool:
        return self._rest_needed_s > 0

    def pass_ns(self, width: int) -> int:
        """Of the next pass: T(4) suffers from heat and T(1) does not, as on an M5 Max; all do after a pause."""
        if self.clock.now_ns() - self._worked_ns >= PAUSE_NS:
            self._cold = COLD
        cold, self._cold = self._cold, max(0.0, self._cold - COLD / WARM_PASSES)
        span_ns = round((30 + 2 * width) * MS * (1.36 if self.is_hot and width > 1 else 1) * (1 + cold))
        self._worked_ns = self.clock.now_ns() + span_ns
        return span_ns

    def begin_trial(self) -> None:
        if self._left and self.n_trials >= self._left[0][0]:
            self._rest_needed_s = self._left.pop(0)[1]
        self.n_trials += 1

    def falls_asleep(self) -> bool:
        return self.n_trials == self._sleep_at

    def bench(self, job: Job, report: Report = lambda event: None) -> Bench:
        """A bench on this Mac."""
        bench = Bench(job, report, start=self._start)
        bench.clock, bench.conditions = self.clock, self.conditions  # type: ignore[method-assign]
        return bench

    def _start(self, function: str, given: Mapping[str, Job], variables: object) -> SimulatedWorker:
        self.n_workers += 1
        return SimulatedWorker(self, given["job"])

    def conditions(self) -> Conditions:
        """As the parent reads them."""
        return Conditions(thermal_state=self.state())

    def now_s(self) -> float:
        """As the parent sees it."""
        return (self.clock.now_ns() if self.waited_ns is None else self.waited_ns) / 1e9

    def longest_silence_s(self, said: Iterable[float] = ()) -> float:
        """Between words of the worker, and others that were said."""
        times = [0.0, *sorted([*(at for at, _ in self.events_received), *said]), self.clock.now_ns() / 1e9]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class _Session(FakeContext):
    mac: Mac

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        self._costs = msgspec.structs.replace(self._costs, pass_ns=self.mac.pass_ns(len(tokens)))
        super().decode(tokens, n_outputs=n_outputs)


class _SlowReader(FakeContext):
    pass_ns = 0

    def decode(self, tokens: Sequence[int], *, n_outputs: int = 1) -> None:
        self._clock.advance(self.pass_ns)
        super().decode(tokens, n_outputs=n_outputs)


class MacArms:
    """What who measures asks of `Arms`, over scripted sessions."""

    load_ns, backend = 5, METAL

    def __init__(self, mac: Mac) -> None:
        self._mac, self.stages = mac, StageClock(mac.clock)

    def _session(self) -> _Session:
        session = _Session(truth, ContextOptions(n_ctx=512), self._mac.clock)
        session.mac = self._mac
        return session

    def check(self, case: Case) -> None:
        pass

    def is_open(self, case: Case) -> bool:
        return True

    def refer(self, slot: Slot, on_round: object = None) -> Case | None:
        return None

    def confirm(self, slot: Slot, trial: Trial) -> Trial:
        return trial

    def read_anchors(self, case: Case, *, both: bool) -> Anchors:
        wide = max(5, case.gamma + 1)
        one_ns = self._median_ns(1) if both else None
        return Anchors(target="t", width=wide, one_ns=one_ns, wide_ns=self._median_ns(wide))

    def _median_ns(self, width: int) -> int:
        n_passes = 1 + max(8, 32 // width)
        self._mac.n_anchor_passes += n_passes
        return round(statistics.median([self._pass(width) for _ in range(n_passes)][1:]))

    def _pass(self, width: int) -> int:
        span_ns = self._mac.pass_ns(width)
        self._mac.clock.advance(span_ns)
        return span_ns

    def _warm(self) -> None:
        self._mac.order.append("warm")
        self._pass(1)

    def warm_up(self, case: Case, *, whole: bool = False, on_round: Callable[[int], None] | None = None) -> None:
        self._mac.warmed.append((f"{case.arm}{case.gamma}", whole))

    def measure(
        self, slot: Slot, *, conditions: Conditions, on_round: Callable[[int], None], warm: bool
    ) -> Callable[[], Trial]:
        mac = self._mac
        mac.begin_trial()
        mac.order.append("trial")
        if mac.n_trials == mac.dies_at:
            raise _Killed
        began_ns, session = mac.clock.now_ns(), self._session()
        mac.clock.advance(round(mac.prompt_s * 1e9))
        if mac.n_prompt:
            slow = _SlowReader(truth, ContextOptions(n_ctx=8192, n_batch=512), mac.clock)
            slow.pass_ns = round(mac.pass_s * 1e9)
            read_in_passes(slow, (5,) * mac.n_prompt, n_outputs=1)
        draft = FakeContext(truth, ContextOptions(n_ctx=512), mac.clock)
        memory = OwnMemory(draft, make_rollback("trim", draft), mac.clock)
        drafter = ChainDrafter(memory, Chain(mac.clock)) if slot.case.gamma else NoDrafter()
        limits = GenerationLimits(n_predict=slot.case.n_predict, gamma=slot.case.gamma)
        rollback = make_rollback("trim", session)
        warm_up = self._warm if warm else None
        run = generate(session, drafter, rollback, PROMPT, limits, mac.clock, on_round=on_round, warm=warm_up)
        asleep_ns = 1_800_000_000_000 if mac.falls_asleep() else 0  # the parent sleeps as well, and so does its clock
        mac.measured.append((slot.block, slot.repeat, mac.is_hot or asleep_ns > 0))
        trial = trial_of(
            slot, status=Status.VALID, n_prompt=len(PROMPT), tokens=run.tokens, prefill_ns=run.prefill_ns,
            draft_prefill_ns=run.draft_prefill_ns if slot.case.gamma else None, decode_ns=run.decode_ns + asleep_ns,
            rounds=_late(run.rounds, asleep_ns), rollback_target="trim" if slot.case.gamma else None,
            losslessness=Losslessness(verdict="lossless"),
            conditions=msgspec.structs.replace(
                conditions, generation_ns=mac.clock.now_ns() - began_ns + asleep_ns, processor_ns=1_000_000
            ),
        )  # fmt: skip
        return lambda: trial


def _late(rounds: tuple, span_ns: int) -> tuple:  # type: ignore[type-arg]
    last = rounds[-1]
    return (*rounds[:-1], msgspec.structs.replace(last, verify_ns=last.verify_ns + span_ns))


class _Killed(BaseException):
    """The worker's process is gone."""


class SimulatedWorker(Worker):
    """A worker in a thread: it goes on only while its parent listens, so that both see one time."""

    def __init__(self, mac: Mac, job: Job) -> None:
        self._mac, self._job = mac, job
        self._turns: queue.SimpleQueue[Turn | None] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        self._go, self._end = threading.Semaphore(0), "exit code 0"
        self._last_ns, self._late = mac.clock.now_ns(), cast("tuple[int, bytes | None] | None", None)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def send(self, message: Call | Turn) -> None:
        assert isinstance(message, Turn)
        self._turns.put(message)

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._mac.clock.advance(round(self._mac.load_s * 1e9))
            progress_sink.set(ProgressReports(self._say, self._mac.clock))
            arms: Arms = MacArms(self._mac)  # type: ignore[assignment]
            measure_slots(self._job, self._say, iter(self._turns.get, None), arms, self._mac.clock, self._conditions)
        except _Killed:
            self._end = "killed by SIGKILL"
        finally:  # whatever else went wrong: nobody waits for a worker that is dead
            self._lines.put((self._mac.clock.now_ns(), None))

    def _conditions(self) -> Conditions:
        self._mac.order.append("conditions")
        return Conditions(thermal_state=self._mac.state())

    def _say(self, event: Event) -> None:
        now_ns = self._mac.clock.now_ns()
        self._lines.put((now_ns, msgspec.json.encode(event)))
        self._go.acquire()

    def get(self, *, timeout: float) -> bytes | None:
        """As the queue of a pipe, by the Mac's clock."""
        if self._late is None:
            self._go.release()
            self._late = self._lines.get(timeout=60)
        sent_ns, line = self._late
        if sent_ns - self._last_ns >= timeout * 1e9:
            self._last_ns += round(timeout * 1e9)
            self._mac.waited_ns = self._last_ns
            raise queue.Empty
        self._last_ns, self._late, self._mac.waited_ns = sent_ns, None, None
        return line

    def events(self, patience_s: float, doing: Callable[[], str]) -> Iterator[Event]:
        if self._thread.ident is None:
            self._thread.start()
        self._last_ns = self._mac.clock.now_ns()  # a parent that rests does not listen
        try:
            for event in receive(self.get, patience_s, doing):
                self._mac.events_received.append((self._last_ns / 1e9, event))
                yield event
        except queue.Empty:
            self._end = "it hung and was killed"

    def exit_reason(self) -> str:
        return self._end

    def advice(self) -> str:
        return ""

    def close(self) -> None:
        self._turns.put(None)


def mac_job(*, n_blocks: int = 12, gammas: Sequence[int] = (0, 1, 4), cool_down_s: float | None = None) -> Job:
    """Blocks of plain decoding and two gammas."""
    cases = [msgspec.structs.replace(case(gamma), n_predict=64) for gamma in gammas]
    return Job(
        target=ModelFile(ref=ModelRef(id="t")),
        prompts={"p": Prompt(key="p", sha256="", workload="code", text="p")},
        slots=tuple(
            Slot(case=one, case_id=one.id, block=block, repeat=block, position=position)
            for block in range(n_blocks)
            for position, one in enumerate(cases)
        ),
        cool_down_s=cool_down_s,
    )
