"""Tables 4, 5, 6 and F: our trials in the study's layout, with the study's own figures and what the audit says of them.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from functools import cache

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.rows import RowAudit
from mlsd.analysis.results import speedups
from mlsd.analysis.results.speedups import Speedup
from mlsd.analysis.study.study import Study
from mlsd.errors import SuiteError
from mlsd.planning.suite import find_profile
from mlsd.records import Record
from mlsd.report.render.table import Cell, Column, Table, Tone, interval, number, numbers, percent, table, text, words
from mlsd.report.tables.records import TONES

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
_SPEEDUP = "speedups.speedups: geometric mean of SD / AR decode tok/s over blocks, then prompts"
_OURS = "ours: store view trial_summary"


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: Speedup | None

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
        arm = next((s for s in study.by_suite if (s.target, s.draft, s.gamma, s.suite) == wanted), None)
        rows.append(StudyRow(cells=cells, verdict=_verdicts().get(_key("table 5", cells)), ours=arm))
    return rows


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


def effect_cell(arm: Speedup | None) -> Cell:
    """The verdict of an arm, and what it would take to decide it."""
    if arm is None:
        return text("not measured", "quiet")
    if not arm.timed:
        return text("not timed", "quiet", "it drafted inside the target: what is accepted counts, its times do not")
    if arm.ratio is None:
        return text("not valid", "bad", arm.invalid_reason or "no plain trial in its blocks")
    note = arm.standing.out or arm.standing.words if arm.standing is not None else arm.invalid_reason or ""
    return text(arm.effect, EFFECT_TONES[arm.effect], note)


# --- the tables -------------------------------------------------------------------------------------------------


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours = models_of(study.profile)
    by_suite = {(b.target, b.suite): b for b in speedups.baselines(study.trials, ("suite",))}
    overall = {b.target: b for b in speedups.baselines(study.trials)}
    # the study's model, ours in its place, its throughput, the study's
    rows: list[tuple[str | None, str | None, speedups.Throughput | None, str | None]] = []
    for cells in _records("table 4"):
        model = ours.get(cells["target"])
        found = by_suite.get((model or "", baseline_suite(cells["target"]))) or overall.get(model or "")
        rows.append((cells["target"], model, found, cells["tok_s"]))
    shown = {row[1] for row in rows}
    rows += [(None, target, found, None) for target, found in overall.items() if target not in shown]
    return table(
        "Table 4: baseline throughput, tok/s",
        rows,
        words("study's model", lambda row: row[0], "study, table 4"),
        words("ours in its place", lambda row: row[1], "the profile of the latest run"),
        numbers(
            "tok/s",
            lambda row: number(row[2].mean_tok_s, 1) if row[2] else text("not measured", "quiet"),
            "speedups.baselines: mean of decode tok/s over valid AR trials",
        ),
        numbers(
            "sd",
            lambda row: number(row[2].sd_tok_s, 1) if row[2] else None,
            "speedups.baselines: standard deviation over trials",
        ),
        numbers("trials", lambda row: row[2].n if row[2] else None, "speedups.baselines"),
        numbers("study printed", lambda row: text(row[3]), "study, table 4; mean and standard deviation"),
        id="table-4",
        trace=f"{_OURS} through speedups.baselines (suites A and C, else all suites); study: analysis/published",
        note=_other_models(study),
    )


def table_5(study: Study) -> Table:
    """Every SD arm, beside the study's where it has one."""
    printed = study_rows(study)
    shown = [row.ours for row in printed]
    # the study's row and our arm in its place; what one lacks the other has
    rows: list[tuple[StudyRow | None, Speedup | None, int]] = [(row, row.ours, row.gamma) for row in printed]
    rows += [(None, arm, arm.gamma) for arm in study.by_suite if arm not in shown]
    return table(
        "Table 5: speculative decoding, ours beside the study's",
        rows,
        words("study's pair", lambda row: row[0] and row[0].pair, "study, table 5"),
        words(
            "ours: target + drafter",
            lambda row: row[1] and text(f"{row[1].target} + {row[1].name}", note=row[1].fell_back or ""),
            "the profile of the latest run, or arms of other suites",
        ),
        words("suite", lambda row: row[1] and row[1].suite),
        numbers("gamma", lambda row: row[2]),
        numbers(
            "tok/s",
            lambda row: number(row[1].decode_tok_s, 1) if row[1] else None,
            "speedups.speedups: median decode tok/s of valid SD trials",
        ),
        numbers(
            "speedup",
            lambda row: interval(row[1].ratio, 2, "x", EFFECT_TONES[row[1].effect]) if row[1] else None,
            f"{_SPEEDUP}; Student's t interval over prompts, of one prompt over its blocks",
        ),
        words("verdict", lambda row: effect_cell(row[1]), "speedups.Speedup.effect: does the interval exclude 1?"),
        numbers(
            "accepted",
            lambda row: percent(row[1].acceptance_rate) if row[1] else None,
            "speedups.speedups: accepted / proposed over all rounds",
        ),
        numbers("MGL", lambda row: number(row[1].mgl) if row[1] else None, "speedups.speedups: committed / rounds"),
        numbers(
            "printed tok/s, speedup, accepted",
            lambda row: text(f"{row[0].cells['tok_s']}, {row[0].printed}") if row[0] else None,
            "study, table 5",
        ),
        words(
            "audit of it", lambda row: row[0] and _audit_cell(row[0].verdict), "analysis.audit on the study's table 5"
        ),
        id="table-5",
        trace=f"{_OURS} through speedups.speedups by suite; study: analysis/published, judged by analysis.audit",
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
                "speedups.speedups: accepted / proposed",
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
        trace=f"{_OURS} through speedups.speedups, suite B; study: analysis/published",
    )


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length."""
    printed = {cells["n_prompt"]: cells for cells in _records("figure 5")}
    own = study.trials[study.trials["suite"] == "F"]
    arms = speedups.speedups(own, ("suite", "prompt")) if len(own) else []
    rows = [
        (arm, length, printed.get(str(length)))
        for arm in sorted(arms, key=lambda a: (a.target, a.drafter, a.gamma, prompt_length(a.prompt)))
        for length in (prompt_length(arm.prompt),)
    ]
    return table(
        "Table F: prompt length",
        rows,
        words("arm", lambda row: f"{row[0].target} + {row[0].setting}"),
        numbers("prompt tokens", lambda row: row[1] or text(row[0].prompt), "the case's prompt"),
        numbers("plain tok/s", lambda row: number(row[0].baseline_tok_s, 1), "speedups.speedups: median over blocks"),
        numbers("SD tok/s", lambda row: number(row[0].decode_tok_s, 1), "speedups.speedups: median over blocks"),
        numbers("speedup", lambda row: interval(row[0].ratio, 2, "x"), _SPEEDUP),
        words("verdict", lambda row: effect_cell(row[0]), "speedups.Speedup.effect"),
        numbers("accepted", lambda row: percent(row[0].acceptance_rate), "speedups.speedups: accepted / proposed"),
        numbers("printed speedup", lambda row: text(f"{row[2]['speedup']}x") if row[2] else None, "study, figure 5"),
        words(
            "audit of it",
            lambda row: row[2] and _audit_cell(_verdicts().get(_key("figure 5", row[2]))),
            "analysis.audit on the study's figure 5",
        ),
        id="table-f",
        trace=f"{_OURS} through speedups.speedups by prompt, suite F; study: analysis/published, figure 5",
        note="" if rows else "Suite F was not measured here: mlsd run F.",
    )


def prompt_length(prompt: str | None) -> int:
    """The exact length in a prompt's name (``length-512``), or 0."""
    tail = (prompt or "").removeprefix("length-")
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
