"""What a plan needs of this machine, and how long it takes, from earlier results before anything runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from mlsd.engine.llama.build.prebuilt import A_MAC, installed_build
from mlsd.errors import PromptError
from mlsd.folders import free_bytes
from mlsd.gguf_tools.shape import FULL
from mlsd.hardware import read_environment
from mlsd.hardware.apple_passes import AppleChip, Runtime, Work, apple_chip, work_of
from mlsd.hardware.budget import MemoryBudget, mac_budget, memory_budget
from mlsd.hardware.chips import CHIPS
from mlsd.hardware.metal_kernels import build_of
from mlsd.measure.heat import cool_down_of
from mlsd.measure.parent.memory import LoadMemory, ask_memory, judge_loads, size_models
from mlsd.planning.known_shapes import shape_facts, shape_of
from mlsd.planning.plan import Plan, prepare_study
from mlsd.planning.prompts import load_prompt
from mlsd.planning.request import StudyRequest
from mlsd.planning.time_estimate import TimeEstimate, TokS, estimate_time, rates_from_chips, rates_from_results
from mlsd.records import Case, Environment, Record
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.units import GIB

_MOST = 2.5  # times its memory a Mac's chip was sold with
_CHARACTERS_A_TOKEN = 4.0
_USUAL_PROMPT = 300


class Forecast(Record, frozen=True, kw_only=True):
    """What a plan needs on this machine."""

    memory: tuple[LoadMemory, ...]  # one for each load
    times: tuple[TimeEstimate, ...]  # one for each load
    budget: MemoryBudget | None
    time: TimeEstimate
    rest_s: float | None  # between blocks; None: until it is cool, which comes on top of the time
    chips: str  # whose public rows times come from, where some do
    download_bytes: int | None  # models not on this machine; None where a size is not even estimated
    free_disk_bytes: int
    missing: tuple[str, ...]  # models not on this machine, or only with another program
    sizes: dict[str, int | None]  # bytes of every model
    elsewhere: dict[str, str]  # of those, what another program keeps: model -> path


def plan_study(
    request: StudyRequest, db: Path | None = None, *, here: bool = False, cool_down_s: float | None = None
) -> tuple[Plan, Forecast]:
    """What a run of these suites would measure and need; rates come from `db`, or where the run would write.

    A profile for a Mac is judged for such a Mac, unless it is to run `here`.

    Raises: what `prepare_study` raises, StoreError for a file that is no study database.
    """
    plan, earlier = prepare_study(request), db or study_path(request.profile.name)
    environment, library = read_environment(), request.library
    models = size_models(plan.models(), library, plan.models())
    sizes = {model.id: model.n_bytes for model in models.values()}
    backend, memory = ask_memory(plan.loads, models, request.overrides.engine)
    environment = msgspec.structs.replace(environment, backend=backend.backend, llama_cpp_build=backend.build)
    chips = _chips(request, environment, here=here)
    tok_s = _tok_s(plan.models(), environment, earlier if earlier.exists() else None, list(chips.values()))
    mac_gib = None if here or environment.os.startswith("macOS") else request.profile.memory_gib
    if mac_gib is None:
        budget = memory_budget(environment, backend.memory_bytes)
        rest_s, warmed = cool_down_of(cool_down_s, environment), environment.backend != "CPU"
    else:
        budget, rest_s, warmed = mac_budget(mac_gib * GIB), cool_down_s, True
    paths_of = {id_: library.elsewhere(library.manifest.find(id_)) for id_ in plan.missing}
    elsewhere = {id_: str(paths[0]) for id_, paths in paths_of.items() if paths}
    to_get = [sizes[model] for model in plan.missing if model not in elsewhere]
    return plan, Forecast(
        memory=judge_loads(memory, budget),
        times=tuple(estimate_time([load], tok_s, warmed=warmed, rest_s=rest_s) for load in plan.loads),
        budget=budget,
        time=estimate_time(plan.loads, tok_s, warmed=warmed, rest_s=rest_s),
        rest_s=rest_s,
        chips=", ".join(chips),
        download_bytes=None if None in to_get else sum(size for size in to_get if size is not None),
        free_disk_bytes=free_bytes(library.hub.cache_dir),
        missing=plan.missing,
        sizes=sizes,
        elsewhere=elsewhere,
    )


def _tok_s(models: Iterable[str], environment: Environment, db: Path | None, chips: Sequence[AppleChip]) -> TokS:
    """Rates from results of this machine, then from what public rows show of its chip."""
    works = {id_: _work(id_) for id_ in models}
    build = build_of(environment.llama_cpp_build) or 0 if apple_chip(environment.chip or "") else installed_build(A_MAC)
    public = partial(rates_from_chips, works, chips, _n_prompt, build=build)
    if db is None:
        return public()
    with Store.open(db, create=False, read_only=True) as store:
        ids = {run.id for run in store.runs() if run.environment.host == environment.host}
        trials = [row.trial for row in store.trials(rounds=False) if row.run_id in ids]
        cases = store.cases()
    results = rates_from_results(trials, cases)
    works |= {id_: _work(id_) for id_ in {case.target.id for case in cases.values()} - works.keys()}
    scale = _scale(results, cases, works, chips[0]) if len(chips) == 1 else None
    by_chip = public(scale=scale)
    return lambda case: results(case) or by_chip(case)


def _work(model_id: str) -> Work | None:
    """What a token of a model asks, by the shape and quantization that its id names."""
    name, quant = shape_of(model_id)
    return None if name is None or quant is None else work_of(shape_facts(model_id, FULL[name], quant))


def _chips(request: StudyRequest, environment: Environment, *, here: bool) -> dict[str, AppleChip]:
    """The chip of a Mac by name; on another system those that were sold with the memory of the profile's Mac."""
    mac = apple_chip(environment.chip or "", peak_gb_s=environment.peak_bandwidth_gb_s, gpu_cores=environment.gpu_cores)
    if mac is not None:
        return {(environment.chip or "").removeprefix("Apple "): mac}
    memory = None if here else request.profile.memory_gib
    if memory is None:
        return {}
    sold = {chip.name for chip in CHIPS if chip.max_memory_gib and memory <= chip.max_memory_gib <= _MOST * memory}
    return {name.removeprefix("Apple "): chip for name in sorted(sold) if (chip := apple_chip(name)) is not None}


def _n_prompt(case: Case) -> int:
    """Tokens of a prompt: as it says, else by the length of its text."""
    if case.prompt.n_tokens is not None:
        return case.prompt.n_tokens
    try:
        return round(len(load_prompt(case.prompt.key).text) / _CHARACTERS_A_TOKEN)
    except PromptError:  # a text of the user's
        return _USUAL_PROMPT


def _scale(results: TokS, cases: Mapping[str, Case], works: Mapping[str, Work | None], chip: AppleChip) -> float | None:
    """Measured over predicted time of plain decoding on this machine, median over cases; None where there is none."""
    ratios = []
    for case in cases.values():
        work, rate = works.get(case.target.id), results(case)
        if case.arm == "ar" and work is not None and rate is not None:
            ratios.append(1e3 / rate.decode_tok_s / Runtime(chip=chip).plain_ms(work))
    return statistics.median(ratios) if ratios else None
