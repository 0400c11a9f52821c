"""Several processes as a lab: a plan split over them equals the plan alone, and the death of any costs nothing."""

import datetime
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from mlsd.cli import main
from mlsd.errors import InputError
from mlsd.lab import machine
from mlsd.lab.cluster import full_address, make_certificate
from mlsd.lab.machine import differences, status
from mlsd.records import Conditions
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.lab.processes import end, free_port, lab, wait_for
from tests.measure.examples import ENVIRONMENT

PLAN = ("B", "--profile", "tiny", "--n-threads", "1", "--gamma", "2", "--repeats", "4", "--n-predict", "16",
        "--prompt", "code", "--prompt", "factual")  # fmt: skip
Trials = Counter[tuple[str, int, int, int, tuple[int, ...]]]
heavy = pytest.mark.heavy


def outputs(database: Path) -> Trials:
    with Store.open(database, create=False) as store:
        assert store.check() == []
        trials = [stored.trial for stored in store.trials(TrialFilter(failed=False))]
    return Counter((t.case_id, t.block, t.repeat, t.position, t.tokens) for t in trials)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    folder = tmp_path_factory.mktemp("alone")
    database = folder / "alone.sqlite"
    variables = {"MLSD_HOME": str(folder), "MLSD_CACHE": str(folder)}
    line = [sys.executable, "-m", "mlsd", "run", *PLAN, "--db", str(database)]
    subprocess.run(line, env={**os.environ, **variables}, check=True, capture_output=True)
    return outputs(database)


@heavy
def test_each_kind_of_machine_measures_the_whole_plan_once(tmp_path: Path, alone: Trials) -> None:
    with lab(tmp_path, 3, ("a" * 16, "a" * 16, "b" * 16)) as processes:
        with processes.cluster() as cluster:
            wait_for(lambda: len(cluster.ask(status)) == 3, "the machines do not join")
        run = processes.run(tmp_path / "two.sqlite", *PLAN)
        assert run.wait(timeout=240) == 0, processes.output()
    assert outputs(tmp_path / "two.sqlite") == alone + alone
    assert len(alone) == 32
    with Store.open(tmp_path / "two.sqlite") as store:
        by_machine = Counter(stored.environment_key for stored in store.trials(rounds=False))
    assert list(by_machine.values()) == [len(alone)] * 2


@heavy
def test_random_kills_of_machines_scheduler_and_coordinator_lose_and_double_nothing(
    tmp_path: Path, alone: Trials
) -> None:
    assert survive(tmp_path, n_kills=4, seed=1) == alone


def survive(folder: Path, n_kills: int, seed: int) -> Trials:
    """The plan, with so many kills at random moments; whatever died is started again, as its user would."""
    rng, database, until = random.Random(seed), folder / "killed.sqlite", time.monotonic() + 120 + 60 * n_kills
    due = time.monotonic() + rng.uniform(2, 8)
    with lab(folder, 2) as processes:
        run = processes.run(database, *PLAN)
        while run.poll() != 0 or n_kills:
            assert time.monotonic() < until, processes.output()
            if n_kills and time.monotonic() > due:
                end(rng.choice([*processes.machines.values(), processes.scheduler, run]))
                n_kills, due = n_kills - 1, time.monotonic() + rng.uniform(2, 8)
            if processes.scheduler.poll() is not None:
                processes.start()
            processes.rejoin()
            if run.poll() is not None and (run.returncode != 0 or n_kills):
                time.sleep(1)
                run = processes.run(database, *PLAN)
            time.sleep(0.2)
    return outputs(database)


@heavy
def test_a_coordinator_that_is_interrupted_leaves_its_machines_free(tmp_path: Path) -> None:
    long = ("B", "--profile", "tiny", "--n-threads", "1", "--n-predict", "256")
    with lab(tmp_path, 1) as processes, processes.cluster() as cluster:
        wait_for(lambda: len(cluster.ask(status)) == 1, "the machine does not join")

        def measures() -> bool:
            return any(doing for _, doing, _ in cluster.ask(status).values())

        with processes.run(tmp_path / "s.sqlite", *long) as run:
            wait_for(lambda: run.poll() is not None or measures(), "idle", 120)
            assert run.poll() is None, processes.output()
            run.send_signal(signal.SIGINT)
            run.wait(timeout=60)
            wait_for(lambda: not measures(), "the machine is not free")
    assert run.returncode == 130


