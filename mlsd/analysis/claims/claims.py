"""The claims of the published studies, each decided on one's own trials, beside what was printed and its audit."""

from functools import cache
from pathlib import Path

import msgspec

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.rows import Audit, Credibility, count_verdicts
from mlsd.analysis.claims.claim_tests import TESTS, Decision, TestOutcome
from mlsd.analysis.results.paired_trials import PairedTrials
from mlsd.records import NO_DRAFTER, Record
from mlsd.stats import Interval, Visible

_FILE = Path(__file__).with_name("claims.toml")


class AuditedTables(Record, frozen=True, kw_only=True):
    """The printed rows behind a claim."""

    study: str
    tables: tuple[str, ...]
    targets: tuple[str, ...] = ()  # empty: all
    drafters: tuple[str, ...] = ()  # empty: all but plain decoding


class Claim(Record, frozen=True, kw_only=True):
    """What a study claims."""

    id: str
    text: str
    source: str
    population: str  # the trials it speaks of
    test: str  # a key of `claim_tests.TESTS`
    printed: str
    command: str = ""  # that measures it, where a suite does
    needs: tuple[str, ...] = ()  # roles that a profile has to bind for it
    own_profile: str | None = None  # the suites' profile that binds the claim's own models
    audit: AuditedTables | None = None  # None: the study prints no table that can be audited


class ClaimVerdict(Record, frozen=True, kw_only=True):
    """A claim decided on one's own trials."""

    claim: Claim
    decision: Decision
    sentence: str
    effect: Interval | None = None
    meaning: str | None = None  # what the effect is
    against: float | None = None  # what it is compared with
    visible: Visible | None = None  # the effects that would have been decided 4 times in 5
    trials: tuple[int, ...] = ()  # ids of all trials behind the effect, baselines included
    published_audit: dict[Credibility, int] | None = None  # rows of the printed table by verdict

    @property
    def print_refuted(self) -> bool:
        """Whether no printed row behind the claim can be true."""
        counts = self.published_audit or {}
        return counts.get("impossible", 0) == sum(counts.values()) > 0


def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the file."""
    return tuple(msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, list[Claim]])["claims"])


def decide(claim: Claim, paired: PairedTrials) -> ClaimVerdict:
    """Decide one claim, for the targets, machine and profile that were measured.

    It is refuted only where its own models contradict it; a study without its population leaves it not measured.
    """
    outcome = TESTS[claim.test](paired)
    found = printed_audit(claim.audit) if claim.audit else None
    if outcome is None:
        sentence = f"Not measured: it needs {claim.population}."
        return ClaimVerdict(claim=claim, decision="not measured", sentence=sentence, published_audit=found)
    own_models = claim.own_profile is not None and paired.profile == claim.own_profile
    decision = "refuted" if own_models and outcome.decision == "does not hold here" else outcome.decision
    ids = {pair.trial_id for pair in outcome.pairs} | {pair.baseline_id for pair in outcome.pairs}
    return ClaimVerdict(
        claim=claim,
        decision=decision,
        sentence=_sentence(decision, outcome, paired),
        effect=outcome.effect,
        meaning=outcome.meaning,
        against=outcome.against,
        visible=outcome.visible,
        trials=tuple(sorted(ids)),
        published_audit=found,
    )


def decide_all(paired: PairedTrials) -> list[ClaimVerdict]:
    """Decide every claim on the same pairs."""
    return [decide(claim, paired) for claim in claims()]


def printed_audit(printed: AuditedTables) -> dict[Credibility, int]:
    """The speculative rows behind a claim by their verdict."""
    rows = [
        row
        for row in audited(printed.study).rows
        if row.identity["table"] in printed.tables
        and row.identity["drafter"] != NO_DRAFTER
        and (not printed.targets or row.identity["target"] in printed.targets)
        and (not printed.drafters or row.identity["drafter"] in printed.drafters)
    ]
    return count_verdicts(rows)


@cache
def audited(study: str) -> Audit:
    """What the audit says of a published study."""
    return audit(study, published.context(published.load(study)))


def _sentence(decision: Decision, outcome: TestOutcome, paired: PairedTrials) -> str:
    effect, interval = outcome.effect, "without an interval"
    if effect.low is not None and effect.high is not None:
        interval = f"95 % interval {effect.low:.3f} to {effect.high:.3f}"
    targets = ", ".join(dict.fromkeys(pair.target for pair in outcome.pairs))
    drafts = ", ".join(dict.fromkeys(p.draft or p.drafter for p in outcome.pairs if p.drafter != NO_DRAFTER))
    scope = [
        f"{targets} with {drafts}" if drafts else targets,
        paired.place,
        f"profile {paired.profile}" if paired.profile else "",
    ]
    finding = f"{decision.capitalize()}: {outcome.meaning} {effect.value:.3f}, {interval}, n = {effect.n}"
    return f"{finding}; on {', '.join(filter(None, scope))}. {outcome.detail}".strip()
