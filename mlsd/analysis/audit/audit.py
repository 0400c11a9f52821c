"""The audit of a table: every rule on every row, the worst finding is the row's verdict."""

from __future__ import annotations

from mlsd.analysis.audit.rows import SEVERITY, Audit, AuditContext, AuditRow, Credibility, Finding, RowAudit
from mlsd.analysis.audit.rules import RULES


def audit_row(row: AuditRow, context: AuditContext) -> RowAudit:
    """Ask all rules of one row. Rules that do not apply leave no finding; a row without findings is possible."""
    findings: tuple[Finding, ...] = tuple(f for rule in RULES if (f := rule(row, context)) is not None)
    verdicts: list[Credibility] = ["possible", *(finding.verdict for finding in findings)]
    verdict = max(verdicts, key=SEVERITY.__getitem__)
    return RowAudit(identity=identity(row), verdict=verdict, findings=findings)


def audit(source: str, context: AuditContext) -> Audit:
    """Audit all rows of the context."""
    return Audit(source=source, rows=tuple(audit_row(row, context) for row in context.rows), notes=context.notes)


def identity(row: AuditRow) -> dict[str, str | int]:
    """What tells the row from others: the fields of its case that the source states."""
    fields = ("table", "label", "target", "drafter", "draft", "gamma", "prompt", "n_prompt", "n_predict", "repeat")
    return {name: value for name in fields if (value := getattr(row, name)) is not None}
