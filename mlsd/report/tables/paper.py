"""Tables 4, 5, 6 and F: our trials in the study's layout, with the study's own figures and what the audit says of them.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.rows import RowAudit
from mlsd.analysis.study.study import Study
from mlsd.errors import SuiteError
from mlsd.planning.suite import find_profile
from mlsd.records import Record
from mlsd.report.render.table import Cell, Column, Table, Tone, interval, number, numbers, percent, table, text, words
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
EFFECT_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "no difference": "", "undecided": "doubt"}
_SPEEDUP = "results.ArmResult.ratio: geometric mean of SD / AR decode tok/s over blocks, then prompts"


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: ArmResult | None

    @property
    def gamma(self) -> int:
        """As printed."""
        return int(self.cells["gamma"])

    @property
    def pair(self) -> str:
        """The study's models."""
        return f"{self.cells['target']} + {self.cells['draft']}"

    @property
    def printed(self) -> str:
        """Speedup and acceptance."""
        return f"{self.cells['speedup']}x, {self.cells['acceptance_percent']} %"


def models_of(profile: str | None) -> dict[str, str]:
    """Which of our models stands in the place of each of the study's; empty without a known profile."""
    try:
        roles = find_profile(profile).roles if profile else {}
    except SuiteError:  # a profile of somebody else's checkout
        return {}
    return {model: roles[role] for model, role in ROLES.items() if role in roles}


def baseline_suite(model: str) -> str:
    """The suite that holds a model's baselines."""
    return "A" if model.startswith("moe") else "C"


def sd_suite(model: str) -> str:
    """The suite that pairs a target with drafts."""
    return "B" if model.startswith("moe") else "D"


def study_rows(study: Study) -> list[StudyRow]:
    """Table 5 of the study with our arms."""
    ours = models_of(study.profile)
    rows = []
    for cells in _records("table 5"):
        wanted = (ours.get(cells["target"]), ours.get(cells["draft"]), int(cells["gamma"]), sd_suite(cells["target"]))
        arm = next((one for one in study.pooled if not one.is_plain and _role(one) == wanted), None)
        rows.append(StudyRow(cells=cells, verdict=_verdicts().get(_key("table 5", cells)), ours=arm))
    return rows


def _role(one: ArmResult) -> tuple[str | None, str | None, int, str]:
    draft = one.case.drafter.draft
    return one.case.target.id, draft.id if draft else None, one.case.gamma, one.question.suite


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


def effect_cell(arm: ArmResult | None) -> Cell:
    """The verdict of an arm, and what it would take to decide it."""
    if arm is None:
        return text("not measured", "quiet")
    if not arm.timed:
        return text("not timed", "quiet", "it drafted inside the target: what is accepted counts, its times do not")
    if arm.control:
        return text("a control", "quiet", "a bound that nobody can use")
    if arm.standing is None:
        return text("not valid", "bad", arm.decision or "")
    return text(arm.effect, EFFECT_TONES[arm.effect], arm.decision or "")


# --- the tables -------------------------------------------------------------------------------------------------


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours = models_of(study.profile)
    plain = [one for one in study.pooled if one.is_plain and one.tok_s is not None]
    by_suite = {(one.case.target.id, one.question.suite): one for one in plain}
    # the study's model, ours in its place, its throughput, the study's
    rows: list[tuple[str | None, str | None, ArmResult | None, str | None]] = []
    for cells in _records("table 4"):
        model = ours.get(cells["target"])
        found = by_suite.get((model or "", baseline_suite(cells["target"])))
        found = found or next((one for one in plain if one.case.target.id == model), None)
        rows.append((cells["target"], model, found, cells["tok_s"]))
    shown = {row[1] for row in rows}
    rows += [(None, one.case.target.id, one, None) for one in plain if one.case.target.id not in shown]
    return table(
        "Table 4: baseline throughput, tok/s",
        rows,
        words("study's model", lambda row: row[0], "study, table 4"),
        words("ours in its place", lambda row: row[1], "the profile of the latest run"),
        words("suite", lambda row: row[2] and row[2].question.suite),
        words("text", lambda row: row[2] and row[2].text, "pooled: so many kinds"),
        numbers("output tokens", lambda row: row[2].question.n_predict if row[2] else None),
        numbers(
            "tok/s",
            lambda row: number(row[2].tok_s, 1) if row[2] else text("not measured", "quiet"),
            "results.ArmResult.tok_s: geometric mean over blocks, then prompts",
        ),
        numbers("spread", lambda row: percent(row[2].spread) if row[2] else None, "half the range over the median"),
        numbers("trials", lambda row: row[2].n_valid if row[2] else None),
        numbers("study printed", lambda row: text(row[3]), "study, table 4; mean and standard deviation"),
        id="table-4",
        note=_other_models(study),
    )


