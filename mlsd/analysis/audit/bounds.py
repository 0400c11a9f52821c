"""What a row implies, each figure at the end of its interval that favours the row.

A bound is None where the table does not say enough; a rule then does not apply.
"""

from __future__ import annotations

from mlsd.analysis.audit.printed import Printed
from mlsd.analysis.audit.rows import CACHE_BYTES, AuditContext, AuditRow


def most_committed(row: AuditRow) -> float | None:
    """The largest MGL the row allows: as printed, else 1 + gamma * acceptance, else gamma + 1; 1 for AR."""
    if not row.speculative:
        return 1.0
    bounds = []
    if row.mgl is not None:
        bounds.append(row.mgl.high)
    if row.gamma is not None:
        acceptance = 1.0 if row.acceptance is None else min(1.0, row.acceptance.high)
        bounds.append(1.0 + row.gamma * acceptance)
    if not bounds:
        return None
    return bounds[0] if row.mgl is not None else min(bounds)


def speedup_of(row: AuditRow, context: AuditContext) -> Printed | None:
    """Speedup as printed, else the row's tok/s over the mean of its baseline."""
    if row.speedup is not None:
        return row.speedup
    baseline = context.baseline_tok_s(row)
    if row.tok_s is None or baseline is None or baseline.low <= 0:
        return None
    value, low, high = (
        row.tok_s.value / baseline.value,
        row.tok_s.low / baseline.high,
        row.tok_s.high / baseline.low,
    )
    return Printed(value=value, low=low, high=high, digits=row.tok_s.digits)


def longest_round_ms(row: AuditRow, context: AuditContext) -> float | None:
    """The longest a round can have taken: ``MGL / tok/s``.

    A program may count the first token, which prefill made, so n_predict tokens may be n_predict - 1 of decoding.
    """
    committed = most_committed(row)
    if committed is None:
        return None
    if row.tok_s is not None and row.tok_s.low > 0:
        slowest_ms = 1e3 / row.tok_s.low
    else:
        speedup, baseline = row.speedup, context.baseline_tok_s(row)
        if speedup is None or baseline is None or speedup.low <= 0 or baseline.low <= 0:
            return None
        slowest_ms = 1e3 / (baseline.low * speedup.low)
    counted = row.n_predict / (row.n_predict - 1) if row.n_predict and row.n_predict > 1 else 1.0
    return committed * slowest_ms * counted


def plain_pass_ms(row: AuditRow, context: AuditContext) -> float | None:
    """T(1) of the target from its baseline, or None without one."""
    baseline = context.baseline_tok_s(row)
    return None if baseline is None or baseline.high <= 0 else 1e3 / baseline.high


def least_proposed(row: AuditRow) -> float:
    """The fewest tokens a round proposed on average.

    Full-length drafting proposes gamma, but for the last gamma tokens of the output, where a program may stop short.
    Otherwise it is what was accepted: MGL - 1.
    """
    if row.gamma is not None and row.fixed_length:
        tail = row.gamma / (row.n_predict - 1) if row.n_predict and row.n_predict > 1 else 0.0
        return row.gamma * max(0.0, 1.0 - tail)
    return max(0.0, row.mgl.low - 1.0) if row.mgl is not None else 0.0


def least_draft_ms(row: AuditRow, context: AuditContext) -> float:
    """The least time a round spent drafting: as printed, else proposed tokens at the draft's own speed, else 0."""
    if row.draft_ms is not None:
        return row.draft_ms.low
    return least_proposed(row) * context.draft_token_ms.get(row.draft or "", 0.0)


def least_round_bytes(row: AuditRow, context: AuditContext) -> float | None:
    """Bytes a round moved from memory at least: one target pass and its drafts, less what a cache can keep."""
    if row.bytes_claimed is not None:
        return row.bytes_claimed.low
    if row.target not in context.pass_bytes:
        return None
    drafts = max(0.0, context.pass_bytes.get(row.draft or "", 0.0) - CACHE_BYTES) * least_proposed(row)
    return max(0.0, context.pass_bytes[row.target] - CACHE_BYTES) + drafts
