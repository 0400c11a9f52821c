"""What an audit reads and what it answers: rows, the context that judges them, findings.

Plain values; the rules are in `audit_rules`, the readers in `published` and `audit_csv`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

from mlsd.analysis.audit.printed import Printed
from mlsd.records import NO_DRAFTER, Record

Credibility = Literal["possible", "suspicious", "impossible"]
SEVERITY: dict[Credibility, int] = {"possible": 0, "suspicious": 1, "impossible": 2}

# A cache may keep this much of the weights between passes: the system cache of an M2 Ultra is 96 MB.
CACHE_BYTES = 100_000_000
POOLED_SLACK = 0.5  # over prompts whose MGL has a coefficient of variation of 0.7
BORROWED_SLACK = 0.15
LEAST_NOISE = 0.01  # relative standard deviation that any throughput is allowed
UNSEEN_NOISE = 0.03  # allowed where repeats do not show it


class AuditRow(Record, frozen=True, kw_only=True):
    """One row of a table of results, ours or published. None: the table does not say."""

    table: str
    label: str  # what a reader would call the row
    target: str
    drafter: str = NO_DRAFTER
    draft: str | None = None  # the draft model, where the drafter has one
    gamma: int | None = None
    prompt: str | None = None
    n_prompt: int | None = None
    n_predict: int | None = None
    repeat: int | None = None
    tok_s: Printed | None = None  # decode tok/s
    ms_per_token: Printed | None = None
    speedup: Printed | None = None
    acceptance: Printed | None = None  # fraction of proposed tokens
    mgl: Printed | None = None
    rounds: Printed | None = None
    draft_ms: Printed | None = None  # drafting of one round, as the table prints it
    bytes_claimed: Printed | None = None  # bytes one target pass is said to read
    relative_sd: float | None = None  # of tok_s or speedup over repeats, as printed
    fixed_length: bool = False  # every round proposes gamma tokens
    pooled_mgl: bool = False  # speedup is a mean over prompts, MGL a mean over their rounds
    program: str | None = None
    failed_native_calls: int = 0
    invalid_reason: str | None = None
    decode_ms: float | None = None
    parts_ms: float | None = None  # sum of the parts of all rounds

    @property
    def speculative(self) -> bool:
        """Whether a drafter was used."""
        return self.drafter != NO_DRAFTER

    @property
    def implied_round_ms(self) -> float | None:
        """Length of a round with full-length drafts that its acceptance and throughput imply."""
        if not self.fixed_length or self.gamma is None or self.acceptance is None:
            return None
        if self.tok_s is None or self.tok_s.value <= 0:
            return None
        return 1e3 * (1.0 + self.gamma * self.acceptance.value) / self.tok_s.value

    @property
    def pair(self) -> tuple[object, ...]:
        """Rows with equal pairs do the same work each round."""
        return (self.target, self.drafter, self.draft, self.gamma)

    @property
    def case(self) -> tuple[object, ...]:
        """Rows with equal cases are repeats of each other."""
        return (*self.pair, self.prompt, self.n_prompt, self.n_predict)


class Finding(Record, frozen=True, kw_only=True):
    """What one rule says of one row."""

    rule: str
    verdict: Credibility
    figures: dict[str, float]  # the numbers that decided, units in their names
    sentence: str


class AuditContext(Record, frozen=True, kw_only=True, dict=True):
    """What is known beside the row: the rest of its table, the machine, the sizes of the models."""

    rows: tuple[AuditRow, ...]
    peak_gb_s: float | None = None
    peak_source: str = ""
    pass_bytes: dict[str, float] = msgspec.field(default_factory=dict)  # model -> bytes that one token at least reads
    draft_token_ms: dict[str, float] = msgspec.field(default_factory=dict)  # draft -> least time of one draft token
    notes: tuple[str, ...] = ()  # where the figures above come from

    @cached_property
    def noise(self) -> float:
        """Typical relative standard deviation between repeats: at least 1 %, and 3 % where too few repeats show it.

        The median over cases, so that one corrupted row does not excuse itself; widened because three repeats show less
        than the whole spread.
        """
        spreads, freedom = [], 0
        for rows in self.repeats.values():
            values = [row.tok_s.value for row in rows if row.tok_s is not None]
            if len(values) > 1 and statistics.fmean(values) > 0:
                spreads.append(1.3 * statistics.stdev(values) / statistics.fmean(values))
                freedom += len(values) - 1
        printed = [row.relative_sd for row in self.rows if row.relative_sd is not None]
        seen = statistics.median(spreads or printed or [UNSEEN_NOISE])
        return max(seen, LEAST_NOISE if freedom >= 6 or printed else UNSEEN_NOISE)

    @cached_property
    def repeats(self) -> Mapping[tuple[object, ...], list[AuditRow]]:
        """Rows of each case that were measured more than once."""
        groups: dict[tuple[object, ...], list[AuditRow]] = {}
        for row in self.rows:
            if row.repeat is not None:
                groups.setdefault(row.case, []).append(row)
        return groups

    @cached_property
    def repeated_speeds(self) -> Mapping[tuple[object, ...], tuple[float, Counter[float]]]:
        """Median tok/s of the repeats of each case, and how often each value occurs."""
        values = {case: [r.tok_s.value for r in rows if r.tok_s is not None] for case, rows in self.repeats.items()}
        return {case: (statistics.median(v), Counter(v)) for case, v in values.items() if len(v) > 1}

    @cached_property
    def pairs(self) -> Mapping[tuple[object, ...], list[AuditRow]]:
        """Rows that do the same work each round, over all prompts."""
        groups: dict[tuple[object, ...], list[AuditRow]] = {}
        for row in self.rows:
            groups.setdefault(row.pair, []).append(row)
        return groups

    def margin(self, row: AuditRow) -> float:
        """By how much a bound must be broken before noise cannot explain it: five standard deviations, at least 5 %.

        More where the only baseline has another prompt length (a deeper context slows a pass), and where a mean of
        speedups over unequal prompts may honestly exceed what an MGL pooled over their rounds allows.
        """
        if row.pooled_mgl:
            return POOLED_SLACK
        borrowed = bool(self.baselines(row.target)) and not self._fitting_baselines(row)
        return 5.0 * max(self.noise, row.relative_sd or 0.0) + (BORROWED_SLACK if borrowed else 0.0)

    @cached_property
    def _baselines(self) -> Mapping[str, list[AuditRow]]:
        groups: dict[str, list[AuditRow]] = {}
        for row in self.rows:
            if not row.speculative and row.tok_s is not None:
                groups.setdefault(row.target, []).append(row)
        return groups

    def baselines(self, target: str) -> list[AuditRow]:
        """The AR rows of a target."""
        return self._baselines.get(target, [])

    @cached_property
    def _fitting(self) -> dict[tuple[object, ...], list[AuditRow]]:
        return {}

    def _fitting_baselines(self, row: AuditRow) -> list[AuditRow]:
        """AR rows of the same prompt, else of the same prompt length, else averaged over prompts in print."""
        key = (row.target, row.prompt, row.n_prompt)
        if key not in self._fitting:
            candidates = self.baselines(row.target)
            same_length = [c for c in candidates if c.n_prompt == row.n_prompt]
            same_prompt = [c for c in same_length if c.prompt == row.prompt]
            averaged = [c for c in candidates if c.prompt is None and c.n_prompt is None]
            self._fitting[key] = same_prompt or same_length or averaged
        return self._fitting[key]

    @cached_property
    def _baseline_means(self) -> dict[tuple[object, ...], Printed | None]:
        return {}

    def baseline_tok_s(self, row: AuditRow) -> Printed | None:
        """Mean AR throughput to judge a row by: its fitting baselines, else all of the target."""
        key = (row.target, row.prompt, row.n_prompt)
        if key not in self._baseline_means:
            fitting = self._fitting_baselines(row) or self.baselines(row.target)
            values = [baseline.tok_s for baseline in fitting if baseline.tok_s is not None]
            self._baseline_means[key] = _mean(values) if values else None
        return self._baseline_means[key]

    @cached_property
    def baseline_ranges(self) -> Mapping[tuple[str, int | None], tuple[float, float, int]]:
        """Slowest and fastest AR tok/s and their number, by target and depth; rows without a depth count at each."""
        ranges = {}
        for target, rows in self._baselines.items():
            for depth in {row.n_prompt for row in rows}:
                same = [row for row in rows if depth is None or row.n_prompt in (None, depth)]
                values = [row.tok_s.value for row in same if row.tok_s is not None]
                ranges[target, depth] = (min(values), max(values), len(values))
        return ranges

    @cached_property
    def baseline_sets(self) -> Mapping[str, dict[str, set[object]]]:
        """Programs, token counts and prompts of the AR rows of each target; None where a row does not say."""
        names = ("program", "n_predict", "prompt")
        return {t: {name: {getattr(r, name) for r in rows} for name in names} for t, rows in self._baselines.items()}

    @cached_property
    def accepted_per_round(self) -> Mapping[tuple[object, ...], dict[int, float]]:
        """Accepted tokens a round of full-length drafts, by work and prompt, then by gamma: the most of any row."""
        groups: dict[tuple[object, ...], dict[int, float]] = {}
        for row in self.rows:
            if row.gamma is not None and row.acceptance is not None and row.fixed_length:
                by_gamma = groups.setdefault((*row.pair[:3], row.prompt, row.n_prompt), {})
                by_gamma[row.gamma] = max(by_gamma.get(row.gamma, 0.0), row.gamma * row.acceptance.low)
        return groups

    @cached_property
    def round_medians(self) -> Mapping[tuple[object, ...], tuple[float, int]]:
        """Median round in ms and number of rows that do the same work with full-length drafts."""
        lengths = {
            key: [ms for r in rows if (ms := r.implied_round_ms) is not None] for key, rows in self.pairs.items()
        }
        return {key: (statistics.median(values), len(values)) for key, values in lengths.items() if values}


def _mean(values: list[Printed]) -> Printed:
    low, high = statistics.fmean(v.low for v in values), statistics.fmean(v.high for v in values)
    return Printed(value=statistics.fmean(v.value for v in values), low=low, high=high, digits=values[0].digits)


class RowAudit(Record, frozen=True, kw_only=True):
    """Verdict on one row: the worst of its findings."""

    identity: dict[str, str | int]
    verdict: Credibility
    findings: tuple[Finding, ...]


class Audit(Record, frozen=True, kw_only=True):
    """Verdicts on all rows of a source."""

    source: str
    rows: tuple[RowAudit, ...]
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[Credibility, int]:
        """How many rows have each verdict."""
        return {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in SEVERITY}
