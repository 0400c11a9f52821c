"""Checking a record of somebody else's study: its identities, and the audit of every row.

Every identity between its counts, times, outputs and hashes must hold. What holds within one value, and between a
trial's rounds and their sums, is checked where any database is read (`store`). Its outputs are decoded again by whoever
has it checked: nothing here measures.
"""

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from mlsd.records import Case, Environment, ModelFacts, Record, Status
from mlsd.stats import grouped
from mlsd.store.rows import Coverage, Run, environment_key
from mlsd.store.store import Store
from mlsd.trials.identities import broken
from mlsd.trials.results import Measured

_SLACK = datetime.timedelta(seconds=1)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDERS = re.compile(rb"/(?:Users|home|root|private|var|tmp|mnt|Volumes)/|[A-Z]:\\\\")


class Problem(Record, frozen=True, kw_only=True):
    """One thing that cannot be as the record says."""

    where: str  # "trial 17", "case 0123...", "the file"
    rule: str
    sentence: str


class RecordVerification(Record, frozen=True, kw_only=True):
    """What of a record was checked, and what was found."""

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
        store, found, rows = file.store, problems(file), Counter[str]()
        decoded = DecodedAgain()
        trials = list(store.trials())
        if not found:  # of a record that contradicts itself nothing else needs to be checked
            rows, impossible = _audit(store)
            found += impossible
            decoded = decode(trials)
            found += [Problem(where=f"trial {i}", rule="decoded again", sentence=text) for i, text in decoded.problems]
        cards = {environment_key(run.environment): run.environment for run in store.runs()}
        n_again = n_superseded(store)
    return RecordVerification(
        source=str(path),
        n_bytes=file.n_bytes,
        n_trials=len(trials),
        n_superseded=n_again,
        machines=tuple(f"{one.chip or one.machine}, {one.backend or 'backend not known'}" for one in cards.values()),
        problems=tuple(found),
        rows=dict(rows),
        n_decoded=decoded.n_checked,
        n_ties=decoded.n_ties,
        not_checked=dict(decoded.not_checked),
    )


def _audit(store: Store) -> tuple[Counter[str], list[Problem]]:
    """The audit of the rows of every machine, each among its own."""
    counts, found = Counter[str](), []
    for key in comparability.machines(store):
        try:
            context = database_context(store, key)
        except AnalysisError:  # nothing but failed trials
            continue
        valid = {
            row.label for row in context.rows if not (row.failed_native_calls or row.invalid_reason or row.cannot_be)
        }
        for row in audit(key, context).rows:
            counts[row.verdict] += 1
            where = f"{row.identity['table']}, {row.identity['label']}"
            found += [
                Problem(where=where, rule=finding.rule, sentence=finding.sentence)
                for finding in row.findings
                if finding.verdict == "impossible" and row.identity["label"] in valid
            ]
    return counts, found


# --- identities -------------------------------------------------------------------------------------------------

Found = Iterator[tuple[str, str]]  # rule, sentence


def problems(file: RecordFile) -> list[Problem]:
    """Everything in which a record disagrees with itself."""
    return [
        Problem(where=where, rule=rule, sentence=sentence)
        for where, found in _parts(file.store, file.data)
        for rule, sentence in found
    ]


def _parts(store: Store, data: bytes) -> Iterator[tuple[str, Iterable[tuple[str, str]]]]:
    """Every part of a record, and what cannot be of it."""
    yield "the file", [("form", sentence) for sentence in (*store.check(), *store.additions())]
    if place := _FOLDERS.search(data):
        yield "the file", [("private", f"it names a folder ({place.group().decode()})")]
    runs, models, cases = {run.id: run for run in store.runs()}, store.models(), store.cases()
    trials = list(store.trials())
    for run in runs.values():
        yield f"run {run.id}", _of_run(run.environment, run.started_at, run.ended_at)
    for key, facts in models.items():
        yield f"model {facts.ref.id}", _of_model(key, facts, cases.values())
    for case_id, case in cases.items():
        yield f"case {case_id}", _of_case(case_id, case, models)
    for one in trials:
        yield f"trial {one.id}", _of_trial(one, runs[one.run_id], models.get(one.case.target.key))
    yield "the trials", _of_blocks(trials)
    yield "the trials", _of_outputs(trials)
    if not all(_covers(coverage, models.get(coverage.model_key)) for _, coverage in store.figures(Coverage)):
        yield "the machine's figures", [("coverage", "experts were chosen that cannot be")]


def _of_run(environment: Environment, started_at: str, ended_at: str | None) -> Found:
    if ended_at is not None and _moment(ended_at) < _moment(started_at):
        yield "time", "it ended before it began"
    cores = environment.logical_cores
    if cores is not None and (environment.performance_cores or 0) + (environment.efficiency_cores or 0) > cores:
        yield "environment", f"its performance and efficiency cores are more than its {cores} cores"


