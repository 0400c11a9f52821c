"""What an audit reads and what it answers: rows of a table, what is known beside them, and the verdict on each.

Plain values. `frame` makes one DataFrame of them, `bounds` and `doubts` hold the rules, `check` gives the verdicts.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from mlsd.audits.printed import Printed
from mlsd.records import NO_DRAFTER, Record
from mlsd.trials.acceptance_meanings import Meaning

Credibility = Literal["possible", "suspicious", "impossible", "not judged"]
SEVERITY: dict[Credibility, int] = {"possible": 1, "suspicious": 2, "impossible": 3, "not judged": 0}


class PastedRow(Record, frozen=True, kw_only=True):
    """One row of a text: where it stands, and its cells by field; by column while the columns are not known."""

    line: int
    table: str = ""  # the heading above it
    above: str = ""  # the last line of text between that heading and the table
    group: int = 0  # rows of one group are of one table
    cells: dict[str, str] = msgspec.field(default_factory=dict)
    heads: dict[str, str] = msgspec.field(default_factory=dict)  # field -> the column as it is headed
    setting: str = ""  # cells of columns without a field: rows that differ in them may differ in anything
    quote: str = ""  # the row as it stands
    broken: str = ""  # what is wrong with the line as a whole


class AuditRow(Record, frozen=True, kw_only=True):
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
    on_cpu: bool = False  # computed by the processor's cores, not by the chip's GPU
    program: str | None = None
    setting: str = ""  # cells of columns that no rule reads: rows that differ in them are no repeats
    lossless: bool = False  # its output was compared with plain decoding
    loop: int | None = None  # tokens that its output repeats to its end
    failed_native_calls: int = 0
    invalid_reason: str | None = None
    cannot_be: str | None = None  # what contradicts itself: an own trial's identities, more accepted than proposed

    @property
    def speculative(self) -> bool:
        return self.drafter != NO_DRAFTER


class AuditContext(Record, frozen=True, kw_only=True):
    """Rows that may judge each other, and what is known beside them."""

    rows: tuple[AuditRow, ...]
    beside: tuple[AuditRow, ...] = ()  # rows that judge and are not judged
    peak_gb_s: float | None = None  # of all rows; None takes the peak of each row's chip
    exact_counts: bool = True  # n_predict is the count of one output: not pooled over turns, not cut by an early end
    pass_bytes: dict[str, float] = msgspec.field(default_factory=dict)  # model -> bytes that one token at least reads
    draft_token_ms: dict[str, float] = msgspec.field(default_factory=dict)  # draft -> least time of one draft token
    notes: tuple[str, ...] = ()  # where the figures above come from


class RuleFinding(Record, frozen=True, kw_only=True):
    """What one rule says of one row; "not judged" where it only informs."""

    rule: str
    verdict: Credibility = "possible"
    figures: dict[str, float]  # the numbers that decided, units in their names
    sentence: str
    ask: bool = False  # a question to the author, though nothing is doubted


class RowAudit(Record, frozen=True, kw_only=True, rename={"findings": "rules"}):
    """Verdict on one row: the worst of its findings."""

    identity: dict[str, str | int]
    verdict: Credibility
    findings: tuple[RuleFinding, ...]
    missing: tuple[str, ...] = ()  # what the table would have to state, where the row is not judged
    round_cost: float | None = None  # of a round in plain steps, C = MGL / speedup, where the table says both

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
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in SEVERITY if verdict != "not judged" or verdict in verdicts}
