"""One target, one prompt, plain and speculative decoding side by side: the job behind ``mlsd bench``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from mlsd.errors import InputError
from mlsd.measure.messages import Done, Event, Job, ModelFile, PromptText, Slot, prompt_key
from mlsd.measure.process import run_job
from mlsd.records import (
    NO_DRAFTER,
    Case,
    DrafterSpec,
    EngineOptions,
    PromptRef,
    Record,
    Sampling,
    Trial,
)


class BenchRequest(Record, frozen=True, kw_only=True):
    """What a user asks of ``mlsd bench``."""

    target: ModelFile
    drafter: DrafterSpec = DrafterSpec()
    draft: ModelFile | None = None
    gammas: tuple[int, ...] = ()
    prompt: PromptRef
    prompt_text: str
    chat: bool = False  # say the prompt in the model's own chat template
    n_predict: int = 256
    repeats: int = 3
    rollback: str = "auto"
    sampling: Sampling = Sampling()
    engine: EngineOptions = EngineOptions()
    ignore_eog: bool = True
    seed: int = 0  # of the order of arms inside a block


def bench_cases(request: BenchRequest) -> tuple[Case, ...]:
    """The AR case first, then one SD case a gamma.

    Raises: InputError for a gamma, a count or a temperature that means nothing.
    """
    for name, value, least in (("n-predict", request.n_predict, 2), ("repeats", request.repeats, 1)):
        if value < least:
            raise InputError(f"--{name} is {value}, but must be at least {least}.")
    if bad := [gamma for gamma in request.gammas if gamma < 1]:
        raise InputError(f"--gamma holds {bad[0]}, but a drafter proposes at least 1 token a round.")
    if request.sampling.temperature < 0:
        raise InputError(f"--temperature is {request.sampling.temperature}, but cannot be negative.")

    def case(drafter: DrafterSpec, gamma: int) -> Case:
        return Case(
            suite="bench",
            target=request.target.ref,
            prompt=request.prompt,
            n_predict=request.n_predict,
            drafter=drafter,
            gamma=gamma,
            rollback=request.rollback if gamma else "auto",
            sampling=request.sampling,
            engine=request.engine,
            ignore_eog=request.ignore_eog,
        )

    cases = [case(DrafterSpec(), 0)]
    if request.drafter.name != NO_DRAFTER:
        cases += [case(request.drafter, gamma) for gamma in request.gammas]
    return tuple(cases)


def interleave(cases: Sequence[Case], repeats: int, seed: int) -> tuple[Slot, ...]:
    """One block a repeat, each with every case, in random order; the first block begins with the baseline.

    The first block's plain output is the reference that all others are compared with.
    """
    rng = random.Random(seed)
    slots = []
    for block in range(repeats):
        order = list(cases)
        rng.shuffle(order)
        if block == 0:
            order.sort(key=lambda case: case.arm != "ar")
        slots += [
            Slot(case=case, case_id=case.id, block=block, repeat=block, position=position)
            for position, case in enumerate(order)
        ]
    return tuple(slots)


def run_bench(request: BenchRequest, on_event: Callable[[Event], None] | None = None) -> list[Trial]:
    """Run the bench in a worker process and return its trials in the order measured.

    Raises: InputError, EngineError and WorkerError as they come; a trial that fails alone is a failed trial.
    """
    text = PromptText(text=request.prompt_text, n_tokens=request.prompt.n_tokens, chat=request.chat)
    job = Job(
        target=request.target,
        models=() if request.draft is None else (request.draft,),
        prompts={prompt_key(request.prompt): text},
        slots=interleave(bench_cases(request), request.repeats, request.seed),
        strict=True,
    )
    trials = []
    for event in run_job(job):
        if on_event is not None:
            on_event(event)
        if isinstance(event, Done):
            trials.append(event.trial)
    return trials
