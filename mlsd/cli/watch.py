"""What a run shows while it measures: a bar on a terminal, one quiet line a trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Self

from mlsd.cli.output import note, shows_progress, sign_of_life, verbosity, working
from mlsd.measure.messages import Event, Progress, Waiting
from mlsd.measure.parent.blocks import Watcher
from mlsd.planning.job import Job, Slot
from mlsd.planning.plan import Plan
from mlsd.planning.request import StudyRequest
from mlsd.planning.suite import EMBEDDED_PROFILE
from mlsd.records import QualityWarning, Status, Trial
from mlsd.trials.arms import arm_of
from mlsd.trials.rates import Sums, counts_of, speed
from mlsd.units import format_duration, format_number, format_percent


def say_default(request: StudyRequest) -> None:
    """The first line of a command whose profile was not given."""
    if request.profile_assumed:
        profile = request.profile
        why = "nothing larger is downloaded" if profile.name == EMBEDDED_PROFILE else "the largest that is downloaded"
        note(f"No profile was chosen: {profile.name}, {why} ({profile.title}).")


def say_warnings(warnings: Sequence[QualityWarning]) -> None:
    """Each kind of warning once, with what to do about it."""
    for code in dict.fromkeys(warning.code for warning in warnings):
        first, *others = (warning for warning in warnings if warning.code == code)
        more = f" (and {len(others)} more of this kind)" if others else ""
        note(f"Warning [{code}] {first.message}{more} {first.advice}")


@contextmanager
def watching_steps(label: str) -> Iterator[Watcher]:
    """The watcher of a measurement of steps without trials: `label` and the last step, as `working` shows them."""
    with working(label) as show:
        yield _StepWatcher(show)


class _StepWatcher(Watcher):
    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def tell(self, line: str) -> None:
        self._show(line)

    def ready(self, line: str) -> None:
        note(line)


class TrialWatcher(Watcher):
    """One line a trial on standard error; on a terminal one that moves, and lines with -v or of what is not valid.

    `budget_s`, or `open_ended`, is of a session that ends when it knows enough: how many trials that takes is not
    known, so what was measured is counted, and the time beside it. Use it as a context manager.
    """

    def __init__(self, budget_s: float | None = None, *, open_ended: bool = False) -> None:
        self._budget_s, self._open_ended = budget_s, open_ended or budget_s is not None
        self._n, self._n_before, self._began_s, self._side = 0, 0, time.monotonic(), ""
        self._rests = False  # since the last trial
        self._places = set[tuple[str, str, int]]()  # what was measured: a trial that is measured again is the same one
        self._line = ExitStack()
        self._show: Callable[[str], None] | None = None  # on a terminal

    def __enter__(self) -> Self:
        if shows_progress():
            self._show = self._line.enter_context(working("Measuring"))
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._line.close()
        yield
        self.__enter__()

    def tell(self, line: str) -> None:
        note(line)

    def planned(self, plan: Plan) -> None:
        for left in plan.left_out:
            note(left.sentence)

    def turn(self, of: str) -> None:
        self._side = f"{of}: "

    def begin(self, n_total: int, n_skipped: int) -> None:
        """Count from what is done already; of a session without an end that is known from its first trial."""
        self._n_total, self._n = n_total, self._n if self._open_ended else n_skipped
        self._n_before = self._n

    def job(self, job: Job) -> None:
        self._move(f"loading {' + '.join(model.ref.id for model in (job.target, *job.models))}")

    def event(self, event: Event) -> None:
        """Show what is waited for and how far a trial is; without a terminal every ten seconds."""
        text = event.text if isinstance(event, Waiting) else ""
        if isinstance(event, Progress):
            case = event.slot.case
            text = f"{case.target.id} {arm_of(case).setting}: {event.n_tokens} tokens"
        if text:
            (sign_of_life if self._show is None else self._move)(text)

    def rest(self, why: str) -> None:
        """Say at once why nothing is measured, however lately something else was said; then now and then."""
        if self._show is not None:
            self._show(why)
        else:
            (sign_of_life if self._rests else note)(f"  {why}")
        self._rests = True

    def trial(self, slot: Slot, trial: Trial) -> None:
        line = self._counted(slot, trial)
        if self._show is None or verbosity.get() == "verbose" or not trial.valid:
            note(line)
        self._move(f"{arm_of(slot.case).setting} {format_number(speed(trial), 1)} tok/s")

    def _move(self, text: str) -> None:
        if self._show is not None:
            self._show(f"{self._count()}{text}")

    def _counted(self, slot: Slot, trial: Trial) -> str:
        self._rests = False
        turn = (self._side, slot.case_id, trial.repeat)
        self._n += self._open_ended or turn not in self._places
        self._places.add(turn)
        return f"{self._count()}{self._side}{trial_line(slot, trial)}"

    def _count(self) -> str:
        """How many trials of how many, and how long the rest takes; of a session until a goal the time that it took."""
        spent_s = time.monotonic() - self._began_s
        if self._open_ended:
            within = self._budget_s is not None and spent_s <= self._budget_s
            return f"[{self._n}, {spent_s:.0f} s{f' of {self._budget_s:.0f} s' if within else ''}] "
        n_done, n_left = self._n - self._n_before, self._n_total - self._n
        left = f", {format_duration(spent_s / n_done * n_left)} left" if self._show is not None and n_done else ""
        return f"[{self._n}/{self._n_total}{left}] "


def trial_line(slot: Slot, trial: Trial) -> str:
    """What a person wants to know of a trial that just ended."""
    case = slot.case
    what = f"{case.suite} {case.target.id} {arm_of(case).setting}, {case.prompt.key}, repeat {trial.repeat}:"
    if trial.status is Status.FAILED:
        return f"{what} FAILED {(trial.reason or '').splitlines()[0]}"
    unjudged = "sampled" if not case.sampling.greedy else "not compared"
    verdict = trial.losslessness.verdict if trial.losslessness else unjudged
    parts = [f"{format_number(speed(trial), 1)} tok/s", verdict if trial.status.right else f"INVALID ({verdict})"]
    if trial.status in (Status.DISTURBED, Status.HOT):
        parts.append("hot each time: kept" if trial.status is Status.HOT else "disturbed: its time is not used")
    if trial.arm == "sd":
        parts.insert(1, f"acceptance {format_percent((counts_of(trial) or Sums()).acceptance_rate)}")
    return f"{what} {', '.join(parts)}"
