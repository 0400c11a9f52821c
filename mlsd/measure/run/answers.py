"""Answers to tasks in the layout of Spec-Bench's answer files, one file an arm, so that its scripts can read them.

Layout: Xia et al. 2024 (arXiv 2401.07851), `model_answer/*.jsonl`: one object a question, `choices` one a repeat with
lists over turns. `new_tokens` counts tokens of the output for plain decoding too. Our own fields stand under "mlsd".
Unlike there, a later turn holds the plain arm's answers in every arm (`conversation`): greedy it is the same, and with
a temperature only so do the arms of a pair see one prompt.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mlsd.errors import InputError
from mlsd.measure.store.rows import TrialFilter
from mlsd.measure.store.store import Store
from mlsd.planning.prompts import task_key
from mlsd.planning.tasks import Task
from mlsd.records import Case, Record, Trial, content_id


class AnswerFile(Record, frozen=True, kw_only=True):
    """One file that was written."""

    path: str
    n_answered: int
    n_missing: int  # tasks that lack a finished trial of some turn, and so are not in the file


def write_answers(
    folder: Path, tasks: Sequence[Task], case_ids: Iterable[str], store: Store, environment_key: str
) -> tuple[AnswerFile, ...]:
    """Write the answers of each arm among the cases, from the trials of one machine and build.

    Raises: InputError when the folder cannot be written.
    """
    cases = store.cases()
    arms: dict[str, dict[str, Case]] = {}  # file name -> prompt key -> case
    for case_id in dict.fromkeys(case_ids):
        case = cases[case_id]
        arms.setdefault(arm_name(case), {})[case.prompt.key] = case
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, by_key in arms.items():
            trials = {key: _trials(store, case, environment_key) for key, case in by_key.items()}
            answers = [answer for task in tasks if (answer := _answer(task, name, by_key, trials)) is not None]
            path = folder / f"{name}.jsonl"
            path.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
            written.append(AnswerFile(path=str(path), n_answered=len(answers), n_missing=len(tasks) - len(answers)))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}.", hint="Give another --answers.") from error
    return tuple(written)


def arm_name(case: Case) -> str:
    """A file name for an arm: target, method, gamma, and a mark of the options where there are any."""
    parts = [case.target.id, case.drafter.name]
    if case.drafter.draft is not None:
        parts.append(case.drafter.draft.id)
    if case.drafter.options:
        parts.append(content_id(case.drafter)[:6])
    if case.gamma:
        parts.append(f"gamma{case.gamma}")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts))


def _trials(store: Store, case: Case, environment_key: str) -> dict[int, Trial]:
    """Finished trials of a case by repeat; of several in one repeat (blocks of other arms) the first."""
    found: dict[int, Trial] = {}
    for stored in store.trials(TrialFilter(case_id=case.id, status="ok")):
        if stored.environment_key == environment_key:
            found.setdefault(stored.trial.repeat, stored.trial)
    return found


def _answer(
    task: Task, model_id: str, cases: Mapping[str, Case], trials: Mapping[str, Mapping[int, Trial]]
) -> dict[str, Any] | None:
    keys = [task_key(task, turn) for turn in range(len(task.turns))]
    if not all(key in cases for key in keys):
        return None
    repeats = sorted(set.intersection(*(set(trials[key]) for key in keys)))
    if not repeats:
        return None
    each = [[trials[key][repeat] for key in keys] for repeat in repeats]
    case = cases[keys[0]]
    return {
        "question_id": task.id,
        "category": task.category,
        "answer_id": f"{model_id}-{task.id}",
        "model_id": model_id,
        "choices": [_choice(index, turns) for index, turns in enumerate(each)],
        "tstamp": datetime.datetime.fromisoformat(each[-1][-1].started_at).timestamp(),
        "mlsd": {
            "target": case.target,
            "drafter": case.drafter,
            "gamma": case.gamma,
            "valid": [[trial.valid for trial in turns] for turns in each],
            "prefill_ns": [[trial.prefill_ns for trial in turns] for turns in each],
            "decode_ns": [[trial.decode_ns for trial in turns] for turns in each],
        },
    }


def _choice(index: int, turns: Sequence[Trial]) -> dict[str, Any]:
    """One repeat. Wall time is the whole call, prefill included, as Spec-Bench times it."""
    return {
        "index": index,
        "turns": [trial.text or "" for trial in turns],
        "decoding_steps": [len(trial.rounds) for trial in turns],
        "new_tokens": [len(trial.tokens) for trial in turns],
        "wall_time": [
            sum(ns or 0 for ns in (trial.prefill_ns, trial.draft_prefill_ns, trial.decode_ns)) / 1e9 for trial in turns
        ],
        "accept_lengths": [r.committed for trial in turns for r in trial.rounds],
    }
