"""A run loses nothing, does nothing twice, and survives the death of its processes."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from mlsd.clock import MonotonicClock
from mlsd.errors import LockError, WorkerError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import keep_layers, recurrent_layers, write_edit
from mlsd.hardware import read_environment
from mlsd.measure.bench import Bench
from mlsd.measure.messages import Event, Started
from mlsd.measure.parent.blocks import Choice, Experiment, Watcher, begun, machine_lock, run_experiment
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.process import call
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.serve import probe_model
from mlsd.planning.job import Block, ModelFile
from mlsd.records import EngineOptions, ModelRef, Status
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from mlsd.trials.results import Measured
from tests.measure.kill_script import make_jobs, run_study

ROOT = Path(__file__).parents[3]


def finished_trials(database: Path) -> Counter[tuple[str, int, int, tuple[int, ...]]]:
    with Store.open(database, create=False) as store:
        assert store.check() == []
        trials = [stored.trial for stored in store.trials(TrialFilter(failed=False))]
    for trial in trials:
        assert len(trial.tokens) - 1 == len(trial.rounds) + sum(r.accepted for r in trial.rounds)
    return Counter((t.case_id, t.block, t.repeat, t.tokens) for t in trials)


def workers() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "mlsd.measure.worker" in " ".join(p.cmdline())]


def test_every_trial_is_valid_a_second_run_has_nothing_to_do_and_a_fresh_one_everything(
    tiny: Path, tmp_path: Path
) -> None:
    outcome = run_study(tiny, tmp_path / "study.sqlite")
    assert (outcome.n_ok, outcome.n_failed, outcome.n_left) == (18, 0, 0)
    with Store.open(tmp_path / "study.sqlite") as store:
        trials = [stored.trial for stored in store.trials()]
    assert all(trial.valid for trial in trials), [trial.reason for trial in trials]
    assert {trial.losslessness.verdict for trial in trials if trial.losslessness} <= {"lossless", "near_tie"}
    outcome = run_study(tiny, tmp_path / "study.sqlite")
    assert (outcome.n_ok, outcome.n_skipped) == (0, 18)
    outcome = run_study(tiny, tmp_path / "study.sqlite", fresh=True)
    assert (outcome.n_ok, outcome.n_skipped) == (18, 0)
    with Store.open(tmp_path / "study.sqlite") as store:
        assert {stored.run_id for stored in store.trials(rounds=False)} == {outcome.run_id}
        assert len(list(store.trials(TrialFilter(superseded=True), rounds=False))) == 36


@pytest.mark.parametrize("status", [Status.DISTURBED, Status.FAILED])
def test_a_block_that_is_not_whole_is_measured_again_whole_by_the_next_run(
    tiny: Path, tmp_path: Path, status: Status
) -> None:
    database = tmp_path / "study.sqlite"
    n_ok = run_study(tiny, database).n_ok
    with Store.open(database) as store:
        stored = list(store.trials())
        own = [one.trial for one in stored if one.block_id == stored[0].block_id]
        worse = msgspec.structs.replace(own[0], status=status, reason="it waited")
        if status is Status.FAILED:
            worse = msgspec.structs.replace(worse, tokens=(), rounds=())
        store.add(stored[0].run_id, [worse, *own[1:]])
        assert sum(one.trial.valid for one in store.trials()) == n_ok - 1
    assert run_study(tiny, database, keep_failed=True).n_ok == 0
    again = run_study(tiny, database)
    assert (again.n_ok, again.n_skipped) == (3, n_ok - 3)
    with Store.open(database) as store:
        assert all(one.trial.valid for one in store.trials())
        assert len(list(store.trials(TrialFilter(superseded=True)))) == n_ok + 6
        blocks = Counter((one.block_id, one.run_id) for one in store.trials())
    assert set(blocks.values()) == {3} and len(blocks) == 6, "no block was made of two runs"


def test_a_changed_setting_never_reuses_an_old_number(tiny: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "study.sqlite") as store:
        for n_predict in (24, 25):
            jobs = make_jobs(tiny, n_predict=n_predict, repeats=1)[1:]
            outcome = run_experiment(Experiment(loads=jobs, environment=read_environment()), Bench, store)
            assert (outcome.n_ok, outcome.n_skipped) == (3, 0)


def test_two_runs_at_once_are_refused(tiny: Path, tmp_path: Path) -> None:
    holder = rf"Another run of mlsd holds this machine: process {os.getpid()}, `.+`, since 20"
    with machine_lock(), pytest.raises(LockError, match=holder):
        run_study(tiny, tmp_path / "study.sqlite")


def test_a_load_that_fails_becomes_failed_trials_and_the_next_load_runs(tiny: Path, tmp_path: Path) -> None:
    missing = ModelFile(ref=ModelRef(id="gone", sha256="f" * 64), path=str(tmp_path / "gone.gguf"))
    first, second = make_jobs(tiny, repeats=1)
    with Store.open(tmp_path / "study.sqlite") as store:
        jobs = (msgspec.structs.replace(first, target=missing), second)
        outcome = run_experiment(Experiment(loads=jobs, environment=read_environment()), Bench, store)
        failed = [stored.trial for stored in store.trials(TrialFilter(failed=True))]
    assert (outcome.n_ok, outcome.n_failed) == (3, 3)
    assert all("There is no model file" in (trial.reason or "") for trial in failed)


@pytest.mark.parametrize(("n_deaths", "order"), [(1, [0, 1, 0, 1, 2]), (2, [0, 1, 0, 1, 0, 2])])
def test_a_worker_that_dies_is_replaced_the_block_repeated_and_a_slot_that_kills_two_is_a_failed_trial(
    tiny: Path, n_deaths: int, order: list[int]
) -> None:
    job = make_jobs(tiny, repeats=1, n_predict=300)[0]  # long enough to be caught in the act
    started = list[int]()

    def hear(event: Event) -> None:
        if isinstance(event, Started):
            started.append(event.slot.position)
            if event.slot.position == 1 and started.count(1) <= n_deaths:
                workers()[0].kill()

    with Bench(job, hear) as bench:
        measured = bench.measure(job.blocks[0])
    assert started == order
    first, second, third = measured.trials
    assert first.valid and third.valid and second.valid == (n_deaths == 1)
    assert n_deaths == 1 or "killed by SIGKILL" in (second.reason or "")


def test_a_worker_that_falls_silent_is_killed_and_named_as_hung(tiny: Path) -> None:
    job = make_jobs(tiny, repeats=1, n_predict=300)[0]
    hung = msgspec.structs.replace(job, slots=job.slots[:1])

    def stop(event: Event) -> None:
        if isinstance(event, Started):
            for process in workers():
                process.suspend()

    with Bench(hung, stop, patience_s=2.0) as bench:
        try:
            (trial,) = bench.measure(hung.blocks[0]).trials
        except WorkerError as error:  # a slow machine: silent for so long before its trial began
            assert "it hung and was killed" in error.message
        else:
            assert "it hung and was killed" in (trial.reason or "no reason")


@pytest.mark.heavy
def test_a_study_killed_at_random_moments_ends_like_an_uninterrupted_one(
    tiny: Path, tmp_path: Path, shared_cache: Path
) -> None:
    databases = [tmp_path / "whole.sqlite", tmp_path / "killed.sqlite"]
    kill_at_random(tiny, databases[1], n_kills=6, rng=random.Random(7))
    for database in databases:
        run_study(tiny, database)
    assert finished_trials(databases[0]) == finished_trials(databases[1])


def kill_at_random(folder: Path, database: Path, *, n_kills: int, rng: random.Random) -> None:
    """Start the study and kill it, or its worker, at random moments."""
    command = [sys.executable, "-m", "tests.measure.kill_script", str(folder), str(database)]
    for number in range(n_kills):
        runner = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.5, 4.0))
        victims = [psutil.Process(runner.pid)] if runner.poll() is None else []
        if victims and number % 2:
            victims = victims[0].children() or victims
        for victim in victims:
            victim.kill()
        if number % 2 and victims:
            time.sleep(0.5)
            runner.kill()
        runner.wait()
        wait_for_orphans()


def wait_for_orphans() -> None:
    """A worker ends itself when its parent is gone; the next run must not measure beside it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(_is_orphan(process) for process in psutil.process_iter(["cmdline", "ppid"])):
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its runner")


