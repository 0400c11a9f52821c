"""Whether a record agrees with itself: every identity between its hashes, counts, times and rates.

Each check is a pure function over what the record says, and answers with sentences for what breaks it. The loop makes
these identities hold to the nanosecond: a round begins where the one before ended, so the parts of all rounds sum to
the decode time, and every committed token is accepted or a bonus.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from mlsd.engine.losslessness import first_difference
from mlsd.errors import TableError
from mlsd.formats.record import (
    LATER_RATES,
    RecordedRun,
    RecordedTrial,
    RecordFile,
    StudyRecord,
    output_key,
    rates,
    sums,
    whole_trials,
)
from mlsd.planning.plan import block_number
from mlsd.planning.prompts import READ_ONCE_FROM, shipped_prompt_sha256
from mlsd.records import Case, Environment, ModelFacts, Record, Status, Trial
from mlsd.stats import grouped
from mlsd.store.rows import CalibrationPoint, Coverage, environment_key, model_key
from mlsd.trials.identities import broken

_COUNTED_BLOCKS = 1 << 20  # those of servers are counted from 0, others have the hash of their content as number
_SLACK = datetime.timedelta(seconds=1)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDERS = re.compile(r"/(?:Users|home|root|private|var|tmp|mnt|Volumes)/|[A-Z]:\\\\")


class Problem(Record, frozen=True, kw_only=True):
    """One thing that cannot be as the record says."""

    where: str  # "trial 17", "case 0123...", "the file"
    rule: str
    sentence: str


Found = Iterator[tuple[str, str]]  # rule, sentence


def problems(file: RecordFile) -> list[Problem]:
    """Everything in which a record disagrees with itself."""
    return [
        Problem(where=where, rule=rule, sentence=sentence) for where, found in _asked(file) for rule, sentence in found
    ]


def _asked(file: RecordFile) -> Iterator[tuple[str, Found]]:
    """Every part of a record, and what is wrong with it."""
    study = file.study
    yield "the file", _of_file(file)
    for run in study.runs:
        yield f"run {run.id}", _of_run(run.environment_key, run.environment, run.started_at, run.ended_at)
    for key, facts in study.models.items():
        yield f"model {facts.ref.id}", _of_model(key, facts, study)
    for case_id, case in study.cases.items():
        yield f"case {case_id}", _of_case(case_id, case, study)
    for key, tokens in study.outputs.items():
        if output_key(tokens) != key:
            yield f"output {key[:12]}", iter([("output hash", "its tokens have another hash")])
    try:
        trials = list(whole_trials(study))
    except TableError as error:
        yield "the file", iter([("rounds", error.message)])
        return
    for place, (recorded, trial) in enumerate(zip(study.trials, trials, strict=True)):
        yield f"trial {place}", _of_trial(recorded, trial, study)
    yield "the trials", _of_all(study, trials)
    yield "the machine's figures", _of_figures(study)


# --- the file, runs, models, cases ------------------------------------------------------------------------------


def _of_file(file: RecordFile) -> Found:
    if file.digest != file.stated_digest:
        yield "digest", "it was changed after it was written: its digest is another one"
    if not file.canonical:
        yield "form", "it holds more, or in another form, than mlsd writes"
    if place := _FOLDERS.search(msgspec.json.encode(file.study).decode()):
        yield "private", f"it names a folder ({place.group()})"
    study = file.study
    numbers = [run.id for run in study.runs]
    if len(set(numbers)) != len(numbers):
        yield "runs", "two runs have one number"
    used = Counter(t.output for t in study.trials if t.output is not None)
    if set(used) != set(study.outputs):
        yield "outputs", "outputs and trials do not name each other"
    if any(len(columns) != len(study.trials) for columns in study.rounds.values()):
        yield "rounds", "not every trial has its rounds"
    if {t.trial.case_id for t in study.trials} != set(study.cases):
        yield "cases", "cases and trials do not name each other"
    if not _is_moment(study.made) or any(
        _is_moment(run.started_at) and run.started_at[:10] > study.made for run in study.runs
    ):
        yield "made", f"it was made on {study.made}, before one of its runs began, or on a date that does not exist"
    if study.n_superseded < 0:
        yield "superseded", "a negative number of trials was measured again"
    for one in study.warnings:
        if one.run not in numbers or one.warning.case_id not in (None, *study.cases):
            yield "warnings", "a warning is about a run or a case that is not here"


def _of_run(key: str, environment: Environment, *moments: str | None) -> Found:
    if environment_key(environment) != key:
        yield "environment key", "its machine and build have another key"
    if any(moment is not None and not _is_moment(moment) for moment in moments):
        yield "time", "it began or ended at a time that does not exist"
        return
    began, ended = moments
    if ended is not None and _moment(ended) < _moment(began):
        yield "time", "it ended before it began"
    cores = environment.logical_cores
    if cores is not None and (environment.performance_cores or 0) + (environment.efficiency_cores or 0) > cores:
        yield "environment", f"its performance and efficiency cores are more than its {cores} cores"


def _of_model(key: str, facts: ModelFacts, study: StudyRecord) -> Found:
    ref = facts.ref
    names = {
        one.id for case in study.cases.values() for one in (case.target, case.drafter.draft) if one and one.key == key
    }
    if names and ref.id not in names:
        yield "model", f"its cases call it {', '.join(sorted(names))}"
    for part, whole in (
        (facts.active_bytes, facts.weight_bytes), (facts.weight_bytes, ref.n_bytes),
        (facts.n_parameters_active, facts.n_parameters), (facts.n_experts_used, facts.n_experts),
    ):  # fmt: skip
        if part is not None and whole is not None and not 0 <= part <= whole:
            yield "model", f"one part counts {part}, the whole {whole}"
    if model_key(ref.sha256, ref.id) != key:
        yield "model key", "its hash is not the key that it stands under"
    if ref.sha256 is not None and not _SHA256.fullmatch(ref.sha256):
        yield "model hash", "its hash is no SHA-256"


def _of_case(case_id: str, case: Case, study: StudyRecord) -> Found:
    if case.id != case_id:
        yield "case id", "what it says has another id"
    for ref in (case.target, case.drafter.draft):
        if ref is None:
            continue
        facts = study.models.get(model_key(ref.sha256, ref.id))
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


def _of_trial(recorded: RecordedTrial, trial: Trial, study: StudyRecord) -> Found:
    case = study.cases.get(trial.case_id)
    run = next((run for run in study.runs if run.id == recorded.run), None)
    if case is None or run is None:
        yield "references", "its case or its run is not in the record"
        return
    if not all(map(_is_moment, (trial.started_at, run.started_at, run.ended_at or run.started_at))):
        yield "time", f"it started at {trial.started_at!r}"
    elif not _moment(run.started_at) - _SLACK <= _moment(trial.started_at) <= _moment(run.ended_at or trial.started_at):
        yield "time", f"it started at {trial.started_at}, when its run did not run"
    if recorded.sums != sums(trial.rounds):
        yield "sums", "its rounds do not sum to what it says"
    stored, made = recorded.rates, rates(trial)
    missing = made.keys() - stored.keys() - set(LATER_RATES)
    if missing or not all(k in made and math.isclose(stored[k], made[k], rel_tol=1e-12) for k in stored):
        yield "rates", "its rates do not follow from its counts and times"
    facts = study.models.get(model_key(case.target.sha256, case.target.id))
    n_vocab = None if facts is None else facts.n_vocab
    yield from broken(case, trial, n_vocab=n_vocab, n_cores=run.environment.logical_cores)
    if trial.status is Status.FAILED:
        return
    if trial.prefill_ns is None and (trial.n_prompt or 0) < READ_ONCE_FROM:
        yield "prefill", "it has no prefill time"
    if case.sampling.greedy and trial.valid and trial.losslessness is None:
        yield "verdict", "it is called valid, but was compared with nothing"


# --- all trials -------------------------------------------------------------------------------------------------


def _of_all(study: StudyRecord, trials: Sequence[Trial]) -> Found:
    keys = {run.id: run.environment_key for run in study.runs}
    places = Counter[object]()
    groups: dict[object, list[Trial]] = defaultdict(list)
    for recorded, t in zip(study.trials, trials, strict=True):
        case, key = study.cases.get(t.case_id), keys.get(recorded.run)
        if case is None or t.status is Status.FAILED:
            continue
        places[key, t.case_id, t.block, t.repeat, t.position] += 1
        if case.sampling.greedy:
            prompt = (case.prompt.sha256, case.prompt.n_tokens, case.n_predict, case.ignore_eog)
            groups[key, case.target, prompt, msgspec.json.encode(case.engine), t.earlier].append(t)
    if set(keys) >= {one.run for one in study.trials} and all(t.case_id in study.cases for t in trials):
        yield from _of_places(study)
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


def _of_figures(study: StudyRecord) -> Found:
    figures, runs = study.machine, {run.id for run in study.runs}
    rows: tuple[tuple[str, Sequence[tuple[int, object]], Callable[..., bool]], ...] = (
        ("calibration", figures.calibration, _is_pass),
        ("coverage", figures.coverage, lambda c: _covers(c, study)),
        ("expert loads", figures.expert_loads, lambda e: min(e.chosen, default=0) >= 0),
        ("streaming reads", figures.stream_reads, lambda r: 0 < r.gb_s < math.inf),
        ("known passes", figures.known_passes, lambda p: 0 < p.ms < math.inf and p.n_bytes > 0),
        ("parts of passes", figures.shares, lambda s: s.rows > 0),
    )
    for name, figures_of_kind, possible in rows:
        if any(run not in runs or not possible(figure) for run, figure in figures_of_kind):
            yield name, f"{name} of a run that is not here, or that cannot be"


def _is_pass(point: CalibrationPoint) -> bool:
    # Taking a checkpoint passes over no row.
    return point.span_ns > 0 and point.depth >= 0 and point.rows >= (point.kind != "checkpoint")


def _covers(coverage: Coverage, study: StudyRecord) -> bool:
    """At most every expert, at most k times as many as one token chooses; at least as many as one token does."""
    facts, counts = study.models.get(coverage.model_key), coverage.distinct
    if not counts or min(counts.values()) < 0 or sum(counts.values()) < 1:
        return False
    if facts is None or facts.n_experts is None or facts.n_experts_used is None:
        return True
    most = min(facts.n_experts, coverage.window * facts.n_experts_used)
    return facts.n_experts_used <= min(counts) and max(counts) <= most


def _of_places(study: StudyRecord) -> Found:
    """A block is measured once in a run, arm after arm: who moves a trial to another pairs it with another."""
    blocks = grouped(
        ((one.run, one.trial) for one in study.trials),
        lambda one: (one[0], study.cases[one[1].case_id].suite, one[1].block),
    )
    for (run, _, block), own in blocks.items():
        in_time = sorted((trial for _, trial in own), key=lambda trial: trial.started_at)
        places = [trial.position for trial in in_time]
        if places != sorted(set(places)) or len({trial.case_id for trial in in_time}) != len(in_time):
            yield "block", f"run {run}, block {block}: its trials do not follow each other, each of another case"
        if len({trial.repeat for trial in in_time}) > 1:
            yield "block", f"run {run}, block {block} is of two repeats"
    runs = {run.id: run for run in study.runs}
    for (_, _, block), others in grouped(
        ((runs[one.run], one.trial) for one in study.trials),
        lambda one: (one[0].environment_key, study.cases[one[1].case_id].suite, one[1].block),
    ).items():
        if block < _COUNTED_BLOCKS or not all(run.status == "finished" for run, _ in others):
            continue
        number = block_number(others[0][1].repeat, {trial.case_id for _, trial in others})
        whole = block == number and {trial.position for _, trial in others} == set(range(len(others)))
        if not whole and not _raced(study, others[0][0], [trial for _, trial in others]):
            yield "block", f"block {block} is not that of its cases and its repeat, {number}"


def _raced(study: StudyRecord, run: RecordedRun, own: Sequence[Trial]) -> bool:
    """Whether a block is what was left of a planned one: in a race arms drop out, and none comes back."""
    if run.decides is None or run.decides.looks != "any":
        return False
    place = _place_of(study.cases[own[0].case_id])
    same_place = [one.trial for one in study.trials if one.run == run.id]
    same_place = [trial for trial in same_place if _place_of(study.cases[trial.case_id]) == place]
    planned, there = {trial.case_id for trial in same_place}, {trial.case_id for trial in own}
    later = {trial.case_id for trial in same_place if trial.repeat > own[0].repeat}
    positions = {trial.position for trial in own}
    whole = own[0].block == block_number(own[0].repeat, planned) and len(positions) == len(own)
    return whole and max(positions) < len(planned) and not later & (planned - there)


def _place_of(case: Case) -> tuple[object, ...]:
    return case.suite, case.target, case.prompt, case.n_predict, case.engine, case.sampling


def _moment(text: str | None) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text or "")
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _is_moment(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
