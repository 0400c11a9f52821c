"""Predictors of acceptance without drafting: perplexity ratio and total variation (arXiv 2605.01106)."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from mlsd.drafters import drafting_file, drafting_key
from mlsd.measure.messages import DistanceJob
from mlsd.measure.process import call
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt, prompt_names
from mlsd.records import Case, DrafterSpec, EngineOptions, ModelRef, Record
from mlsd.store.rows import DraftDistance

_N_TOKENS = 1_024  # read of the text


class Drafting(Record, frozen=True, kw_only=True):
    """A target and a model that drafts for it."""

    target: ModelFile
    draft: ModelFile
    key: str  # `drafting_key` of the specs that draft with it


def shipped_text() -> str:
    """The text that distances are measured on unless another is given."""
    return "\n\n".join(load_prompt(name).text for name in prompt_names())


def find_drafting(spec: DrafterSpec, target: ModelFile, draft: ModelFile | None) -> Drafting | None:
    """The model that drafts for `target` by the method `spec`, cut out of it now if need be; None where none does.

    Raises: UnsupportedError for an unknown method, InputError and ModelFileError for a cut that cannot be.
    """
    key = drafting_key(spec)
    if key is None:
        return None
    if draft is None:
        path = drafting_file(spec, Path(target.path))
        label = ":".join(filter(None, (spec.name, ",".join(f"{k}={v}" for k, v in spec.options.items()))))
        draft = None if path is None else ModelFile(ref=ModelRef(id=label), path=str(path))
    return None if draft is None else Drafting(target=target, draft=draft, key=key)


def study_draftings(cases: Iterable[Case], paths: Mapping[str, Path]) -> list[Drafting]:
    """Every target with every model that drafts for it in some cases, each pair once; `paths` by model id."""
    found: dict[tuple[str, str], Drafting] = {}
    for case in cases:
        key = drafting_key(case.drafter)
        if key is None or (case.target.id, key) in found:
            continue
        target, second = ModelFile(ref=case.target, path=str(paths[case.target.id])), case.drafter.draft
        draft = None if second is None else ModelFile(ref=second, path=str(paths[second.id]))
        drafting = find_drafting(case.drafter, target, draft)
        if drafting is not None:
            found[case.target.id, key] = drafting
    return list(found.values())


def read_distance(job: DistanceJob) -> DraftDistance:
    """Both models over the text, in a worker."""
    return call("perplexity:measure_distance", job, DraftDistance, doing="reading the text")


def measure_distances(
    draftings: Iterable[Drafting], engine: EngineOptions, keep: Callable[[Drafting, DraftDistance], None]
) -> None:
    """Compare each drafting model with its target on the shipped text, one worker a pair; `keep` gets each at once."""
    text, engine = shipped_text(), msgspec.structs.replace(engine, n_ctx=None)  # distances of equal windows compare
    for drafting in draftings:
        job = DistanceJob(
            target=drafting.target,
            draft=drafting.draft,
            drafting_key=drafting.key,
            engine=engine,
            text=text,
            n_tokens=_N_TOKENS,
        )
        keep(drafting, read_distance(job))
