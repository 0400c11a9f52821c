"""Blows at random moments of all that measures or writes: nothing lost, nothing twice, no orphan.

A process or its worker is killed or stopped for a while, or the file that it writes is deleted under it. Then the same
command runs again, and what it leaves is compared with what an undisturbed one leaves. In a lab machines, scheduler and
coordinator are killed. MLSD_BENCH_BLOWS sets how many blows there are; `--budget-s` ends them sooner.
"""

import itertools
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import psutil

from benchmarks.harness import Result, counted
from mlsd.analysis.audit.record_check import problems
from mlsd.formats.record import opened_record
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.store.rows import CalibrationPoint, TrialFilter
from mlsd.store.store import Store
from tests.hub_server import HubServer, write_own_entry
from tests.lab import test_lab
from tests.measure.kill_script import run_study
from tests.measure.parent.test_experiment import finished_trials, wait_for_orphans
from tests.native_shim import copy_of_package
from tests.servers.fake import FakeServer

N_BLOWS = int(os.environ.get("MLSD_BENCH_BLOWS", "100"))
ROOT = Path(__file__).parent.parent
DATA = b"GGUF" + random.Random(1).randbytes(32 << 20)
Blow = Literal["kill", "stop", "delete"]
BLOWS: tuple[Blow, ...] = ("kill", "stop", "delete")
_KILLS_IN_A_LAB = 3


class Study:
    """Trials of two model pairs."""

    name, latest_s = "run", 5.0

    def __init__(self, folder: Path, number: int) -> None:
        self.database = folder / f"run{number}.sqlite"
        self.command = [sys.executable, "-m", "tests.measure.kill_script", str(folder), str(self.database)]
        self.env = dict(os.environ)
        self._whole = finished_trials(folder / "whole.sqlite")

    def written(self) -> list[Path]:
        """The files that a deletion takes."""
        return list(self.database.parent.glob(f"{self.database.name}*"))

    def release(self) -> None:
        """Let the work go on after the blow."""

    def fault(self) -> str | None:
        """What differs from undisturbed work: a word for the table of counts."""
        found = finished_trials(self.database)
        return None if found == self._whole else "doubled" if found - self._whole else "lost"

    def close(self) -> None:
        """Free what the work held."""


class Timing(Study):
    """Repeats of timed passes: what was committed stays, and the next calibration stands beside it."""

    name, latest_s = "calibrate", 6.0

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self.database = folder / f"calibration{number}.sqlite"
        options = ["--rows", "1,2,4", "--budget-s", "3", "--n-threads", "1"]
        model = str(folder / "llama.gguf")
        self.command = [sys.executable, "-m", "mlsd", "calibrate", model, "--db", str(self.database), *options]

    def fault(self) -> str | None:
        """A word where repeats or the file are not as they should be."""
        with Store.open(self.database, create=False) as store:
            faults, runs = store.check(), store.runs()
            counts = Counter((run, p.kind, p.rows, p.depth, p.repeat) for run, p in store.figures(CalibrationPoint))
        if faults or runs[-1].status != "finished" or not any(run == runs[-1].id for run, *_ in counts):
            return "lost"
        return "doubled" if max(counts.values()) > 1 else None


class Bench(Study):
    """A bench: what the blow left stays, and the same command again is a whole context beside it."""

    name, latest_s = "bench", 5.0
    arguments: tuple[str, ...] = ("bench", "tiny-dense", "--draft", "tiny-draft", "--gamma", "2", "--n-threads", "1")

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        settings = ("--n-predict", "16", "--repeats", "3", "--db", str(self.database))
        self.command = [sys.executable, "-m", "mlsd", *self.arguments, *settings]

    def fault(self) -> str | None:
        """A word where the last context is not whole, or a trial stands twice."""
        with Store.open(self.database, create=False) as store:
            last, trials = store.runs()[-1], list(store.trials(TrialFilter(failed=False), rounds=False))
            if store.check() or last.status != "finished" or sum(t.run_id == last.id for t in trials) != 6:
                return "lost"
        keys = Counter((t.run_id, t.trial.case_id, t.trial.block, t.trial.repeat) for t in trials)
        return "doubled" if max(keys.values()) > 1 else None


