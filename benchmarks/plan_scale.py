"""A plan of 100,000 cases: the time to expand it, and to find out on a resume that all of it is measured."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, of_samples
from mlsd.measure.messages import trial_of
from mlsd.planning.job import ModelFile
from mlsd.planning.plan import Plan, expand
from mlsd.planning.suite import DrafterChoice, Part, Profile, Suite
from mlsd.records import Environment, ModelRef, Status
from mlsd.store.store import Store

N_PROMPTS, N_GAMMAS, N_DRAFTS, REPEATS = 1250, 20, 4, 5
PROFILE = Profile(name="large", title="", roles={"target": "t"} | {f"draft-{i}": f"d{i}" for i in range(N_DRAFTS)})
MODELS = {
    name: ModelFile(ref=ModelRef(id=name, sha256=f"{i:064x}", n_bytes=10**9))
    for i, name in enumerate(PROFILE.roles.values())
}
HERE = Environment(host="here", os="Linux", machine="x86_64")


def run() -> Iterator[Result]:
    expansions = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        plan = expand([_suite()], PROFILE, MODELS)
        expansions.append(time.perf_counter() - started)
    n_cases = len(plan.cases())
    yield Result("cases planned", n_cases, n_cases, n_cases, "count")
    yield of_samples("expand 100,000 cases", expansions, "s", at_most=5)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finished.sqlite"
        _finish(path, plan)
        yield of_samples(
            "open and resume 100,000 finished trials", [_resume(path, plan) for _ in range(5)], "s", at_most=2
        )


def _suite() -> Suite:
    part = Part(
        targets=("target",),
        drafters=tuple(DrafterChoice(draft=f"draft-{i}") for i in range(N_DRAFTS)),
        gammas=tuple(range(1, N_GAMMAS + 1)),
        prompts=tuple(f"length-{i}" for i in range(1, N_PROMPTS + 1)),
    )
    return Suite(name="X", title="", repeats=1, parts=(part,))


def _finish(path: Path, plan: Plan) -> None:
    with Store.open(path) as store:
        run_id = store.begin_run(HERE, {}, 0)
        store.add_cases(run_id, plan.cases().values())
        measured = {"status": Status.VALID, "tokens": (1, 2, 3), "decode_ns": 1_000_000}
        for block in (block for load in plan.loads for block in load.blocks):
            store.add(run_id, [trial_of(slot, **measured) for slot in block.slots])


def _resume(path: Path, plan: Plan) -> float:
    """Seconds from opening the database to knowing that nothing is left to do."""
    started = time.perf_counter()
    with Store.open(path) as store:
        done = store.blocks(HERE)
        left = [block for load in plan.loads for block in load.blocks if not done[block.key].whole]
    assert not left
    return time.perf_counter() - started
