"""What the parts of a method's rounds are made of, and how rounds with a proposal differ from rounds without one.

From round records and from what methods time themselves (`Trial.stats`). The rows of tables 6 and 7 of the small-model
study (seed 004): draft forward, search, tree construction, memory kept in step, match against no match.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from mlsd.records import Record
from mlsd.stats import grouped
from mlsd.trials.rates import Sums, total
from mlsd.trials.results import Measured
from mlsd.units import NS_PER_MS

LOOKED_UP = "match_rounds"  # in the stats of methods that look proposals up: rounds with one
# What a method times itself -> the part of the round it lies in, and its name for a reader.
_INSIDE: dict[str, tuple[str, str]] = {
    "draft_forward_ns": ("draft", "draft forward"),
    "catch_up_ns": ("draft", "of which catch-up"),
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


class RoundSplit(Record, frozen=True, kw_only=True):
    """The rounds of one arm. Times are means over rounds."""

    rounds: int
    ms_per_round: dict[str, float]  # draft, verify, rollback, sample, other; they sum to the round
    inside_ms: dict[str, dict[str, float]]  # by part: what the method times itself, and what is left for the target
    with_proposal: RoundKind | None  # rounds with a proposal, for methods that look proposals up
    without_proposal: RoundKind | None
    timed: bool  # False: the times are not the method's
    fallbacks: tuple[str, ...]  # why drafts that should share the target's memory keep their own instead


def round_split(trials: Sequence[Measured], rounds: Iterable[Sums] = ()) -> RoundSplit:
    """The split over all rounds of trials of one arm; at least one round.

    `rounds` are sums of rounds of which all proposed or none did; without them such kinds are not told from each other.
    """
    whole, first, totals = total(stored.whole for stored in trials), trials[0].trial, defaultdict[str, float](float)
    for stored in trials:
        for name, value in stored.trial.stats.items():
            totals[name] += value
    ms, with_proposal, without_proposal = whole.ms_per_round, None, None
    if LOOKED_UP in totals:
        kinds = grouped(rounds, lambda stored: stored.proposed > 0)
        with_proposal = _kind(total(kinds.get(True, ())), totals, "match")
        without_proposal = _kind(total(kinds.get(False, ())), totals, "no_match")
    inside: dict[str, dict[str, float]] = {}
    for name, (part, label) in _INSIDE.items():
        if name in totals:
            piece = f"draft's {first.rollback_draft}" if label == "draft" else label
            inside.setdefault(part, {})[piece] = totals[name] / whole.rounds / NS_PER_MS
    looked_up = [totals[n] for n in ("match_propose_ns", "no_match_propose_ns") if n in totals]
    if looked_up and "search_ns" not in totals:
        inside.setdefault("draft", {})["look-up"] = sum(looked_up) / whole.rounds / NS_PER_MS
    if first.rollback_target is not None:  # what is neither synchronisation nor the draft's is the target's own
        rest = ms["rollback"] - sum(inside.get("rollback", {}).values())
        inside.setdefault("rollback", {})[f"target's {first.rollback_target}"] = max(0.0, rest)
    return RoundSplit(
        rounds=whole.rounds,
        ms_per_round=ms,
        inside_ms=inside,
        with_proposal=with_proposal,
        without_proposal=without_proposal,
        timed=all(stored.trial.timed for stored in trials),
        fallbacks=tuple(sorted({stored.trial.fell_back for stored in trials if stored.trial.fell_back is not None})),
    )


def _kind(summed: Sums, totals: Mapping[str, float], prefix: str) -> RoundKind | None:
    if not summed.rounds:
        return None
    parts = summed.ms_per_round
    n_looked_up = totals.get(f"{prefix}_rounds", 0.0)
    inside: dict[str, float] = {}
    if n_looked_up:
        whole, search = totals[f"{prefix}_propose_ns"], totals.get(f"{prefix}_search_ns")
        if search is None:
            inside = {"look-up": whole / n_looked_up / NS_PER_MS}
        else:
            inside = {"search": search / n_looked_up / NS_PER_MS, "tree": (whole - search) / n_looked_up / NS_PER_MS}
    return RoundKind(
        rounds=summed.rounds, ms={"round": sum(parts.values()), "draft": parts["draft"], **inside, **parts}
    )