@heavy
def test_a_machine_that_is_killed_measures_nothing_twice_and_one_that_is_busy_steps_aside(tmp_path: Path) -> None:
    with lab(tmp_path, 2, ("a" * 16, "b" * 16)) as processes, processes.cluster() as cluster:
        wait_for(lambda: len(cluster.ask(status)) == 2, "the machines do not join")

        def n_done() -> int:
            return max((doing.n_done for _, doing, _ in cluster.ask(status).values() if doing), default=0)

        with FileLock(tmp_path / "machine1" / "run.lock"):
            run = processes.run(tmp_path / "s.sqlite", *PLAN)
            wait_for(lambda: run.poll() is not None or n_done() >= 8, "nothing is measured", 200)
            n_before = n_done()
            end(processes.machines["machine0"])
            killed_at = datetime.datetime.now(datetime.UTC).isoformat()
            processes.rejoin()
            assert run.wait(timeout=300) == 1, processes.output()
    assert "Another run of mlsd holds this machine" in processes.output()
    with Store.open(tmp_path / "s.sqlite", create=False) as store:
        trials = [one.trial for one in store.trials(TrialFilter(superseded=True))]
    assert len(trials) == 32 and sum(trial.started_at < killed_at for trial in trials) >= n_before >= 8


def test_an_installation_that_differs_is_named() -> None:
    other = msgspec.structs.replace(ENVIRONMENT, mlsd_version="0.0.1", llama_cpp_build="b2")
    assert differences(ENVIRONMENT, ENVIRONMENT) == []
    clauses = differences(other, ENVIRONMENT)
    assert clauses == [f"mlsd 0.0.1 instead of {ENVIRONMENT.mlsd_version}",
                     f"llama.cpp b2 instead of {ENVIRONMENT.llama_cpp_build}"]  # fmt: skip


def test_a_machine_sends_its_database_only_when_more_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(machine._path("study")).close()
    card = machine.Card(environment=ENVIRONMENT, conditions=Conditions())
    doing = machine.Doing(target="tiny-moe", n_total=4, n_done=2)
    monkeypatch.setattr(machine, "joined", [machine.Process(card, may_pull=False, study="study", doing=doing)])
    for nothing in (status(), status("another"), status("study", {card.host: 2})):
        assert nothing == (card, doing, b"")
    for n_known in ({}, {card.host: 1}):
        with machine.unpacked(status("study", n_known)[2]) as store:
            assert list(store.trials()) == []


# --- what cannot be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("127.0.0.1:1", "tls://127.0.0.1:1"),
        ("localhost", "tls://localhost:8786"),
        ("studio.local:9", "tls://studio.local:9"),
        ("tls://[::1]:5", "tls://[::1]:5"),
    ],
)
def test_every_address_is_spoken_to_encrypted(text: str, full: str) -> None:
    assert full_address(text) == full


@pytest.mark.parametrize(
    "text", ["tcp://studio.local:9", "tcp://127.0.0.1:9", "tcp://[::1]:5", "http://x", "tls://", "x:notaport", ""]
)
def test_an_address_that_cannot_be_and_plain_traffic_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        full_address(text)


def refused(capfd: pytest.CaptureFixture[str], *line: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(line))
    assert end.value.code == 2
    answer = capfd.readouterr().err
    assert "Traceback" not in answer
    return answer


@pytest.mark.slow
def test_an_unknown_host_and_a_missing_or_foreign_certificate_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.lab.cluster._CONNECT_S", 1.0)
    assert "certificate" in refused(capfd, "lab", "join", "127.0.0.1:8786")
    good, bad = tmp_path / "lab.pem", tmp_path / "x.pem"
    make_certificate(good)
    bad.touch(0o600)
    assert "is not a lab certificate" in refused(capfd, "lab", "join", "127.0.0.1:1", "--certificate", str(bad))
    nobody = (f"127.0.0.1:{free_port()}", "--certificate", str(good))
    assert "There is no lab at tls://127.0.0.1" in refused(capfd, "lab", "status", *nobody)
    database = tmp_path / "s.sqlite"
    line = ("run", "B", "--profile", "tiny", "--db", str(database), "--lab", *nobody)
    assert "There is no lab" in refused(capfd, *line) and not database.exists()


@pytest.mark.parametrize("line", ["join 127.0.0.1:1", "status 127.0.0.1:1", "start --host 127.0.0.1 --port 0"])
def test_a_certificate_that_others_can_read_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / "lab.pem"
    make_certificate(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    said = refused(capfd, "lab", *line.split(), "--certificate", str(path))
    assert re.search(r"Permissions 0644 .* are too open.*\n?chmod 600", said, re.DOTALL)