class Servers(Bench):
    """The same of two servers."""

    name = "server"

    def __init__(self, folder: Path, number: int) -> None:
        self._stack = ExitStack()
        ends = [self._stack.enter_context(FakeServer("openai", token_s=0.01)) for _ in range(2)]
        self.arguments = ("server", ends[0].url, "--against", ends[1].url)
        super().__init__(folder, number)

    def close(self) -> None:
        """End the servers."""
        self._stack.close()


class Written(Study):
    """A record, which appears whole or not at all."""

    name, latest_s = "record", 1.5

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self.folder = folder / f"record{number}"
        self.folder.mkdir()
        self._file = self.folder / "x.record.gz"
        write = ["record", "write", str(folder / "whole.sqlite"), "-o", str(self._file), "--force"]
        self.command = [sys.executable, "-m", "mlsd", *write]

    def written(self) -> list[Path]:
        """The file, or the one that is to become it."""
        return list(self.folder.iterdir())

    def fault(self) -> str | None:
        """A word where the record is not whole, or something lies beside it."""
        with opened_record(self._file) as file:
            return "lost" if problems(file) or self.written() != [self._file] else None


class Gate(Study):
    """A wheel that is unpacked and tried; nothing of it stays."""

    name, latest_s = "builds", 5.0

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        wheel, self._cache = folder / "llama_cpp_python-1-py3-none-any.whl", folder / f"cache{number}"
        if not wheel.exists():
            with zipfile.ZipFile(wheel, "w") as archive:
                for path in copy_of_package(folder / "llama_cpp").rglob("*"):
                    if path.suffix == ".py" or ("vulkan" not in path.name and path.is_file()):
                        archive.write(path, path.relative_to(folder))
        self.env = {**os.environ, "MLSD_CACHE": str(self._cache)}
        self.command = [sys.executable, "-m", "mlsd", "doctor", "builds", str(wheel)]

    def written(self) -> list[Path]:
        """What was unpacked."""
        return [path for path in self._cache.glob("builds/wheel-*/**/*") if path.is_file()]

    def fault(self) -> str | None:
        """A word where something was left unpacked."""
        return "left" if self.written() else None


class Download(Study):
    """One file of a hub that holds it back until the blow has fallen."""

    name, latest_s = "pull", 0.5

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self.home = folder / f"hub{number}"
        self._stack = ExitStack()
        self.server = self._stack.enter_context(HubServer({"model.gguf": DATA}))
        self.server.hold_after_bytes = random.Random(number).randrange(1 << 20, len(DATA) - 1)
        homes = {"HF_ENDPOINT": self.server.url, "HF_HOME": str(self.home / "hf"), "MLSD_HOME": str(self.home / "me")}
        self.env = {**os.environ, **homes}
        write_own_entry(self.home / "me")
        self.command = [sys.executable, "-m", "mlsd", "models", "pull", "mine"]

    def written(self) -> list[Path]:
        """The part of the file."""
        return list(self.home.rglob("*.part"))

    def release(self) -> None:
        """Send the rest."""
        self.server.hold_after_bytes = None
        self.server.go_on.set()

    def fault(self) -> str | None:
        """A word where repeats or the file are not as they should be."""
        if self.written():
            return "lost"
        files = {path.resolve() for path in self.home.rglob("model.gguf")}
        return "lost" if [path.read_bytes() for path in files] != [DATA] else None

    def close(self) -> None:
        """End the hub."""
        self._stack.close()


WORKS: tuple[type[Study], ...] = (Study, Timing, Download, Bench, Servers, Written, Gate)


