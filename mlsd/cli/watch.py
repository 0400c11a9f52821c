"""What a run shows while it measures: a bar on a terminal, one quiet line a trial elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from mlsd.cli.output import TimeLeft, note, shows_progress, sign_of_life, verbosity, working
from mlsd.measure.messages import Event, Progress, Started, Waiting
from mlsd.measure.parent.blocks import Watcher
from mlsd.planning.job import Job, Slot
from mlsd.planning.plan import Plan
from mlsd.planning.request import StudyRequest
from mlsd.planning.suite import EMBEDDED_PROFILE
from mlsd.records import QualityWarning, Status, Trial
from mlsd.report.render.terminal import plain
from mlsd.trials.arms import arm_of
from mlsd.trials.rates import Sums, counts_of, speed
from mlsd.units import format_number, format_percent


def say_default(request: StudyRequest) -> None:
    """The first line of a command whose profile was not given."""
    if request.nobody_chose:
        profile = request.profile
        why = "nothing larger is downloaded" if profile.name == EMBEDDED_PROFILE else "the largest that is downloaded"
        note(f"No profile was chosen: {profile.name}, {why} ({profile.title}).")


def say_warnings(warnings: Sequence[QualityWarning]) -> None:
    """Each kind of warning once, with what to do about it."""
    for code in dict.fromkeys(warning.code for warning in warnings):
        first, *others = (warning for warning in warnings if warning.code == code)
        more = f" (and {len(others)} more of this kind)" if others else ""
        note(f"Warning [{code}] {first.message}{more} {first.advice}")


def make_watcher(budget_s: float | None = None, *, open_ended: bool = False) -> LineWatcher:
    """A progress bar on a terminal, one quiet line a trial elsewhere.

    `budget_s`, or `open_ended`, is of a session that ends when it knows enough: how many trials that takes is
    not known, so what was measured is counted, and the time beside it.
    """
    return (Bar if shows_progress() else LineWatcher)(budget_s, open_ended=open_ended)


@contextmanager
def watching_steps(label: str, most_s: float | None = None) -> Iterator[Watcher]:
    """The watcher of a measurement of steps without trials: `label` and the last step, as `working` shows them."""
    with working(label, most_s) as show:
        yield _StepWatcher(show)


class _StepWatcher(Watcher):
    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def tell(self, line: str) -> None:
        self._show(line)

    def ready(self, line: str) -> None:
        note(line)


class LineWatcher(Watcher):
    """One line a trial on standard error; use it as a context manager."""

    def __init__(self, budget_s: float | None = None, *, open_ended: bool = False) -> None:
        self._budget_s, self._open_ended = budget_s, open_ended or budget_s is not None
        self._n, self._began_s, self._side = 0, time.monotonic(), ""
        self._rests = False  # since the last trial
        self._places = set[tuple[str, str, int]]()  # what was measured: a trial that is measured again is the same one

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

    def event(self, event: Event) -> None:
        """Say what is waited for and what counts no more; every ten seconds of a long trial how far it is."""
        if isinstance(event, Progress):
            case = event.slot.case
            sign_of_life(f"{case.target.id} {arm_of(case).setting}: {event.n_tokens} tokens")
        elif isinstance(event, Waiting):
            sign_of_life(event.text)

    def rest(self, why: str) -> None:
        """Say at once why nothing is measured, however lately something else was said; then now and then."""
        (sign_of_life if self._rests else note)(f"  {why}")
        self._rests = True

    def trial(self, slot: Slot, trial: Trial) -> None:
        note(self._counted(slot, trial))

    def _counted(self, slot: Slot, trial: Trial) -> str:
        self._rests = False
        turn = (self._side, slot.case_id, trial.repeat)
        self._n += self._open_ended or turn not in self._places
        self._places.add(turn)
        return f"[{self._n}{self._of()}] {self._side}{trial_line(slot, trial)}"

    def _of(self) -> str:
        if not self._open_ended:
            return f"/{self._n_total}"
        spent_s = time.monotonic() - self._began_s
        if self._budget_s is not None and spent_s <= self._budget_s:
            return f", {spent_s:.0f} s of {self._budget_s:.0f} s"
        return f", {spent_s:.0f} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Bar(LineWatcher):
    """A bar with the time left, at most where there is a budget, live tok/s and the last trial; lines with -v."""

    def __init__(self, budget_s: float | None = None, *, open_ended: bool = False) -> None:
        from rich import progress
        from rich.console import Console

        super().__init__(budget_s, open_ended=open_ended)
        left: progress.ProgressColumn = progress.TimeElapsedColumn() if open_ended else progress.TimeRemainingColumn()
        if budget_s is not None:
            left = progress.TextColumn("{task.fields[left]}", markup=False)
        text = progress.TextColumn("{task.description}", markup=False)
        columns = (text, progress.BarColumn(20), progress.MofNCompleteColumn(), left)
        self._left = budget_s and TimeLeft(budget_s)
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._since, self._n_last = (0.0, 0), 0  # when decoding was first noticed with its tokens; the latest count

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, n_total: int, n_skipped: int) -> None:
        super().begin(n_total, n_skipped)
        if not self._bar.task_ids:  # else another part of the same plan
            self._task = self._bar.add_task("starting", total=None if self._open_ended else n_total, left=self._left)
        self._bar.update(self._task, completed=self._n)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._bar.stop()
        yield
        self._bar.start()

    def job(self, job: Job) -> None:
        names = " + ".join(model.ref.id for model in (job.target, *job.models))
        self._bar.update(self._task, description=plain(f"loading {names}"))

    def event(self, event: Event) -> None:
        if isinstance(event, Started):
            self._n_last = 0
        elif isinstance(event, Waiting):
            self._bar.update(self._task, description=plain(event.text))
        elif isinstance(event, Progress):
            now_s, n_last, self._n_last = time.monotonic(), self._n_last, event.n_tokens
            if not n_last or event.n_tokens < n_last:  # the first one of a trial or after its warm-up: prefill is over
                self._since = now_s, event.n_tokens
                return
            rate = (event.n_tokens - self._since[1]) / max(now_s - self._since[0], 1e-9)
            self._bar.update(self._task, description=plain(f"{event.slot.case.target.id} {rate:.1f} tok/s"))

    def rest(self, why: str) -> None:
        self._bar.update(self._task, description=plain(why))

    def trial(self, slot: Slot, trial: Trial) -> None:
        """Show its speed beside the bar; its line above with -v, or where it is not valid."""
        line = plain(self._counted(slot, trial))
        if verbosity.get() == "verbose" or not trial.valid:
            self._bar.console.print(line, markup=False, highlight=False)
        last = f"{arm_of(slot.case).setting} {format_number(speed(trial), 1)} tok/s"
        self._bar.update(self._task, completed=self._n, description=plain(last))


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
