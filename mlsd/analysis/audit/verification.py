"""Checking a record of somebody else's study: its identities, the audit of every row, and its outputs decoded again.

What can be known without the models is asked of everything; what needs them of the models that are here. It says what
it checked and what it could not.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.identities import Problem, problems, shipped_prompt_sha256
from mlsd.analysis.audit.trials import database_contexts
from mlsd.analysis.results import comparability
from mlsd.engine.losslessness import first_difference, of_recorded
from mlsd.errors import AnalysisError, MlsdError
from mlsd.gguf_tools.read import model_facts
from mlsd.measure.exchange.record import RecordFile, StudyRecord, import_record, read_record, whole_trials
from mlsd.measure.messages import Done, ReadJob
from mlsd.measure.process import run_job, run_read
from mlsd.measure.run.runner import machine_lock
from mlsd.measure.store.study import Store
from mlsd.models.library import Library, resolve_model
from mlsd.planning.job import Job, ModelFile, Slot, prompt_key, prompt_text
from mlsd.planning.prompts import load_prompt
from mlsd.records import Case, DrafterSpec, Losslessness, Record, Trial
from mlsd.stats import grouped


class Verification(Record, frozen=True, kw_only=True):
    """What was asked of a record, and what was found."""

    source: str
    n_bytes: int
    n_trials: int
    n_superseded: int
    machines: tuple[str, ...]  # chip and backend of each
    problems: tuple[Problem, ...]
    rows: dict[str, int]  # verdict of the audit -> how many rows
    n_decoded: int  # trials whose output was compared with plain decoding, made here
    n_ties: int  # of these differ, each time within the noise of the model's logits as measured here
    not_checked: dict[str, int]  # why not -> trials whose output was not decoded again

    @property
    def sound(self) -> bool:
        """Whether nothing speaks against the record."""
        return not self.problems


def verify(path: Path, *, sample: int | None = None, models: Iterable[Path] = (), seed: int = 0) -> Verification:
    """Check a record. `sample` outputs are decoded again, None for all; `models` are files beside those of the library.

    Raises: TableError for a file that is no record, LockError where another run measures.
    """
    file = read_record(path)
    study = file.study
    found, rows = problems(file), Counter[str]()
    decoded = _Decoded()
    if not found:  # of a record that contradicts itself nothing else needs to be asked
        rows, impossible = _audit(file)
        found += impossible
        decoded = _decode_again(study, sample, models, seed)
        found += [*_of_facts(study), *decoded.problems]
    cards = {run.environment_key: run.environment for run in study.runs}
    return Verification(
        source=str(path),
        n_bytes=file.n_bytes,
        n_trials=len(study.trials),
        n_superseded=study.n_superseded,
        machines=tuple(
            f"{card.chip or card.machine}, {card.backend or 'backend not known'}" for card in cards.values()
        ),
        problems=tuple(found),
        rows=dict(rows),
        n_decoded=decoded.n_checked,
        n_ties=decoded.n_ties,
        not_checked=dict(decoded.not_checked),
    )


def _audit(file: RecordFile) -> tuple[Counter[str], list[Problem]]:
    """The audit of the rows of every machine, each among its own."""
    counts, found = Counter[str](), []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "record.sqlite") as store:
        import_record(store, file)
        for key in comparability.machines(store):
            try:
                result = audit(key, *database_contexts(store, key))
            except AnalysisError:  # nothing but failed trials
                continue
            counts.update(row.verdict for row in result.rows)
            for row in result.rows:
                for finding in row.findings:
                    if finding.verdict == "impossible":
                        where = f"{row.identity['table']}, {row.identity['label']}"
                        found.append(Problem(where=where, rule=finding.rule, sentence=finding.sentence))
    return counts, found


def _of_facts(study: StudyRecord) -> Iterator[Problem]:
    """What the record says of models that are here, against their files."""
    library = Library()
    for said in study.models.values():
        try:
            model = library.resolve(said.ref.id)
            if model.ref.sha256 != said.ref.sha256:
                continue
            read = model_facts(model.path, ref=said.ref)
        except MlsdError:
            continue
        for name in said.__struct_fields__:
            own, there = getattr(said, name), getattr(read, name)
            if own is not None and own != there:
                sentence = f"its {name} is {own}, the file's {there}"
                yield Problem(where=f"model {said.ref.id}", rule="model facts", sentence=sentence)


# --- decoding again ---------------------------------------------------------------------------------------------


@dataclass
class _Decoded:
    n_checked: int = 0
    n_ties: int = 0
    problems: list[Problem] = field(default_factory=list)
    not_checked: Counter[str] = field(default_factory=Counter)


_Numbered = tuple[int, Case, Trial]  # place in the record


def _decode_again(study: StudyRecord, sample: int | None, models: Iterable[Path], seed: int) -> _Decoded:
    """Decode plainly what the sampled trials decoded, one load a target, and compare token for token."""
    done = _Decoded()
    named = {ref.sha256: ModelFile(ref=ref, path=str(path)) for path in models if (ref := resolve_model(str(path)).ref)}
    able: list[_Numbered] = []
    for place, trial in enumerate(whole_trials(study)):
        case = study.cases[trial.case_id]
        reason = _why_not(case, trial)
        if reason is None and case.target.sha256 not in named and (here := _find(case)) is not None:
            named[here.ref.sha256] = here
        if reason is None and case.target.sha256 not in named:
            reason = f"the model {case.target.id} is not here"
        if reason is not None:
            done.not_checked[reason] += 1
            continue
        able.append((place, case, trial))
    if sample is not None and sample < len(able):
        done.not_checked["not in the sample"] += len(able) - sample
        able = random.Random(seed).sample(able, sample)
    with machine_lock() if able else nullcontext():
        for load in grouped(able, lambda one: (one[1].target, msgspec.json.encode(one[1].engine))).values():
            _check_load(load, named[load[0][1].target.sha256], done)
    return done


def _why_not(case: Case, trial: Trial) -> str | None:
    if trial.status == "failed":
        return "the trial failed"
    if not case.sampling.greedy:
        return "its tokens were drawn, not chosen"
    if trial.losslessness is None or trial.losslessness.verdict == "diverged":
        return "its output is not said to be that of plain decoding"
    if trial.earlier or shipped_prompt_sha256(case.prompt.key) is None:
        return "its prompt is not one that mlsd ships"
    return None


def _find(case: Case) -> ModelFile | None:
    """The target in the library, if the file there is the same one."""
    try:
        model = Library().resolve(case.target.id)
    except MlsdError:
        return None
    return ModelFile(ref=model.ref, path=str(model.path)) if model.ref.sha256 == case.target.sha256 else None


def _check_load(asked: Sequence[_Numbered], target: ModelFile, done: _Decoded) -> None:
    groups = grouped(asked, lambda one: (prompt_key(one[1].prompt), one[1].n_predict, one[1].ignore_eog))
    usual = {"drafter": DrafterSpec(), "gamma": 0, "rollback": "auto"}
    plain = [msgspec.structs.replace(group[0][1], **usual) for group in groups.values()]
    slots = [Slot(case=c, case_id=c.id, block=i, repeat=0, position=0) for i, c in enumerate(plain)]
    job = Job(
        target=target,
        prompts={prompt_key(case.prompt): prompt_text(case.prompt, load_prompt) for case in plain},
        slots=tuple(slots),
        keep_text=False,
    )
    made: dict[int, Trial] = {}
    ended = "the worker ended"
    try:
        for event in run_job(job):
            if isinstance(event, Done):
                made[event.index] = event.trial
    except MlsdError as error:
        ended = error.message
    for index, group in enumerate(groups.values()):
        trial = made.get(index)
        if trial is None or trial.status == "failed":
            done.not_checked[f"{target.ref.id} does not decode here: {trial.error if trial else ended}"] += len(group)
        else:
            _compare(group, trial, msgspec.structs.replace(job, slots=(slots[index],)), done)


def _compare(group: Sequence[_Numbered], made: Trial, job: Job, done: _Decoded) -> None:
    """Every output token for token with the plain one made here; of another one each token must be a tie here."""
    judged: dict[object, Losslessness] = {}
    for place, _, trial in group:
        done.n_checked += 1
        index = first_difference(trial.tokens, made.tokens)
        if index is None:
            continue
        key = (trial.tokens, max((one.rows for one in trial.rounds), default=1))
        try:
            if key not in judged:
                judged[key] = _teacher_forced(job, made.tokens, *key)
        except MlsdError as error:
            done.n_checked -= 1
            done.not_checked[f"its output cannot be fed to the model here: {error.message}"] += 1
            continue
        found = judged[key]
        if found.verdict == "near_tie":
            done.n_ties += 1
            continue
        own, other = (t.tokens[index] if index < len(t.tokens) else None for t in (trial, made))
        sentence = (
            f"token {index} of its output is {own}, decoded here it is {other}; fed to the model, {found.n_different} "
            f"of its {found.n_compared} tokens are not the model's choice, by up to {found.worst_gap:.3g} logits, and "
            f"rounding explains {found.tolerance:.3g}"
        )
        done.problems.append(Problem(where=f"trial {place}", rule="decoded again", sentence=sentence))


def _teacher_forced(job: Job, reference: Sequence[int], tokens: tuple[int, ...], width: int) -> Losslessness:
    """The tokens of an output fed to the model one by one, and in passes as wide as the run's: gaps, and their noise.

    Raises: MlsdError.
    """
    alone = run_read(ReadJob(job=job, tokens=tokens), None)
    wide = run_read(ReadJob(job=job, tokens=tokens, ids=alone.ids, width=max(2, width)), None)
    rows = [np.asarray(read.logits, dtype=np.float32) for read in (alone, wide)]
    return of_recorded(tokens, reference, *rows)