def table_5(study: Study) -> Table:
    """Speculative decoding: ours beside the study's, then our other arms."""
    printed = study_rows(study)
    shown = {id(row.ours) for row in printed}
    rows: list[tuple[StudyRow | None, ArmResult | None, int]] = [(row, row.ours, row.gamma) for row in printed]
    rows += [(None, one, one.case.gamma) for one in study.pooled if not one.is_plain and id(one) not in shown]

    def ours(cell: Callable[[ArmResult], Any]) -> Callable[[tuple[StudyRow | None, ArmResult | None, int]], Any]:
        return lambda row: None if row[1] is None else cell(row[1])

    return table(
        "Table 5: speculative decoding, ours beside the study's",
        rows,
        words("study's pair", lambda row: row[0] and row[0].pair, "study, table 5"),
        words(
            "ours: target + drafter",
            ours(lambda one: text(f"{one.case.target.id} + {one.label}", note=one.fell_back or "")),
            "the profile of the latest run, or arms of other suites",
        ),
        words("suite", ours(lambda one: one.question.suite)),
        words("text", ours(lambda one: one.text), "pooled: so many kinds"),
        numbers("output tokens", ours(lambda one: one.question.n_predict)),
        numbers("gamma", lambda row: row[2]),
        numbers("tok/s", ours(lambda one: number(one.tok_s, 1)), "results.ArmResult.tok_s"),
        numbers("speedup", ours(lambda one: interval(one.ratio, 2, "x", EFFECT_TONES[one.effect])), _SPEEDUP),
        words("verdict", lambda row: effect_cell(row[1]), "results.ArmResult.effect"),
        numbers("accepted", ours(lambda one: percent(one.acceptance_rate)), "accepted / proposed over all rounds"),
        numbers("MGL", ours(lambda one: number(one.mgl)), "committed / rounds"),
        numbers(
            "printed tok/s, speedup, accepted",
            lambda row: text(f"{row[0].cells['tok_s']}, {row[0].printed}") if row[0] else None,
            "study, table 5",
        ),
        words(
            "audit of it", lambda row: row[0] and _audit_cell(row[0].verdict), "analysis.audit on the study's table 5"
        ),
        id="table-5",
        note=_other_models(study),
    )


def table_6(study: Study) -> Table:
    """The two drafts side by side on the mixture-of-experts targets."""
    found = {(r.cells["target"], r.gamma, r.cells["draft"]): r for r in study_rows(study)}
    models = models_of(study.profile)

    def draft_columns(draft: str, label: str, printed: str) -> tuple[Column[tuple[str, int]], ...]:
        return (
            numbers(
                f"{label} draft ({models.get(draft, 'not bound')})",
                lambda at: (
                    interval(ours.ratio, 2, "x") if (ours := found[*at, draft].ours) else text("not measured", "quiet")
                ),
                _SPEEDUP,
            ),
            numbers(
                "accepted",
                lambda at: percent(ours.acceptance_rate if (ours := found[*at, draft].ours) else None),
                "accepted / proposed",
            ),
            numbers(f"printed ({printed})", lambda at: text(found[*at, draft].printed), "study, table 6"),
        )

    return table(
        "Table 6: the two drafts on MoE targets",
        dict.fromkeys((target, gamma) for target, gamma, _ in found if target.startswith("moe")),
        words("study's target", lambda at: at[0]),
        numbers("gamma", lambda at: at[1]),
        *draft_columns("draft_0.8b", "small", "0.8B"),
        *draft_columns("draft_2b", "medium", "2B"),
        id="table-6",
    )


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length."""
    printed = {cells["n_prompt"]: cells for cells in _records("figure 5")}
    rows = [(arm, length, printed.get(str(length))) for arm, length in length_arms(study)]
    return table(
        "Table F: prompt length",
        rows,
        words("arm", lambda row: f"{row[0].case.target.id} + {row[0].setting}"),
        numbers("prompt tokens", lambda row: row[1] or text(row[0].text), "the case's prompt"),
        numbers("output tokens", lambda row: row[0].question.n_predict),
        numbers("plain tok/s", lambda row: number(row[0].plain_tok_s, 1), "results.ArmResult, same blocks"),
        numbers("SD tok/s", lambda row: number(row[0].tok_s, 1), "results.ArmResult.tok_s"),
        numbers("speedup", lambda row: interval(row[0].ratio, 2, "x", EFFECT_TONES[row[0].effect]), _SPEEDUP),
        words("verdict", lambda row: effect_cell(row[0]), "results.ArmResult.effect"),
        numbers("accepted", lambda row: percent(row[0].acceptance_rate), "accepted / proposed"),
        numbers("printed speedup", lambda row: text(f"{row[2]['speedup']}x") if row[2] else None, "study, figure 5"),
        words(
            "audit of it",
            lambda row: row[2] and _audit_cell(_verdicts().get(_key("figure 5", row[2]))),
            "analysis.audit on the study's figure 5",
        ),
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
    if study.profile == "study":
        return ""
    if not models_of(study.profile):
        return "No profile binds these models to the study's roles, so no row of ours stands beside one of the study's."
    return (
        f"Profile {study.profile}: other models than the study's in the same roles, on another machine. Compare the "
        "direction of effects, not their size."
    )
