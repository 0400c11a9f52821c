"""What the memory gives: a streaming read in numpy, and single-token passes of synthetic models of known bytes."""

import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from mlsd.clock import MonotonicClock
from mlsd.engine.context import threads_of
from mlsd.errors import InputError
from mlsd.gguf_tools.shape import Shape
from mlsd.gguf_tools.synthetic.synth import from_shape, write_synthetic
from mlsd.hardware import read_environment
from mlsd.measure.messages import CalibrateJob, Passes
from mlsd.measure.parent.blocks import Watcher, machine_lock, recorded_run
from mlsd.measure.parent.calibration import calibrate, run_calibration
from mlsd.measure.process import run_info
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.planning.options import CalibrateOptions
from mlsd.planning.prompts import load_prompt
from mlsd.planning.time_estimate import preparation_line
from mlsd.records import DRAFT_MODEL, EngineOptions, Environment, ModelRef, Record
from mlsd.store.newest import newest_or_new
from mlsd.store.rows import CalibrationPoint, StreamRead, TimedPass
from mlsd.store.store import Store
from mlsd.units import GB, NS_PER_S, format_bytes

_CHUNK_BYTES = 1 << 23  # so much of the array is one numpy call: long enough for its overhead not to matter
_DEPTH = 16
_ROW = 256  # widths are multiples of it: the largest block of any quantization
_PASS_REPEATS = 3
_BASE = Shape(
    name="bandwidth",
    architecture="llama",
    n_layers=4,
    n_embd=1024,
    n_vocab=512,
    n_head=16,
    n_head_kv=4,
    head_dim=64,
    n_ff=_ROW,
)


class BandwidthResult(Record, frozen=True, kw_only=True):
    """What was read and timed."""

    database: str
    environment: Environment
    n_threads: int  # that passes ran on, of the engine or by its default
    reads: tuple[StreamRead, ...]
    passes: tuple[TimedPass, ...]


def measure_bandwidth(
    db: Path | None = None,
    watcher: Watcher | None = None,
    *,
    sizes_mb: Sequence[int],
    quants: Sequence[str],
    repeats: int,
    read_mb: int,
    engine: EngineOptions,
) -> BandwidthResult:
    """Measure both ways into `db`, by default the newest study database or a first one; all of it or nothing.

    A model for each size (that a token reads) and quantization, each in so many blocks; numpy reads `read_mb` MiB.

    Raises: LockError while another run measures on this machine, InputError, EngineError, WorkerError, StoreError.
    """
    path, watcher = db or newest_or_new(), watcher or Watcher()
    if len(set(sizes_mb)) < 2:
        raise InputError("One size cannot tell bandwidth from fixed time.", hint="Like --sizes-mb 100,200,400.")
    environment = read_environment(run_info(engine))
    n_all = environment.logical_cores or 1
    n_threads = threads_of(engine)
    threads, sizes_bytes = sorted({1, n_threads, n_all}), [mb * 1_000_000 for mb in sizes_mb]
    record = {
        "command": "bandwidth",
        "sizes_bytes": sizes_bytes,
        "quants": quants,
        "blocks": repeats,
        "read_bytes": read_mb << 20,
        "threads": threads,
        "engine": msgspec.to_builtins(engine),
        "n_threads": n_threads,
    }
    n_models, n_bytes = len(sizes_bytes) * len(quants), sum(sizes_bytes) * len(quants)
    doing = f"Writing {n_models} models of {format_bytes(n_bytes)} in all, and loading each {repeats} times"
    watcher.ready(preparation_line(doing, None, "and passes are timed in between"))
    with Store.open(path) as store, machine_lock(), recorded_run(store, environment, record) as run_id:
        reads = tuple(
            StreamRead(n_threads=n, repeat=repeat, gb_s=speed)
            for n in threads
            for repeat, speed in enumerate(stream_read(read_mb << 20, n, 2 * repeats + 1))
        )
        with tempfile.TemporaryDirectory() as folder:
            models = write_models(Path(folder), sizes_bytes, quants, watcher)
            passes = tuple(time_models(models, engine, repeats))
        store.add_figures(run_id, [*reads, *passes])
    return BandwidthResult(database=str(path), environment=environment, n_threads=n_threads, reads=reads, passes=passes)


