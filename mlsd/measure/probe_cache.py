"""What was found of a file, kept between runs: the same file on the same build and device need not be tested twice."""

import contextlib
import hashlib
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from mlsd.engine.context import ContextOptions
from mlsd.engine.llama.context import LlamaContext
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.llama.open import open_context
from mlsd.engine.probe import ProbeReport, Question, StrategyResult, check, probe
from mlsd.errors import InputError
from mlsd.folders import cache_dir, write_atomically
from mlsd.measure.messages import alive
from mlsd.records import BackendInfo, ModelRef

_FORMAT = 5  # raise it when the probe changes what it tests


_Found = TypeVar("_Found", ProbeReport, StrategyResult)


class ProbeCache:
    """One small file for a question to a model, a build, a device and all options of a context."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_dir()) / "probe"
        # Here too: no file holds anything of a model that is made on the spot, and arms are opened again.
        self._answers: dict[tuple[Path, ContextOptions, Question | None], ProbeReport | StrategyResult] = {}

    def get(self, ref: ModelRef, options: ContextOptions, model: LlamaModel, *, fresh: bool = False) -> ProbeReport:
        """The stored report, or that of a probe now, which is then stored if the model has a hash."""
        return self._answer(ProbeReport, ref, options, model, fresh=fresh)

    def check(self, ref: ModelRef, options: ContextOptions, model: LlamaModel, question: Question) -> StrategyResult:
        """The same for one strategy in an arm's context, whose length matters only to a text that fills it."""
        return self._answer(StrategyResult, ref, options, model, question)

    def known(self, ref: ModelRef, options: ContextOptions) -> ProbeReport | None:
        """The stored report, if there is one."""
        return _read(self._path(ref, options), ProbeReport)

    def _answer(
        self,
        kind: type[_Found],
        ref: ModelRef,
        options: ContextOptions,
        model: LlamaModel,
        question: Question | None = None,
        *,
        fresh: bool = False,
    ) -> _Found:
        key, path = (model.path, options, question), self._path(ref, options, question)
        known = None if fresh else self._answers.get(key) or _read(path, kind)
        if known is None:
            ask = probe if question is None else partial(check, question=question)
            known = ask(partial(open_heard, f"trying how {model.path.stem} rolls back", model), options)
            if path is not None:
                with contextlib.suppress(InputError):  # a cache that cannot be written costs a second the next time
                    write_atomically(path, msgspec.json.encode(known).decode())
        self._answers[key] = known
        return cast("_Found", known)

    def _path(self, ref: ModelRef, options: ContextOptions, question: Question | None = None) -> Path | None:
        """Where an answer is kept; None for a model without a hash."""
        if ref.sha256 is None:
            return None
        is_long = question is not None and question.where == "long text"
        kernels = options if is_long else msgspec.structs.replace(options, n_ctx=0)
        return answer_path(self._folder, backend_info(options.n_gpu_layers), _FORMAT, ref.sha256, kernels, question)


def answer_path(folder: Path, backend: BackendInfo, *of: object) -> Path:
    """Where an answer of a build on a device lies, by all that it depends on."""
    parts = (*of, backend.build, backend.binding_version, backend.backend, backend.device)
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:24]}.json"


def open_heard(doing: str, model: LlamaModel, options: ContextOptions) -> LlamaContext:
    """A context whose passes are signs of life: those of probes and of verdicts take long and are not timed."""
    context = open_context(model, options)
    context.on_pass = partial(alive, doing)
    return context


def _read(path: Path | None, kind: type[_Found]) -> _Found | None:
    try:
        return None if path is None else msgspec.json.decode(path.read_bytes(), type=kind)
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
