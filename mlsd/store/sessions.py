"""The sessions of a database: which trials were measured to answer the same questions, and what was planned of them.

A session is one question of benches, one comparison of servers, one machine's share of a suite's run. Runs of one plan
go on with one another, and so do all benches of one question, all comparisons of the same servers and all calls of one
search (`SessionPlan.session`). A run that planned nothing is a session by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from mlsd.records import Case, Environment, Record, Status
from mlsd.stats import grouped
from mlsd.store.rows import Run, TrialFilter, environment_key
from mlsd.store.store import ALL, Store
from mlsd.trials.intervals import Stopping
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
    for measured in trials:
        if (reason := not_valid.get(measured.id)) is not None:
            measured = measured._replace(
                trial=msgspec.structs.replace(measured.trial, status=Status.INVALID, reason=reason)
            )
        yield measured


def sessions_of(trials: Iterable[Measured], every_run: Iterable[Run]) -> list[SessionTrials]:
    """The sessions of these trials, oldest first."""
    runs = {run.id: run for run in every_run}
    plans: dict[tuple[int, str], SessionPlan] = {}
    by_session: dict[tuple[str, str], list[Measured]] = {}
    for measured in trials:
        of_suite = (measured.run_id, measured.case.suite)
        if (plan := plans.get(of_suite)) is None:
            plan = plans[of_suite] = runs[measured.run_id].decides or SessionPlan()
        key = (measured.environment_key, plan.session(measured.case, measured.run_id))
        by_session.setdefault(key, []).append(measured)
    every = [_session(*key, of_session, runs, plans) for key, of_session in by_session.items()]
    return sorted(every, key=lambda session: session.run_ids[-1])


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
    candidates = sessions(store, ALL if id_ else TrialFilter(run_id=run_id))
    of_this_run = [one for one in candidates if run_id in one.run_ids]
    return of_this_run or [one for one in reversed(candidates) if one.key == id_ != ""][:1]


def as_stored(plan: SessionPlan) -> dict[str, Any]:
    """A session's plan as part of its run's."""
    return {"decides": msgspec.to_builtins(plan)}


def latest(results: Iterable[ArmResult]) -> list[ArmResult]:
    """Of an arm that several sessions measured on one question the latest that could be paired, else the latest.

    The plain arm is that of the latest session. The one rule of every surface that shows more than one session.
    """
    newest: dict[Any, ArmResult] = {}
    for result in sorted(results, key=lambda result: (bool(result.pairs), result.session)):
        newest[result.question, result.name, result.arm] = result
    return list(newest.values())


def _session(
    environment: str,
    key: str,
    trials: list[Measured],
    runs: Mapping[int, Run],
    planned: Mapping[tuple[int, str], SessionPlan],
) -> SessionTrials:
    places = dict.fromkeys((one.run_id, one.case.suite) for one in reversed(trials))
    plans = {run_id: planned[run_id, suite] for run_id, suite in places}
    plan = next(iter(plans.values()))
    trials = _still_meant(trials, plan) if plan.id == BENCH or trials[0].case.server is not None else trials
    run_ids = tuple(sorted({one.run_id for one in trials}))
    for other in plans.values():
        plan = plan.with_counts(other.n_arms, other.n_questions)
    memory = {arm: n for other in reversed(plans.values()) for arm, n in other.context_bytes.items()}
    plan = msgspec.structs.replace(plan, context_bytes=memory)
    # Who may stop whenever a table looks good has to pay for every look. A plan that ended as it was planned did not
    # stop there by what was seen, however often it was interrupted on its way.
    of_benches = plan.id == BENCH and len(run_ids) > 1
    whole = _each_arm_once(plans, trials) if of_benches else _as_planned(plans.values(), trials)
    if not whole and (len(run_ids) > 1 or any(runs[run_id].status != "finished" for run_id in run_ids)):
        plan = msgspec.structs.replace(plan, stopping=Stopping.SEQUENTIAL)
    return SessionTrials(key=key, run_ids=run_ids, environment_key=environment, plan=plan, trials=tuple(trials))


def _still_meant(trials: Iterable[Measured], plan: SessionPlan) -> list[Measured]:
    """Without what an arm of this name no longer is: of another draft file or rollback, or failed in an older run."""

    def arm(case: Case) -> tuple[object, ...]:
        return plan.name(case), case.source, case.target.id, case.suite, case.prompt

    newest = {arm(measured.case): (measured.trial.case_id, measured.run_id) for measured in trials}
    return [
        measured for measured in trials
        if (last := newest[arm(measured.case)])[0] == measured.trial.case_id
        and (measured.trial.status is not Status.FAILED or measured.run_id == last[1])
    ]  # fmt: skip


def _each_arm_once(plans: Mapping[int, SessionPlan], trials: Iterable[Measured]) -> bool:
    """Whether benches of one question measured different arms, each bench as many blocks as it planned."""
    arms = {(plans[one.run_id].name(one.case), one.run_id) for one in trials if one.case.arm == "sd"}
    parts = grouped(trials, lambda measured: measured.run_id)
    as_planned = all(_as_planned([plans[run_id]], part) for run_id, part in parts.items())
    fixed = all(plan.stopping is Stopping.FIXED for plan in plans.values())
    return fixed and as_planned and len(arms) == len({name for name, _ in arms})


def _as_planned(plans: Iterable[SessionPlan], trials: Iterable[Measured]) -> bool:
    """Whether each target has as many blocks as every run of the session planned, no more and no fewer."""
    n_planned = {msgspec.json.encode(plan.n_blocks, order="sorted"): plan.n_blocks for plan in plans}
    places = {(one.case.target.id, one.block_id) for one in trials}
    n_found = Counter(target for target, _ in places)
    return len(n_planned) == 1 and dict(n_found) in n_planned.values()
