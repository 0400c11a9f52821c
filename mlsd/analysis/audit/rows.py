"""What an audit reads and what it answers: rows, the context that judges them, findings.

Plain values; the rules are in `audit`, the readers in `published_tables`, `tables` and `trials`.
"""

import math
import re
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

import msgspec

from mlsd.analysis.audit.model_name import same_model, stored_bits
from mlsd.formats.printed import Printed
from mlsd.hardware.chips import bins
from mlsd.records import NO_DRAFTER, Record
from mlsd.stats import grouped
from mlsd.trials.acceptance import MEANINGS, Meaning

Credibility = Literal["possible", "suspicious", "impossible", "not judged"]
SEVERITY: dict[Credibility, int] = {"possible": 1, "suspicious": 2, "impossible": 3, "not judged": 0}

DEEPER = 1.15  # a plain pass of a somewhat deeper context takes at most so much longer
# A draft's own plain run may be of a file twice the size (BF16 for Q8_0), or pay for sampling that drafting does not.
DRAFT_SHARE = 0.5
PROGRAMS = 1.15  # two programs of one engine on one machine differ by at most so much
LONG_OUTPUT = 1024
ONE_DEPTH = 0.03  # plain passes of prompts that differ by more compare in other things than acceptance, too
NEAR_TOKENS = 256  # a context that much deeper, or by a quarter, is somewhat deeper
LEAST_NOISE, UNSEEN_NOISE, MOST_NOISE = 0.01, 0.02, 0.12  # relative standard deviations between repeats
UNSEEN_WEIGHT = 2  # UNSEEN_NOISE counts like so many degrees of freedom beside what the baselines show
_LLAMA_CPP = re.compile(r"llama[-_. ]?(?:bench|cli|cpp|server|speculative|swap)|lcpp|ggml|ollama|kobold")
SAME_SPEED_RATIO = 1.04  # settings that do the same work run within this
LEAST_DIGITS = 0.105  # of a number of two digits its last unit is at most a tenth
RATE_SPREAD = 0.1  # by how much rates of two draft lengths lie apart, so that chance seldom makes them equal
QUIETEST = 0.0005  # no measured time scatters less


