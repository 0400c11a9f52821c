"""Which stored trials may stand beside each other, and in words what was left out.

One policy for every reader. Machine and build: those of the latest trials. Of each target: the file, sampling and
engine options that most of its valid trials share, of equals the latest; of each draft model likewise the file.
Another machine is chosen by the start of its key, other settings by the start of theirs or of a file's hash.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mlsd.errors import AnalysisError
from mlsd.records import Case, Environment, ModelFacts, ModelRef
from mlsd.stats import grouped
from mlsd.store.rows import MeasuredCase, Run, environment_key
from mlsd.store.store import Store
from mlsd.trials.results import Measured, settings_of

_KEY_DIGITS = 8


@dataclass(frozen=True)
class Chosen:
    """The trials of a database that may be compared: those of `cases` on one machine and build."""

    environment_key: str
    runs: tuple[Run, ...]  # of this machine and build, oldest first
    cases: Mapping[str, Case]  # by id
    models: Mapping[str, ModelFacts]  # of targets and drafts, by their own id
    notes: tuple[str, ...]  # what was left out, and how to choose it
    other_calibrations: frozenset[int]  # runs that timed passes under other settings than those of the trials

    @property
    def environment(self) -> Environment:
        return self.runs[-1].environment

    def keeps(self, stored: Measured) -> bool:
        return stored.environment_key == self.environment_key and stored.trial.case_id in self.cases


def choose(store: Store, machine: str | None = None, settings: str | None = None) -> Chosen:
    """The trials that count. `machine` and `settings`: starts of keys, as notes name them.

    Raises AnalysisError for a key that fits nothing or several machines, and where nothing at all was measured.
    """
    runs, measured, cases, left = store.runs(), store.measured_cases(), store.cases(), left_out(store)
    key = _machine(measured, runs, machine, str(store.path), left)
    here = [m for m in measured if m.environment_key == key]
    auto = _auto_threads(here, runs, cases)
    usual, other_kinds = _usual_settings(here, cases, auto, settings)
    usual, other_files = _usual_drafts(usual, cases)
    chosen = {m.case_id: cases[m.case_id] for m in usual}
    every_model = store.models()
    used = (ref for case in chosen.values() for ref in (case.target, case.drafter.draft) if ref)
    models = {ref.id: every_model[ref.key] for ref in used if ref.key in every_model}
    calibrations, other_settings = _other_calibrations(runs, list(chosen.values()), key, auto)
    return Chosen(
        environment_key=key,
        runs=tuple(run for run in runs if environment_key(run.environment) == key),
        cases=chosen,
        models=models if here else {facts.ref.id: facts for facts in every_model.values()},
        notes=(*left, *_other_machines(measured, runs, key), *other_kinds, *other_files, *other_settings),
        other_calibrations=calibrations,
    )


def machines(store: Store) -> list[str]:
    """The keys of all machines and builds with trials."""
    return list(dict.fromkeys(measured.environment_key for measured in store.measured_cases()))


def settings_key(case: Case, n_threads: int | None = None) -> str:
    """As `settings_of`, whatever the target: one key asks for the same settings of every target."""
    return settings_of(msgspec.structs.replace(case, target=ModelRef(id="")), n_threads)[:_KEY_DIGITS]


def left_out(store: Store) -> list[str]:
    """Lines on rows that cannot be read, and on the trials that cannot be true, where there are any."""
    n, *_ = len(store.impossible), store.cases(), store.models()  # whose damaged rows are noted while they are read
    damage = [f"{why} It is left out." for why in store.damage]
    if not n:
        return damage
    count = "1 trial is left out: it" if n == 1 else f"{n} trials are left out: they"
    return [*damage, f"{count} cannot be true (mlsd audit study --db {shlex.quote(str(store.path))})."]


def refuted_words(n: int, source: str) -> str:
    """A line on trials that only physics refutes."""
    count = "1 trial stands" if n == 1 else f"{n} trials stand"
    why = "on this machine it cannot be true" if n == 1 else "on this machine they cannot be true"
    return f"{count} in no speedup, fit, claim or advice: {why} (mlsd audit study --db {shlex.quote(source)})."


# --- machines -----------------------------------------------------------------------------------------------------


def _machine(
    measured: Sequence[MeasuredCase], runs: Sequence[Run], wanted: str | None, source: str, left: Sequence[str]
) -> str:
    latest = max(measured, key=lambda m: m.last_trial, default=None)
    keys = list(dict.fromkeys(m.environment_key for m in measured))
    if latest is None:  # calibrations alone
        keys = list(dict.fromkeys(environment_key(run.environment) for run in reversed(runs)))
    if not keys:
        why = " ".join(left) or "Measure something first: mlsd run."
        raise AnalysisError(f"{source} holds no trials{' that can be read' if left else ''}.", hint=why)
    if wanted is None:
        return keys[0] if latest is None else latest.environment_key
    matches = [key for key in keys if key.startswith(wanted)]
    if len(matches) != 1:
        raise AnalysisError(
            f"{'No machine' if not matches else 'More than one machine'} of this study has a key that starts with "
            f"{wanted!r}.",
            hint=f"Choose from {', '.join(keys)}.",
        )
    return matches[0]


def _other_machines(measured: Sequence[MeasuredCase], runs: Sequence[Run], key: str) -> list[str]:
    places = {environment_key(run.environment): run.environment for run in runs}
    notes = []
    for other in dict.fromkeys(m.environment_key for m in measured if m.environment_key != key):
        machine, count = places[other], sum(m.n_trials for m in measured if m.environment_key == other)
        notes.append(
            f"{count} trials of another machine or build ({machine.chip or machine.machine}, {machine.backend}, "
            f"{machine.llama_cpp_build}) are left out: times of different machines are never mixed. Read them with "
            f"--machine {other}."
        )
    return notes


# --- settings and files -------------------------------------------------------------------------------------------


def _auto_threads(measured: Sequence[MeasuredCase], runs: Sequence[Run], cases: Mapping[str, Case]) -> int | None:
    """How many threads this machine took where the number was left open, as its latest run says."""
    plans = {run.id: run.decides for run in runs}
    opened = [plans[m.last_run] for m in measured if cases[m.case_id].engine.n_threads is None]
    return next((plan.n_threads for plan in reversed(opened) if plan is not None and plan.n_threads), None)


Kind = tuple[str, str]  # model key of the target's file, key of its settings


def _usual_settings(
    measured: Iterable[MeasuredCase], cases: Mapping[str, Case], auto: int | None, wanted: str | None
) -> tuple[list[MeasuredCase], list[str]]:
    """The measured cases of each target's chosen kind, and a line for each other kind."""

    def kind_of(m: MeasuredCase) -> Kind:
        return cases[m.case_id].target.key, settings_key(cases[m.case_id], auto)

    usual, notes, every = list[MeasuredCase](), list[str](), set[str]()
    by_target = grouped(measured, lambda m: (cases[m.case_id].target.id, cases[m.case_id].source))
    for (target, _), of_target in by_target.items():
        kinds = grouped(of_target, kind_of)
        every |= {key for _, key in kinds}
        open_ = [kind for kind in kinds if wanted is None or any(key.startswith(wanted) for key in kind)]
        chosen = max(open_, key=lambda kind: _weight(kinds[kind]), default=None)
        usual += kinds[chosen] if chosen is not None else ()
        for (file, key), group in kinds.items():
            if (file, key) == chosen:
                continue
            named, how = key, "other settings than those asked for"
            if chosen is not None:
                said = _differences(*(_settings(cases[some[0].case_id], auto) for some in (kinds[chosen], group)))
                if file != chosen[0]:
                    named = file[:_KEY_DIGITS] if key == chosen[1] else key
                    said = ", ".join(filter(None, (f"another file ({file[:_KEY_DIGITS]})", said)))
                how = said or how
            notes.append(
                f"{_count(group)} trials of {target} are left out ({how}): times of different files or settings do not "
                f"compare. Read them with --settings {named}."
            )
    if wanted is not None and not usual:
        raise AnalysisError(f"No trials have settings {wanted!r}.", hint=f"Choose from {', '.join(sorted(every))}.")
    return usual, notes


