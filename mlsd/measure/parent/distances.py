"""Predictors of acceptance without drafting: perplexity ratio and total variation (arXiv 2605.01106)."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from mlsd.drafters import drafting_file, drafting_key
from mlsd.measure.messages import DistanceJob
from mlsd.measure.process import call
from mlsd.measure.worker.perplexity import measure_distance
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt, prompt_names
from mlsd.records import Case, DrafterSpec, EngineOptions, ModelRef
from mlsd.store.rows import DraftDistance

_N_TOKENS = 1_024  # read of the text beside a study


def shipped_text() -> str:
    """The text that distances are measured on unless another is given."""
    return "\n\n".join(load_prompt(name).text for name in prompt_names())


def distance_job(
    spec: DrafterSpec,
    target: ModelFile,
    draft: ModelFile | None,
    engine: EngineOptions,
    text: str,
    n_tokens: int | None = None,
) -> DistanceJob | None:
    """A target and the model that drafts for it by a method, cut out of it now if need be; None where none does.

    Raises: UnsupportedError for an unknown method, InputError and ModelFileError for a cut that cannot be.
    """
    key = drafting_key(spec)
    if key is not None and draft is None and (path := drafting_file(spec, Path(target.path))) is not None:
        label = ":".join(filter(None, (spec.name, ",".join(f"{k}={v}" for k, v in spec.options.items()))))
        draft = ModelFile(ref=ModelRef(id=label), path=str(path))
    if key is None or draft is None:
        return None
    return DistanceJob(target=target, draft=draft, drafting_key=key, engine=engine, text=text, n_tokens=n_tokens)


def read_distance(job: DistanceJob) -> DraftDistance:
    """Both models over the text, in a worker."""
    return call(partial(measure_distance, job), doing="reading the text")


def study_distances(
    cases: Iterable[Case], files: Mapping[str, ModelFile], engine: EngineOptions
) -> Iterator[tuple[DistanceJob, DraftDistance]]:
    """Every target with every model that drafts for it in some cases, each pair once, on the shipped text.

    `files` by model id; one worker a pair. Raises: what `distance_job` raises, before the first pair is read.
    """
    text, engine = shipped_text(), msgspec.structs.replace(engine, n_ctx=None)  # distances of equal windows compare
    pairs, jobs = dict[tuple[str, str | None], Case](), list[DistanceJob | None]()
    for case in cases:
        pairs.setdefault((case.target.id, drafting_key(case.drafter)), case)
    for case in pairs.values():
        draft = None if case.drafter.draft is None else files[case.drafter.draft.id]
        jobs.append(distance_job(case.drafter, files[case.target.id], draft, engine, text, _N_TOKENS))
    for job in jobs:
        if job is not None:
            yield job, read_distance(job)