class AuditRow(Record, frozen=True, kw_only=True, dict=True):
    """One row of a table of results, ours or published. None: the table does not say."""

    table: str
    label: str  # what a reader would call the row
    target: str
    chip: str | None = None  # rows of two chips are never judged by each other
    drafter: str = NO_DRAFTER
    draft: str | None = None  # the draft model, where the drafter has one
    options: str = ""  # of the drafter
    gamma: int | None = None
    prompt: str | None = None
    n_prompt: int | None = None
    n_predict: int | None = None
    repeat: int | None = None
    tok_s: Printed | None = None  # decode tok/s
    ms_per_token: Printed | None = None
    speedup: Printed | None = None
    acceptance: Printed | None = None
    acceptance_of: Meaning | None = None  # what the rate divides by
    n_accepted: int | None = None  # tokens over the whole output
    n_proposed: int | None = None
    mgl: Printed | None = None
    rounds: Printed | None = None
    n_output: int | None = None  # tokens the output had; n_predict is what it was allowed
    baseline_target: str | None = None  # what the speedup is said to be over, where that is another file
    pass_bytes: float | None = None  # what one token reads at least, by the model's name
    draft_ms: Printed | None = None  # drafting of one round, as the table prints it
    bytes_claimed: Printed | None = None  # bytes one target pass is said to read
    relative_sd: float | None = None  # of tok_s or speedup over repeats, as printed
    fixed_length: bool = False  # every round proposes gamma tokens
    compared: bool = False  # the row prints the plain run that it is compared with
    pooled_mgl: bool = False  # speedup is a mean over prompts, MGL a mean over their rounds
    program: str | None = None
    setting: str = ""  # what else the table says of the row, in words that no rule reads
    lossless: bool = False  # its output was compared with plain decoding
    loop: int | None = None  # tokens that its output repeats to its end
    failed_native_calls: int = 0
    invalid_reason: str | None = None
    cannot_be: str | None = None  # what contradicts itself: an own trial's identities, more accepted than proposed

    @property
    def speculative(self) -> bool:
        return self.drafter != NO_DRAFTER

    @property
    def claims_ratio(self) -> bool:
        return self.speedup is not None or self.compared

    @property
    def comparable(self) -> bool:
        """Whether nothing is known to be false of it: only such rows are compared with each other."""
        return not (self.failed_native_calls or self.invalid_reason or self.cannot_be)

    @property
    def engine(self) -> str | None:
        """What decodes under the program: llama.cpp under any of its programs, else the program itself."""
        return "llama.cpp" if self.program and _LLAMA_CPP.search(self.program.lower()) else self.program

    @property
    def meanings(self) -> tuple[Meaning, ...]:
        return MEANINGS if self.acceptance_of is None else (self.acceptance_of,)

    @cached_property
    def committed(self) -> Printed | None:
        """MGL as printed, else 1 + gamma * acceptance where every draft has gamma tokens."""
        stated = self.mgl is not None or self.acceptance_of not in (None, "proposed")
        if stated or not self.fixed_length or self.gamma is None or self.acceptance is None:
            return self.mgl
        gamma = self.gamma
        return self.acceptance.each(lambda rate: 1.0 + gamma * rate)

    @cached_property
    def pace(self) -> float | None:
        """Rounds a second, or tokens a second where the length of a round is not known."""
        if self.tok_s is None or self.tok_s.value <= 0:
            return None
        return self.tok_s.value / (1.0 if self.committed is None else self.committed.value)

    @property
    def printed_time(self) -> tuple[float, ...]:
        return tuple(figure.value for figure in (self.tok_s, self.ms_per_token) if figure is not None)

    @property
    def pair(self) -> tuple[object, ...]:
        return (self.target, self.chip, self.drafter, self.draft, self.options, self.gamma)

    @property
    def long_output(self) -> int | None:
        """The length of an output so long that its own tokens deepen the context of its passes."""
        return self.n_predict if self.n_predict is not None and self.n_predict > LONG_OUTPUT else None

    @property
    def run_of(self) -> tuple[object, ...]:
        """What plain runs of one target, chip and depth may still differ in."""
        return (self.long_output, self.program, self.setting)

    @property
    def host(self) -> tuple[str, str | None]:
        return (self.target, self.chip)

    @cached_property
    def case(self) -> tuple[object, ...]:
        return (*self.pair, self.prompt, self.n_prompt, self.n_predict, self.program)


class RuleFinding(Record, frozen=True, kw_only=True):
    """What one rule says of one row."""

    rule: str
    verdict: Credibility = "possible"
    figures: dict[str, float]  # the numbers that decided, units in their names
    sentence: str
    ask: bool = False  # a question to the author, though nothing is doubted


class Baseline(Record, frozen=True, kw_only=True):
    """Plain decoding that a row may be judged by."""

    mean: Printed  # tok/s
    fastest: Printed  # tok/s
    margin: float = 1.0  # by how much faster the row's own plain run may be
    words: str = ""  # why it may
    own: bool = True  # of the row's own prompt or depth
    n: int = 1  # rows behind the mean

    @property
    def most(self) -> float:
        """The fastest plain run that the row may have had, tok/s: it bounds the time of a target pass from below."""
        return self.fastest.high * self.margin


class EqualRates(NamedTuple):
    """Where two lengths of draft print one rate."""

    capped: dict[tuple[object, ...], int]  # case -> the shorter gamma that is as fast
    copied: set[tuple[object, ...]]  # cases of pairs that run at two speeds
    n_copied: int  # such pairs
    expected: float  # pairs of one rate that chance gives


class Slope(Record, frozen=True, kw_only=True):
    """Log speed against log MGL over the prompts of equal work: 1 where rounds of equal work take equal time."""

    value: float
    error: float
    n_cases: int


