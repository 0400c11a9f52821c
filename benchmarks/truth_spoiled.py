"""Rows of mlsd's own record, each printed wrong in one way that people publish: how many does the audit find?

A row is found where its verdict is suspicious or impossible, or where it is asked what it was not asked when true.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from benchmarks.harness import Result, percent
from mlsd.audits.check import audit
from mlsd.audits.printed import Printed, exact
from mlsd.audits.rows import AuditContext, AuditRow, RowAudit
from mlsd.audits.trials import database_context
from mlsd.store.store import Store

RECORD = Path(__file__).parent.parent / "notebooks" / "data" / "tiny.sqlite"
ROWS = 24  # of the record, evenly spread

DOUBTS = ("suspicious", "impossible")
Spoil = Callable[[AuditRow], AuditRow]


def _scaled(figure: Printed | None, factor: float) -> Printed | None:
    return None if figure is None else figure.scaled(factor)


def _more_proposed(row: AuditRow) -> AuditRow:
    assert row.gamma and row.rounds and row.n_accepted is not None
    proposed = round(1.5 * row.gamma * row.rounds.value)
    return replace(row, n_proposed=proposed, acceptance=exact(row.n_accepted / proposed), mgl=None)


def _above_mgl(row: AuditRow) -> AuditRow:
    assert row.mgl and row.speedup and row.tok_s
    factor = 1.3 * row.mgl.value / row.speedup.value
    return replace(row, tok_s=row.tok_s.scaled(factor), speedup=row.speedup.scaled(factor))


def _of_plain(row: AuditRow) -> AuditRow:
    assert row.tok_s and row.speedup
    return replace(row, tok_s=row.tok_s.scaled(1 / row.speedup.value))


SPOILED: dict[str, Spoil] = {
    "more accepted than the output holds": lambda row: replace(
        row, n_accepted=round(1.3 * (row.n_output or 0)), n_proposed=2 * (row.n_output or 0), mgl=None, acceptance=None
    ),
    "more proposed than gamma times rounds": _more_proposed,
    "speedup above MGL": _above_mgl,
    "milliseconds a token given as tok/s": lambda row: replace(row, tok_s=row.tok_s and exact(1e3 / row.tok_s.value)),
    "acceptance in per cent given as a share": lambda row: replace(row, acceptance=_scaled(row.acceptance, 0.01)),
    "time of the whole answer given as decoding": lambda row: replace(
        row, ms_per_token=row.tok_s and exact(1e3 / row.tok_s.value), tok_s=_scaled(row.tok_s, 1 / 1.3)
    ),
    "speeds of both arms swapped": _of_plain,
    "MGL and acceptance swapped": lambda row: replace(
        row, mgl=exact(1.0 + (row.acceptance.value if row.acceptance else 0.0)), n_accepted=None, n_proposed=None
    ),
}


def printed(context: AuditContext) -> list[AuditRow]:
    """The rows with the counts and the speedup that a published table gives beside them."""
    rows = [row for row in context.rows if row.tok_s is not None and row.invalid_reason is None]
    plain: dict[tuple[str, str | None], list[float]] = {}
    for row in rows:
        if not row.speculative and row.tok_s:
            plain.setdefault((row.target, row.prompt), []).append(row.tok_s.value)
    told = []
    for row in rows:
        base = plain.get((row.target, row.prompt))
        if row.speculative and base and row.tok_s and row.mgl and row.rounds and row.acceptance and row.gamma:
            accepted = round((row.mgl.value - 1) * row.rounds.value)
            proposed = round(accepted / row.acceptance.value) if row.acceptance.value else 0
            speedup = exact(row.tok_s.value / fmean(base))
            row = replace(row, n_accepted=accepted, n_proposed=proposed, speedup=speedup)
        told.append(row)
    return told


def _judged(kind: str, context: AuditContext, tables: list[list[AuditRow]]) -> list[RowAudit]:
    """The last row of each table."""
    audits = iter(audit(kind, *(replace(context, rows=tuple(rows)) for rows in tables)).rows)
    return [[next(audits) for _ in rows][-1] for rows in tables]


def run() -> Iterator[Result]:
    with Store.open(RECORD, read_only=True) as store:
        context = database_context(store)
    rows = printed(context)
    counted = [row for row in rows if row.n_accepted and row.speedup]
    chosen = counted[:: max(1, len(counted) // ROWS)]
    # Beside a row stand its plain runs alone: a table of one claim.
    plain = [
        [one for one in rows if not one.speculative and (one.target, one.prompt) == (row.target, row.prompt)]
        for row in chosen
    ]
    true = _judged("true", context, [[*beside, row] for beside, row in zip(plain, chosen, strict=True)])
    yield percent("own rows as measured: doubted", fmean(row.verdict in DOUBTS for row in true), at_most=0.5)
    found = list[bool]()
    for kind, spoil in SPOILED.items():
        wrong = _judged(kind, context, [[*beside, spoil(row)] for beside, row in zip(plain, chosen, strict=True)])
        of_kind = [
            after.verdict in DOUBTS or len(after.questions) > len(before.questions)
            for before, after in zip(true, wrong, strict=True)
        ]
        yield percent(f"own rows found: {kind}", fmean(of_kind))
        found += of_kind
    yield percent("own rows found, of every kind", fmean(found), at_least=90.0)
