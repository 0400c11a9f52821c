"""A block is planned, measured, judged, stored, retried and counted as one, whatever happens on the way."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from mlsd.children import signal_name
from mlsd.engine.llama.chat import in_turn, render
from mlsd.errors import DatabaseLockedError
from mlsd.formats.record import import_record, opened_record
from mlsd.measure.messages import Event, Started, Waiting
from mlsd.measure.parent import blocks as measuring
from mlsd.measure.parent.blocks import Experiment, RunOutcome, Watcher, run_experiment
from mlsd.records import Case, Status, Trial
from mlsd.store import sessions
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import SessionPlan
from tests.analysis.studies import MOE, blocks, write
from tests.formats.records import record_of
from tests.measure.examples import ENVIRONMENT, case, failed, trial
from tests.measure.simulated_mac import Mac, mac_job

DAY_S = 86_400.0


class InTheMiddle(Watcher):
    """Ctrl-C while the second trial of a block is measured."""

    def __init__(self, repeat: int | None) -> None:
        self._repeat, self.told = repeat, list[str]()

    def tell(self, line: str) -> None:
        self.told.append(line)

    def event(self, event: Event) -> None:
        if isinstance(event, Started) and (event.slot.repeat, event.slot.position) == (self._repeat, 1):
            raise KeyboardInterrupt


def run(store: Store, mac: Mac, watcher: Watcher | None = None, n_blocks: int = 4) -> RunOutcome:
    job = mac_job(n_blocks=n_blocks)
    decides = SessionPlan(id="plan", n_blocks={job.slots[0].case.target.id: n_blocks})
    plan = Experiment(loads=(job,), environment=ENVIRONMENT, record=sessions.as_stored(decides))
    return run_experiment(plan, mac.bench, store, watcher=watcher)


def test_a_run_that_is_hot_interrupted_and_continued_the_next_day_counts_blocks_of_one_process_each(
    tmp_path: Path,
) -> None:
    """Block 0 becomes hot, Ctrl-C comes in the middle of block 2, and a prompt of 4,000 tokens is read for 800 s."""
    template = "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}"
    mac, said = Mac(episodes=[(1, 90.0)], n_prompt=4_000, pass_s=100.0), InTheMiddle(2)
    with Store.open(tmp_path / "s.sqlite") as store:
        first = run(store, mac, said)
        assert first.interrupted and (first.n_ok, first.n_left) == (6, 6), "two whole blocks, and nothing of the third"
        assert sum("measured again" in line for line in said.told) == 1, "block 0"
        assert sessions.sessions(store)[0].plan.stopping == Stopping.SEQUENTIAL, "who stopped here may have looked"
        text = render(template, in_turn(["x"]))
        mac.clock.advance(round(DAY_S * 1e9))
        assert render(template, in_turn(["x"])) == text, "the prompt of tomorrow"
        second = run(store, mac)
        assert (second.n_ok, second.n_skipped, second.n_left) == (6, 6, 0)
        rows = list(store.trials())
        (session,) = sessions.sessions(store)
    assert mac.n_workers == 2, "no watchdog took the reading of a long prompt for a hang"
    assert any(isinstance(event, Waiting) for _, event in mac.events_received)
    of_block = Counter((row.block_id, row.run_id) for row in rows)
    assert set(of_block.values()) == {3} and len(of_block) == 4
    assert {row.trial.status for row in rows} == {Status.VALID}
    assert session.plan.stopping == Stopping.FIXED, "a plan completed as planned pays for no look"
    assert {arm.n_blocks for arm in session.results() if not arm.is_plain} == {4}


def _in_runs(path: Path, parts: Sequence[list[tuple[Case, Trial]]], n_blocks: int) -> str:
    plan = SessionPlan(id="s", pool="workload", n_blocks={MOE.ref.id: n_blocks})
    for part in parts:
        write(path, part, **sessions.as_stored(plan))
    with Store.open(path, read_only=True) as store:
        (session,) = sessions.sessions(store)
    return session.plan.stopping


@pytest.mark.parametrize(("cuts", "looks"), [((4, 8, 12), "end"), ((12,), "end"), ((4, 8), "any")])
def test_only_who_stops_elsewhere_than_planned_pays_for_looks(
    tmp_path: Path, cuts: tuple[int, ...], looks: str
) -> None:
    made = blocks(MOE, gammas=(4,))  # three repeats of four prompts, two arms each
    parts = [made[2 * begin : 2 * end] for begin, end in zip((0, *cuts), cuts, strict=False)]
    assert _in_runs(tmp_path / "s.sqlite", parts, 12) == looks


def test_a_database_that_is_locked_for_a_while_loses_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [0]

    def locked(add: Callable[..., object], *given: object, **named: object) -> object:
        tries[0] += 1
        if tries[0] in (2, 3):
            raise DatabaseLockedError("s.sqlite is locked by another program, for longer than 30 seconds.")
        return add(*given, **named)

    monkeypatch.setattr(measuring, "_AGAIN_S", 0.0)
    said = InTheMiddle(None)
    with Store.open(tmp_path / "s.sqlite") as store:
        monkeypatch.setattr(store, "add", partial(locked, store.add))
        outcome = run(store, Mac(), said)
        assert (outcome.n_ok, outcome.n_failed) == (12, 0) and len(list(store.trials())) == 12
    assert sum("is kept; trying again" in line for line in said.told) == 2


def test_a_record_with_better_trials_of_a_block_replaces_failures_and_nothing_else(tmp_path: Path) -> None:
    good = {"status": Status.VALID, "reason": None, "failed_native_calls": 0}
    of = [case(0), case(4)]
    paths = [tmp_path / f"{name}.sqlite" for name in ("ours", "theirs")]
    for path, second in zip(paths, (failed(of[1]), trial(of[1], **good)), strict=True):
        with Store.open(path) as store:
            run_id = store.begin_run(ENVIRONMENT, {}, seed=len(path.name))
            store.add_cases(run_id, of)
            store.add(run_id, [trial(of[0], **good), second])
    ours, theirs = (opened_record(record_of(path, path.with_suffix(".record.gz"))) for path in paths)
    with Store.open(paths[0]) as store, ours as old, theirs as better:
        assert import_record(store, better).n_new == 2
        assert [row.trial.status for row in store.trials()] == [Status.VALID] * 2
        assert len({row.block_id for row in store.trials()}) == 1, "the pair is theirs, whole"
        assert import_record(store, better).n_new == import_record(store, old).n_new == 0
        assert len(list(store.trials(TrialFilter(superseded=True)))) == 4


def test_a_process_may_end_by_a_code_that_names_no_signal() -> None:
    assert (signal_name(9), signal_name(127)) == ("SIGKILL", "signal 127")
