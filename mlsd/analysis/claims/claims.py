"""The claims of the published studies, each decided on one's own trials, beside what was printed and its audit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mlsd.analysis.claims.claim_tests import TESTS, Decision, TestOutcome
from mlsd.analysis.pairs import PairedTrials
from mlsd.audits.rows import Credibility
from mlsd.models.manifest import ModelEntry, load_manifest
from mlsd.planning.suite import find_profile
from mlsd.records import NO_DRAFTER, ModelFacts, Record
from mlsd.stats import Interval, Visible
from mlsd.units import counted

if TYPE_CHECKING:
    import pandas as pd

_FILE = Path(__file__).with_name("claims.toml")


class AuditedTables(Record, frozen=True, kw_only=True):
    """The printed rows behind a claim."""

    study: str
    tables: tuple[str, ...]
    targets: tuple[str, ...] = ()  # empty: all
    drafters: tuple[str, ...] = ()  # empty: all but plain decoding
    rows: dict[Credibility, int]  # speculative rows by what `mlsd audit` says of them, which a test computes anew


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
    others: tuple[str, ...] = ()  # of the models behind it those that are not the claim's own, by their files
    n_texts: int = 0
    n_repeats: int = 0  # of the text that has most
    trials: tuple[int, ...] = ()  # ids of all trials behind the effect, baselines included

    @property
    def published_audit(self) -> dict[Credibility, int] | None:
        """Rows of the printed tables by verdict."""
        return None if self.claim.audit is None else self.claim.audit.rows

    @property
    def print_refuted(self) -> bool:
        """Whether no printed row behind the claim can be true."""
        counts = self.published_audit or {}
        return counts.get("impossible", 0) == sum(counts.values()) > 0

    @property
    def scope(self) -> str:
        """Of how much data it speaks: ``4 texts, 3 repeats``."""
        return f"{counted(self.n_texts, 'text')}, {counted(self.n_repeats, 'repeat')}" if self.n_texts else ""


def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the file."""
    return tuple(msgspec.toml.decode(_FILE.read_bytes(), type=dict[str, list[Claim]])["claims"])


def decide(claim: Claim, paired: PairedTrials) -> ClaimVerdict:
    """Decide one claim, for the targets, machine and profile that were measured.

    It is refuted only where its own models, by their files, contradict it; a study without its population leaves it not
    measured. Trials whose output repeats itself to its end say nothing of other texts and are left out.
    """
    loops = paired.pairs["loops"]
    outcome = TESTS[claim.test](paired.unlooped)
    if outcome is None:
        only_loops = loops.any() and TESTS[claim.test](paired) is not None
        lack = ", whose output does not repeat itself to its end" if only_loops else ""
        sentence = f"Not measured: it needs {claim.population}{lack}."
        return ClaimVerdict(claim=claim, decision="not measured", sentence=sentence)
    pairs = outcome.pairs
    drafters = set(pairs.loc[pairs["draft"].notna(), "drafter"])
    n_loops = int((loops & paired.pairs["drafter"].isin(drafters)).sum())
    names = {*pairs["target"], *pairs["draft"].dropna()}
    others = other_models(claim.own_profile or _STUDY, paired.models, sorted(names))
    own_models = claim.own_profile is not None and not others
    decision = "refuted" if own_models and outcome.decision == "does not hold here" else outcome.decision
    return ClaimVerdict(
        claim=claim,
        decision=decision,
        sentence=_sentence(decision, outcome, paired, n_loops),
        effect=_of_plain_numbers(outcome.effect),
        meaning=outcome.meaning,
        against=None if outcome.against is None else float(outcome.against),
        visible=None if outcome.visible is None else _of_plain_numbers(outcome.visible),
        others=tuple(others),
        n_texts=pairs["prompt"].nunique(),
        n_repeats=int(pairs.groupby("prompt")["repeat"].nunique().max()),
        trials=tuple(sorted({int(id_) for name in ("trial_id", "baseline_id") for id_ in pairs[name].dropna()})),
    )


def decide_all(paired: PairedTrials) -> list[ClaimVerdict]:
    """Decide every claim on the same pairs."""
    return [decide(claim, paired) for claim in claims()]


def other_models(profile: str, models: Mapping[str, ModelFacts], names: Iterable[str]) -> list[str]:
    """Which of these targets and drafts are not the files that a profile of the suites names.

    The hash decides where the manifest has one, else id and number of parameters: what a role is called says nothing.
    """
    entries = _entries(profile)
    return [name for name in names if not _is_of(entries, name, models.get(name))]


def _is_of(entries: Mapping[str, ModelEntry], name: str, facts: ModelFacts | None) -> bool:
    hashes = {entry.parts[0].sha256 for entry in entries.values() if len(entry.parts) == 1} - {None}
    if facts is not None and facts.ref.sha256 in hashes:
        return True
    entry = entries.get(name)
    if (
        entry is None
        or facts is None
        or (len(entry.parts) == 1 and entry.parts[0].sha256)
        or not entry.parameters
        or not facts.n_parameters
    ):
        return False
    return abs(facts.n_parameters / entry.parameters - 1) < _SAME_SHAPE


@cache
def _entries(profile: str) -> dict[str, ModelEntry]:
    models = load_manifest().models
    return {model: models[model] for model in find_profile(profile).roles.values() if model in models}


_STUDY = "study"  # the profile that binds the models of the study
_SAME_SHAPE = 0.02  # parameters of one model, counted with or without what no token reads


_Figures = TypeVar("_Figures", Interval, Visible)


def _of_plain_numbers(figures: _Figures) -> _Figures:
    """The same record with Python's numbers in place of numpy's, which JSON has no way to write."""
    values: dict[str, Any] = msgspec.structs.asdict(figures)
    plain: dict[str, Any] = {name: float(x) if isinstance(x, float) else x for name, x in values.items()}
    return type(figures)(**plain)


def _sentence(decision: Decision, outcome: TestOutcome, paired: PairedTrials, n_loops: int) -> str:
    effect, pairs = outcome.effect, outcome.pairs
    against = "" if outcome.against is None else f", against {outcome.against:.3g}"
    figure = effect.text(effect.digits(3, outcome.against or 0.0), ends="(95 % {} to {})")
    if effect.low is None:
        figure += " (without an interval)"
    elif decision == "not decided yet" and effect.n == 2:  # whose interval says nothing
        figure = f"{effect.value:.3f} (of 2 values)"
    targets, drafts = ", ".join(pairs["target"].unique()), ", ".join(_drafts(pairs))
    scope = [
        f"{targets} with {drafts}" if drafts else targets,
        paired.machine_name,
        f"profile {paired.profile}" if paired.profile else "",
    ]
    texts, repeats = pairs["prompt"].nunique(), int(pairs.groupby("prompt")["repeat"].nunique().max())
    data = f"{counted(texts, 'text')}, {counted(repeats, 'repeat')}"
    left_out = f" {counted(n_loops, 'trial')} left out, whose output repeats itself to its end." if n_loops else ""
    finding = f"{decision.capitalize()}: {outcome.meaning} {figure}{against}; {data}"
    return f"{finding}; on {', '.join(filter(None, scope))}. {outcome.detail}{left_out}".strip()


def _drafts(pairs: pd.DataFrame) -> list[str]:
    """What drafted, by the model's id or the method's name."""
    drafted = pairs[pairs["drafter"] != NO_DRAFTER]
    return list(drafted["draft"].fillna(drafted["drafter"]).unique())
