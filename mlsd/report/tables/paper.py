"""Tables 4, 5 and F: our trials in the study's layout, with the study's own figures and what the audit says of them.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from functools import cache
from operator import itemgetter

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.rows import RowAudit
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError, SuiteError
from mlsd.planning.suite import find_profile
from mlsd.records import Record
from mlsd.report.render.table import Cell, Table, numbers, table, text, words
from mlsd.report.tables.columns import ARM, effect_cell, of_their_arms
from mlsd.report.tables.records import TONES
from mlsd.trials.results import ArmResult

# model of the study -> role that a profile binds
ROLES = {
    "moe_q4": "moe-q4",
    "moe_q8": "moe-q8",
    "dense_0.8b": "dense-xs",
    "dense_2b": "dense-s",
    "dense_4b": "dense-m",
    "dense_9b": "dense-l",
    "draft_0.8b": "draft-small",
    "draft_2b": "draft-medium",
}


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: ArmResult | None

    @property
    def gamma(self) -> int:
        return int(self.cells["gamma"])

    @property
    def pair(self) -> str:
        """The study's models."""
        return f"{self.cells['target']} + {self.cells['draft']}"


def models_of(profile: str | None) -> dict[str, str]:
    """Which of our models stands in the place of each of the study's; empty without a known profile."""
    try:
        roles = find_profile(profile).roles if profile else {}
    except SuiteError:  # a profile of somebody else's checkout
        return {}
    return {model: roles[role] for model, role in ROLES.items() if role in roles}


def study_rows(study: Study) -> list[StudyRow]:
    """Table 5 of the study with our arms."""
    ours = models_of(study.profile)
    rows = []
    for cells in _records("table 5"):
        suite = "B" if cells["target"].startswith("moe") else "D"
        wanted = (ours.get(cells["target"]), ours.get(cells["draft"]), int(cells["gamma"]), suite)
        arm = next((one for one in study.pooled if not one.is_plain and _role(one) == wanted), None)
        rows.append(StudyRow(cells=cells, verdict=_verdicts().get(_key("table 5", cells)), ours=arm))
    return rows


def _role(one: ArmResult) -> tuple[str | None, str | None, int, str]:
    draft = one.case.drafter.draft
    return one.case.target.id, draft.id if draft else None, one.case.gamma, one.question.suite


def printed_lengths() -> list[tuple[dict[str, str], RowAudit | None]]:
    """The study's rows over the prompt's length, with what the audit says of each."""
    return [(cells, _verdicts().get(_key("figure 5", cells))) for cells in _records("figure 5")]


def _records(table: str) -> list[dict[str, str]]:
    found = published.load("study").table(table)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def _key(table: str, cells: dict[str, str]) -> tuple[str, ...]:
    return (table, *(cells.get(field, "") for field in ("target", "draft", "gamma", "n_prompt")))


@cache
def _verdicts() -> dict[tuple[str, ...], RowAudit]:
    study = published.load("study")
    rows = audit(study.citation, published.context(study)).rows
    names = ("target", "draft", "gamma", "n_prompt")
    return {(str(r.identity["table"]), *(str(r.identity.get(n, "")) for n in names)): r for r in rows}


def _audit_cell(row: RowAudit | None) -> Cell:
    if row is None:
        return text(None)
    reasons = " ".join(f.sentence for f in row.findings if f.verdict == row.verdict)
    return Cell(text=row.verdict, sort=row.verdict, tone=TONES[row.verdict], note=reasons)


