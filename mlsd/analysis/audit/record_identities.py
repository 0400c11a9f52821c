"""Whether a record agrees with itself: every identity between its counts, times, outputs and hashes.

Each check is a pure function over what the record says, and answers with sentences for what breaks it. What holds
within one value, and between a trial's rounds and their sums, is checked where any database is read (`store`).
"""

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from mlsd.engine.losslessness import first_difference
from mlsd.formats.record import RecordFile
from mlsd.planning.plan import block_number
from mlsd.planning.prompts import READ_ONCE_FROM, shipped_prompt_sha256
from mlsd.records import Case, Environment, ModelFacts, Record, Status, Trial
from mlsd.stats import grouped
from mlsd.store.rows import Coverage, Run
from mlsd.trials.decisions import Stopping
from mlsd.trials.identities import broken
from mlsd.trials.results import Measured

_COUNTED_BLOCKS = 1 << 20  # those of servers are counted from 0, others have the hash of their content as number
_SLACK = datetime.timedelta(seconds=1)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDERS = re.compile(rb"/(?:Users|home|root|private|var|tmp|mnt|Volumes)/|[A-Z]:\\\\")


class Problem(Record, frozen=True, kw_only=True):
    """One thing that cannot be as the record says."""

    where: str  # "trial 17", "case 0123...", "the file"
    rule: str
    sentence: str


Found = Iterator[tuple[str, str]]  # rule, sentence


class _Told(Record, frozen=True):
    """What a record says, read once."""

    runs: dict[int, Run]
    models: dict[str, ModelFacts]
    cases: dict[str, Case]
    trials: tuple[Measured, ...]


def problems(file: RecordFile) -> list[Problem]:
    """Everything in which a record disagrees with itself."""
    return [
        Problem(where=where, rule=rule, sentence=sentence) for where, found in _asked(file) for rule, sentence in found
    ]


def _asked(file: RecordFile) -> Iterator[tuple[str, Found]]:
    """Every part of a record, and what is wrong with it."""
    if wrong := [*file.store.check(), *file.store.additions()]:
        yield "the file", (("form", sentence) for sentence in wrong)
    if place := _FOLDERS.search(file.data):
        yield "the file", iter([("private", f"it names a folder ({place.group().decode()})")])
    store = file.store
    told = _Told({run.id: run for run in store.runs()}, store.models(), store.cases(), tuple(store.trials()))
    for run in told.runs.values():
        yield f"run {run.id}", _of_run(run.environment, run.started_at, run.ended_at)
    for key, facts in told.models.items():
        yield f"model {facts.ref.id}", _of_model(key, facts, told.cases.values())
    for case_id, case in told.cases.items():
        yield f"case {case_id}", _of_case(case_id, case, told.models)
    for one in told.trials:
        yield f"trial {one.id}", _of_trial(one, told)
    yield "the trials", _of_all(told)
    if not all(_covers(coverage, told.models) for _, coverage in store.figures(Coverage)):
        yield "the machine's figures", iter([("coverage", "experts were chosen that cannot be")])


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
        if ref is None:
            continue
        facts = models.get(ref.key)
        if facts is None or (facts.ref.sha256, facts.ref.n_bytes) != (ref.sha256, ref.n_bytes):
            yield "model", f"{ref.id} is not among the models, or is another file there"
    if case.source != "engine":
        yield "server", "it was not measured by mlsd's own loop"
    if not _SHA256.fullmatch(case.prompt.sha256):
        yield "prompt hash", f"the hash of the prompt {case.prompt.key} is no SHA-256"
    shipped = shipped_prompt_sha256(case.prompt.key)
    if shipped is not None and shipped != case.prompt.sha256:
        yield "prompt hash", f"the prompt {case.prompt.key} has not the text that mlsd ships under this name"


# --- one trial --------------------------------------------------------------------------------------------------


def _of_trial(stored: Measured, told: _Told) -> Found:
    trial, case, run = stored.trial, stored.case, told.runs[stored.run_id]
    began, ended = _moment(run.started_at), _moment(run.ended_at or trial.started_at)
    if not began - _SLACK <= _moment(trial.started_at) <= ended:
        yield "time", f"it started at {trial.started_at}, when its run did not run"
    facts = told.models.get(case.target.key)
    n_vocab = None if facts is None else facts.n_vocab
    yield from broken(case, trial, n_vocab=n_vocab, n_cores=run.environment.logical_cores)
    if trial.status is Status.FAILED:
        return
    if trial.prefill_ns is None and (trial.n_prompt or 0) < READ_ONCE_FROM:
        yield "prefill", "it has no prefill time"
    if case.sampling.greedy and trial.valid and trial.losslessness is None:
        yield "verdict", "it is called valid, but was compared with nothing"