def strike(work: Study, blow: Blow, rng: random.Random) -> bool:
    """Start the work and let the blow fall on it or its worker; whether it hit anything alive."""
    process = subprocess.Popen(
        work.command, env=work.env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if isinstance(work, Download):
        work.server.held.wait(60)
    time.sleep(rng.uniform(0.3 if not isinstance(work, Download) else 0.0, work.latest_s))
    hit = process.poll() is None
    if hit:
        parent = psutil.Process(process.pid)
        victim = rng.choice([parent, *parent.children()])
        if blow == "delete":
            files = work.written()
            hit = bool(files)
            for path in files:
                path.unlink(missing_ok=True)
        else:
            try:
                victim.send_signal(signal.SIGKILL if blow == "kill" else signal.SIGSTOP)
                if blow == "stop":
                    time.sleep(rng.uniform(0.5, 2.0))
                    victim.send_signal(signal.SIGCONT)
            except psutil.NoSuchProcess:  # it has ended meanwhile
                hit = False
    work.release()
    process.wait(240)
    wait_for_orphans()
    return hit


def run(budget_s: float = math.inf) -> Iterator[Result]:
    until_s = time.monotonic() + budget_s
    hits, faults = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(MLSD_CACHE=str(folder / "cache"), MLSD_HOME=str(folder / "home"))
        for model in ("qwen35", "llama"):
            write_random(folder / f"{model}.gguf", TINY[model], seed=1)
            perturb(folder / f"{model}.gguf", folder / f"{model}-noise01.gguf", noise=0.01)
        run_study(folder, folder / "whole.sqlite")
        for number in itertools.count():
            if hits.total() >= N_BLOWS or time.monotonic() > until_s:
                break
            place = number % (len(WORKS) + 1)
            blow = BLOWS[number // (len(WORKS) + 1) % len(BLOWS)]
            if place == len(WORKS):
                what, (n_blows, fault) = "lab, kill", _in_a_lab(folder / f"lab{number}", number)
            else:
                work = WORKS[place](folder, number)
                what, (n_blows, fault) = f"{work.name}, {blow}", _survives(work, blow, random.Random(number))
            hits[what] += n_blows
            if fault:
                faults[f"{what}: {fault}"] += 1
            print(f"kill_study: {hits.total()} blows, last {what}: {fault or 'whole'}", file=sys.stderr, flush=True)
    for what, count in sorted(hits.items()):
        yield counted(f"blows at work: {what}", count)
    total, lost = hits.total(), faults.total()
    yield counted("blows at work", total, f">= {N_BLOWS}", total >= N_BLOWS)
    for what, count in sorted(faults.items()):
        yield counted(what, count, "= 0", False)
    yield counted("works that lost or doubled something, or left an orphan", lost, "= 0", not lost)


def _survives(work: Study, blow: Blow, rng: random.Random) -> tuple[bool, str | None]:
    """One blow at a work that is then begun again: whether it hit anything alive, and what is wrong after it."""
    hit = False
    try:
        hit = strike(work, blow, rng)
        again = subprocess.run(work.command, env=work.env, cwd=ROOT, capture_output=True, check=False, timeout=240)
        return hit, work.fault() if again.returncode == 0 else f"not repeatable: {again.stderr[-200:]!r}"
    except AssertionError as error:
        return hit, str(error)
    finally:
        work.close()


def _in_a_lab(folder: Path, seed: int) -> tuple[int, str | None]:
    """Kills of a lab's machines, scheduler and coordinator: how many, and what is wrong after them."""
    folder.mkdir()
    whole = folder.parent / "alone.sqlite"
    if not whole.exists():
        line = [sys.executable, "-m", "mlsd", "run", *test_lab.PLAN, "--db", str(whole)]
        subprocess.run(line, check=True, capture_output=True)
    found, alone = test_lab.survive(folder, _KILLS_IN_A_LAB, seed), test_lab.outputs(whole)
    return _KILLS_IN_A_LAB, None if found == alone else "doubled" if found - alone else "lost"
