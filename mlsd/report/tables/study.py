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
from mlsd.report.render.table import Cell, Table, Tone, head, interval, name, number, percent, text
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
EFFECT_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "undecided": "doubt"}
_SPEEDUP = "speedups.speedups: geometric mean of SD / AR decode tok/s over blocks, then prompts"
_OURS = "ours: store view trial_summary"


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: Speedup | None


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
    """The verdict of an arm; undecided says what would have been seen."""
    if arm is None:
        return text("not measured", "quiet")
    if not arm.timed:
        return text("not timed", "quiet", "it drafted inside the target: what is accepted counts, its times do not")
    if arm.ratio is None:
        return text("not valid", "bad", arm.invalid_reason or "no AR trial in its blocks")
    note = ""
    if arm.effect == "undecided" and arm.visible is not None:
        note = f"an effect of {arm.visible.words} would have shown 4 times in 5"
    return text(arm.effect, EFFECT_TONES[arm.effect], note)


# --- the tables -------------------------------------------------------------------------------------------------


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours = models_of(study.profile)
    by_suite = {(b.target, b.suite): b for b in speedups.baselines(study.trials, ("suite",))}
    overall = {b.target: b for b in speedups.baselines(study.trials)}
    rows, shown = [], set()
    for cells in _records("table 4"):
        model = ours.get(cells["target"])
        found = by_suite.get((model or "", baseline_suite(cells["target"]))) or overall.get(model or "")
        shown.add(model)
        rows.append((text(cells["target"]), *_baseline_cells(model, found), text(cells["tok_s"])))
    for target, found in overall.items():
        if target not in shown:
            rows.append((text(None), *_baseline_cells(target, found), text(None)))
    return Table(
        id="table-4",
        title="Table 4: baseline throughput, tok/s",
        heads=(
            name("study's model", "study, table 4"),
            name("ours in its place", "the profile of the latest run"),
            head("tok/s", "speedups.baselines: mean of decode tok/s over valid AR trials"),
            head("sd", "speedups.baselines: standard deviation over trials"),
            head("trials", "speedups.baselines"),
            head("study printed", "study, table 4; mean and standard deviation"),
        ),
        rows=tuple(rows),
        trace=f"{_OURS} through speedups.baselines (suites A and C, else all suites); study: analysis/published",
        note=_other_models(study),
    )


def _baseline_cells(model: str | None, found: speedups.Throughput | None) -> tuple[Cell, ...]:
    if found is None:
        return (text(model), text("not measured", "quiet"), text(None), text(None))
    return (text(model), number(found.mean_tok_s, 1), number(found.sd_tok_s, 1), number(found.n, 0))


def table_5(study: Study) -> Table:
    """Every SD arm, beside the study's where it has one."""
    rows, shown = [], []
    for row in study_rows(study):
        printed = (
            text(f"{row.cells['tok_s']}, {row.cells['speedup']}x, {row.cells['acceptance_percent']} %"),
            _audit_cell(row.verdict),
        )
        label = f"{row.cells['target']} + {row.cells['draft']}"
        rows.append((text(label), *_arm_cells(row.ours, int(row.cells["gamma"])), *printed))
        shown.append(row.ours)
    rows += [
        (text(None), *_arm_cells(arm, arm.gamma), text(None), text(None)) for arm in study.by_suite if arm not in shown
    ]
    return Table(
        id="table-5",
        title="Table 5: speculative decoding, ours beside the study's",
        heads=(
            name("study's pair", "study, table 5"),
            name("ours: target + drafter", "the profile of the latest run, or arms of other suites"),
            name("suite"),
            head("gamma"),
            head("tok/s", "speedups.speedups: median decode tok/s of valid SD trials"),
            head("speedup", f"{_SPEEDUP}; Student's t interval over prompts, of one prompt over its blocks"),
            name("verdict", "speedups.Speedup.effect: does the interval exclude 1?"),
            head("accepted", "speedups.speedups: accepted / proposed over all rounds"),
            head("MGL", "speedups.speedups: committed / rounds"),
            head("printed tok/s, speedup, accepted", "study, table 5"),
            name("audit of it", "analysis.audit on the study's table 5"),
        ),
        rows=tuple(rows),
        trace=f"{_OURS} through speedups.speedups by suite; study: analysis/published, judged by analysis.audit",
        note=_other_models(study),
    )