# --- all trials -------------------------------------------------------------------------------------------------


def _of_all(told: _Told) -> Found:
    places = Counter[object]()
    groups: dict[object, list[Trial]] = defaultdict(list)
    for stored in told.trials:
        t, key, case = stored.trial, stored.environment_key, stored.case
        if t.status is Status.FAILED:
            continue
        places[key, t.case_id, t.block, t.repeat, t.position] += 1
        if case.sampling.greedy:
            prompt = (case.prompt.sha256, case.prompt.n_tokens, case.n_predict, case.ignore_eog)
            groups[key, case.target, prompt, msgspec.json.encode(case.engine), t.earlier].append(t)
    yield from _of_places(told)
    if twice := sum(1 for count in places.values() if count > 1):
        yield "twice", f"{twice} trials stand twice"
    for group in groups.values():
        yield from _of_one_prompt(group)


def _of_one_prompt(group: Sequence[Trial]) -> Found:
    """Greedy trials of one target on one prompt say themselves where they differ from plain decoding."""
    if len({trial.n_prompt for trial in group}) > 1:
        yield "prompt", "one prompt has two lengths on one target"
    plain = {trial.tokens for trial in group if trial.arm == "ar"}
    for trial in group:
        if trial.losslessness is None or not plain:
            continue
        stored = trial.losslessness.first_difference
        if all(first_difference(trial.tokens, reference) != stored for reference in plain):
            where = "nowhere" if stored is None else f"at token {stored}"
            yield "output", f"a trial of case {trial.case_id} says that it differs from plain decoding {where}: not so"


def _covers(coverage: Coverage, models: Mapping[str, ModelFacts]) -> bool:
    """At most every expert, at most k times as many as one token chooses; at least as many as one token does."""
    facts, counts = models.get(coverage.model_key), coverage.distinct
    if facts is None or facts.n_experts is None or facts.n_experts_used is None:
        return True
    most = min(facts.n_experts, coverage.window * facts.n_experts_used)
    return facts.n_experts_used <= min(counts) and max(counts) <= most


def _of_places(told: _Told) -> Found:
    """A block is measured once in a run, arm after arm: who moves a trial to another pairs it with another."""
    for (run, _, block), own in grouped(
        told.trials, lambda one: (one.run_id, told.cases[one.trial.case_id].suite, one.trial.block)
    ).items():
        in_time = sorted((one.trial for one in own), key=lambda trial: trial.started_at)
        places = [trial.position for trial in in_time]
        if places != sorted(set(places)) or len({trial.case_id for trial in in_time}) != len(in_time):
            yield "block", f"run {run}, block {block}: its trials do not follow each other, each of another case"
        if len({trial.repeat for trial in in_time}) > 1:
            yield "block", f"run {run}, block {block} is of two repeats"
    for (_, _, block), others in grouped(
        told.trials, lambda one: (one.environment_key, told.cases[one.trial.case_id].suite, one.trial.block)
    ).items():
        if block < _COUNTED_BLOCKS or not all(told.runs[one.run_id].status == "finished" for one in others):
            continue
        case_ids, sides = {one.trial.case_id for one in others}, ("", "1", "control")  # `compare`'s sides
        numbers = [block_number(others[0].trial.repeat, case_ids, side) for side in sides]
        whole = block in numbers and {one.trial.position for one in others} == set(range(len(others)))
        if not whole and not _raced(told, told.runs[others[0].run_id], [one.trial for one in others]):
            yield "block", f"block {block} is not that of its cases and its repeat, {numbers[0]}"


def _raced(told: _Told, run: Run, own: Sequence[Trial]) -> bool:
    """Whether a block is what was left of a planned one: in a race arms drop out, and none comes back."""
    if run.decides is None or run.decides.stopping != Stopping.SEQUENTIAL:
        return False
    place = _place_of(told.cases[own[0].case_id])
    same_place = [one.trial for one in told.trials if one.run_id == run.id]
    same_place = [trial for trial in same_place if _place_of(told.cases[trial.case_id]) == place]
    planned, there = {trial.case_id for trial in same_place}, {trial.case_id for trial in own}
    later = {trial.case_id for trial in same_place if trial.repeat > own[0].repeat}
    positions = {trial.position for trial in own}
    whole = own[0].block == block_number(own[0].repeat, planned) and len(positions) == len(own)
    return whole and max(positions) < len(planned) and not later & (planned - there)


def _place_of(case: Case) -> tuple[object, ...]:
    return case.suite, case.target, case.prompt, case.n_predict, case.engine, case.sampling


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
