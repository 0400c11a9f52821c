"""One mutated input through one command: what is tried, and what no input may ever bring about."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import psutil

import mlsd.models.hub
import mlsd.servers.measure as servers
from mlsd.cli import main
from mlsd.folders import data_path
from mlsd.gguf_tools.shape import TINY
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.hostile import mutate
from tests.hub_server import COMMIT, REPO, HubServer
from tests.native_shim import trap
from tests.servers.fake import DIALECTS, ENDLESS, FakeServer, encoded

CASE_LIMIT_S = 60
MOST_BYTES = 1_000_000_000  # of memory, for each process
EXIT_CODES = (0, 1, 2, 130)
SECRET = "sk-of-nobody-at-all"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shot:
    """One command line on one mutated input."""

    argv: tuple[str, ...]
    wanted: Callable[[int, str], str | None] = lambda code, out: None  # what is wrong with how it ended, if anything


@dataclass
class Outcome:
    """What a kind of attack came to."""

    kind: str
    n_cases: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)  # seed, command, and what it did that nothing may do

    def add(self, other: Outcome) -> None:
        """What more attacks of the kind came to."""
        self.n_cases += other.n_cases
        self.codes += other.codes
        self.faults += other.faults


class _Printed(io.BytesIO):
    """What a command printed, also where it closed its output."""

    def close(self) -> None:
        """What was written stays."""


class Hang(BaseException):
    """The case took longer than any may."""


class Range:
    """Folders in which the attacks happen: `inputs` and `out` may be written, `home` and `here` must stay empty."""

    def __init__(self, folder: Path) -> None:
        self.originals, self.inputs, self.out = folder / "originals", folder / "inputs", folder / "out"
        self.home, self.here, self.own, self.cache = folder / "home", folder / "here", folder / "own", folder / "cache"
        for place in vars(self).copy().values():
            place.mkdir(parents=True, exist_ok=True)
        for name in ("llama", "qwen35"):
            write_random(self.originals / f"{name}.gguf", TINY[name], seed=1)
        shutil.copy(ROOT / "notebooks" / "data" / "tiny.sqlite", self.originals / "study.sqlite")
        shutil.copy(ROOT / "tests" / "analysis" / "data" / "study_runs_excerpt.csv", self.originals / "study.csv")
        shutil.copy(data_path("suites") / "b.toml", self.originals / "suite.toml")
        manifest = data_path("gguf_manifest.toml").read_text(encoding="utf-8")
        entries = [part for part in manifest.split("\n\n") if part.startswith('[models."')][:5]
        (self.originals / "manifest.toml").write_text("\n\n".join(entries).replace('[models."', '[models."own-'))
        shutil.copy(ROOT / "mlsd" / "assets" / "tasks" / "tasks.jsonl", self.originals / "tasks.jsonl")
        self.ran = self.home / "ran"  # what any code that is planted writes
        self.trap = trap(self.originals, self.ran)

    def read(self, name: str) -> bytes:
        return (self.originals / name).read_bytes()

    def write(self, name: str, data: bytes) -> Path:
        path = self.inputs / name
        path.write_bytes(data)
        return path

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be in an empty folder, with a home that is not the user's own."""
        names = {"HOME": self.home, "MLSD_HOME": self.own, "MLSD_CACHE": self.cache, "MPLCONFIGDIR": self.cache}
        variables = {name: str(path) for name, path in (*names.items(), ("PYTHONPATH", ROOT))}
        with mock.patch.dict(os.environ, variables), contextlib.chdir(self.here):
            yield

    def strays(self) -> list[str]:
        """Files where none may be."""
        found = [str(path) for place in (self.home, self.here) for path in place.rglob("*") if path.is_file()]
        return found + [str(path) for path in self.inputs.parent.iterdir() if path.is_file()]


# --- what is tried ----------------------------------------------------------------------------------------------


