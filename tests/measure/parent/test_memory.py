"""What a load takes is what its contexts take, and every size of Mac is judged by what was published of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.drafters import drafting_file
from mlsd.engine.context import Context, ContextOptions
from mlsd.engine.llama.footprint import footprints
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import rollback_options
from mlsd.engine.rollback_choice import check_rollback, checked_options, uses
from mlsd.gguf_tools.read import source_weight
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.synthetic.synth import plan_synthetic, write_hollow
from mlsd.hardware.budget import Fit, MemoryBudget, mac_budget, memory_budget
from mlsd.measure.messages import ContextsWanted
from mlsd.measure.parent.memory import (
    JUDGING,
    LoadMemory,
    _Opened,
    _sum,
    ask_memory,
    judge_loads,
    size_models,
)
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.models.library import Library
from mlsd.models.manifest import LocalFile, Manifest
from mlsd.planning.job import Job
from mlsd.planning.plan import Plan, expand, known_models, plan_bench
from mlsd.planning.suite import Profile, find_profile, load_suites
from mlsd.records import DrafterSpec, EngineOptions, Footprint
from mlsd.units import GB, GIB
from tests.measure.examples import ENVIRONMENT, quick_bench

# Memory in GiB -> the least `recommendedMaxWorkingSetSize` (MB) that logs of llama.cpp on such Macs were seen to print.
PUBLISHED_MB = {16: 11_453.25, 24: 17_179.89, 32: 22_906.50, 48: 38_654.71, 64: 51_539.61, 128: 103_079.22}
MACHINES = (16, 24, 32, 48, 64, 128, 192)


@pytest.mark.parametrize(("gib", "published"), PUBLISHED_MB.items())
def test_a_mac_that_nobody_asked_has_what_was_published_of_its_size(gib: int, published: float) -> None:
    assert mac_budget(gib * GIB).limit_bytes == pytest.approx(published * 1e6, rel=1e-5)


@pytest.mark.parametrize(
    ("machine", "device_bytes", "limit_and_most"),
    [
        ({"memory_bytes": 48 * GIB}, 40_200_900_000, (40_200_900_000, None)),
        ({"memory_bytes": 48 * GIB, "wired_limit_bytes": 44 * GIB}, 40_200_900_000, (44 * GIB, 44 * GIB)),
        ({"memory_bytes": None}, None, None),
        ({"os": "Linux 6.1.0", "backend": "CPU", "memory_bytes": 100}, None, (90, 100)),
        ({"os": "Linux 6.1.0", "backend": "CUDA", "memory_bytes": 100}, 24 * GB, (24 * GB, 24 * GB)),
        ({"os": "Linux 6.1.0", "backend": "CUDA", "memory_bytes": 100}, None, None),
    ],
)
def test_a_device_that_was_asked_is_believed_and_a_limit_that_is_set_as_well(
    machine: dict[str, Any], device_bytes: int | None, limit_and_most: tuple[int, int | None] | None
) -> None:
    found = memory_budget(msgspec.structs.replace(ENVIRONMENT, **machine), device_bytes)
    if limit_and_most is None:
        assert found is None
    else:
        limit, most = limit_and_most
        assert found is not None and (found.limit_bytes, most and found.most_bytes) == (limit, most)


def expanded(suite: str, profile: Profile, library: Library) -> Plan:
    return expand(load_suites([suite]), profile, known_models(library))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "profile", "verdicts"),
    [
        ("B", "mac-32gb", ["does not fit", "does not fit", "raise the limit", "fits", "fits", "fits", "fits"]),
        ("B", "study", [*["does not fit"] * 3, "raise the limit", *["fits"] * 3]),
    ],
)
def test_every_size_of_mac_is_judged_rightly(suite: str, profile: str, verdicts: list[Fit], tmp_path: Path) -> None:
    library = Library()
    loads = expanded(suite, find_profile(profile), library).loads
    models = size_models({ref.id for load in loads for ref in load.refs}, library)
    _, memory = ask_memory(loads, models, EngineOptions())
    assert all(load.arms for load in memory), "every context is known, though no model is here"

    def worst(gib: int) -> Fit:
        order = ("fits", "tight", "raise the limit", "does not fit")
        return max((load.verdict for load in judge_loads(memory, mac_budget(gib * GIB))), key=order.index)

    assert [worst(gib) for gib in MACHINES] == verdicts


SHALLOW = Profile(title="", name="x", roles={"moe-q4": "target", "draft-small": "small", "draft-medium": "medium"})
Judged = Callable[[MemoryBudget], LoadMemory]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """A load of suite B with four layers of Qwen3.5 0.8B and its vocabulary in every role; no weights."""
    path = tmp_path_factory.mktemp("shallow") / "shallow.gguf"
    write_hollow(path, plan_synthetic("qwen3.5-0.8b", n_layers=4))
    entries = [
        LocalFile(id=id_, name=id_, architecture="qwen35", quantization="Q8_0", file=str(path))
        for id_ in SHALLOW.roles.values()
    ]
    library = Library(Manifest(models={entry.id: entry for entry in entries}))
    loads = expanded("B", SHALLOW, library).loads[:1]
    models = size_models(SHALLOW.roles.values(), library)
    _, memory = ask_memory(loads, models, EngineOptions())
    return lambda budget: judge_loads(memory, budget)[0]


@pytest.mark.slow
def test_the_open_contexts_of_suite_b_compute_in_less_than_half_a_gigabyte(shallow: Judged) -> None:
    arms = [arm for arm in shallow(mac_budget(16 * GIB)).arms if arm.arm != JUDGING]
    assert len(arms) == 4, "AR, and gamma 4, 8 and 16 of one draft: seven contexts"
    assert 0.1 * GB < sum(arm.compute_bytes for arm in arms) < 0.5 * GB


def test_memory_that_holds_one_arm_at_a_time_is_tight(shallow: Judged) -> None:
    whole = shallow(mac_budget(16 * GIB))
    assert whole.verdict == "fits" and whole.total_bytes is not None and whole.least_bytes is not None
    assert whole.weights_bytes is not None and whole.weights_bytes < whole.least_bytes < whole.total_bytes
    limit = (whole.least_bytes + whole.total_bytes) // 2
    tight = shallow(MemoryBudget(limit_bytes=limit, most_bytes=limit, basis=""))
    assert tight.verdict == "tight" and "arms that are idle are closed" in tight.why


@pytest.mark.heavy
def bench(target: Path, *drafts: Path, drafters: tuple[str, ...] = ()) -> tuple[Job, LoadMemory]:
    asked = {"drafters": drafters, "gammas": (2, 6), "prompts": ("length-64",), "n_predict": 32, "repeats": 2}
    request = quick_bench(target, *drafts, **asked)
    plan = plan_bench(request)
    models = size_models(plan.models(), Library(), plan.models())
    return plan.loads[0], judge_loads(ask_memory(plan.loads, models, request.engine)[1], mac_budget(16 * GIB))[0]


def test_a_draft_that_is_cut_out_of_its_target_counts_with_its_weights(tiny: Path) -> None:
    target = tiny / "llama.gguf"
    plain, cut = (bench(target, drafters=own)[1].weights_bytes for own in ((), ("layer-skip:mode=own,exit=2",)))
    file = drafting_file(DrafterSpec(name="layer-skip", options={"mode": "own", "exit": 2}), target)
    assert file is not None and plain and cut
    assert cut - plain == pytest.approx(source_weight(Source(file)).total.n_bytes, rel=0.05)


def test_where_memory_is_tight_one_arm_is_open_at_a_time_and_trials_stay_what_they_were(
    tiny: Path, tmp_path: Path
) -> None:
    roomy, _ = bench(tiny / "qwen35.gguf", tiny / "qwen35-noise01.gguf")
    tight = msgspec.structs.replace(roomy, one_arm=True)
    found = []
    for job in (roomy, tight):
        with Arms(job, MonotonicClock(), ProbeCache(tmp_path)) as arms:
            trials = []
            for slot in job.slots:
                arms.refer(slot)
                trials.append(arms.run(slot))
            found.append([(trial.case_id, trial.tokens, trial.valid) for trial in trials])
            assert len(arms._arms) == (1 if job.one_arm else 3)
            assert arms.is_open(job.slots[-1].case)
    assert found[0] == found[1] and all(valid for _, _, valid in found[0])


@pytest.mark.parametrize("name", ["llama", "qwen35", "falcon-h1"])
def test_what_is_open_while_a_rollback_is_tried_is_counted(tiny: Path, name: str) -> None:
    strategy = {"llama": "trim", "qwen35": "snapshots", "falcon-h1": "checkpoint"}[name]
    options = rollback_options(strategy, ContextOptions(n_ctx=768, n_threads=1), 4)
    together, now_open = set[frozenset[ContextOptions]](), list[ContextOptions]()
    with LlamaModel(tiny / f"{name}.gguf") as model:

        def opened(wanted: ContextOptions) -> Context:
            context = open_context(model, wanted)
            now_open.append(wanted)
            together.add(frozenset(now_open))
            close = context.close

            def closed() -> None:  # a model closes its contexts once more
                if wanted in now_open:
                    now_open.remove(wanted)
                close()

            context.close = closed  # type: ignore[method-assign]
            return context

        for use in uses(options, 0, strategy, "target", 8):
            assert check_rollback(opened, options, use).exact
        counted = sum(one.total_bytes for one in footprints(model, (checked_options(options, strategy, 8),)))
        most = max(sum(one.total_bytes for one in footprints(model, tuple(own))) for own in together)
    assert not now_open and most == counted


def test_rungs_that_stay_on_the_device_are_counted_with_its_context_alone() -> None:
    state, contexts = 1_000, list[_Opened]()
    for strategy in ("device-ladder", "ladder"):
        options = rollback_options(strategy, ContextOptions(n_ctx=512, n_threads=1), 5)
        contexts.append(_Opened(ContextsWanted(key="m"), options, "states"))
    sums = []
    for context in contexts:
        held = Footprint(
            kv_bytes=0, states_bytes=state * context.options.n_all_sequences, compute_bytes=0, output_bytes=0
        )
        sums.append(_sum("arm", [context], {("m", context.options): held}).states_bytes)
    assert sums == [(6 + 1) * state, (1 + 5) * state], "the device holds six; the host five beside the context's"
