"""What each load of a plan takes of memory, arm by arm, and whether it fits; all but the weights is llama.cpp's word.

Counted are all contexts that stay open: of every arm its target's and its draft's with the state kept to go back to, a
head's own, or those in which its rollback is tried before it opens, where these are larger; the one that warms a device
and the one in which a verdict is found, with a copy of its memory; with the weights a draft that is cut out of its
target. If all that fits, arms stay open; else one is open at a time. What mlsd itself keeps is not counted (a search
index, the target's rows for a head).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from mlsd.drafters import drafting_key, find_method, recipe
from mlsd.drafters.recipe import opening_of
from mlsd.engine.context import ContextOptions, context_options
from mlsd.engine.losslessness import judge_options
from mlsd.engine.rollback_choice import Role, candidates, checked_options
from mlsd.errors import InputError, MlsdError, UnsupportedError
from mlsd.gguf_tools.shape import FULL
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import state_layers
from mlsd.gguf_tools.synthetic.synth import plan_synthetic
from mlsd.hardware import read_environment
from mlsd.hardware.budget import Fit, MemoryBudget, fit, memory_budget
from mlsd.measure.heat import cool_down_of
from mlsd.measure.messages import ContextsWanted
from mlsd.measure.process import call, run_info
from mlsd.measure.worker.arms import arm_key, warm_options
from mlsd.measure.worker.footprints import find_footprints
from mlsd.models.library import Library
from mlsd.models.manifest import ModelEntry, Synthetic
from mlsd.planning.job import Job, ModelFile, prompt_key
from mlsd.planning.known_shapes import bits_of, quant_of
from mlsd.planning.prompts import Prompt
from mlsd.records import (
    STRATEGIES,
    BackendInfo,
    Case,
    DrafterSpec,
    EngineOptions,
    Environment,
    Footprint,
    Record,
    content_id,
)
from mlsd.stats import grouped
from mlsd.trials.arms import arm_of
from mlsd.units import format_bytes

_ESTIMATE_MARGIN = 1.05  # files of one quantization differ by a few per cent from model to model
# Architectures that begin so keep snapshots; others with states save and replay them.
_SNAPSHOTS = ("qwen35", "lfm2", "nemotron_h")
_LEAST_BYTES_OF_A_TOKEN = 3  # of text, where nobody has counted
JUDGING = "judging"  # what is open beside all arms


class Sized(Record, frozen=True, kw_only=True):
    """A model as far as memory goes."""

    id: str
    n_bytes: int | None  # of weights; None: neither stated nor to be estimated
    estimated: bool = False
    key: str = ""  # equal for equal contexts
    path: str | None = None
    shape: str | None = None

    def strategy(self, role: Role) -> str:
        """How llama.cpp usually takes back tokens of its kind of memory."""
        if self.path is not None:
            source = Source(Path(self.path))
            architecture, states = source.architecture, bool(state_layers(source))
        else:
            shape = FULL[self.shape or ""]
            architecture, states = shape.architecture, any(map(shape.is_recurrent, range(shape.n_layers)))
        names = candidates(role, recurrent=states)
        keeps_snapshots = architecture.startswith(_SNAPSHOTS)
        return next(name for name in names if name != "snapshots" or keeps_snapshots)


class ArmMemory(Record, frozen=True, kw_only=True):
    """The most that is open for one arm, or for judging all of them."""

    arm: str
    kv_bytes: int
    states_bytes: int  # snapshots and saved copies included
    compute_bytes: int
    output_bytes: int
    total_bytes: int


class LoadMemory(Record, frozen=True, kw_only=True):
    """What a load takes with every arm open, None where a size is not known; and the verdict, once it is judged."""

    models: tuple[str, ...]
    weights_bytes: int | None
    kv_bytes: int | None = None
    states_bytes: int | None = None
    compute_bytes: int | None = None
    output_bytes: int | None = None
    total_bytes: int | None = None
    least_bytes: int | None = None  # with one arm open at a time
    limit_bytes: int | None = None
    verdict: Fit = "unknown"
    why: str
    estimated: bool  # the size of a model was estimated
    arms: tuple[ArmMemory, ...] = ()  # judging comes last


def size_models(
    ids: Iterable[str], library: Library, local: Mapping[str, ModelFile] = MappingProxyType({})
) -> dict[str, Sized]:
    """The models by id: those of `local` and of this machine by their files, others by the manifest."""
    return {
        id_: _of_files(id_, (Path(local[id_].path),), local[id_].ref.n_bytes)
        if id_ in local and local[id_].path
        else _of_entry(library.manifest.find(id_), library)
        for id_ in ids
    }


def _of_files(id_: str, paths: Sequence[Path], n_bytes: int | None) -> Sized:
    status = paths[0].stat()
    key = f"{paths[0].resolve()} {status.st_size} {status.st_mtime_ns}"
    return Sized(id=id_, n_bytes=n_bytes or sum(path.stat().st_size for path in paths), key=key, path=str(paths[0]))


def _of_entry(entry: ModelEntry, library: Library) -> Sized:
    if paths := library.locate(entry):
        return _of_files(entry.id, paths, None)
    stated = weight_bytes(entry, library)
    name = entry.shape if isinstance(entry, Synthetic) else entry.name.lower().replace(" ", "-")
    return Sized(
        id=entry.id,
        n_bytes=stated or estimated_bytes(entry),
        estimated=stated is None,
        key=f"shape {name}",
        shape=name if name in FULL else None,
    )


def weight_bytes(entry: ModelEntry, library: Library) -> int | None:
    """Bytes of a model: as stated, else of its files here; a made model counts as its base at most."""
    if entry.n_bytes is not None:
        return entry.n_bytes
    if paths := library.locate(entry):
        return sum(path.stat().st_size for path in paths)
    if isinstance(entry, Synthetic):
        return plan_synthetic(entry.shape, entry.quantization).weight.total.n_bytes
    if bases := library.manifest.bases(entry):
        return weight_bytes(bases[0], library)
    stated = [part.n_bytes for part in entry.parts]
    return None if None in stated else sum(size for size in stated if size is not None)


def estimated_bytes(entry: ModelEntry) -> int | None:
    """Bytes from parameters and quantization, a little high; None where either says too little."""
    quant = quant_of(entry.quantization)
    if quant is None or entry.parameters is None:
        return None
    return round(entry.parameters * bits_of(quant) / 8 * _ESTIMATE_MARGIN)


# --- asking ---------------------------------------------------------------------------------------------------------


class _Opened(NamedTuple):
    """One context that will be open, or what a method opens beside one, and what is saved of it meanwhile."""

    of: ContextsWanted  # whose, without options
    options: ContextOptions
    saved: Literal["nothing", "states", "all"] = "nothing"


# By arm, named for people, the sets of contexts of which one is open at a time: its own, and those that try a rollback.
_Contexts = list[tuple[str, list[list[_Opened]]]]


class Footprints:
    """What llama.cpp said of the device and of contexts, each of which it is asked for once."""

    def __init__(self) -> None:
        self.by_context: dict[tuple[str, ContextOptions], Footprint] = {}
        self._backend: BackendInfo | None = None

    def ask(self, contexts: Iterable[_Opened], n_gpu_layers: int) -> BackendInfo:
        """Ask for what is not answered yet, in a process of its own. Raises: WorkerError."""
        missing = [context for context in contexts if (context.of.key, context.options) not in self.by_context]
        wanted = tuple(
            msgspec.structs.replace(same[0].of, options=tuple(dict.fromkeys(context.options for context in same)))
            for same in grouped(missing, lambda context: context.of.key).values()
        )
        if wanted or self._backend is None:
            self._backend, answer = call(partial(find_footprints, wanted, n_gpu_layers), doing="planning contexts")
            self.by_context |= {
                (of.key, options): footprint
                for of, sizes in zip(wanted, answer, strict=True)
                for options, footprint in zip(of.options, sizes or (), strict=False)
            }
        return self._backend


def ask_memory(
    loads: Sequence[Job], models: Mapping[str, Sized], engine: EngineOptions, footprints: Footprints | None = None
) -> tuple[BackendInfo, tuple[LoadMemory, ...]]:
    """Ask llama.cpp for the device and for what the contexts of these loads take, beside what it answered before.

    Raises: WorkerError when the native library does not even start.
    """
    footprints, of_loads = footprints or Footprints(), [_contexts(load, models) for load in loads]
    contexts = (context for arms, _ in of_loads for _, sets in arms for opened in sets for context in opened)
    try:
        backend = footprints.ask(contexts, engine.n_gpu_layers)
    except MlsdError:  # a model that ends the process says so when it is run
        return run_info(engine), tuple(_sums(load, models, (), 0) for load in loads)
    return backend, tuple(
        _sums(load, models, _arms(opened, footprints.by_context), cut_bytes)
        for load, (opened, cut_bytes) in zip(loads, of_loads, strict=True)
    )


def _wanted(models: Mapping[str, Sized], id_: str, method: DrafterSpec | None = None) -> ContextsWanted:
    """The contexts of a model, or what a method opens beside them or cuts out of it."""
    model, key, head = models[id_], models[id_].key, None
    if method is not None:
        draft = None if method.draft is None else models[method.draft.id]
        key, head = f"{key} {content_id(method)} {draft and draft.key}", draft.path if draft is not None else None
    return ContextsWanted(key=key, path=model.path, shape=model.shape, method=method, head_path=head)


def _contexts(load: Job, models: Mapping[str, Sized]) -> tuple[_Contexts, int]:
    """Every context of a load, none where a model is not known; and the bytes of drafts cut out of its target."""
    if any(models[ref.id].path is None and models[ref.id].shape is None for ref in load.refs):
        return [], 0
    cases = load.cases
    n_tokens = max(_n_tokens(case, load.prompts) + case.n_predict for case in cases.values())
    shared = context_options(load.engine, n_tokens)
    arms_opened, judges, cut_bytes = _Contexts(), list[list[_Opened]](), dict[str, int]()
    arms = {arm_key(case): case for case in cases.values()}
    for case in sorted(arms.values(), key=lambda case: (case.gamma, case.drafter.name)):
        target, spec = case.target.id, case.drafter
        draft = spec.draft.id if spec.draft else target
        strategy = "trim" if case.arm == "ar" else case.rollback
        if strategy not in STRATEGIES:
            strategy = models[target].strategy("target")
        try:
            contexts = recipe(opening_of(case, shared, strategy, partial(models[draft].strategy, "draft")))
        except UnsupportedError:  # such an arm will not open
            continue
        of_draft = spec if _cut(spec, models[target], cut_bytes) else None
        opened, tried = list[_Opened](), list[list[_Opened]]()
        for planned in contexts:
            if planned.whose == "head" and models[target].path is None:  # a file that is not here tells of no head
                continue
            if planned.whose == "head":
                opened.append(_Opened(_wanted(models, target, spec), planned.options))
                continue
            of = _wanted(models, target) if planned.whose == "target" else _wanted(models, draft, of_draft)
            options = msgspec.structs.replace(planned.options, kind="plain")
            opened.append(_Opened(of, options, "states" if planned.saves else "nothing"))
            if planned.rollback in STRATEGIES and case.arm == "sd":
                tried.append([_Opened(of, checked_options(options, planned.rollback, case.gamma), "all")])
        arms_opened.append((arm_of(case).setting, [opened, *tried]))
        of = _wanted(models, target)
        judge = [_Opened(of, judge_options(shared, case.gamma + 1), "all")] if case.sampling.greedy else []
        judges.append([*judge, _Opened(of, warm_options(shared))])
    return [*arms_opened, (JUDGING, judges)], sum(cut_bytes.values())


def _cut(spec: DrafterSpec, target: Sized, cut_bytes: dict[str, int]) -> bool:
    """Whether a draft with weights of its own is cut out of the target; of one that is not here nobody can tell."""
    method = find_method(spec.name)
    if not method.has("made_draft") or target.path is None:
        return False
    edit = method.read(spec).made_draft(Source(Path(target.path))).edit
    if edit.pieces:
        cut_bytes[drafting_key(spec) or repr(spec)] = edit.n_bytes
    return bool(edit.pieces)


def _n_tokens(case: Case, prompts: Mapping[str, Prompt]) -> int:
    """Tokens of a prompt, as far as they can be known without a tokenizer: at most so many."""
    if case.prompt.n_tokens is not None:
        return case.prompt.n_tokens
    prompt = prompts[prompt_key(case.prompt)]
    texts, answers = (prompt.text, *prompt.earlier), len(prompt.earlier) * case.n_predict
    return prompt.depth + answers + sum(len(text.encode()) // _LEAST_BYTES_OF_A_TOKEN for text in texts)


def _arms(opened: _Contexts, sizes: Mapping[tuple[str, ContextOptions], Footprint]) -> tuple[ArmMemory, ...]:
    """The most that each arm takes; none where a context could not be planned."""
    every = (context for _, sets in opened for contexts in sets for context in contexts)
    if any((context.of.key, context.options) not in sizes for context in every):
        return ()
    sums = ((_sum(name, contexts, sizes) for contexts in sets) for name, sets in opened if sets)
    return tuple(max(of_arm, key=attrgetter("total_bytes")) for of_arm in sums)


def _sum(name: str, contexts: Sequence[_Opened], sizes: Mapping[tuple[str, ContextOptions], Footprint]) -> ArmMemory:
    kv = states = compute = output = 0
    for of, options, saved in contexts:
        footprint = sizes[of.key, options]
        kv += footprint.kv_bytes * (2 if saved == "all" else 1)
        states += footprint.states_bytes
        if saved != "nothing":
            n_saved = 1 if options.saved_on_device else max(1, options.n_saved_states)
            states += footprint.states_bytes // (options.n_snapshots + 1) // options.n_all_sequences * n_saved
        compute += footprint.compute_bytes
        output += footprint.output_bytes
    return ArmMemory(
        arm=name, kv_bytes=kv, states_bytes=states, compute_bytes=compute, output_bytes=output,
        total_bytes=kv + states + compute + output,
    )  # fmt: skip


def _sums(load: Job, models: Mapping[str, Sized], arms: tuple[ArmMemory, ...], cut_bytes: int) -> LoadMemory:
    """A load added up; where contexts are not known, the weights alone."""
    sized = [models[id_] for id_ in dict.fromkeys(ref.id for ref in load.refs)]
    names, unknown = " + ".join(model.id for model in sized), [model.id for model in sized if model.n_bytes is None]
    weights = None if unknown else sum(model.n_bytes or 0 for model in sized) + cut_bytes
    terms = ("kv_bytes", "states_bytes", "compute_bytes", "output_bytes")
    sums = {name: sum(getattr(arm, name) for arm in arms) for name in terms if arms}
    total = least = None
    if arms and weights is not None:
        *own_bytes, judging_bytes = (arm.total_bytes for arm in arms)
        total = weights + sum(own_bytes) + judging_bytes
        least = weights + max(own_bytes, default=0) + judging_bytes
    estimated = any(model.estimated for model in sized)
    size = f"{'about ' if estimated else ''}{format_bytes(weights if total is None else total)}"
    return LoadMemory(
        models=tuple(model.id for model in sized),
        weights_bytes=weights,
        total_bytes=total,
        least_bytes=least,
        why=f"the size of {', '.join(unknown)} is not known; `mlsd models pull` finds it"
        if unknown
        else f"{names}: {size}{'' if arms else ' of weights'}",
        estimated=estimated,
        arms=arms,
        **sums,
    )


# --- judging --------------------------------------------------------------------------------------------------------


def judge_loads(loads: Iterable[LoadMemory], budget: MemoryBudget | None) -> tuple[LoadMemory, ...]:
    """Each load compared with what there is; where contexts are not known, by its weights alone."""
    judged = []
    for load in loads:
        is_planned = load.total_bytes is not None
        total, least = (load.total_bytes, load.least_bytes) if is_planned else (load.weights_bytes,) * 2
        verdict, why = fit(total, least, budget)
        why = load.why if load.weights_bytes is None else f"{load.why}, {why}"
        limit = None if budget is None else budget.limit_bytes
        judged.append(msgspec.structs.replace(load, limit_bytes=limit, verdict=verdict, why=why))
    return tuple(judged)


def fit_here(
    loads: Sequence[Job],
    *,
    cool_down_s: float | None = None,
    strict: bool = False,
    footprints: Footprints | None = None,
    coming: Sequence[Job] = (),
) -> tuple[Environment, tuple[Job, ...]]:
    """The machine at hand, and the jobs for it: how long they rest, one arm at a time where memory is tight.

    Contexts of `coming` jobs are asked for at once, so that `footprints` has them. All files are here. Raises:
    InputError for what the machine cannot hold, WorkerError.
    """
    environment, memory = judge_here(loads, footprints, coming)
    refuse_loads(memory)
    rest_s = cool_down_of(cool_down_s, environment)
    return environment, tuple(
        msgspec.structs.replace(
            load,
            one_arm=fitted.verdict == "tight",
            cool_down_s=rest_s,
            strict=strict,
            context_bytes={
                f"{load.target.ref.id}: {arm.arm}": arm.total_bytes for arm in fitted.arms if arm.arm != JUDGING
            },
            limit_bytes=fitted.limit_bytes,
        )
        for load, fitted in zip(loads, memory, strict=True)
    )


def judge_here(
    loads: Sequence[Job], footprints: Footprints | None = None, coming: Sequence[Job] = ()
) -> tuple[Environment, tuple[LoadMemory, ...]]:
    """The machine at hand, and what each load takes of it, refused or not; all files are here. Raises: WorkerError."""
    files = {file.ref.id: file for load in loads for file in load.files}
    models = {id_: _of_files(id_, (Path(file.path),), file.ref.n_bytes) for id_, file in files.items()}
    backend, memory = ask_memory([*loads, *coming], models, loads[0].engine, footprints)
    environment = read_environment(backend)
    return environment, judge_loads(memory[: len(loads)], memory_budget(environment, backend.memory_bytes))


def refuse_loads(memory: Iterable[LoadMemory]) -> None:
    """Refuse what does not fit as the machine stands. Raises: InputError that names the load and what to do."""
    for load in memory:
        if load.verdict in ("raise the limit", "does not fit"):
            hint = "Choose a smaller profile; `mlsd doctor` shows which fit."
            if load.verdict == "raise the limit":
                hint = "Run that command, and this one again."
            raise InputError(f"{load.why}.", hint=hint)
