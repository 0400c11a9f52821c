"""Decoding again what a record says was decoded: plain outputs made here, compared token for token.

An output that differs is fed to the model, and each of its tokens must be a tie there.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from mlsd.engine.losslessness import first_difference, of_recorded
from mlsd.errors import MlsdError
from mlsd.measure.bench import Bench
from mlsd.measure.parent.blocks import machine_lock
from mlsd.measure.process import call
from mlsd.measure.worker.build_check import read_logits
from mlsd.models.library import Library, resolve_model
from mlsd.planning.job import Job, ModelFile, Slot, prompt_key
from mlsd.planning.prompts import load_prompt, shipped_prompt_sha256
from mlsd.records import Case, DrafterSpec, Losslessness, Status, Trial
from mlsd.stats import grouped
from mlsd.trials.results import Measured


@dataclass
class DecodedAgain:
    """What was decoded again, and what was found."""

    n_checked: int = 0
    n_ties: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)  # number of the trial, and what cannot be of it
    not_checked: Counter[str] = field(default_factory=Counter)


def decode_again(
    trials: Iterable[Measured], *, sample: int | None = None, models: Iterable[Path] = (), seed: int = 0
) -> DecodedAgain:
    """Decode plainly what the sampled trials decoded (None: all), one load a target, and compare token for token.

    `models` are files beside those of the library. Raises: LockError where another run measures.
    """
    done, able = DecodedAgain(), list[Measured]()
    files = {ref.sha256: ModelFile(ref=ref, path=str(path)) for path in models if (ref := resolve_model(str(path)).ref)}
    for measured in trials:
        if (reason := _why_not(measured.case, measured.trial, files)) is not None:
            done.not_checked[reason] += 1
        else:
            able.append(measured)
    if sample is not None and sample < len(able):
        done.not_checked["not in the sample"] += len(able) - sample
        able = random.Random(seed).sample(able, sample)
    with machine_lock() if able else nullcontext():
        for load in grouped(able, lambda m: (m.case.target, m.case.engine)).values():
            outputs = grouped(load, lambda m: (prompt_key(m.case.prompt), m.case.n_predict, m.case.ignore_eog))
            _decode(list(outputs.values()), files, done)
    return done


def _why_not(case: Case, trial: Trial, files: dict[str | None, ModelFile]) -> str | None:
    """Why an output cannot be decoded here; its target, where the library has the same file, is added to `files`."""
    if trial.status is Status.FAILED:
        return "the trial failed"
    if not case.sampling.greedy:
        return "its tokens were drawn, not chosen"
    if trial.losslessness is None or trial.losslessness.verdict in ("diverged", "not_judged"):
        return "its output is not known to equal that of plain decoding"
    if trial.earlier or shipped_prompt_sha256(case.prompt.key) is None:
        return "its prompt is not one that mlsd ships"
    if case.target.sha256 not in files:
        with suppress(MlsdError):
            model = Library().resolve(case.target.id)
            files[model.ref.sha256] = ModelFile(ref=model.ref, path=str(model.path))
    return None if case.target.sha256 in files else f"the model {case.target.id} is not here"


def _decode(groups: Sequence[Sequence[Measured]], files: dict[str | None, ModelFile], done: DecodedAgain) -> None:
    """Decode plainly what each group of trials of one load decoded, and compare."""
    plain = [replace(group[0].case, drafter=DrafterSpec(), gamma=0, rollback="auto") for group in groups]
    target = files[plain[0].target.sha256]
    slots = tuple(Slot(case=c, case_id=c.id, block=i, repeat=0, position=0) for i, c in enumerate(plain))
    prompts = {prompt_key(case.prompt): load_prompt(case.prompt.key) for case in plain}
    job = Job(target=target, prompts=prompts, slots=slots)
    references, ended = list[Trial](), "the worker ended"
    try:
        with Bench(job) as bench:
            references += (bench.measure(block).trials[0] for block in job.blocks)
    except MlsdError as error:
        ended = error.message
    for index, group in enumerate(groups):
        reference = references[index] if index < len(references) else None
        if reference is None or reference.status is Status.FAILED:
            why = ended if reference is None else reference.reason
            done.not_checked[f"{target.ref.id} does not decode here: {why}"] += len(group)
        else:
            _compare(group, reference, replace(job, slots=(slots[index],)), done)


def _compare(group: Sequence[Measured], reference: Trial, job: Job, done: DecodedAgain) -> None:
    """Every output token for token with the plain one made here; of another one each token must be a tie here."""

    @cache
    def fed(tokens: tuple[int, ...], width: int) -> Losslessness:
        """An output fed to the model token by token and in passes as wide as the run's. Raises: MlsdError."""
        alone = call(partial(read_logits, job, tokens), doing="reading logits")
        wide = call(partial(read_logits, job, tokens, alone.ids, max(2, width)), doing="reading logits")
        logits = (np.asarray(read.logits, dtype=np.float32) for read in (alone, wide))
        return of_recorded(tokens, reference.tokens, *logits)

    for measured in group:
        trial = measured.trial
        index = first_difference(trial.tokens, reference.tokens)
        if index is not None:
            try:
                verdict = fed(trial.tokens, max((r.rows for r in trial.rounds), default=1))
            except MlsdError as error:
                done.not_checked[f"its output cannot be fed to the model here: {error.message}"] += 1
                continue
            if verdict.verdict == "near_tie":
                done.n_ties += 1
            else:
                recorded, here = (t.tokens[index] if index < len(t.tokens) else None for t in (trial, reference))
                sentence = (
                    f"token {index} of its output is {recorded}, decoded here it is {here}; fed to the model, "
                    f"{verdict.n_different} of its {verdict.n_compared} tokens are not the model's choice, by up to "
                    f"{verdict.worst_gap:.3g} logits, and rounding explains {verdict.tolerance:.3g}"
                )
                done.problems.append((measured.id, sentence))
        done.n_checked += 1
