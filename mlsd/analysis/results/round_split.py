"""What the parts of a method's rounds are made of, and how rounds with a proposal differ from rounds without one.

From round records and from what methods time themselves (`Trial.stats`). The rows of tables 6 and 7 of the small-model
study (seed 004): draft forward, search, tree construction, memory kept in step, match against no match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlsd.records import Record, Trial
from mlsd.trials.sums import Sums, sums, sums_of, total

# What a method times itself -> the part of the round it lies in, and its name for a reader.
_INSIDE: dict[str, tuple[str, str]] = {
    "draft_forward_ns": ("draft", "draft forward"),
    "catch_up_ns": ("draft", "of it catch-up"),
    "search_ns": ("draft", "search"),
    "translate_ns": ("draft", "text to tokens"),
    "tree_ns": ("draft", "tree"),
    "sync_ns": ("rollback", "sync"),
    "draft_rollback_ns": ("rollback", "draft"),
}


class RoundKind(Record, frozen=True, kw_only=True):
    """Rounds of one outcome of the look-up. Times are means over these rounds."""

    rounds: int
    ms: dict[str, float]  # the whole round, its parts, and what the method times inside of drafting


class Limit(Record, frozen=True, kw_only=True):
    """The least that an arm's rounds could take, ``gamma * T_draft(1) + T(gamma + 1)``, gamma as it was each round."""

    ms: float
    over: float  # round / limit
    rest_ms: dict[str, float]  # what the rest of a round is made of


class RoundSplit(Record, frozen=True, kw_only=True):
    """The rounds of one arm. Times are means over rounds."""

    rounds: int
    ms_per_round: dict[str, float]  # draft, verify, rollback, sample, other; they sum to the round
    inside_ms: dict[str, dict[str, float]]  # by part: what the method times itself, and what is left for the target
    found: RoundKind | None  # rounds with a proposal, for methods that look proposals up
    not_found: RoundKind | None
    timed: bool  # False: the times are not the method's
    fallbacks: tuple[str, ...]  # why drafts that should share the target's memory keep their own instead
    limit: Limit | None = None  # None: it is not known what one step of the draft takes


def round_split(trials: Sequence[Trial]) -> RoundSplit:
    """The split over all rounds of trials of one arm; at least one round."""
    whole, totals = sums_of(trials), stat_totals([trial.stats for trial in trials])
    rounds, ms = whole.rounds, whole.ms_per_round
    found, not_found = round_kinds([sums([r]) for trial in trials for r in trial.rounds], totals)
    return RoundSplit(
        rounds=rounds,
        ms_per_round=ms,
        inside_ms=inside_parts(totals, ms["rollback"], rounds, trials[0].rollback_target, trials[0].rollback_draft),
        found=found,
        not_found=not_found,
        timed=all(trial.timed for trial in trials),
        fallbacks=tuple(sorted({trial.fell_back for trial in trials if trial.fell_back is not None})),
        limit=limit_of(ms, [(trial.stats, sums(trial.rounds).proposed) for trial in trials], rounds),
    )


def limit_of(ms: Mapping[str, float], trials: Iterable[tuple[Mapping[str, float], int]], rounds: int) -> Limit | None:
    """The limit of rounds with these parts, from the own times and the number of proposals of each trial.

    T(gamma + 1) is the verification as it was; T_draft(1) the median of a trial's single-token passes, and 0 for a
    method that drafts without a network.
    """
    steps_ns = 0.0
    for stats, proposed in trials:
        if "draft_steps" in stats and "draft_step_ns" not in stats:
            return None
        steps_ns += stats.get("draft_step_ns", 0.0) * proposed
    steps = steps_ns / rounds / 1e6
    limit = steps + ms["verify"]
    rest = {"drafting beside single steps": ms["draft"] - steps, **{p: ms[p] for p in ("rollback", "sample", "other")}}
    return Limit(ms=limit, over=sum(ms.values()) / limit, rest_ms=rest) if limit > 0 else None


def stat_totals(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sums over trials of what a method counts and times itself."""
    totals: dict[str, float] = {}
    for stats in each:
        for name, value in stats.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def inside_parts(
    totals: Mapping[str, float], rollback_ms: float, rounds: int, target: str | None, draft: str | None
) -> dict[str, dict[str, float]]:
    """What is known inside the parts of a round, ms a round; `target` and `draft` are the strategies of rollback.

    What of rollback is neither synchronisation nor the draft's is the target's own: marking, cutting, replaying.
    """
    known: dict[str, dict[str, float]] = {}
    for name, (part, label) in _INSIDE.items():
        if name in totals:
            ms = totals[name] / rounds / 1e6
            own = f"draft's {draft}" if label == "draft" else label
            known.setdefault(part, {})[own] = ms
    looked_up = [totals[n] for n in ("match_propose_ns", "no_match_propose_ns") if n in totals]
    if looked_up and "search_ns" not in totals:
        known.setdefault("draft", {})["look-up"] = sum(looked_up) / rounds / 1e6
    if target is not None:
        rest = rollback_ms - sum(known.get("rollback", {}).values())
        known.setdefault("rollback", {})[f"target's {target}"] = max(0.0, rest)
    return known


def round_kinds(rounds: Iterable[Sums], totals: Mapping[str, float]) -> tuple[RoundKind | None, RoundKind | None]:
    """Rounds with and without a proposal, for methods that look proposals up; None where there were none of a kind.

    `rounds` are sums of rounds that are alike in that. Search and tree construction are the own times
    of the method in such rounds.
    """
    if "match_rounds" not in totals:
        return None, None
    by_kind: dict[bool, list[Sums]] = {True: [], False: []}
    for one in rounds:
        by_kind[one.proposed > 0].append(one)
    return _kind(total(by_kind[True]), totals, "match"), _kind(total(by_kind[False]), totals, "no_match")


def _kind(own: Sums, totals: Mapping[str, float], prefix: str) -> RoundKind | None:
    if not own.rounds:
        return None
    parts = own.ms_per_round
    looked = totals.get(f"{prefix}_rounds", 0.0)
    inside: dict[str, float] = {}
    if looked:
        whole, search = totals[f"{prefix}_propose_ns"], totals.get(f"{prefix}_search_ns")
        if search is None:
            inside = {"look-up": whole / looked / 1e6}
        else:
            inside = {"search": search / looked / 1e6, "tree": (whole - search) / looked / 1e6}
    return RoundKind(rounds=own.rounds, ms={"round": sum(parts.values()), "draft": parts["draft"], **inside, **parts})
