"""What contexts would take of memory, asked of llama.cpp once for each model, build and device, and then remembered."""

import contextlib
import ctypes
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mlsd.drafters import find_method
from mlsd.engine.context import ContextOptions, context_options
from mlsd.engine.llama.footprint import attached_footprints, footprints
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.errors import InputError, MlsdError
from mlsd.folders import cache_dir, read_json, update_json
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import write_edit
from mlsd.hardware.budget import host_budget
from mlsd.measure.messages import ContextsWanted, engine_and_models
from mlsd.measure.probe_cache import answer_path
from mlsd.records import BackendInfo, DrafterSpec, Footprint, content_id
from mlsd.units import format_bytes

_FORMAT = 3  # raise it when a footprint means something else
# Even a simulated context holds a list of its cells, and a user may ask for billions: a run refuses those.
_MOST_BEYOND = 8192
_M_MMAP_MAX, _M_TRIM_THRESHOLD, _MOST_INT = -4, -1, 2**31 - 1  # of glibc's malloc.h


def find_footprints(
    wanted: tuple[ContextsWanted, ...], n_gpu_layers: int
) -> tuple[BackendInfo, tuple[tuple[Footprint, ...] | None, ...]]:
    """The device, and what contexts would take of memory, in order; None for a model that llama.cpp cannot plan."""
    backend = backend_info(n_gpu_layers)
    _keep_freed_memory()
    return backend, tuple(_find(contexts, backend, n_gpu_layers) for contexts in wanted)


def _keep_freed_memory() -> None:
    """Let glibc hand out again what a planned context freed: to page states in anew is half of a first plan's time.

    Other systems have no such call, and where it is refused a plan takes its time.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _MOST_INT)


def check_memory(arguments: Mapping[str, Any]) -> None:
    """Plan contexts of the length that a user asked for. Raises: InputError for more than this machine's memory."""
    engine, models = engine_and_models(arguments)
    if engine is None or engine.n_ctx is None:
        return
    n_bytes, most = 0, host_budget().most_bytes
    for file in models:
        with LlamaModel(Path(file.path), simulated=True, n_gpu_layers=engine.n_gpu_layers) as model:
            n_bytes += footprints(model, [context_options(engine, 1)])[0].kv_bytes
    if n_bytes > most:
        raise InputError(
            f"A context of {engine.n_ctx:,} positions needs {format_bytes(n_bytes)}; this machine has "
            f"{format_bytes(most)}.",
            hint="Give a smaller --n-ctx; without it a context is as long as the run needs.",
        )


def _find(wanted: ContextsWanted, backend: BackendInfo, n_gpu_layers: int) -> tuple[Footprint, ...] | None:
    path = answer_path(cache_dir() / "footprint", backend, _FORMAT, wanted.key, wanted.method, n_gpu_layers)
    cached: dict[str, Footprint] = {}
    with contextlib.suppress(InputError):
        cached = read_json(path, dict[str, Footprint])
    ids = [content_id(options) for options in wanted.options]
    missing = {id_: options for id_, options in zip(ids, wanted.options, strict=True) if id_ not in cached}
    if missing:
        try:
            with _model(wanted, n_gpu_layers) as model:
                if max(options.n_ctx for options in missing.values()) > 2 * model.n_ctx_train + _MOST_BEYOND:
                    return None
                new = dict(zip(missing, _ask(wanted, model, tuple(missing.values()), n_gpu_layers), strict=True))
        except MlsdError:
            return None
        cached = {**cached, **new}
        with contextlib.suppress(InputError):  # a cache that cannot be written costs seconds the next time
            update_json(path, dict[str, Footprint], lambda kept: kept.update(new), damaged_is_empty=True)
    return tuple(cached[id_] for id_ in ids)


def _ask(
    wanted: ContextsWanted, model: LlamaModel, options: Sequence[ContextOptions], n_gpu_layers: int
) -> tuple[Footprint, ...]:
    spec = wanted.method or DrafterSpec()
    method = find_method(spec.name)
    settings = method.read(spec)
    if not method.has("head"):
        return footprints(model, options) if wanted.path is not None else _without_snapshots(model, options)
    if wanted.head_path is None:
        return attached_footprints(model, options, lambda context: settings.head(context, model))
    with LlamaModel(Path(wanted.head_path), simulated=True, n_gpu_layers=n_gpu_layers) as head:
        return attached_footprints(model, options, lambda context: settings.head(context, head))


def _without_snapshots(model: LlamaModel, options: Sequence[ContextOptions]) -> tuple[Footprint, ...]:
    """Of a plan for a model that is not here: the states of snapshots, which llama.cpp really allocates, are counted.

    A context keeps a state for each snapshot beside the newest one; all are of one size.
    """
    plain = footprints(model, [msgspec.structs.replace(wanted, n_snapshots=0) for wanted in options])
    return tuple(
        msgspec.structs.replace(footprint, states_bytes=footprint.states_bytes * (1 + wanted.n_snapshots))
        for footprint, wanted in zip(plain, options, strict=True)
    )


@contextmanager
def _model(wanted: ContextsWanted, n_gpu_layers: int) -> Iterator[LlamaModel]:
    """The model without its weights; of one that is not here, or is still to be cut, a file as hollow."""
    spec = wanted.method or DrafterSpec()
    method = find_method(spec.name)
    with tempfile.TemporaryDirectory() as folder:
        path = hollow = Path(folder) / "hollow.gguf"
        if wanted.path is None:
            from mlsd.gguf_tools.synthetic.synth import plan_synthetic, write_hollow  # brings the whole of gguf

            write_hollow(hollow, plan_synthetic(wanted.shape or ""))
        else:
            path = Path(wanted.path)
            source = Source(path)
            if method.has("made_draft"):
                path = hollow
                write_edit(source, method.read(spec).made_draft(source).edit, path, hollow=True)
        load_mtp = method.loads_next_token_block
        with LlamaModel(path, simulated=True, n_gpu_layers=n_gpu_layers, load_mtp=load_mtp) as model:
            yield model