def _is_orphan(process: psutil.Process) -> bool:
    command = " ".join(process.info["cmdline"] or [])
    return "mlsd.measure.worker" in command and process.info["ppid"] == 1 and process.status() != "zombie"


def test_a_native_abort_is_named_and_leaves_the_caller_alive(tiny: Path, tmp_path: Path) -> None:
    """A Qwen3.5 without any attention block makes llama.cpp abort at its first decode (GGML_ASSERT)."""
    source = Source(tiny / "qwen35.gguf")
    recurrent = [layer for layer, is_recurrent in enumerate(recurrent_layers(source)) if is_recurrent]
    write_edit(source, keep_layers(source, recurrent), tmp_path / "recurrent.gguf")
    aborting = ModelFile(ref=ModelRef(id="recurrent"), path=str(tmp_path / "recurrent.gguf"))
    with pytest.raises(WorkerError, match=r"(?s)killed by SIGABRT.*GGML_ASSERT"):
        call(partial(probe_model, aborting, EngineOptions(n_threads=1), (4,)))


def test_the_caller_chooses_after_every_block_what_goes_on_in_the_same_worker(tiny: Path, tmp_path: Path) -> None:
    (job,) = make_jobs(tiny, repeats=3)[:1]
    seen: list[int] = []
    processes = set[int]()

    class Processes(Watcher):
        def event(self, event: Event) -> None:
            processes.update(process.pid for process in workers())

    class Chosen(Choice):
        """Every arm once, then plain decoding and gamma 2, then nothing."""

        def next(self, left: Sequence[Block], measured: Sequence[Measured]) -> Sequence[Block]:
            seen.append(len(measured))
            gammas = ((0, 2, 4), (0, 2), ())[left[0].repeat]
            slots = tuple(slot for slot in left[0].slots if slot.case.gamma in gammas)
            return [Block(slots=slots)] if slots else []

    plan = Experiment(loads=(job,), environment=read_environment())
    with Store.open(tmp_path / "study.sqlite") as store:
        outcome = run_experiment(plan, Bench, store, watcher=Processes(), choice=Chosen())
        trials = [stored.trial for stored in store.trials()]
    assert seen == [0, 3, 5]
    assert (outcome.n_ok, outcome.n_left) == (5, 4)
    assert len(processes) == 1
    assert sorted((trial.repeat, trial.gamma) for trial in trials) == [(0, 0), (0, 2), (0, 4), (1, 0), (1, 2)]
    assert all(trial.valid for trial in trials)