def _usual_drafts(measured: Sequence[MeasuredCase], cases: Mapping[str, Case]) -> tuple[list[MeasuredCase], list[str]]:
    """Without the cases of another file of a draft than most trials with it have."""
    drafts = [(draft, m) for m in measured if (draft := cases[m.case_id].drafter.draft) is not None]
    left, notes = set[str](), []
    for draft_id, of_draft in grouped(drafts, lambda one: one[0].id).items():
        files = {key: [m for _, m in some] for key, some in grouped(of_draft, lambda one: one[0].key).items()}
        chosen = max(files, key=lambda key: _weight(files[key]))
        for other, group in files.items():
            if other != chosen:
                left |= {m.case_id for m in group}
                notes.append(f"{_count(group)} trials with another file of the draft {draft_id} are left out.")
    return [m for m in measured if m.case_id not in left], notes


def _other_calibrations(
    runs: Sequence[Run], cases: Sequence[Case], key: str, auto: int | None
) -> tuple[frozenset[int], list[str]]:
    """Calibrations of this machine whose engine options no trial has; room in the context changes no pass."""
    engines = {_engine(msgspec.to_builtins(case.engine), auto): case for case in cases}
    left, notes = set(), []
    for run in runs if engines else ():
        options = run.plan.get("engine") if run.plan.get("command") == "calibrate" else None
        if options is None or environment_key(run.environment) != key or (used := _engine(options, auto)) in engines:
            continue
        left.add(run.id)
        how = _differences(dict(next(iter(engines))), dict(used))
        notes.append(
            f"The calibration of run {run.id} is left out ({how}): it timed passes that no trial here makes. Calibrate "
            f"with the options of the trials, or the other way round."
        )
    return frozenset(left), notes


def _engine(options: Mapping[str, Any], auto: int | None) -> tuple[tuple[str, Any], ...]:
    used = {**options, "n_threads": options.get("n_threads") or auto}
    return tuple(sorted((name, value) for name, value in used.items() if name != "n_ctx"))


def _weight(group: Sequence[MeasuredCase]) -> tuple[int, int]:
    """How many valid trials, then how late: what the usual kind has most of."""
    return sum(m.n_valid for m in group), max(m.last_trial for m in group)


def _differences(usual: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    def word(value: object) -> str:
        return "auto" if value is None else str(value)

    names = (name for name in {**usual, **other} if other.get(name) != usual.get(name))
    return ", ".join(f"{name} {word(other.get(name))} instead of {word(usual.get(name))}" for name in names)


def _settings(case: Case, auto: int | None) -> dict[str, Any]:
    """Sampling, engine options and a server by name; of greedy sampling only that it is greedy."""
    engine = {**msgspec.to_builtins(case.engine), "n_threads": case.engine.n_threads or auto}
    sampling = {"temperature": 0.0} if case.sampling.greedy else msgspec.structs.asdict(case.sampling)
    blank = dict.fromkeys(("top_k", "top_p", "seed"))
    server = {} if case.server is None else {"server": case.server}
    return {**blank, **sampling, **engine, **server}


def _count(group: Sequence[MeasuredCase]) -> int:
    return sum(m.n_trials for m in group)
