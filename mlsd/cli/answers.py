"""How commands say which setting to use: the answer, what to set where it is decided, else what decides it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.cli.output import say
from mlsd.records import DRAFT_MODEL, ModelRef
from mlsd.report.tables.arms import head_line
from mlsd.stats import grouped

if TYPE_CHECKING:
    from mlsd.models.library import LocalModel
    from mlsd.report.objects import AnswerObject
    from mlsd.trials.answers import Answer
    from mlsd.trials.results import ArmResult

_LEAST_S = 10  # a budget worth giving
_FIRST_BLOCKS = 4  # where one block says nothing of scatter yet


def head_lines(database: str, arms: Sequence[ArmResult]) -> list[str]:
    """What was measured, where and how, a line for each target; `arms` are of one session in the database."""
    from mlsd.measure.store.store import Store

    with Store.open(Path(database), create=False, read_only=True) as store:
        runs, facts = {run.id: run for run in store.runs()}, store.models()
    of_target = grouped(arms, lambda arm: arm.case.target.id).values()
    return [head_line(own, runs[own[0].session], facts) for own in of_target]


def answer_objects(found: Sequence[Answer], models: Iterable[LocalModel]) -> list[AnswerObject]:
    """Each answer with its flags; `models` are those that were measured."""
    from mlsd.report.objects import answer_object

    named = {model.ref.id: model for model in models}
    return [answer_object(one, _flags(one, named), _next_step(one, named)) for one in found]


def say_answers(found: Sequence[AnswerObject]) -> None:
    """Print each answer, and what to set where the answer is on or off."""
    for one in found:
        say(f"Answer for {one.prompt}: {one.words}.")
        if one.next is not None:
            say(f"What decides it: {one.next}")
        for line in one.flags:
            say(line)


def _flags(found: Answer, models: Mapping[str, LocalModel]) -> tuple[str, ...]:
    from mlsd.servers.flags import advice

    if found.use == "not decided yet":
        return ()
    case = found.best.case if found.use == "on" and found.best is not None else None
    spec, gamma = (None, 0) if case is None else (case.drafter, case.gamma)
    draft = models.get(spec.draft.id) if spec is not None and spec.draft is not None else None
    return advice(spec, gamma, None if draft is None else str(draft.path), models[found.target].path)


def _next_step(found: Answer, models: Mapping[str, LocalModel]) -> str | None:
    if found.use != "not decided yet" or found.best is None:
        return None
    seconds = found.seconds
    wanted_s = _FIRST_BLOCKS * (found.block_s or 0.0) if seconds is None else seconds
    budget = max(_LEAST_S, math.ceil(wanted_s * 2 / 10) * 10)
    time = "" if seconds is None else f" (about {max(1.0, seconds):.0f} s of decoding)"
    return f"{_bench_command(found.best, models)} --until decided --budget-s {budget}{time}"


def _bench_command(arm: ArmResult, models: Mapping[str, LocalModel]) -> str:
    def called(model: ModelRef) -> str:
        return models[model.id].called if model.id in models else model.id

    spec, words = arm.case.drafter, ["mlsd", "bench", called(arm.case.target)]
    draft = called(spec.draft) if spec.draft else ""
    if spec.name == DRAFT_MODEL and not spec.options:
        words += ["--draft", draft]
    else:
        options = {**({"draft": draft} if draft else {}), **spec.options}
        own = ",".join(f"{name}={value}" for name, value in options.items())
        words += ["--drafter", f"{spec.name}:{own}" if own else spec.name]
    words += ["--gamma", str(arm.case.gamma)]
    for prompt in arm.prompts:
        words += ["--prompt", Path(prompt).name]
    return shlex.join([*words, "--n-predict", str(arm.question.n_predict)])
