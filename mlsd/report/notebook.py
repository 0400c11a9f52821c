"""Tables and figures of a study for a notebook: one call a cell, shown as HTML."""

from __future__ import annotations

from html import escape
from pathlib import Path

import msgspec

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.experts.coverage import coverage_by_window
from mlsd.analysis.results.best_setting import best_settings, by_target, first_line
from mlsd.analysis.study.study import Study
from mlsd.errors import InputError
from mlsd.measure.store.store import Store
from mlsd.report.figures.paper import DEPTH_FIGURE, STUDY_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.machine_pages import COST_FIGURES, EXPERT_FIGURES
from mlsd.report.render import html, terminal
from mlsd.report.render.sections import picture
from mlsd.report.render.table import Table, number, numbers, text, words
from mlsd.report.render.table import table as table_of
from mlsd.report.tables import paper as paper_tables
from mlsd.report.tables import records as record_tables
from mlsd.report.tables import results as result_tables

TABLES = {
    "4": paper_tables.table_4,
    "5": paper_tables.table_5,
    "6": paper_tables.table_6,
    "F": paper_tables.table_f,
    "speedups": lambda study: result_tables.speedup_table(study.by_workload),
    "best": lambda study: result_tables.best_table(best_settings(study.by_workload)),
    "gammas": lambda study: result_tables.gamma_table(study.pair_fits),
    "fits": lambda study: result_tables.model_table(study.pair_fits, study.curve_fits),
    "claims": result_tables.claim_table,
    "audit": record_tables.audit_table,
    "environment": record_tables.environment_table,
    "models": record_tables.models_table,
    "warnings": record_tables.warning_table,
}
FIGURES = {entry.id: entry for entry in (*STUDY_FIGURES, DEPTH_FIGURE, *ROUND_FIGURES, *COST_FIGURES, *EXPERT_FIGURES)}


class Shown:
    """HTML for a notebook, text elsewhere."""

    def __init__(self, html: str, plain: str) -> None:
        self._html, self._plain = html, plain

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._plain


def answer(study: Study) -> Shown:
    """Which setting to use, then the same for each target."""
    answers = best_settings(study.by_workload)
    lines = [first_line(answers), *by_target(answers)]
    first, *rest = (escape(line) for line in lines)
    items = "".join(f"<li>{line}</li>" for line in rest)
    return Shown(f"<p><b>{first}</b></p><ul>{items}</ul>", "\n".join(lines))


def table(study: Study, key: str) -> Shown:
    """A table of the report by its key in `TABLES`. Raises InputError for another."""
    if key not in TABLES:
        raise InputError(f"There is no table {key!r}.", hint=f"Choose from {', '.join(TABLES)}.")
    return show(TABLES[key](study))


def figure(study: Study, key: str) -> Shown:
    """A figure of the report by its id, or what is missing for it. Raises InputError for an unknown id."""
    if key not in FIGURES:
        raise InputError(f"There is no figure {key!r}.", hint=f"Choose from {', '.join(FIGURES)}.")
    drawn = picture(study, FIGURES[key])
    if drawn.svg is None:
        return Shown(f"<p>{escape(drawn.title)}: {escape(drawn.missing)}</p>", f"{drawn.title}: {drawn.missing}")
    shown = f'<div style="max-width: 44rem; background: white; --ink: #1a1b1c; --rule: #c7c8c9">{drawn.svg}</div>'
    return Shown(f"{shown}<p><small>{escape(drawn.caption)}</small></p>", f"[figure: {drawn.title}]")


def experts(path: str | Path) -> Shown:
    """Distinct experts a layer for windows of k tokens, measured on text."""
    with Store.open(Path(path), create=False, read_only=True) as store:
        rows = [
            (facts.ref.id, k, mean)
            for key, facts in store.models().items()
            for k, mean in sorted(coverage_by_window([coverage for _, coverage in store.coverage(key)]).items())
        ]
    return show(
        table_of(
            "Expert coverage",
            rows,
            words("model", lambda row: row[0]),
            numbers("k tokens", lambda row: row[1]),
            numbers("distinct experts", lambda row: number(row[2])),
            id="experts",
            trace="experts.coverage_by_window",
            note="" if rows else "No expert choices were recorded: mlsd calibrate.",
        )
    )


def published_audit(study_name: str) -> Shown:
    """Every row of a published study with the audit's verdict and reason."""
    study = published.load(study_name)
    found = audit(study.citation, published.context(study))
    return show(
        table_of(
            found.source,
            found.rows,
            words("table", lambda row: row.identity["table"]),
            words("row", lambda row: row.identity["label"]),
            words("verdict", lambda row: text(row.verdict, record_tables.TONES[row.verdict])),
            words("why", lambda row: next((f.sentence for f in row.findings if f.verdict == row.verdict), None)),
            id="published",
            trace="audit.audit",
            note=", ".join(f"{count} {verdict}" for verdict, count in found.counts().items()),
        )
    )


def show(made: Table) -> Shown:
    """A table as HTML, elsewhere as text."""
    still = msgspec.structs.replace(made, interactive=False)  # a notebook has no script to sort and filter with
    return Shown(html.table_text(still), terminal.render(made))
