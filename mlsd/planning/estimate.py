"""How long a plan will take and what it needs, before anything runs. Pure; every estimate names its source.

A rate is looked for in turn in earlier results, in a calibration, and in bytes over bandwidth; where none knows it,
the time stays None and is counted as unknown. Loading, warming up and judging are not part of the estimate.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from mlsd.planning.job import Job
from mlsd.planning.plan import Plan
from mlsd.records import NO_DRAFTER, Case, Record
from mlsd.trials.sums import decode_tok_s
from mlsd.units import GB, NS_PER_S

Source = Literal["results", "calibration", "bandwidth"]

NO_TOKEN_ACCEPTED = "where acceptance is not known, no drafted token counts as accepted"


class Rate(Record, frozen=True, kw_only=True):
    """How fast a case is expected to run."""

    decode_tok_s: float
    prefill_ns: float | None = None  # of the whole prompt; None: not known, and left out of the time
    source: Source


TokS = Callable[[Case], Rate | None]


class TimeEstimate(Record, frozen=True, kw_only=True):
    """The time of many trials; the sum holds only those whose rate is known."""

    seconds: float | None  # None when no rate is known
    n_trials: int
    n_unknown: int
    sources: dict[Source, int]  # source -> trials whose rate comes from it


class Load(Record, frozen=True, kw_only=True):
    """What one load of the plan needs."""

    target: str
    draft: str | None
    n_blocks: int
    n_trials: int
    weight_bytes: int | None  # all its models; None where a size is not known
    time: TimeEstimate


def estimate_time(loads: Iterable[Job], tok_s: TokS) -> TimeEstimate:
    """Sum over all trials: prefill, then n_predict - 1 tokens at the case's rate."""
    seconds, sources, n_trials = 0.0, Counter[Source](), 0
    known: dict[str, Rate | None] = {}
    for trial in (slot for load in loads for slot in load.slots):
        n_trials += 1
        if trial.case_id not in known:
            known[trial.case_id] = tok_s(trial.case)
        rate = known[trial.case_id]
        if rate is not None:
            sources[rate.source] += 1
            seconds += (trial.case.n_predict - 1) / rate.decode_tok_s + (rate.prefill_ns or 0.0) / NS_PER_S
    n_known = sum(sources.values())
    return TimeEstimate(
        seconds=seconds if n_known else None, n_trials=n_trials, n_unknown=n_trials - n_known, sources=dict(sources)
    )


def plan_loads(plan: Plan, sizes: Mapping[str, int | None], tok_s: TokS) -> tuple[Load, ...]:
    """Each load of the plan in order; `sizes` gives the bytes of each model id, None where they are not known."""
    return tuple(
        Load(
            target=job.target.ref.id,
            draft=" + ".join(model.ref.id for model in job.models) or None,
            n_blocks=sum(1 for _ in job.blocks()),
            n_trials=len(job.slots),
            weight_bytes=_sum_or_none([sizes[ref.id] for ref in dict.fromkeys(job.refs)]),
            time=estimate_time([job], tok_s),
        )
        for job in plan.loads
    )


def _sum_or_none(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def first_known(*lookups: TokS) -> TokS:
    """Ask each in turn; the first rate that is known is taken."""

    def tok_s(case: Case) -> Rate | None:
        return next((rate for rate in (lookup(case) for lookup in lookups) if rate is not None), None)

    return tok_s


def rates_from_results(trials: Iterable[Mapping[str, Any]], cases: Mapping[str, Case]) -> TokS:
    """Medians over finished trials: of the same case, else of the same arm of the same models on any prompt.

    `trials` are rows with case_id, status, n_tokens, decode_ns and prefill_ns; `cases` their cases by id.
    """
    exact: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    alike: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for row in trials:
        case = cases.get(row["case_id"])
        rate = decode_tok_s(row["n_tokens"], row["decode_ns"])
        if case is None or row["status"] != "ok" or rate is None:
            continue
        exact[row["case_id"]].append((rate, row["prefill_ns"]))
        alike[_arm_key(case)].append((rate, None))

    def tok_s(case: Case) -> Rate | None:
        found = exact.get(case.id) or alike.get(_arm_key(case))
        if not found:
            return None
        prefills = [prefill for _, prefill in found if prefill is not None]
        return Rate(
            decode_tok_s=statistics.median(rate for rate, _ in found),
            prefill_ns=statistics.median(prefills) if prefills else None,
            source="results",
        )

    return tok_s


def _arm_key(case: Case) -> str:
    drafter = case.drafter
    options, draft = sorted(drafter.options.items()), drafter.draft.key if drafter.draft else None
    return repr((case.target.key, drafter.name, options, draft, case.gamma, case.sampling.greedy))


def rates_from_calibration(pass_ns: Mapping[tuple[str, str, int], float]) -> TokS:
    """From timed passes, keyed by (model key, kind, rows): T(k) of targets and single draft steps.

    AR: 1 / T(1). SD with a draft model, no token accepted: 1 / (gamma T_draft(1) + T(gamma + 1)).
    """

    def tok_s(case: Case) -> Rate | None:
        target_ns = pass_ns.get((case.target.key, "target_pass", case.gamma + 1))
        draft_ns: float | None = 0.0
        if case.drafter.draft is not None:
            draft_ns = pass_ns.get((case.drafter.draft.key, "draft_step", 1))
        if target_ns is None or draft_ns is None:
            return None
        return Rate(decode_tok_s=NS_PER_S / (target_ns + case.gamma * draft_ns), source="calibration")

    return tok_s


def rates_from_bandwidth(active_bytes: Mapping[str, int | None], peak_gb_s: float | None) -> TokS:
    """Weights read once a pass at the memory's peak: T = bytes read for one token / bandwidth. Rough, and too fast.

    `active_bytes` by model id. SD with a draft model, no token accepted: gamma draft passes and one target pass for
    each token; that a mixture of experts reads more for several tokens is left out.
    """

    def tok_s(case: Case) -> Rate | None:
        target = active_bytes.get(case.target.id)
        draft = active_bytes.get(case.drafter.draft.id) if case.drafter.draft else 0
        if peak_gb_s is None or target is None or draft is None:
            return None
        if case.drafter.name != NO_DRAFTER and case.drafter.draft is None:
            return None  # what a method without a draft model costs is not a matter of bytes
        return Rate(decode_tok_s=peak_gb_s * GB / (target + case.gamma * draft), source="bandwidth")

    return tok_s
