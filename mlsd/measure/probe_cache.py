"""What was found of a file, kept between runs: the same file on the same build and device need not be tested twice."""

from __future__ import annotations

import contextlib
import hashlib
from functools import partial
from pathlib import Path

import msgspec

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_session
from mlsd.engine.probe import ProbeReport, probe
from mlsd.engine.session import SessionOptions
from mlsd.errors import InputError
from mlsd.folders import cache_dir, write_atomically
from mlsd.records import ModelRef

_FORMAT = 4  # raise it when the probe changes what it tests


class ProbeCache:
    """One small file a model, build, device and setting."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_dir()) / "probe"

    def get(self, ref: ModelRef, options: SessionOptions, model: LlamaModel, *, fresh: bool = False) -> ProbeReport:
        """The stored report, or that of a probe now, which is then stored if the model has a hash."""
        report = None if fresh else self.known(ref, options)
        if report is not None:
            return report
        report = probe(partial(open_session, model), options)
        if ref.sha256 is not None:
            with contextlib.suppress(InputError):  # a cache that cannot be written costs a second the next time
                write_atomically(self._path(ref.sha256, options), msgspec.json.encode(report).decode())
        return report

    def known(self, ref: ModelRef, options: SessionOptions) -> ProbeReport | None:
        """The stored report, if there is one."""
        if ref.sha256 is None:
            return None
        try:
            return msgspec.json.decode(self._path(ref.sha256, options).read_bytes(), type=ProbeReport)
        except (OSError, msgspec.MsgspecError):
            return None

    def _path(self, sha256: str, options: SessionOptions) -> Path:
        info = backend_info(options.n_gpu_layers)
        build = (info.build, info.binding_version, info.backend, info.device)
        parts = (_FORMAT, sha256, *build, options.n_threads, options.flash_attention, options.n_gpu_layers)
        return self._folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"


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
