"""Records with every field set, so that a field without a column cannot hide behind a default."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from mlsd.planning.request import BenchRequest, bench_request
from mlsd.records import (
    Case,
    Conditions,
    DrafterSpec,
    EngineOptions,
    Environment,
    Losslessness,
    ModelFacts,
    ModelRef,
    PromptRef,
    Round,
    Sampling,
    Status,
    Trial,
)
from mlsd.stats import grouped
from mlsd.store.store import Store

ENVIRONMENT = Environment(
    host="0123456789abcdef",
    os="macOS 26.5 (25F71)",
    machine="arm64",
    chip="Apple M2 Ultra",
    backend="Metal",
    device="Apple M2 Ultra",
    mlsd_version="0.1.0",
    llama_cpp_python_version="0.3.36",
    llama_cpp_build="b8240",
)

MODEL = ModelFacts(
    ref=ModelRef(id="tiny-moe", sha256="a" * 64, n_bytes=1_000),
    architecture="qwen35moe",
    n_layers=4,
    n_experts=8,
    n_experts_used=2,
    tensor_types={"F32": 12, "Q8_0": 20},
)

ROUNDS = (
    Round(
        proposed=4, accepted=2, committed=3, rows=5,
        draft_ns=400, verify_ns=1_000, rollback_ns=50, sample_ns=10, other_ns=5,
    ),
    Round(
        proposed=3, accepted=3, committed=4, rows=4,
        draft_ns=300, verify_ns=900, rollback_ns=0, sample_ns=11, other_ns=6,
    ),
)  # fmt: skip
_STEP = Round(
    proposed=0, accepted=0, committed=1, rows=1, draft_ns=0, verify_ns=376, rollback_ns=0, sample_ns=4, other_ns=3
)
PLAIN = (msgspec.structs.replace(_STEP, other_ns=4), *[_STEP] * 6)


def case(gamma: int = 4, suite: str = "B", **changes: Any) -> Case:
    """A speculative case, or the plain one when gamma is 0."""
    drafter = DrafterSpec(name="draft-model", options={"p_min": 0.5}, draft=ModelRef(id="tiny", sha256="b" * 64))
    base = Case(
        suite=suite,
        target=MODEL.ref,
        prompt=PromptRef(key="code-1", sha256="c" * 64, n_tokens=64, workload="code"),
        n_predict=8,
        drafter=drafter if gamma else DrafterSpec(),
        gamma=gamma,
        sampling=Sampling(),
        engine=EngineOptions(n_threads=1),
    )
    return msgspec.structs.replace(base, **changes)


def trial(of: Case | None = None, **changes: Any) -> Trial:
    """A finished trial with every field set; a longer `decode_ns` is spent in its first round."""
    of = of or case()
    made = ROUNDS if of.gamma else PLAIN
    rest = (changes.get("decode_ns") or 2_682) - 2_682
    made = (msgspec.structs.replace(made[0], other_ns=made[0].other_ns + rest), *made[1:])
    base = Trial(
        case_id=of.id,
        arm=of.arm,
        gamma=of.gamma,
        block=1,
        repeat=2,
        position=3,
        status=Status.HOT,
        started_at="2026-03-01T12:00:00.000+00:00",
        reason="passes became slower",
        n_prompt=64,
        prompt_sha256="e" * 64,
        tokens=(5, 6, 7, 8, 9, 10, 11, 12),
        text="a \u2019quoted\u2019 output \U0001f600",
        prefill_ns=10_000,
        draft_prefill_ns=2_000,
        decode_ns=2_682,
        load_ns=30_000,
        rounds=made,
        rollback_target="snapshots",
        rollback_draft="checkpoint",
        fell_back="another layout",
        failed_native_calls=1,
        losslessness=Losslessness(
            verdict="near_tie", first_difference=5, top2_gap=0.001, worst_gap=0.002, tolerance=0.004
        ),
        peak_rss_bytes=123_456,
        stats={"lookup_ns": 17.0},
        earlier=("Blue.", "Green."),
        conditions=Conditions(
            load_1min=0.5,
            on_battery=False,
            low_power_mode=False,
            thermal_state="nominal",
            available_bytes=8_000_000_000,
            swap_used_bytes=0,
        ),
    )
    return msgspec.structs.replace(base, **changes)


def failed(of: Case | None = None, **changes: Any) -> Trial:
    """A failed trial of the same key as `trial`."""
    of = of or case()
    base = Trial(
        case_id=of.id, arm=of.arm, gamma=of.gamma, block=1, repeat=2, position=3, status=Status.FAILED,
        started_at="2026-03-01T12:00:00.000+00:00", reason="the worker was killed",
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def quick_bench(target: Path, *drafts: Path, **fields: Any) -> BenchRequest:
    """A bench of files on one thread."""
    return bench_request(str(target), drafts=tuple(map(str, drafts)), engine=EngineOptions(n_threads=1), **fields)


def store_trials(store: Store, run_id: int, trials: Iterable[Trial]) -> list[int]:
    """Trials by their blocks, beside what is there; their ids in the store, in the order of the blocks."""
    blocks = grouped(trials, lambda one: (one.block, one.repeat)).values()
    return [one.id for own in blocks for one in store.add(run_id, own, supersede=False)]