def test_a_worker_that_dies_between_blocks_is_replaced_and_the_next_block_is_measured(tiny: Path) -> None:
    job = make_jobs(tiny, repeats=2)[0]
    first, second = job.blocks
    with Bench(job) as bench:
        assert len(bench.measure(Block(slots=first.slots[:2])).trials) == 2
        for process in workers():
            process.kill()
        (trial,) = bench.measure(Block(slots=second.slots[:1])).trials
    assert (trial.case_id, trial.repeat) == (second.slots[0].case_id, 1)


def test_a_known_output_belongs_to_the_tokens_that_were_read(tiny: Path, tmp_path: Path) -> None:
    job = make_jobs(tiny, repeats=1)[1]
    plan = Experiment(loads=(job,), environment=read_environment())
    with Store.open(tmp_path / "study.sqlite") as store:
        run_experiment(plan, Bench, store)
        with begun(plan, store, Watcher()) as going:
            (known,) = going.ready(job, job.blocks).references
    other = msgspec.structs.replace(known, prompt_sha256="0" * 64)  # as a changed template makes of the same text
    for reference, used in ((known, [known.tokens]), (other, [])):
        given = msgspec.structs.replace(job, references=(reference,))
        with Arms(given, MonotonicClock(), ProbeCache()) as arms:
            assert list(arms._references.values()) == used
