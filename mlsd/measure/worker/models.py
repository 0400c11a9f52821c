"""The models of a job in memory, and by which strategies each goes back, as the probe found them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from mlsd.drafters import find_method, second_file
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info
from mlsd.engine.probe import ProbeReport, Role, StrategyResult, choose_strategy, questions
from mlsd.engine.rollback import rollback_options
from mlsd.engine.session import SessionOptions
from mlsd.errors import RollbackError
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import refuse_unloadable
from mlsd.measure.probe_cache import ProbeCache, check_weights
from mlsd.planning.job import Job
from mlsd.records import BackendInfo, Case, ModelRef


class Models:
    """The target and whatever is loaded beside it; all are freed with the stack."""

    def __init__(self, job: Job, stack: ExitStack) -> None:
        self.path = Path(job.target.path)
        self._stack = stack
        self._engine = job.engine
        self._open: dict[tuple[Path, int | None], LlamaModel] = {}
        self._drafts = {model.ref.id: Path(model.path) for model in job.models}
        self._refs = {Path(model.path): model.ref for model in job.files}
        self._load_mtp = any(find_method(case.drafter.name).loads_next_token_block for case in job.cases.values())
        self.target = self.open(self.path)

    @property
    def backend(self) -> BackendInfo:
        return backend_info(self._engine.n_gpu_layers)

    def ref(self, path: Path) -> ModelRef:
        return self._refs.get(path, ModelRef(id=path.name))

    def second(self, case: Case) -> Path | None:
        """The file of what drafts beside the target, made of it if need be."""
        draft = case.drafter.draft
        return second_file(case.drafter, self.path, None if draft is None else self._drafts[draft.id])

    def open(self, path: Path, n_experts: int | None = None) -> LlamaModel:
        """The model of a file, loaded once; `n_experts` in place of what it says of its router."""
        if (path, n_experts) not in self._open:
            refuse_unloadable(Source(path))
            check_weights(path, self.ref(path))
            load_mtp = self._load_mtp and path == self.path and n_experts is None
            layers = self._engine.n_gpu_layers
            model = LlamaModel(path, n_gpu_layers=layers, load_mtp=load_mtp, n_experts_used=n_experts)
            self._open[path, n_experts] = self._stack.enter_context(model)
        return self._open[path, n_experts]


class Strategies:
    """What the probe found of each model, from the cache or made now."""

    def __init__(self, models: Models, options: SessionOptions, cache: ProbeCache, *, is_sd: bool) -> None:
        self._models, self._options, self._cache, self._is_sd = models, options, cache, is_sd

    def report(self, path: Path) -> ProbeReport:
        return self._cache.get(self._models.ref(path), self._options, self._models.open(path))

    @cached_property
    def samples_on_device(self) -> bool:
        """As the probe found it for the target; without one where the device is not the host itself."""
        path = self._models.path
        report = self.report(path) if self._is_sd else self._cache.known(self._models.ref(path), self._options)
        return self._models.backend.backend != "CPU" if report is None else report.samples_on_device

    def choose(self, path: Path, wanted: str, role: Role, gamma: int) -> str:
        def check(name: str) -> StrategyResult:
            options = rollback_options(name, self._options, gamma)
            return self._check(path, options, name, role, gamma)

        return choose_strategy(path.name, role, gamma, wanted, lambda: self.report(path), check)

    def check_tree(self, options: SessionOptions, gamma: int) -> None:
        """Try the trees of a target's context. Raises: RollbackError where a path that is kept is not exact."""
        found = self._check(self._models.path, options, "trim", "target", gamma)
        if not found.exact:
            raise RollbackError(
                f"Trees are not exact for {self._models.path.name} on this backend: {found.reason}.",
                hint="Draft single chains, or give the option commit=redecode.",
            )

    def _check(self, path: Path, options: SessionOptions, name: str, role: Role, gamma: int) -> StrategyResult:
        """Every question about a strategy, up to the first that it does not stand."""
        ref, model, found = self._models.ref(path), self._models.open(path), list[StrategyResult]()
        for question in questions(options, name, role, gamma):
            found.append(self._cache.check(ref, options, model, question))
            if not found[-1].exact:
                break
        return found[-1]