def stream_read(n_bytes: int, n_threads: int, repeats: int) -> list[float]:
    """GB/s (10^9) of reading an array of `n_bytes` once, per repeat; the maximum of its numbers makes it be read.

    Raises: InputError when the array is too small to say anything of memory.
    """
    if n_bytes < 8 * _CHUNK_BYTES:
        raise InputError(f"{n_bytes} bytes fit into caches.", hint="Read at least 64 MiB.")
    data = np.ones(n_bytes // 8, dtype=np.int64)  # written once, so that every page exists
    parts = np.array_split(data, n_threads)

    def read(part: np.ndarray) -> None:
        for start in range(0, len(part), _CHUNK_BYTES // 8):
            np.maximum.reduce(part[start : start + _CHUNK_BYTES // 8])

    speeds = []
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(read, parts))
        for _ in range(repeats):
            began = MonotonicClock().now_ns()
            list(pool.map(read, parts))  # numpy lets other threads run while it reads
            speeds.append(data.nbytes / GB / ((MonotonicClock().now_ns() - began) / NS_PER_S))
    return speeds


def shape_of_bytes(n_bytes: int, quant: str) -> Shape:
    """A dense model of which a token reads about `n_bytes`; only one width grows, so other costs stay the same.

    Raises: InputError when that is smaller than the smallest such model, or the quant is unknown.
    """
    least, more = (
        from_shape(msgspec.structs.replace(_BASE, n_ff=width), quant=quant).weight.active.n_bytes
        for width in (_ROW, 2 * _ROW)
    )
    steps = round((n_bytes - least) / (more - least))
    if steps < 1:
        raise InputError(f"{n_bytes} bytes are too few for a model.", hint=f"Give at least {more / 1e6:.0f} MB.")
    return msgspec.structs.replace(_BASE, name=f"bandwidth-{quant}-{n_bytes}", n_ff=_ROW * (1 + steps))


def write_models(
    folder: Path, sizes_bytes: Sequence[int], quants: Sequence[str], watcher: Watcher
) -> list[tuple[str, int, Path]]:
    """One synthetic model for each size and quant: (quant, bytes a token reads, path)."""
    written = []
    for quant, size in itertools.product(quants, sizes_bytes):
        recipe = from_shape(shape_of_bytes(size, quant), quant=quant)
        path = folder / f"{recipe.name}.gguf"
        watcher.tell(f"writing {recipe.name}")
        write_synthetic(path, recipe)
        written.append((quant, recipe.weight.active.n_bytes, path))
    return written


def time_models(models: Sequence[tuple[str, int, Path]], engine: EngineOptions, blocks: int) -> Iterator[TimedPass]:
    """Single-token passes of every model once a block, in random order, each in a worker of its own."""
    rng = random.Random(0)
    text = load_prompt("length-256").text
    files = {path: ModelFile(ref=resolve_model(str(path)).ref, path=str(path)) for _, _, path in models}
    for block in range(blocks):
        for quant, n_bytes, path in rng.sample(models, len(models)):
            job = CalibrateJob(
                target=files[path],
                engine=engine,
                text=text,
                rows=(1,),
                depths=(_DEPTH,),
                budget_s=0.1,
                least_repeats=_PASS_REPEATS,
            )
            passes = [event for event in run_calibration(job) if isinstance(event, Passes)]
            spans = [p.span_ns for event in passes for p in event.points if p.kind == "target_pass"]
            yield TimedPass(quant=quant, n_bytes=n_bytes, block=block, ms=float(np.median(spans)) / 1e6)


# --- beside the trials of a study ------------------------------------------------------------------------------------

_SIZES_MB, _QUANTS, _READ_MB = (128, 256), ("Q8_0", "Q4_0", "F16"), 512
_WIDE = 5  # rows of a pass from which a model counts as timed as a target


def measure_costs(db: Path, suites: Sequence[str], watcher: Watcher, engine: EngineOptions, budget_s: float) -> None:
    """Time passes of every target of these suites beside its first draft, then read the memory; what is there stays.

    Raises: LockError, InputError, EngineError, WorkerError, StoreError.
    """
    with Store.open(db, create=False, read_only=True) as store:
        cases = [case for case in store.cases().values() if case.suite in suites]
        timed = {point.model_key for _, point in store.figures(CalibrationPoint) if point.rows >= _WIDE}
        read = any(True for _ in store.figures(StreamRead))
    drafts: dict[ModelRef, ModelRef | None] = {case.target: None for case in cases}
    for case in cases:
        if case.drafter.name == DRAFT_MODEL and drafts[case.target] is None:
            drafts[case.target] = case.drafter.draft
    for target, draft in drafts.items():
        if target.key not in timed:
            watcher.tell(f"T(k) of {target.id}: {budget_s:g} s")
            second = None if draft is None else draft.id
            calibrate(CalibrateOptions(target.id, draft=second, db=db, budget_s=budget_s, engine=engine), watcher)
    if not read:
        watcher.tell("memory bandwidth")
        measure_bandwidth(db, watcher, sizes_mb=_SIZES_MB, quants=_QUANTS, repeats=3, read_mb=_READ_MB, engine=engine)
