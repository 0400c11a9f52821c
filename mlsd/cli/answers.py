"""How commands say which setting to use: the answer, what to set where it is decided, else what decides it.

One shape of an answer for --json of every command.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlsd.cli.output import note, say
from mlsd.methods import tried_unasked
from mlsd.planning.question import Invocation, NextStep
from mlsd.records import Record, Source
from mlsd.report.tables.arms import head_line
from mlsd.stats import grouped
from mlsd.trials.on_or_off import DECIDED, Answer, Use
from mlsd.trials.stages import MEASURING, PREPARATION, StageTime, stage_line, wall_ns
from mlsd.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from mlsd.models.library import LocalModel
    from mlsd.trials.results import ArmResult

_LEAST_S = 10  # a budget worth giving
_SAFE = 1.5  # times what is expected
_FIRST_BLOCKS = 4  # where one block says nothing of scatter yet


def head_lines(database: str, arms: Sequence[ArmResult]) -> list[str]:
    """What was measured, where and how, a line for each target; `arms` are of one session in the database."""
    from mlsd.store.store import Store

    with Store.open(Path(database), create=False, read_only=True) as store:
        runs, facts = {run.id: run for run in store.runs()}, store.models()
    of_target = grouped(arms, lambda arm: arm.case.target.id).values()
    return [head_line(rows, runs[rows[0].session], facts) for rows in of_target]


def answer_objects(
    answers: Sequence[Answer],
    models: Iterable[LocalModel],
    question: Invocation,
    stages: Iterable[StageTime] = (),
    database: str = "",
) -> list[AnswerObject]:
    """Each answer with its flags, or the command that goes on from it; `models` are those that were measured.

    `stages` say how long preparing and measuring took; `database` may hold what wide passes were
    shown to give.
    """
    named, took = {model.ref.id: model for model in models}, tuple(stages)
    if not database:
        return [answer_object(answer, _flags(answer, named), next_step(answer, question, took)) for answer in answers]
    from mlsd.analysis.results.widths import certificates, of_arm
    from mlsd.store.store import Store

    with Store.open(Path(database), create=False, read_only=True) as store:
        shown = certificates(store)
    return [
        answer_object(answer, _flags(answer, named), next_step(answer, question, took), of_arm(answer.best, shown))
        for answer in answers
    ]


def say_answers(answers: Sequence[AnswerObject], stages: Iterable[StageTime] = ()) -> None:
    """Print each answer, what to set where the answer is on or off, and where the time went."""
    for answer in answers:
        say(f"Answer for {answer.prompt}: {answer.sentence}.")
        if answer.widths:
            say(f"Of {answer.target}, {answer.widths}.")
        if answer.next is not None:
            time = "" if answer.next_s is None else f" (about {format_duration(answer.next_s)})"
            say(f"What decides it{time}: {answer.next}")
        elif answer.use not in DECIDED:
            say("Measuring again would give the same. Mend what is named, or measure another text or setting.")
        for line in answer.flags:
            say(line)
    say_stages(stages)


def say_stages(stages: Iterable[StageTime]) -> None:
    """Print where the time of a session went, if that is known."""
    if (line := stage_line(stages)) is not None:
        note(f"Time of the measuring process: {line}.")


def _flags(answer: Answer, models: Mapping[str, LocalModel]) -> tuple[str, ...]:
    from mlsd.servers.flags import flags_of

    ref = None if answer.best is None else answer.best.case.drafter.draft
    draft = None if ref is None else models.get(ref.id)
    target = models.get(answer.target)
    return flags_of(answer, None if draft is None else str(draft.path), None if target is None else target.path)


def next_step(answer: Answer, question: Invocation, stages: Sequence[StageTime] = ()) -> NextStep | None:
    """What decides all that is open; where nothing can be judged, what tries the look-ups. None: a repeat cannot help.

    The budget holds the preparation, as long as it took before (`stages`), and blocks enough.
    """
    if answer.use in DECIDED:
        return None
    if not (arms := answer.to_repeat):
        first, tried = next(iter(answer.arms), None), {arm.case.drafter.name for arm in answer.arms}
        untried = answer.use == "no usable measurement" and not tried >= set(tried_unasked())
        return NextStep(command=question.others(first)) if untried and first is not None else None
    n_blocks = _FIRST_BLOCKS if answer.more_blocks is None else answer.more_blocks + 1
    prepared_ns, decoded_ns = wall_ns(stages, PREPARATION), wall_ns(stages, (MEASURING,))
    beside = (wall_ns(stages) - prepared_ns) / decoded_ns if decoded_ns else 1.0  # prompts, judging, rests
    seconds = prepared_ns / NS_PER_S + n_blocks * (answer.block_s or 0.0) * beside
    budget = max(_LEAST_S, math.ceil(_SAFE * seconds / 10) * 10)
    command = question.bench(arms, "--until", "decided", "--budget-s", str(budget))
    return NextStep(command=command, seconds=seconds if answer.block_s else None)


# --- as objects of --json -----------------------------------------------------------------------------------------


class AnswerObject(Record, frozen=True, kw_only=True):
    """Which setting to use for one target on one text."""

    target: str
    source: Source
    prompt: str
    n_predict: int
    use: Use
    setting: str | None  # the fastest decided to be faster, else the best tried
    speedup: float | None
    ci_low: float | None
    ci_high: float | None
    sentence: str
    reason: str | None  # why nothing could be judged, where nothing could
    next: str | None  # the command that decides it, where nothing is decided and a repeat can help
    next_s: float | None = None  # about how long it runs
    flags: tuple[str, ...] = ()  # what to set, where it is
    widths: str | None = None  # what `mlsd calibrate` showed of passes as wide as the setting's


def answer_object(
    answer: Answer, flags: tuple[str, ...] = (), step: NextStep | None = None, widths: str = ""
) -> AnswerObject:
    """The answer as it is printed."""
    ratio = answer.ratio
    return AnswerObject(
        **{name: getattr(answer, name) for name in ("target", "source", "n_predict", "use", "sentence")},
        prompt=answer.text,
        setting=None if answer.best is None else answer.best.setting,
        speedup=None if ratio is None else ratio.value,
        ci_low=None if ratio is None else ratio.low,
        ci_high=None if ratio is None else ratio.high,
        reason=answer.reason or None,
        next=None if step is None else step.command,
        next_s=None if step is None else step.seconds,
        flags=flags,
        widths=widths or None,
    )
