"""The sessions of a database: which trials were measured to answer the same questions, and what was planned of them.

A session is one question of benches, one comparison of servers, one machine's share of a suite's run. Runs of one plan
go on with one another, and so do all benches of one question and all calls of one search (`SessionPlan.session`). A run
that planned nothing is a session by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mlsd.records import Case, Environment, Record, Status
from mlsd.stats import grouped
from mlsd.store.rows import Run, TrialFilter, environment_key
from mlsd.store.store import ALL, Store
from mlsd.trials.decisions import Stopping
from mlsd.trials.results import BENCH, ArmResult, Measured, SessionPlan, arm_results, pooled_results


class SessionTrials(Record, frozen=True, kw_only=True):
    """What one session measured."""

    key: str  # `SessionPlan.session`
    run_ids: tuple[int, ...]
    environment_key: str
    plan: SessionPlan
    trials: tuple[Measured, ...]

    def results(self) -> list[ArmResult]:
        return arm_results(self.trials, self.plan, session=self.run_ids[-1])

    def pooled(self) -> list[ArmResult]:
        return pooled_results(self.trials, self.plan, session=self.run_ids[-1])


def sessions(store: Store, chosen: TrialFilter = ALL) -> list[SessionTrials]:
    """The sessions of trials that count, oldest first."""
    return sessions_of(store.trials(chosen, rounds=False), store.runs())


def judged(trials: Iterable[Measured], not_valid: Mapping[int, str]) -> Iterator[Measured]:
    """Trials, those that are known not to be valid as such."""
    for one in trials:
        if (reason := not_valid.get(one.id)) is not None:
            one = one._replace(trial=msgspec.structs.replace(one.trial, status=Status.INVALID, reason=reason))
        yield one


def sessions_of(trials: Iterable[Measured], every_run: Iterable[Run]) -> list[SessionTrials]:
    """The sessions of these trials, oldest first."""
    runs = {run.id: run for run in every_run}
    plans: dict[tuple[int, str], SessionPlan] = {}
    found: dict[tuple[str, str], list[Measured]] = {}
    for one in trials:
        place = (one.run_id, one.case.suite)
        if (plan := plans.get(place)) is None:
            plan = plans[place] = runs[one.run_id].decides or SessionPlan()
        found.setdefault((one.environment_key, plan.session(one.case, one.run_id)), []).append(one)
    made = [_session(*place, own, runs, plans) for place, own in found.items()]
    return sorted(made, key=lambda one: one.run_ids[-1])


def of_cases(
    store: Store, environment: Environment, plan: SessionPlan, cases: Iterable[Case], run_id: int = 0
) -> list[SessionTrials]:
    """The sessions that a run of these cases on this machine goes on with."""
    here, keys = environment_key(environment), {plan.session(case, run_id) for case in cases}
    return [one for one in sessions(store) if one.environment_key == here and one.key in keys]


def of_run(store: Store, run_id: int) -> list[SessionTrials]:
    """The sessions that a run belongs to; of a run that found all done those of its plan."""
    run = next(run for run in store.runs() if run.id == run_id)
    id_ = "" if run.decides is None else run.decides.id
    found = sessions(store, ALL if id_ else TrialFilter(run_id=run_id))
    own = [one for one in found if run_id in one.run_ids]
    return own or [one for one in reversed(found) if one.key == id_ != ""][:1]


def as_stored(plan: SessionPlan) -> dict[str, Any]:
    """A session's plan as part of its run's."""
    return {"decides": msgspec.to_builtins(plan)}


def latest(results: Iterable[ArmResult]) -> list[ArmResult]:
    """Of an arm that several sessions measured on one question the latest that could be paired, else the latest.

    The plain arm is that of the latest session. The one rule of every surface that shows more than one session.
    """
    found: dict[Any, ArmResult] = {}
    for one in sorted(results, key=lambda one: (bool(one.pairs), one.session)):
        found[one.question, one.name, one.arm] = one
    return list(found.values())


def _session(
    environment: str,
    key: str,
    own: list[Measured],
    runs: Mapping[int, Run],
    planned: Mapping[tuple[int, str], SessionPlan],
) -> SessionTrials:
    places = dict.fromkeys((one.run_id, one.case.suite) for one in reversed(own))
    plans = {run_id: planned[run_id, suite] for run_id, suite in places}
    plan = next(iter(plans.values()))
    own = _still_meant(own, plan) if plan.id == BENCH else own
    run_ids = tuple(sorted({one.run_id for one in own}))
    for other in plans.values():
        plan = plan.with_counts(other.n_arms, other.n_questions)
    # Who may stop whenever a table looks good has to pay for every look. A plan that ended as it was planned did not
    # stop there by what was seen, however often it was interrupted on its way.
    of_benches = plan.id == BENCH and len(run_ids) > 1
    whole = _each_arm_once(plans, own) if of_benches else _as_planned(plans.values(), own)
    if not whole and (len(run_ids) > 1 or any(runs[run_id].status != "finished" for run_id in run_ids)):
        plan = msgspec.structs.replace(plan, stopping=Stopping.SEQUENTIAL)
    return SessionTrials(key=key, run_ids=run_ids, environment_key=environment, plan=plan, trials=tuple(own))


def _still_meant(own: Iterable[Measured], plan: SessionPlan) -> list[Measured]:
    """Without what an arm of this name no longer is: of another draft file or rollback, or failed in an older run."""
    newest = {plan.name(one.case): (one.trial.case_id, one.run_id) for one in own}
    return [
        one for one in own
        if (last := newest[plan.name(one.case)])[0] == one.trial.case_id
        and (one.trial.status is not Status.FAILED or one.run_id == last[1])
    ]  # fmt: skip


def _each_arm_once(plans: Mapping[int, SessionPlan], own: Iterable[Measured]) -> bool:
    """Whether benches of one question measured different arms, each bench as many blocks as it planned."""
    arms = {(plans[one.run_id].name(one.case), one.run_id) for one in own if one.case.arm == "sd"}
    parts = grouped(own, lambda one: one.run_id)
    as_planned = all(_as_planned([plans[run_id]], part) for run_id, part in parts.items())
    fixed = all(plan.stopping is Stopping.FIXED for plan in plans.values())
    return fixed and as_planned and len(arms) == len({name for name, _ in arms})


def _as_planned(plans: Iterable[SessionPlan], own: Iterable[Measured]) -> bool:
    """Whether each target has as many blocks as every run of the session planned, no more and no fewer."""
    n_planned = {msgspec.json.encode(plan.n_blocks, order="sorted"): plan.n_blocks for plan in plans}
    places = {(one.case.target.id, one.block_id) for one in own}
    n_found = Counter(target for target, _ in places)
    return len(n_planned) == 1 and dict(n_found) in n_planned.values()