def _worker(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """Through llama.cpp in a child: slow, so few. Weights are hurt as well as headers."""
    data = range_.read("llama.gguf")
    whole = rng.random() < 0.5
    file = str(range_.write("model.gguf", mutate.of_bytes(data, rng) if whole else mutate.of_header(data, rng)))
    yield Shot(("doctor", "model", file, "--n-threads", "1", *rng.choice(((), ("--n-ctx", "512"))), "--json"))


def _weights(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """A weight that is no number: every pass uses it, so no trial may be valid. Slow, so few."""
    name = rng.choice(("llama.gguf", "qwen35.gguf"))
    file = str(range_.write("model.gguf", mutate.of_weights(range_.originals / name, rng)))
    database = range_.out / "weights.sqlite"
    _fresh(database)

    def judge(code: int, out: str) -> str | None:
        if not database.exists():
            return None if code else "nothing was measured, and the exit code is 0"
        with Store.open(database, create=False) as store:
            n_valid = sum(bool(stored.trial.valid) for stored in store.trials())
        return f"{n_valid} valid trials of a model that is broken" if n_valid else None

    settings = ("--gamma", "2", "--n-predict", "8", "--repeats", "1", "--n-threads", "1", "--prompt", "length-128")
    yield Shot(("bench", file, "--draft", file, *settings, "--db", str(database)), wanted=judge)


_READS = (
    ("results", "check"), ("results",), ("results", "trials", "--json"), ("results", "trial", "1"), ("results", "fits"),
    *(("results", "export", name) for name in ("csv", "json", "llama-bench")),
    ("audit", "study"), ("results", "claims"),
)  # fmt: skip


def _database(range_: Range, rng: random.Random) -> Iterator[Shot]:
    file = range_.write("study.sqlite", range_.read("study.sqlite"))
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink(missing_ok=True)
    mutate.of_database(file, rng)
    command = rng.choice(_READS)
    if rng.random() < 0.04:
        command = ("report", "-o", str(range_.out / "report"))
    yield Shot((*command, "--db", str(file)))


def _csv(range_: Range, rng: random.Random) -> Iterator[Shot]:
    file = str(range_.write("study.csv", mutate.of_text(range_.read("study.csv"), rng)))
    yield Shot(rng.choice((("audit", file), ("audit", file, "--json"))))


def _toml(range_: Range, rng: random.Random) -> Iterator[Shot]:
    if rng.random() < 0.5:
        file = str(range_.write("suite.toml", mutate.of_text(range_.read("suite.toml"), rng)))
        yield Shot(("run", "--dry-run", file, "--profile", "tiny"))
        return
    user = range_.own / "gguf_manifest.toml"
    user.write_bytes(mutate.of_text(range_.read("manifest.toml"), rng))
    try:
        yield Shot(rng.choice((("models", "list"), ("models", "show", "tiny-moe"), ("models", "list", "--json"))))
    finally:
        user.unlink(missing_ok=True)


def _jsonl(range_: Range, rng: random.Random) -> Iterator[Shot]:
    lines = range_.read("tasks.jsonl").splitlines(keepends=True)[:4]
    file = str(range_.write("tasks.jsonl", mutate.of_text(b"".join(lines), rng)))
    yield Shot(("run", "B", "--profile", "tiny", "--tasks", file, "--dry-run", "--db", str(range_.out / "x.sqlite")))


def _options(range_: Range, rng: random.Random) -> Iterator[Shot]:
    value = rng.choice((*mutate.TEXTS, *map(str, mutate.NUMBERS))).replace("\x00", "0")
    option = rng.choice(
        ("--temperature", "--repeats", "--n-predict", "--seed", "--gamma", "--limit", "--n-ctx", "--n-threads",
         "--prompt", "--draft", "--profile", "--n-gpu-layers", "--db")
    )  # fmt: skip
    yield Shot(("run", "--dry-run", "B", "--profile", "tiny", f"{option}={value}"))


def _hub(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """A server that lies about names, sizes and contents; what is stored under a name must be the right bytes."""
    data = rng.randbytes(rng.choice((0, 100, 70_000, 300_000)))
    pulled = range_.cache / "hub"
    shutil.rmtree(pulled, ignore_errors=True)
    user = range_.own / "gguf_manifest.toml"
    entry = f'[models.x]\nsource = "huggingface"\nrepo = "{REPO}"\nfile = "a/m.gguf"\nname = "x"\n'
    user.write_text(entry + 'architecture = "llama"\nquantization = "F32"\n')
    (range_.own / "models.lock.json").unlink(missing_ok=True)
    with HubServer({"a/m.gguf": data}) as server:
        match rng.randrange(6):
            case 0:
                text = rng.choice((*mutate.TEXTS, "../../../x", "..", str(range_.here / "x")))
                server.etag = re.sub("[\r\n\0]", "", text.encode("ascii", "ignore").decode())
            case 1:
                server.commit = rng.choice(("../../x", "/x", "main", "", "g" * 40, "a" * 4000, COMMIT))
            case 2:
                server.stated_size = rng.choice((0, len(data) // 2, len(data) * 2, 10**15, 10**30, -1))
            case 3:
                server.cut_after_bytes = rng.choice((0, 1, 50_000))
            case 4:
                server.stated_sha256["a/m.gguf"] = rng.choice(("ab" * 32, "AB" * 32, "0", "deadbeef"))
            case _:
                server.ignores_range = True

        def judge(code: int, out: str) -> str | None:
            stored = [path for path in pulled.rglob("m.gguf") if path.exists()]
            others = [path for path in stored if path.read_bytes() != data]
            if others:
                return "other bytes than the server has were stored"
            outside = [path for path in pulled.rglob("*") if not path.resolve().is_relative_to(pulled.resolve())]
            return f"{outside} lie outside the cache" if outside else None

        hub = functools.partial(mlsd.models.hub.Hub, endpoint=server.url, cache_dir=pulled)
        with mock.patch("mlsd.models.hub.Hub", hub):
            yield Shot(("models", "pull", "x"), wanted=judge)
        user.unlink(missing_ok=True)


def _server(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """A server that answers anything, at any pace; the plain one beside it is honest."""
    dialect = rng.choice(DIALECTS)
    database = _fresh(range_.out / "server.sqlite")
    nth, n_hurt = rng.choice((1, 1, 2, 3, 5, 8)), rng.choice((1, 1, 3, 1000))
    n_requests, raw = [0], rng.random() < 0.2

    def due() -> bool:
        n_requests[0] += 1
        return nth <= n_requests[0] < nth + n_hurt

    with FakeServer(dialect, key=SECRET) as plain, FakeServer(dialect, draft=True, key=SECRET) as server:
        if raw:
            attack = rng.choice(list(ENDLESS.values()))
            server.raw = lambda path, send: bool(due() and (attack(send) or True))
        else:
            server.value = lambda path, value: mutate.of_json(value, rng) if due() else value

        def judge(code: int, out: str) -> str | None:
            if "Leave the server's speculation on" in out:
                return "believed"
            for file in range_.out.glob("server.sqlite*"):
                if SECRET.encode() in file.read_bytes():
                    return "stored a key"
            if not database.exists() or dialect not in ("llama-server", "openai", "mlx"):
                return None
            with Store.open(database, create=False) as store:
                honest = [one.trial for one in store.trials(TrialFilter(arm="ar", failed=True))]
            # A busy machine starves it.
            reasons = (one.reason for one in honest if "sent nothing for" not in (one.reason or ""))
            return next((f"an honest trial failed: {reason}" for reason in reasons), None)

        other = {"ollama": (), "lm-studio": ("--draft", "d")}.get(dialect, ("--against", plain.url))
        settings = ("--n-predict", "4", "--repeats", "1", "--patience", "0.3", "--db", str(database))
        limits = mock.patch.multiple("mlsd.servers.connection", _ANSWER_S=2.0, _ANSWER_BYTES=4 << 20)
        with mock.patch.dict(os.environ, {"MLSD_SERVER_KEY": SECRET}), limits:
            yield Shot(("server", server.url, *other, *settings), wanted=judge)


def _split(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """Parts of one model of which one is damaged, missing, a pipe, a loop, another part or longer than any disc."""
    folder, n_parts = _emptied(range_.inputs / "parts"), rng.choice((2, 3))
    parts = [folder / f"m-{i:05d}-of-{n_parts:05d}.gguf" for i in range(1, n_parts + 1)]
    for number, path in enumerate(parts):
        writer = gguf.GGUFWriter(path, "llama")
        for name, value in (("no", number), ("count", n_parts)):
            writer.add_uint16(f"split.{name}", value)
        writer.add_int32("split.tensors.count", n_parts)
        writer.add_tensor(f"blk.{number}.attn_q.weight", np.ones((32, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    hurt = rng.choice(parts)
    data = hurt.read_bytes()
    match rng.randrange(9):
        case 0:
            hurt.unlink()
            os.mkfifo(hurt)
        case 1:
            hurt.unlink()
            hurt.symlink_to(rng.choice((hurt.name, parts[0].name, "/dev/zero", "/etc/passwd", str(folder))))
        case 2:
            hurt.unlink()
        case 3:
            shutil.copyfile(range_.originals / "llama.gguf", hurt)
        case 4:
            os.truncate(hurt, rng.choice((0, len(data) // 2, 1 << 40)))
        case _:
            hurt.write_bytes(mutate.of_header(data, rng))
    out = str(range_.out / "new.gguf")
    reads = (("show",), ("make", "synth", "-o", out), ("make", "noise", "--noise", "0.01", "-o", out),
             ("make", "subset", "--exit", "2", "-o", out))  # fmt: skip
    command = ("doctor", "model", "--n-threads", "1") if rng.random() < 0.1 else ("models", *rng.choice(reads))
    yield Shot((*command, str(parts[0])))


VARIABLES = (
    "MLSD_BUILD_IDENTITY", "MLSD_BUILD_IDENTITY", "MLSD_BUILD", "MLSD_HOME", "MLSD_CACHE",
    "MLSD_SERVER_KEY", "MLSD_RPC_SERVER", "LLAMA_CPP_LIB_PATH",
    "LLAMA_GRAPH_REUSE_DISABLE", "LLAMA_CACHE", "LLAMA_ARG_MODEL", "GGML_BACKEND_PATH", "GGML_BACKEND_DIR",
    "GGML_VK_VISIBLE_DEVICES", "GGML_NO_BACKTRACE", "HF_ENDPOINT", "HF_HOME", "HF_TOKEN", "COLUMNS", "TERM",
    "CONDA_PREFIX", "HOMEBREW_PREFIX", "OMP_NUM_THREADS",
)  # fmt: skip
IDENTITY = {"name": "x", "fingerprint": "0" * 8, "package": "/", "libraries": "/etc"}


def _environment(range_: Range, rng: random.Random) -> Iterator[Shot]:
    """Variables of ours and of llama.cpp with any value, in a folder where others left libraries and modules."""
    folder = _emptied(range_.inputs / "planted")
    for name in ("libggml-rpc.so", "libggml-cpu-zzz.so", "sitecustomize.py", "llama_cpp.py", "mlsd.py"):
        code = f"open({str(range_.ran)!r}, 'w')\n".encode()
        (folder / name).write_bytes(code if name.endswith(".py") else range_.trap.read_bytes())
    planted = {}
    for name in rng.sample(VARIABLES, rng.choice((1, 1, 2, 4))):
        places = ("/dev/null", "/dev/full", "/proc/nowhere", "a" * 5_000, str(range_.originals / "llama.gguf"))
        if name.endswith(("_HOME", "_CACHE")):  # of these any name that can be is where files go
            value = rng.choice(places)
        elif name == "MLSD_BUILD_IDENTITY":
            made = mutate.of_json(IDENTITY, rng)
            value = (made if isinstance(made, bytes) else encoded(made)).decode("utf-8", "surrogateescape")
        else:
            value = rng.choice((*mutate.TEXTS, *map(str, mutate.NUMBERS), *places, str(folder), "libggml-rpc.so"))
        planted[name] = value.replace("\0", "")[:100_000].encode("utf-8", "replace").decode()
    cheap = (("results",), ("models", "list"), ("run", "--dry-run", "B", "--profile", "tiny"), ("audit", "x.csv"),
             ("models", "methods"), ("advise", "tiny-moe"), ("models", "pull", "tiny-moe"), ("bench", "x"))  # fmt: skip
    # Not doctor: what it plans takes more memory than any other command.
    slow = (("doctor", "builds"), ("doctor", "model", "tiny-dense", "--n-threads", "1"), ("doctor", "builds", "."))
    with mock.patch.dict(os.environ, planted), contextlib.chdir(folder):
        yield Shot(rng.choice(slow if rng.random() < 0.15 else cheap))


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _fresh(database: Path) -> Path:
    for end in ("", "-wal", "-shm"):
        Path(f"{database}{end}").unlink(missing_ok=True)
    return database


KINDS: dict[str, Callable[[Range, random.Random], Iterator[Shot]]] = {
    "gguf in llama.cpp": _worker,
    "weights": _weights,
    "database": _database,
    "csv": _csv,
    "toml": _toml,
    "jsonl": _jsonl,
    "options": _options,
    "hub": _hub,
    "server": _server,
    "split gguf": _split,
    "environment": _environment,
}


# --- what must not happen ---------------------------------------------------------------------------------------


def attack(kind: str, seeds: Iterable[int], range_: Range) -> Outcome:
    """Try one mutated input a seed and gather what none may do."""
    outcome = Outcome(kind)
    peak = _peak_bytes(resource.RUSAGE_SELF)
    # The hub's library waits between tries; what machine this is takes a process to find out.
    no_waits = mock.patch("huggingface_hub.file_download.time.sleep", lambda _: None)
    read = {name: functools.cache(getattr(servers, name)) for name in ("read_environment", "run_info")}
    with range_.entered(), no_waits, mock.patch.multiple(servers, **read), _late_tracebacks(outcome):
        for seed in seeds:
            for shot in KINDS[kind](range_, random.Random(f"{kind} {seed}")):
                outcome.n_cases += 1
                for fault in _shoot(shot, outcome, range_):
                    outcome.faults.append(f"{kind}, seed {seed}, {' '.join(shot.argv)}: {fault}")
    if (grown := _peak_bytes(resource.RUSAGE_SELF) - peak) > MOST_BYTES:
        outcome.faults.append(f"{kind}: memory grew by {grown:,} bytes")
    return outcome


def _shoot(shot: Shot, outcome: Outcome, range_: Range) -> Iterator[str]:
    raw = (_Printed(), _Printed())
    out, err = (io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True) for stream in raw)
    code: Any = 0
    child_bytes = _peak_bytes(resource.RUSAGE_CHILDREN)
    others = set(psutil.Process().children(recursive=True))  # of tests before, like multiprocessing's tracker
    started = time.monotonic()
    previous = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(CASE_LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(list(shot.argv))
    except SystemExit as end:
        code = end.code or 0
    except Hang:
        yield f"still running after {time.monotonic() - started:.0f} s"
    except BaseException:  # noqa: BLE001 - whatever comes out here, a user would see
        yield traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    printed, complained = (stream.getvalue().decode("utf-8", "replace") for stream in raw)
    outcome.codes[code] += 1
    if code not in EXIT_CODES:
        yield f"exit code {code}"
    if "Traceback (most recent call last)" in complained:
        yield complained[-2000:]
    if code == 2 and not complained.strip():
        yield "refused without a message"
    if SECRET in printed + complained:
        yield "showed a key"
    if fault := shot.wanted(code, printed):
        yield fault
    children = set(psutil.Process().children(recursive=True)) - others
    if [child for child in psutil.wait_procs(children, timeout=5)[1] if child.is_running()]:
        yield f"left {len(children)} processes behind"
    # A child begins with its parent's memory, which counts as its own until it runs another program.
    if (peak := _peak_bytes(resource.RUSAGE_CHILDREN)) > max(
        MOST_BYTES, child_bytes, _peak_bytes(resource.RUSAGE_SELF)
    ):
        yield f"a child took {peak:,} bytes"
    if strays := range_.strays():
        yield f"wrote {strays}"
        for stray in strays:
            Path(stray).unlink()


def _peak_bytes(who: int) -> int:
    """The most memory of this process, or of any child that ended."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _hang(*_: object) -> None:
    raise Hang


@contextlib.contextmanager
def _late_tracebacks(outcome: Outcome) -> Iterator[None]:
    """What Python prints when it throws away something that fails: a user sees that, too."""

    def note(late: Any) -> None:
        outcome.faults.append(f"{outcome.kind}: thrown away: {late.exc_value!r}")

    with mock.patch("sys.unraisablehook", note):
        yield
        gc.collect()
