"""Checking a record of somebody else's study: its identities, and the audit of every row.

Every identity between its counts, times, outputs and hashes must hold. What holds within one value, and between a
trial's rounds and their sums, is checked where any database is read (`store`). Its outputs are decoded again by whoever
has it checked: nothing here measures.
"""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from mlsd.analysis.results import comparability
from mlsd.audits.check import audit
from mlsd.audits.trials import database_context
from mlsd.engine.losslessness import first_difference
from mlsd.errors import AnalysisError
from mlsd.formats.decode_again import DecodedAgain
from mlsd.formats.record import RecordFile, n_superseded, opened_record
from mlsd.planning.prompts import shipped_prompt_sha256
from mlsd.records import Case, ModelFacts, Record, Status
from mlsd.stats import grouped
from mlsd.store.rows import Run, environment_key
from mlsd.store.store import Store
from mlsd.trials.identities import broken
from mlsd.trials.results import Measured

_SLACK = datetime.timedelta(seconds=1)
_FOLDERS = re.compile(rb"/(?:Users|home|root|private|var|tmp|mnt|Volumes)/|[A-Z]:\\\\")


class Problem(Record, frozen=True, kw_only=True):
    """One thing that cannot be as the record says."""

    where: str  # "trial 17", "case 0123...", "the file"
    rule: str
    sentence: str


class RecordVerification(Record, frozen=True, kw_only=True):
    """What of a record was checked, and what contradicts it."""

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


def verify(path: Path, decode: Callable[[Iterable[Measured]], DecodedAgain]) -> RecordVerification:
    """Check a record; `decode` decodes its outputs again (`formats.decode_again`).

    Raises: TableError for a file that is no record, and what `decode` raises.
    """
    with opened_record(path) as file:
        contradictions, rows, decoded = problems(file), Counter[str](), DecodedAgain()
        trials = list(file.store.trials())
        if not contradictions:  # of a record that contradicts itself nothing else needs to be checked
            rows, contradictions = _audit(file.store)
            decoded = decode(trials)
            contradictions += [Problem(where=f"trial {i}", rule="decoded again", sentence=text)
                               for i, text in decoded.problems]  # fmt: skip
        cards = {environment_key(run.environment): run.environment for run in file.store.runs()}
        return RecordVerification(
            source=str(path),
            n_bytes=path.stat().st_size,
            n_trials=len(trials),
            n_superseded=n_superseded(file.store),
            machines=tuple(f"{c.chip or c.machine}, {c.backend or 'backend not known'}" for c in cards.values()),
            problems=tuple(contradictions),
            rows=dict(rows),
            n_decoded=decoded.n_checked,
            n_ties=decoded.n_ties,
            not_checked=dict(decoded.not_checked),
        )


def _audit(store: Store) -> tuple[Counter[str], list[Problem]]:
    """The audit of the rows of every machine, each among its own, and what of valid rows is impossible."""
    counts, impossible = Counter[str](), []
    for key in comparability.machines(store):
        try:
            context = database_context(store, key)
        except AnalysisError:  # nothing but failed trials
            continue
        invalid = {r.label for r in context.rows if r.failed_native_calls or r.invalid_reason or r.cannot_be}
        for row in audit(key, context).rows:
            counts[row.verdict] += 1
            label = row.identity["label"]
            impossible += [
                Problem(where=f"{row.identity['table']}, {label}", rule=finding.rule, sentence=finding.sentence)
                for finding in row.findings
                if finding.verdict == "impossible" and label not in invalid
            ]
    return counts, impossible


# --- identities -------------------------------------------------------------------------------------------------

Contradictions = Iterator[tuple[str, str]]  # rule, sentence


def problems(file: RecordFile) -> list[Problem]:
    """Everything in which a record disagrees with itself."""
    store = file.store
    runs, models = {run.id: run for run in store.runs()}, store.models()
    trials = list(store.trials())
    parts: list[tuple[str, Iterable[tuple[str, str]]]] = [
        ("the file", _of_file(file)),
        *((f"model {facts.ref.id}", _of_model(key, facts)) for key, facts in models.items()),
        *((f"case {case_id}", _of_case(case_id, case, models)) for case_id, case in store.cases().items()),
        *((f"trial {m.id}", _of_trial(m, runs[m.run_id], models.get(m.case.target.key))) for m in trials),
        ("the trials", _of_blocks(trials)),
        ("the trials", _of_outputs(trials)),
    ]
    return [Problem(where=where, rule=rule, sentence=text) for where, lines in parts for rule, text in lines]