def _arm_cells(arm: Speedup | None, gamma: int) -> tuple[Cell, ...]:
    if arm is None:
        blank = text(None)
        return (blank, blank, number(gamma, 0), blank, blank, effect_cell(None), blank, blank)
    ratio = interval(arm.ratio, 2, "x", EFFECT_TONES[arm.effect]) if arm.ratio else text(None)
    return (
        text(f"{arm.target} + {arm.name}", note=arm.fell_back or ""),
        text(arm.suite),
        number(arm.gamma, 0),
        number(arm.decode_tok_s, 1),
        ratio,
        effect_cell(arm),
        percent(arm.acceptance_rate),
        number(arm.mgl, 2),
    )


def table_6(study: Study) -> Table:
    """The two drafts side by side on the mixture-of-experts targets."""
    found = {(r.cells["target"], int(r.cells["gamma"]), r.cells["draft"]): r for r in study_rows(study)}
    rows = []
    for target, gamma in dict.fromkeys((target, gamma) for target, gamma, _ in found if target.startswith("moe")):
        cells: list[Cell] = [text(target), number(gamma, 0)]
        for draft in ("draft_0.8b", "draft_2b"):
            row = found[target, gamma, draft]
            cells.append(interval(row.ours.ratio, 2, "x") if row.ours else text("not measured", "quiet"))
            cells.append(percent(row.ours.acceptance_rate if row.ours else None))
            cells.append(text(f"{row.cells['speedup']}x, {row.cells['acceptance_percent']} %"))
        rows.append(tuple(cells))
    small, medium = (models_of(study.profile).get(draft, "not bound") for draft in ("draft_0.8b", "draft_2b"))
    return Table(
        id="table-6",
        title="Table 6: the two drafts on MoE targets",
        heads=(
            name("study's target"),
            head("gamma"),
            head(f"small draft ({small})", _SPEEDUP),
            head("accepted", "speedups.speedups: accepted / proposed"),
            head("printed (0.8B)", "study, table 6"),
            head(f"medium draft ({medium})", _SPEEDUP),
            head("accepted", "speedups.speedups: accepted / proposed"),
            head("printed (2B)", "study, table 6"),
        ),
        rows=tuple(rows),
        trace=f"{_OURS} through speedups.speedups, suite B; study: analysis/published",
    )


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length."""
    printed = {cells["n_prompt"]: cells for cells in _records("figure 5")}
    own = study.trials[study.trials["suite"] == "F"]
    arms = speedups.speedups(own, ("suite", "prompt")) if len(own) else []
    rows = []
    for arm in sorted(arms, key=lambda a: (a.target, a.drafter, a.gamma, prompt_length(a.prompt))):
        length = prompt_length(arm.prompt)
        cells = printed.get(str(length))
        rows.append(
            (
                text(f"{arm.target} + {arm.setting}"),
                number(length, 0) if length else text(arm.prompt),
                number(arm.baseline_tok_s, 1),
                number(arm.decode_tok_s, 1),
                interval(arm.ratio, 2, "x"),
                effect_cell(arm),
                percent(arm.acceptance_rate),
                text(f"{cells['speedup']}x" if cells else None),
                _audit_cell(_verdicts().get(_key("figure 5", cells)) if cells else None),
            )
        )
    return Table(
        id="table-f",
        title="Table F: prompt length",
        heads=(
            name("arm"),
            head("prompt tokens", "the case's prompt"),
            head("AR tok/s", "speedups.speedups: median over blocks"),
            head("SD tok/s", "speedups.speedups: median over blocks"),
            head("speedup", _SPEEDUP),
            name("verdict", "speedups.Speedup.effect"),
            head("accepted", "speedups.speedups: accepted / proposed"),
            head("printed speedup", "study, figure 5"),
            name("audit of it", "analysis.audit on the study's figure 5"),
        ),
        rows=tuple(rows),
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