class AuditContext(Record, frozen=True, kw_only=True, dict=True):
    """What is known beside the row: the rest of its table, the machine, the sizes of the models."""

    rows: tuple[AuditRow, ...]
    beside: tuple[AuditRow, ...] = ()  # rows that judge and are not judged
    peak_gb_s: float | None = None  # of all rows; None takes the peak of each row's chip
    exact_counts: bool = True  # n_predict is the count of one output: not pooled over turns, not cut by an early end
    pass_bytes: dict[str, float] = msgspec.field(default_factory=dict)  # model -> bytes that one token at least reads
    draft_token_ms: dict[str, float] = msgspec.field(default_factory=dict)  # draft -> least time of one draft token
    notes: tuple[str, ...] = ()  # where the figures above come from

    def peak(self, row: AuditRow) -> float | None:
        """Peak GB/s of the memory that the row was measured with: of the widest bin that can hold what is read."""
        if self.peak_gb_s is not None or row.chip is None:
            return self.peak_gb_s
        held = [one for one in bins(row.chip) if (one.max_memory_gib or 0) * 2**30 > (row.pass_bytes or 0.0)]
        return max((one.peak_bandwidth_gb_s for one in held if one.peak_bandwidth_gb_s), default=None)

    @cached_property
    def comparable(self) -> tuple[AuditRow, ...]:
        """The rows that others may be compared with."""
        return tuple(row for row in (*self.rows, *self.beside) if row.comparable)

    # --- repeats and their noise

    @cached_property
    def repeats(self) -> Mapping[tuple[object, ...], list[AuditRow]]:
        """Rows of each case that were measured more than once."""
        groups = grouped((row for row in self.comparable if row.repeat is not None), lambda row: row.case)
        return {case: rows for case, rows in groups.items() if len(rows) > 1}

    @cached_property
    def _scatter(self) -> tuple[float, int]:
        """Sum of squares and degrees of freedom of log tok/s between repeats of baselines, else as they print it."""
        squares, freedom = 0.0, 0
        for rows in self.repeats.values():
            logs = [math.log(r.tok_s.value) for r in rows if r.tok_s is not None and r.tok_s.value > 0]
            if not rows[0].speculative and len(logs) > 1:
                squares, freedom = squares + statistics.variance(logs) * (len(logs) - 1), freedom + len(logs) - 1
        if freedom:
            return squares, freedom
        printed = [row.relative_sd for row in self.comparable if not row.speculative and row.relative_sd is not None]
        return sum(2.0 * sd**2 for sd in printed), 2 * len(printed)

    @cached_property
    def noise(self) -> float:
        """Relative standard deviation between repeats, of baselines alone: a suspect row must not excuse itself."""
        squares, freedom = self._scatter
        variance = (squares + UNSEEN_WEIGHT * UNSEEN_NOISE**2) / (freedom + UNSEEN_WEIGHT)
        return min(MOST_NOISE, max(LEAST_NOISE, math.sqrt(variance)))

    @cached_property
    def repeated_paces(self) -> Mapping[tuple[object, ...], list[float]]:
        """Rounds a second of the repeats of each case, sorted; none where drafts of unknown length differ."""
        return {
            case: paces
            for case, rows in self.repeats.items()
            if rows[0].committed is not None or len({row.acceptance for row in rows}) == 1
            if len(paces := sorted(pace for row in rows if (pace := row.pace) is not None)) > 1
        }

    @cached_property
    def repeated_times(self) -> Mapping[tuple[object, ...], Counter[tuple[float, ...]]]:
        return {case: Counter(row.printed_time for row in rows) for case, rows in self.repeats.items()}

    def chance_of_equal(self, row: AuditRow) -> float:
        """Chance that one other repeat prints the same time: ``step / (2 sqrt(pi) sigma)`` of two normal draws.

        Sigma is a low guess of the noise.
        """
        squares, freedom = self._scatter
        noise = max(QUIETEST, 0.85 * math.sqrt(squares / freedom)) if freedom >= 4 else QUIETEST
        steps = [(f.high - f.low) / f.value for f in (row.tok_s, row.ms_per_token) if f is not None and f.value > 0]
        return min(1.0, max(1e-9, min(steps)) / (2.0 * math.sqrt(math.pi) * noise)) if steps else 1.0

    @cached_property
    def chance_of_copies(self) -> float:
        """Chance of as many cases with all repeats equal as the table has, a Poisson count."""
        expected = sum(self.chance_of_equal(rows[0]) ** (len(rows) - 1) for rows in self.repeats.values())
        return chance_of_more(sum(len(times) == 1 for times in self.repeated_times.values()), expected)

    @cached_property
    def equal_rates(self) -> EqualRates:
        """Two lengths of draft of which one share was accepted: a copy where their speeds differ, else capped."""

        def is_fine(row: AuditRow) -> bool:
            """Whether its rate is printed in two digits or more, so that two equal ones mean something."""
            rate = row.acceptance if row.speculative and row.gamma and row.tok_s is not None else None
            return rate is not None and 0 < rate.value < 1 and rate.high - rate.low < LEAST_DIGITS * rate.value

        capped, copied, expected = dict[tuple[object, ...], int](), list[AuditRow](), 0.0
        fine = filter(is_fine, self.comparable)
        for rows in grouped(fine, lambda row: (*row.pair[:-1], row.prompt, row.n_prompt)).values():
            first = {row.gamma: row for row in reversed(rows)}
            for pair in combinations(sorted(first.values(), key=lambda row: row.gamma or 0), 2):
                rates = [row.acceptance for row in pair if row.acceptance is not None]
                expected += min(1.0, max(rate.high - rate.low for rate in rates) / RATE_SPREAD)
                slower, faster = sorted(row.tok_s.value for row in pair if row.tok_s is not None)
                if rates[0] == rates[1] and faster > SAME_SPEED_RATIO * slower:
                    copied += pair
                elif rates[0] == rates[1]:
                    capped.setdefault(pair[1].case, pair[0].gamma or 0)
        return EqualRates(capped, {row.case for row in copied}, len(copied) // 2, expected)

    def typical(self, row: AuditRow) -> float:
        """Lower quartile of the paces of the row's repeats over its own: a fast repeat may be a slip of the clock."""
        paces, own = self.repeated_paces.get(row.case), row.pace
        return 1.0 if paces is None or own is None else min(1.0, paces[(len(paces) - 1) // 4] / own)

    def case_mean(self, row: AuditRow) -> tuple[float, float, float] | None:
        """The mean of a row's repeats over the mean of its baselines.

        How much faster it is than the row itself, its plain speed in tok/s, and the error in deviations of one repeat.
        """
        paces, own, baseline = self.repeated_paces.get(row.case), row.pace, self.baseline(row)
        if not row.comparable or paces is None or own is None or baseline is None:
            return None
        plain, error = baseline.mean.value * baseline.margin, math.sqrt(1 / len(paces) + 1 / baseline.n)
        return statistics.fmean(paces) / own, plain, error

    # --- baselines

    @cached_property
    def plain(self) -> Mapping[tuple[str, str | None], list[AuditRow]]:
        """AR rows with a speed, by target and chip."""
        plain = (row for row in self.comparable if not row.speculative and row.tok_s is not None)
        return grouped(plain, lambda row: row.host)

    def baselines(self, row: AuditRow) -> list[AuditRow]:
        return self.plain.get(row.host, [])

    @cached_property
    def programs(self) -> set[str | None]:
        """Those that decoded plain rows; None where a row does not say."""
        return {row.program for rows in self.plain.values() for row in rows}

    @cached_property
    def _judged_by(self) -> dict[tuple[object, ...], Baseline | None]:
        return {}

    def baseline(self, row: AuditRow) -> Baseline | None:
        """What to judge a row by: its prompt's baselines, else its depth's, else those whose depth is not stated.

        Else those of a shallower context, whose passes are faster and so favour the row, else of one that is somewhat
        deeper, with slack. Much deeper ones say nothing of a shallow row.
        """
        key = (*row.host, row.prompt, row.n_prompt, row.long_output, row.program, row.setting, row.claims_ratio)
        if key not in self._judged_by:
            self._judged_by[key] = self._find_baseline(row)
        return self._judged_by[key]

    def _find_baseline(self, row: AuditRow) -> Baseline | None:
        known, margin, words = self.baselines(row), 1.0, ""
        known = [r for r in known if r.setting == row.setting] or known
        own = [r for r in known if r.program == row.program]
        if not own and (own := [r for r in known if r.engine == row.engine]):
            margin, words = PROGRAMS, " (another program's plain run less 15 %)"
        # Another engine's plain run judges nobody but a row that states a ratio.
        known = own or [r for r in known if row.claims_ratio or None in (row.program, r.program)]
        known = [r for r in known if r.long_output == row.long_output] or known
        depth = math.inf if row.n_prompt is None else row.n_prompt
        same = [r for r in known if r.n_prompt == row.n_prompt]
        shallower, near = (
            [r for r in known if r.n_prompt is None or r.n_prompt <= depth + reach]
            for reach in (0.0, max(NEAR_TOKENS, depth / 4))
        )
        choice = [r for r in same if r.prompt == row.prompt] or same or shallower or near
        if not choice:
            return None
        speeds = _speeds(choice)
        return Baseline(
            mean=_mean(speeds),
            fastest=max(speeds, key=lambda speed: speed.high),
            margin=margin * (1.0 if same or shallower else DEEPER),
            words=words,
            own=bool(same) or all(r.n_prompt is None and r.prompt is None for r in choice),
            n=len(speeds),
        )

    def agreeing_baselines(self, row: AuditRow) -> Printed | None:
        """The tok/s that the row's speedup may honestly be a ratio to: any of its baselines or their mean."""
        rows = self.baselines(row)
        same = [r for r in rows if (r.prompt, r.n_prompt) == (row.prompt, row.n_prompt)]
        return between([*_speeds(same), _mean(_speeds(rows))] if same else _speeds(rows))

    @cached_property
    def baseline_speeds(self) -> Mapping[tuple[object, ...], list[float]]:
        """tok/s of AR rows by target, chip and depth, sorted; rows without a depth count at each."""
        speeds: dict[tuple[object, ...], list[float]] = {}
        for host, rows in self.plain.items():
            for depth, run in {(row.n_prompt, row.run_of) for row in rows}:
                near = [row for row in rows if row.run_of == run and (depth is None or row.n_prompt in (None, depth))]
                speeds[(*host, depth, *run)] = sorted(speed.value for speed in _speeds(near))
        return speeds

    @cached_property
    def _fastest(self) -> Mapping[tuple[str, str | None], float]:
        """tok/s of the fastest plain run of each target on each chip."""
        return {host: max(speed.high for speed in _speeds(rows)) for host, rows in self.plain.items()}

    def timed_draft_ms(self, row: AuditRow) -> float:
        """The least time of one pass of the row's draft by the table's plain runs of its model; 0 where there are none.

        A pass takes a fixed time plus the time to read its bytes, so that of a smaller file is shorter by less than it
        is.
        """
        name, times = row.draft or "", [0.0]
        bits = stored_bits(name)
        for (target, chip), fastest in self._fastest.items():
            other = stored_bits(target)
            if target == name:
                times.append(DRAFT_SHARE * 1e3 / fastest)
            elif bits and other and chip == row.chip and same_model(target, name):
                times.append(min(1.0, bits[0] / other[1]) * 1e3 / fastest / PROGRAMS)
        return max(times)

    # --- rounds of equal work

    def round_passes(self, row: AuditRow) -> tuple[tuple[object, ...], float] | None:
        """The row's equals in work, and its round in target passes: ``MGL / speedup``.

        Without a baseline of its own the round is in seconds and its equals are of its depth alone.
        """
        if not row.fixed_length or row.committed is None or row.tok_s is None or row.tok_s.value <= 0:
            return None
        baseline = self.baseline(row)
        if baseline is None or not baseline.own:
            return (*row.pair, row.n_prompt), row.committed.value / row.tok_s.value
        return row.pair, row.committed.value * baseline.mean.value / row.tok_s.value

    @cached_property
    def _rounds(self) -> Mapping[tuple[object, ...], list[tuple[AuditRow, float]]]:
        rounds = [(row, found) for row in self.comparable if row.speculative and (found := self.round_passes(row))]
        groups = grouped(rounds, lambda one: one[1][0])
        return {work: [(row, passes) for row, (_, passes) in own] for work, own in groups.items()}

    @cached_property
    def round_medians(self) -> Mapping[tuple[object, ...], tuple[float, int]]:
        return {key: (statistics.median(v for _, v in items), len(items)) for key, items in self._rounds.items()}

    @cached_property
    def slope(self) -> Slope | None:
        """Least squares within each work, over its prompts; None where acceptance hardly varies or is coarsely printed.

        Prompts are those with a baseline of their own whose plain passes take nearly as long as most: drafting is a
        smaller share of a deeper round. The error counts the scatter of repeats, once for a case and once for the
        baseline that a prompt's cases share.
        """
        import numpy as np

        rows = [
            ((str(work), str((row.prompt, row.n_prompt)), str(row.case)), baseline.mean.value,
             (math.log(committed.value), math.log(length), math.log(committed.high / committed.low)))
            for work, items in self._rounds.items()
            for row, length in items
            if work == row.pair and (baseline := self.baseline(row)) and (committed := row.committed) is not None
        ]  # fmt: skip
        plain = {
            work: statistics.median(one[1] for one in own) for work, own in grouped(rows, lambda r: r[0][0]).items()
        }
        reach = math.log(1.0 + ONE_DEPTH + self.noise)
        cases = grouped((one for one in rows if abs(math.log(one[1] / plain[one[0][0]])) <= reach), lambda one: one[0])
        several = Counter(work for work, *_ in cases)
        cases = {key: own for key, own in cases.items() if several[key[0]] > 1}
        freedom = len(cases) - len({work for work, *_ in cases})
        if freedom < 2:
            return None
        work, prompt = (np.unique(names, return_inverse=True)[1] for names in list(zip(*cases, strict=True))[:2])
        n = np.array([len(own) for own in cases.values()])
        x, round_, width = np.array([np.mean([logs for *_, logs in own], axis=0) for own in cases.values()]).T
        x, y = (of - (np.bincount(work, of) / np.bincount(work))[work] for of in (x, x - round_))
        spread = float(np.sum(x**2))
        if spread < max(0.02, 50 * float(np.sum(width**2 / 12))):
            return None
        value = float(np.sum(x * y)) / spread
        first = np.unique(prompt, return_index=True)[1]
        weight = float(np.sum(x**2 / n) + np.sum(np.bincount(prompt, x) ** 2 / n[first]))
        variance = max(self.noise**2 * weight / spread, float(np.sum((y - value * x) ** 2)) / freedom)
        return Slope(value=value, error=math.sqrt(variance / spread), n_cases=len(x))


def chance_of_more(n: int, expected: float) -> float:
    """Chance of so many or more where so many are expected, a Poisson count."""
    if not expected:  # less than a float holds
        return float(not n)
    return max(0.0, 1.0 - sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(n)))


def median_of_others(values: list[float], value: float) -> float:
    """Median of a sorted list of two or more without one occurrence of a value."""
    skipped, rest = bisect_left(values, value), len(values) - 1
    low, high = (j if j < skipped else j + 1 for j in ((rest - 1) // 2, rest // 2))
    return (values[low] + values[high]) / 2


def _speeds(rows: list[AuditRow]) -> list[Printed]:
    return [row.tok_s for row in rows if row.tok_s is not None]


def between(values: list[Printed]) -> Printed | None:
    """From the least to the most of some numbers above 0."""
    if not values:
        return None
    low, high = min(value.low for value in values), max(value.high for value in values)
    return Printed(value=high, low=low, high=high) if low > 0 else None


def _mean(values: list[Printed]) -> Printed:
    value, low, high = (statistics.fmean(getattr(v, end) for v in values) for end in ("value", "low", "high"))
    return Printed(value=value, low=low, high=high)


class RowAudit(Record, frozen=True, kw_only=True):
    """Verdict on one row: the worst of its findings."""

    identity: dict[str, str | int]
    verdict: Credibility
    findings: tuple[RuleFinding, ...]
    missing: tuple[str, ...] = ()  # what the table would have to state, where the row is not judged

    @property
    def questions(self) -> tuple[RuleFinding, ...]:
        return tuple(finding for finding in self.findings if finding.ask)


class Audit(Record, frozen=True, kw_only=True):
    """Verdicts on all rows of a source."""

    source: str
    rows: tuple[RowAudit, ...]
    notes: tuple[str, ...] = ()

    def counts(self) -> dict[Credibility, int]:
        return count_verdicts(self.rows)


def count_verdicts(rows: Iterable[RowAudit]) -> dict[Credibility, int]:
    """How many rows have each verdict; "not judged" only where there are such."""
    own = [row.verdict for row in rows]
    return {verdict: own.count(verdict) for verdict in SEVERITY if verdict != "not judged" or verdict in own}
