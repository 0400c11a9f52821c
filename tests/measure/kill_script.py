"""A small study in a process of its own, so that a test can kill it: python -m tests.measure.kill_script DIR DB."""

from __future__ import annotations

import sys
from pathlib import Path

from mlsd.hardware import read_environment
from mlsd.measure.messages import Job, ModelFile, PromptText, prompt_key
from mlsd.measure.run.bench import BenchRequest, bench_cases, interleave
from mlsd.measure.run.runner import RunOutcome, RunSettings, machine_lock, run_jobs
from mlsd.measure.store.study import Store
from mlsd.planning.prompts import load_prompt
from mlsd.records import DRAFT_MODEL, DrafterSpec, EngineOptions, ModelRef


def make_jobs(folder: Path, *, n_predict: int = 24, repeats: int = 3) -> tuple[Job, ...]:
    """Two loads: a hybrid pair and an attention-only pair, each with a baseline and two gammas."""
    prompt = load_prompt("factual")
    jobs = []
    for name in ("qwen35", "llama"):
        target, draft = (
            ModelFile(ref=ModelRef(id=stem, sha256=stem.ljust(64, "0")), path=str(folder / f"{stem}.gguf"))
            for stem in (name, f"{name}-noise01")
        )
        request = BenchRequest(
            target=target,
            draft=draft,
            drafter=DrafterSpec(name=DRAFT_MODEL, draft=draft.ref),
            gammas=(2, 4),
            prompt=prompt.ref,
            prompt_text=prompt.text,
            n_predict=n_predict,
            repeats=repeats,
            engine=EngineOptions(n_threads=1),
        )
        jobs.append(
            Job(
                target=target,
                models=(draft,),
                prompts={prompt_key(prompt.ref): PromptText(text=prompt.text)},
                slots=interleave(bench_cases(request), repeats, seed=0),
            )
        )
    return tuple(jobs)


def run_study(folder: Path, database: Path, **settings: object) -> RunOutcome:
    with machine_lock(), Store.open(database) as store:
        return run_jobs(make_jobs(folder), store, read_environment(), (), {}, RunSettings(**settings))  # type: ignore[arg-type]


if __name__ == "__main__":
    run_study(Path(sys.argv[1]), Path(sys.argv[2]))