def _of_model(key: str, facts: ModelFacts, cases: Iterable[Case]) -> Found:
    ref = facts.ref
    names = {one.id for case in cases for one in (case.target, case.drafter.draft) if one and one.key == key}
    if names and ref.id not in names:
        yield "model", f"its cases call it {', '.join(sorted(names))}"
    for part, whole in (
        (facts.active_bytes, facts.weight_bytes), (facts.weight_bytes, ref.n_bytes),
        (facts.n_parameters_active, facts.n_parameters), (facts.n_experts_used, facts.n_experts),
    ):  # fmt: skip
        if part is not None and whole is not None and not 0 <= part <= whole:
            yield "model", f"one part counts {part}, the whole {whole}"
    if ref.key != key:
        yield "model key", "its hash is not the key that it stands under"
    if ref.sha256 is not None and not _SHA256.fullmatch(ref.sha256):
        yield "model hash", "its hash is no SHA-256"


def _of_case(case_id: str, case: Case, models: Mapping[str, ModelFacts]) -> Found:
    if case.id != case_id:
        yield "case id", "what it says has another id"
    for ref in (case.target, case.drafter.draft):
        facts = None if ref is None else models.get(ref.key)
        if ref and (facts is None or (facts.ref.sha256, facts.ref.n_bytes) != (ref.sha256, ref.n_bytes)):
            yield "model", f"{ref.id} is not among the models, or is another file there"
    if case.source != "engine":
        yield "server", "it was not measured by mlsd's own loop"
    if not _SHA256.fullmatch(case.prompt.sha256):
        yield "prompt hash", f"the hash of the prompt {case.prompt.key} is no SHA-256"
    if shipped_prompt_sha256(case.prompt.key) not in (None, case.prompt.sha256):
        yield "prompt hash", f"the prompt {case.prompt.key} has not the text that mlsd ships under this name"


def _of_trial(one: Measured, run: Run, target: ModelFacts | None) -> Found:
    trial, case = one.trial, one.case
    began, ended = _moment(run.started_at), _moment(run.ended_at or trial.started_at)
    if not began - _SLACK <= _moment(trial.started_at) <= ended:
        yield "time", f"it started at {trial.started_at}, when its run did not run"
    n_vocab = None if target is None else target.n_vocab
    yield from broken(case, trial, n_vocab=n_vocab, n_cores=run.environment.logical_cores)
    if trial.status is Status.FAILED:
        return
    if case.sampling.greedy and trial.valid and trial.losslessness is None:
        yield "verdict", "it is called valid, but was compared with nothing"


def _covers(coverage: Coverage, facts: ModelFacts | None) -> bool:
    """At most every expert, at most k times as many as one token chooses; at least as many as one token does."""
    if facts is None or facts.n_experts is None or facts.n_experts_used is None:
        return True
    most = min(facts.n_experts, coverage.window * facts.n_experts_used)
    return facts.n_experts_used <= min(coverage.distinct) and max(coverage.distinct) <= most


def _of_outputs(trials: Iterable[Measured]) -> Found:
    """Greedy trials of one target on one prompt say themselves where they differ from plain decoding."""

    def prompt(one: Measured) -> tuple[object, ...]:
        case = one.case
        output = (case.prompt.sha256, case.prompt.n_tokens, case.n_predict, case.ignore_eog, one.trial.earlier)
        return (one.environment_key, case.target, output, msgspec.json.encode(case.engine))

    done = [one for one in trials if one.trial.status is not Status.FAILED]
    places = {(o.environment_key, t.case_id, t.block, t.repeat, t.position) for o in done if (t := o.trial)}
    if n_twice := len(done) - len(places):
        yield "twice", f"{n_twice} trials stand twice"
    greedy = (one for one in done if one.case.sampling.greedy)
    for own in grouped(greedy, prompt).values():
        group = [one.trial for one in own]
        if len({trial.n_prompt for trial in group}) > 1:
            yield "prompt", "one prompt has two lengths on one target"
        plain = {trial.tokens for trial in group if trial.arm == "ar"}
        for trial in group:
            if trial.losslessness is None or not plain:
                continue
            stored = trial.losslessness.first_difference
            if all(first_difference(trial.tokens, reference) != stored for reference in plain):
                where = "nowhere" if stored is None else f"at token {stored}"
                said = f"a trial of case {trial.case_id} says that it differs from plain decoding {where}"
                yield "output", f"{said}: not so"


def _of_blocks(trials: Iterable[Measured]) -> Found:
    """A block is measured once in a run, arm after arm: who moves a trial to another pairs it with another."""
    for (run, _, block), own in grouped(trials, lambda one: (one.run_id, one.case.suite, one.trial.block)).items():
        in_time = sorted((one.trial for one in own), key=lambda trial: trial.started_at)
        places = [trial.position for trial in in_time]
        if places != sorted(set(places)) or len({trial.case_id for trial in in_time}) != len(in_time):
            yield "block", f"run {run}, block {block}: its trials do not follow each other, each of another case"
        if len({trial.repeat for trial in in_time}) > 1:
            yield "block", f"run {run}, block {block} is of two repeats"


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
