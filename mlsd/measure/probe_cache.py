"""What was found of a file, kept between runs: the same file on the same build and device is not checked twice."""

import contextlib
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback_choice import Prefix, RollbackCheck, RollbackUse, check_rollback
from mlsd.errors import InputError
from mlsd.folders import cache_dir, write_atomically
from mlsd.measure.messages import report_progress
from mlsd.records import BackendInfo, ModelRef

_FORMAT = 7  # raise it when the probe changes what it tests


class ProbeCache:
    """One small file for each use of a rollback strategy with a model, a build, a device and a context's options."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_dir()) / "probe"
        # Here too: no file holds anything of a model that is made on the spot, and arms are opened again.
        self._checks: dict[tuple[Path, ContextOptions, RollbackUse], RollbackCheck] = {}

    def check(
        self,
        ref: ModelRef,
        options: ContextOptions,
        model: LlamaModel,
        use: RollbackUse,
        read_prefix: Callable[[], Prefix | None] = lambda: None,
    ) -> RollbackCheck:
        """The check that is kept, or one made now, which is then kept; `read_prefix` may spare it reading a long text.

        Not between runs where the model has no hash, or the engine refused: memory may suffice another time.
        """
        if use.behind != "long text":  # of a context only its kernels matter, not its length
            options = msgspec.structs.replace(options, n_ctx=0)
        key, path = (model.path, options, use), self._path(ref, options, use)
        kept = self._checks.get(key) or _read(path)
        if kept is None:
            opening = partial(open_reporting, f"checking how {model.path.stem} rolls back", model)
            prefix = read_prefix() if use.behind == "long text" else None
            kept = check_rollback(opening, options, use, prefix)
            if path is not None and kept.max_logit_diff is not None:
                with contextlib.suppress(InputError):  # a cache that cannot be written costs a second the next time
                    write_atomically(path, msgspec.json.encode(kept).decode())
        self._checks[key] = kept
        return kept

    def _path(self, ref: ModelRef, options: ContextOptions, use: RollbackUse) -> Path | None:
        """Where a check is kept; nowhere for a model without a hash."""
        if ref.sha256 is None:
            return None
        return answer_path(self._folder, backend_info(options.n_gpu_layers), _FORMAT, ref.sha256, options, use)


def answer_path(folder: Path, backend: BackendInfo, *of: object) -> Path:
    """Where an answer of a build on a device lies, by all that it depends on."""
    parts = (*of, backend.build, backend.binding_version, backend.backend, backend.device)
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"


def open_reporting(doing: str, model: LlamaModel, options: ContextOptions) -> LlamaContext:
    """A context whose passes are signs of life: those of probes and of verdicts take long and are not timed."""
    context = open_context(model, options)
    context.on_pass = partial(report_progress, doing)
    return context


def _read(path: Path | None) -> RollbackCheck | None:
    try:
        return None if path is None else msgspec.json.decode(path.read_bytes(), type=RollbackCheck)
    except (OSError, msgspec.MsgspecError):
        return None


def check_weights(path: Path, ref: ModelRef) -> None:
    """Look at every weight of a file, unless this was done before; a file without a hash is looked at each time.

    Raises: ModelFileError naming a tensor that holds NaN or infinite values.
    """
    done = None if ref.sha256 is None else cache_dir() / "weights" / ref.sha256[:24]
    if done is not None and done.exists():
        return
    LlamaModel(path, n_gpu_layers=0, check_weights=True).close()
    if done is not None:
        with contextlib.suppress(OSError):  # it is then looked at again
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