def _of_file(file: RecordFile) -> Contradictions:
    yield from (("form", sentence) for sentence in (*file.store.check(), *file.store.additions()))
    if folder := _FOLDERS.search(file.data):
        yield "private", f"it names a folder ({folder.group().decode()})"


def _of_model(key: str, facts: ModelFacts) -> Contradictions:
    for part, whole in (
        (facts.active_bytes, facts.weight_bytes), (facts.weight_bytes, facts.ref.n_bytes),
        (facts.n_parameters_active, facts.n_parameters), (facts.n_experts_used, facts.n_experts),
    ):  # fmt: skip
        if part is not None and whole is not None and not 0 <= part <= whole:
            yield "model", f"one part counts {part}, the whole {whole}"
    if facts.ref.key != key:
        yield "model key", "its hash is not the key that it stands under"


def _of_case(case_id: str, case: Case, models: Mapping[str, ModelFacts]) -> Contradictions:
    if case.id != case_id:
        yield "case id", "what it says has another id"
    for ref in filter(None, (case.target, case.drafter.draft)):
        facts = models.get(ref.key)
        if facts is None or (facts.ref.sha256, facts.ref.n_bytes) != (ref.sha256, ref.n_bytes):
            yield "model", f"{ref.id} is not among the models, or is another file there"
    if case.source != "engine":
        yield "server", "it was not measured by mlsd's own loop"
    if shipped_prompt_sha256(case.prompt.key) not in (None, case.prompt.sha256):
        yield "prompt hash", f"the prompt {case.prompt.key} has not the text that mlsd ships under this name"


def _of_trial(measured: Measured, run: Run, target: ModelFacts | None) -> Contradictions:
    trial, case = measured.trial, measured.case
    began, started, ended = (_moment(t) for t in (run.started_at, trial.started_at, run.ended_at or trial.started_at))
    if not began - _SLACK <= started <= ended:
        yield "time", f"it started at {trial.started_at}, when its run did not run"
    n_vocab = None if target is None else target.n_vocab
    yield from broken(case, trial, n_vocab=n_vocab, n_cores=run.environment.logical_cores)
    if trial.status is not Status.FAILED and case.sampling.greedy and trial.valid and trial.losslessness is None:
        yield "verdict", "it is called valid, but was compared with nothing"


def _of_outputs(trials: Sequence[Measured]) -> Contradictions:
    """Greedy trials of one target on one prompt say themselves where they differ from plain decoding."""

    def prompt(measured: Measured) -> tuple[object, ...]:
        case = measured.case
        output = (case.prompt.sha256, case.prompt.n_tokens, case.n_predict, case.ignore_eog, measured.trial.earlier)
        return (measured.environment_key, case.target, output, msgspec.json.encode(case.engine))

    greedy = (m for m in trials if m.trial.status is not Status.FAILED and m.case.sampling.greedy)
    for group in grouped(greedy, prompt).values():
        outputs = [measured.trial for measured in group]
        if len({trial.n_prompt for trial in outputs}) > 1:
            yield "prompt", "one prompt has two lengths on one target"
        plain = {trial.tokens for trial in outputs if trial.arm == "ar"}
        for trial in outputs if plain else ():
            if (verdict := trial.losslessness) is None:
                continue
            if all(first_difference(trial.tokens, reference) != verdict.first_difference for reference in plain):
                where = "nowhere" if verdict.first_difference is None else f"at token {verdict.first_difference}"
                said = f"a trial of case {trial.case_id} says that it differs from plain decoding {where}"
                yield "output", f"{said}: not so"


def _of_blocks(trials: Sequence[Measured]) -> Contradictions:
    """A block is measured once in a run, arm after arm: who moves a trial to another pairs it with another."""
    done = [(m.environment_key, m.trial) for m in trials if m.trial.status is not Status.FAILED]
    if n_twice := len(done) - len({(key, t.case_id, t.block, t.repeat, t.position) for key, t in done}):
        yield "twice", f"{n_twice} trials stand twice"
    for (run, _, block), group in grouped(trials, lambda m: (m.run_id, m.case.suite, m.trial.block)).items():
        in_time = sorted((measured.trial for measured in group), key=lambda trial: trial.started_at)
        positions = [trial.position for trial in in_time]
        if positions != sorted(set(positions)) or len({trial.case_id for trial in in_time}) != len(in_time):
            yield "block", f"run {run}, block {block}: its trials do not follow each other, each of another case"
        if len({trial.repeat for trial in in_time}) > 1:
            yield "block", f"run {run}, block {block} is of two repeats"


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