# --- the tables -------------------------------------------------------------------------------------------------


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours, note = models_of(study.profile), _other_models(study)
    plain = [one for one in study.pooled if one.is_plain and one.tok_s is not None]
    by_suite = {(one.case.target.id, one.question.suite): one for one in plain}
    # the study's model, ours in its place, its throughput, the study's
    rows: list[tuple[str | None, str | None, ArmResult | None, str | None]] = []
    for cells in _records("table 4"):
        model = ours.get(cells["target"])
        found = by_suite.get((model or "", "A" if cells["target"].startswith("moe") else "C"))
        found = found or next((one for one in plain if one.case.target.id == model), None)
        rows.append((cells["target"], model, found, cells["tok_s"]))
    shown = {row[1] for row in rows}

    rows += [(None, one.case.target.id, one, None) for one in plain if one.case.target.id not in shown]
    return table(
        "Table 4: baseline throughput, tok/s",
        rows,
        words("study's model", lambda row: row[0]),
        words("ours in its place", lambda row: row[1], "the profile of the latest run"),
        *of_their_arms(itemgetter(2), "suite", "text", "output tokens"),
        numbers("tok/s", lambda row: ARM["tok/s"][1](row[2]) if row[2] else text("not measured", "quiet")),
        *of_their_arms(itemgetter(2), "spread"),
        numbers("trials", lambda row: row[2].n_valid if row[2] else None),
        numbers("study printed", lambda row: text(row[3])),
        id="table-4",
        note=note,
    )


def table_5(study: Study) -> Table:
    """Speculative decoding: ours beside the study's, then our other arms."""
    printed = study_rows(study)
    shown = {id(row.ours) for row in printed}
    rows: list[tuple[StudyRow | None, ArmResult | None, int]] = [(row, row.ours, row.gamma) for row in printed]
    rows += [(None, one, one.case.gamma) for one in study.pooled if not one.is_plain and id(one) not in shown]
    return table(
        "Table 5: speculative decoding, ours beside the study's",
        rows,
        words("study's pair", lambda row: row[0] and row[0].pair),
        *of_their_arms(itemgetter(1), "target + method", "suite", "text", "output tokens"),
        numbers("gamma", lambda row: row[2]),
        *of_their_arms(itemgetter(1), "tok/s", "speedup [95 % CI]"),
        words("effect", lambda row: effect_cell(row[1])),
        *of_their_arms(itemgetter(1), "acceptance", "MGL"),
        numbers("printed tok/s, speedup, accepted", lambda row: _printed(row[0].cells) if row[0] else None),
        words("audit of it", lambda row: row[0] and _audit_cell(row[0].verdict)),
        id="table-5",
        note=_other_models(study),
    )


def _printed(cells: dict[str, str]) -> Cell:
    return text(f"{cells['tok_s']}, {cells['speedup']}x, {cells['acceptance_percent']} %")


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length."""
    printed = {cells["n_prompt"]: cells for cells in _records("figure 5")}
    rows = [(arm, length, printed.get(str(length))) for arm, length in length_arms(study)]
    return table(
        "Table F: prompt length",
        rows,
        words("arm", lambda row: f"{row[0].case.target.id} + {row[0].setting}"),
        numbers("prompt tokens", lambda row: row[1] or text(row[0].text), "the case's prompt"),
        *of_their_arms(
            itemgetter(0), "output tokens", "plain tok/s", "tok/s", "speedup [95 % CI]", "effect", "acceptance"
        ),
        numbers("printed speedup", lambda row: text(f"{row[2]['speedup']}x") if row[2] else None),
        words("audit of it", lambda row: row[2] and _audit_cell(_verdicts().get(_key("figure 5", row[2])))),
        id="table-f",
        note="" if rows else "Suite F was not measured here: mlsd run F.",
    )


def length_arms(study: Study) -> list[tuple[ArmResult, int]]:
    """The arms of suite F with the length of their prompt, by arm and length."""
    own = [one for one in study.results if one.question.suite == "F" and not one.is_plain]
    found = [(one, prompt_length(one.text)) for one in own]
    return sorted(found, key=lambda row: (row[0].case.target.id, row[0].setting, row[1]))


def prompt_length(prompt: str) -> int:
    """The exact length in a prompt's name (``length-512``), or 0."""
    tail = prompt.removeprefix("length-")
    return int(tail) if tail.isdigit() else 0


def _other_models(study: Study) -> str:
    """Which models stand in the place of the study's. Raises: AnalysisError where none does."""
    if study.profile == "study":
        return ""
    if not models_of(study.profile):
        raise AnalysisError("No profile binds these models to the study's roles.", hint="mlsd run B D --profile tiny")
    return (
        f"Profile {study.profile}: other models than the study's in the same roles, on another machine. Compare the "
        "direction of effects, not their size."
    )
