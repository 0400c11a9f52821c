"""Tables and figures of a study for a notebook: one call a cell, shown as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.experts.amortization import sentences
from mlsd.analysis.study.study import Study, attempt
from mlsd.errors import InputError, choose
from mlsd.report.figures.machine import COST_FIGURES, EXPERT_FIGURE
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.render import html, plot, terminal
from mlsd.report.render.sections import picture
from mlsd.report.render.table import Table, text, words
from mlsd.report.render.table import table as table_of
from mlsd.report.tables import claims as claim_tables
from mlsd.report.tables import machine as machine_tables
from mlsd.report.tables import paper as paper_tables
from mlsd.report.tables import records as record_tables
from mlsd.report.tables import results as result_tables
from mlsd.trials.answers import by_target, first_line

TABLES = {
    "1": paper_tables.table_1,
    "2": paper_tables.table_2,
    "3": paper_tables.table_3,
    "4": paper_tables.table_4,
    "5": paper_tables.table_5,
    "6": paper_tables.table_6,
    "F": paper_tables.table_f,
    "speedups": lambda study: result_tables.speedup_table(study.results),
    "best": lambda study: result_tables.best_table(study.answers),
    "gammas": lambda study: result_tables.gamma_table(study.pooled),
    "bandwidth": lambda study: machine_tables.bandwidth_table(study.machine.bandwidth, study.environment),
    "passes": lambda study: machine_tables.curve_table(study.machine.curves),
    "fits": lambda study: result_tables.model_table(study.pair_fits, study.curve_fits),
    "claims": claim_tables.claim_table,
    "audit": record_tables.audit_table,
    "environment": record_tables.environment_table,
    "models": record_tables.models_table,
    "warnings": record_tables.warning_table,
}
FIGURES = {entry.id: entry for entry in (*STUDY_FIGURES, *ROUND_FIGURES, *COST_FIGURES, EXPERT_FIGURE)}


_MIME = {"html": "text/html", "svg": "image/svg+xml"}
_WIDTH_PX = 704


class Shown:
    """HTML or a drawing for a notebook, text elsewhere."""

    def __init__(self, plain: str, **shown: str) -> None:
        self._plain, self._shown = plain, {_MIME[form]: content for form, content in shown.items()}

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {**self._shown, "text/plain": self._plain}

    @property
    def html(self) -> str:
        """What a notebook shows, where that is HTML."""
        return self._shown[_MIME["html"]]

    def __repr__(self) -> str:
        return self._plain


def answer(study: Study) -> Shown:
    """Which setting to use, then the same for each target."""
    answers = study.answers
    lines = [first_line(answers), *by_target(answers)]
    return Shown("\n".join(lines), html=_list(lines))


def _list(lines: Sequence[str]) -> str:
    first, *rest = (escape(line) for line in lines)
    items = "".join(f"<li>{line}</li>" for line in rest)
    return f"<p><b>{first}</b></p><ul>{items}</ul>"


def table(study: Study, key: str) -> Shown:
    """A table of the report by its key in `TABLES`, or what is missing for it. Raises InputError for another key."""
    if key not in TABLES:
        raise InputError(f"There is no table {key!r}.", hint=choose(key, TABLES))
    made, missing = attempt(lambda: TABLES[key](study))
    return _missing(missing) if made is None else show(made)


def figure(study: Study, key: str) -> Shown:
    """A figure of the report by its id, or what is missing for it. Raises InputError for an unknown id."""
    if key not in FIGURES:
        raise InputError(f"There is no figure {key!r}.", hint=choose(key, FIGURES))
    drawn = picture(study, FIGURES[key])
    if drawn.svg is None:
        return _missing(f"{drawn.title}: {drawn.missing}")
    image = plot.standalone(drawn.svg).replace('width="100%"', f'width="{_WIDTH_PX}"', 1)
    return Shown(f"[figure: {drawn.title}] {drawn.caption}", svg=image)


def _missing(reason: str) -> Shown:
    return Shown(reason, html=f"<p>{escape(reason)}</p>")


def experts(study: Study) -> Shown:
    """Whether verification amortizes on each mixture, in sentences, then experts, bytes and times by k."""
    mixtures, missing = attempt(lambda: study.machine.mixtures)
    lines = [text for one in mixtures or () for text in sentences(one)] or [missing]
    tables = [show(machine_tables.share_table(one)) for one in mixtures or ()]
    shown = _list(lines) + "".join(one.html for one in tables)
    return Shown("\n".join([*lines, *map(repr, tables)]), html=shown)


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
            note=", ".join(f"{count} {verdict}" for verdict, count in found.counts().items()),
        )
    )


def show(made: Table) -> Shown:
    """A table as HTML, elsewhere as text."""
    still = msgspec.structs.replace(made, interactive=False)  # a notebook has no script to sort and filter with
    return Shown(terminal.render(made), html=html.table_text(still))
