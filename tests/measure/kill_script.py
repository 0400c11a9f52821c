"""A small study in a process of its own, so that a test can kill it: python -m tests.measure.kill_script DIR DB."""

import sys
from pathlib import Path

from mlsd.gguf_tools.read import model_facts
from mlsd.hardware import read_environment
from mlsd.measure.bench import Bench
from mlsd.measure.parent.blocks import Experiment, RunOutcome, machine_lock, run_experiment
from mlsd.planning.job import Job
from mlsd.planning.plan import plan_bench
from mlsd.store.store import Store
from tests.measure.examples import quick_bench


def make_jobs(folder: Path, *, n_predict: int = 24, repeats: int = 3) -> tuple[Job, ...]:
    """Two loads: a hybrid pair and an attention-only pair, each with a baseline and two gammas."""
    jobs: list[Job] = []
    for name in ("qwen35", "llama"):
        models = folder / f"{name}.gguf", folder / f"{name}-noise01.gguf"
        request = quick_bench(*models, gammas=(2, 4), prompts=("factual",), n_predict=n_predict, repeats=repeats)
        jobs += plan_bench(request).loads
    return tuple(jobs)


def run_study(folder: Path, database: Path, **settings: object) -> RunOutcome:
    jobs = make_jobs(folder)
    facts = tuple(model_facts(Path(model.path), ref=model.ref) for job in jobs for model in (job.target, *job.models))
    with machine_lock(), Store.open(database) as store:
        plan = Experiment(loads=jobs, environment=read_environment(), facts=facts, **settings)  # type: ignore[arg-type]
        return run_experiment(plan, Bench, store)


if __name__ == "__main__":
    run_study(Path(sys.argv[1]), Path(sys.argv[2]))
