"""Tables 2, 4 and 5 of the study and figure 5 as a table: what it printed, ours, and the ratio, in its shape.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mlsd.analysis.claims.claim_tests import measured_apart
from mlsd.analysis.study.study import Study
from mlsd.audits import published_tables as published
from mlsd.audits.check import audit
from mlsd.audits.rows import Audit
from mlsd.columns import column, columns, inside
from mlsd.errors import AnalysisError, SuiteError
from mlsd.planning.suite import Profile, find_profile
from mlsd.report.render.table import Table, table
from mlsd.report.tables.columns import effect_of, experts, of_their_arms
from mlsd.stats import grouped
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


def profile_of(study: Study) -> Profile | None:
    """What binds roles to the models of its latest run, where it is known."""
    try:
        return find_profile(study.profile) if study.profile else None
    except SuiteError:  # of somebody else's checkout
        return None


def models_of(study: Study) -> dict[str, str]:
    """Which of our models stands in the place of each of the study's; empty without a known profile."""
    profile = profile_of(study)
    roles = profile.roles if profile else {}
    return {model: roles[role] for model, role in ROLES.items() if role in roles}


@cache
def _study_audit() -> Audit:
    return audit("study", published.context(published.load("study")))


@cache
def printed_rows(table: str) -> tuple[dict[str, Any], ...]:
    """The rows of a table of the study as printed, by column; with `sizes`, and as `audit` what that says of each."""
    names = ("target", "draft", "gamma", "n_prompt")
    study = published.load("study")
    rows = (row for row in _study_audit().rows if row.identity["table"] == table)
    verdicts = {tuple(str(row.identity.get(name, "")) for name in names): row.verdict for row in rows}
    return tuple(
        {
            **cells,
            "audit": verdicts.get(tuple(cells.get(name, "") for name in names)),
            "sizes": f"{cells.get('active_b')}, {cells.get('total_b')}",
        }
        for cells in study.table(table).cells
    )


def study_rows(study: Study) -> list[dict[str, Any]]:
    """Table 5 of the study with the arm of ours in each row's place, or None, as `ours`."""
    models, arms = models_of(study), dict[tuple[str | None, str | None, int, str], ArmResult]()
    for arm in study.pooled:
        if not arm.is_plain:
            draft = arm.case.drafter.draft
            arms.setdefault(
                (arm.case.target.id, None if draft is None else draft.id, arm.case.gamma, arm.question.suite), arm
            )
    rows = []
    for row in printed_rows("table 5"):
        target, draft, gamma = row["target"], row["draft"], int(row["gamma"])
        ours = arms.get((models.get(target), models.get(draft), gamma, "B" if target.startswith("moe") else "D"))
        name = None if ours is None else f"{ours.case.target.id} + {ours.label}"
        over = None if ours is None or ours.ratio is None else ours.ratio.value / float(row["speedup"])
        about = {"printed": f"{row['speedup']}x", "name": name, "over": over, "effect": effect_of(ours)}
        rows.append({**row, **about, "gamma": gamma, "pair": f"{target} + {draft}", "ours": ours})
    return rows


def table_2(study: Study) -> Table:
    """The study's models beside ours in their places."""
    note, ours = _other_models(study), models_of(study)
    rows = [{**row, "ours": ours.get(row["id"])} for row in printed_rows("table 2")]
    return table(
        "Table 2: models",
        [(row, study.facts.get(row["ours"] or "")) for row in rows],
        *columns("study's id=0.id; printed model=0.model; active, total, 10⁹=0.sizes; role=0.role"),
        *columns("ours in its place=0.ours; active, 10⁶:1e6=1.n_parameters_active; total, 10⁶:1e6=1.n_parameters"),
        *inside("1", [column("experts", of=experts)]),
        *columns("weights:bytes=1.weight_bytes"),
        id="table-2",
        note=f"{note} {_FILES}".strip(),
    )


# Sizes are those of gguf_manifest.toml; GiB are 2^30 bytes.
_FILES = (
    "The study gives its MoE files 20.6 and 38.7 GB; those of the manifest have 22.02 GB (20.5 GiB) and 36.90 GB (34.4 "
    "GiB): the first fits in GiB, the second in neither unit. It prints 128 experts with top-2 routing (section 2.3), "
    "the model's configuration has 256, 8 a token."
)


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours, note, plain = models_of(study), _other_models(study), study.paired.plain
    rows = []
    for row in printed_rows("table 4"):
        model = ours.get(row["target"])
        arm = study.plain_by_target.get(model or "")
        tok_s = None if arm is None else arm.tok_s
        over = None if tok_s is None else tok_s / float(row["tok_s"].split()[0])
        here = "not measured" if tok_s is None else tok_s
        rows.append({**row, "model": model, "arm": arm, "here": here, "over": over})
    trials = {measured.id for row in rows if row["arm"] is not None for measured in row["arm"].trials}
    return table(
        "Table 4: baseline throughput, tok/s",
        rows,
        *columns("study's model=target; active, total, 10⁹=sizes; printed tok/s:n=tok_s; ours in its place=model"),
        *columns("tok/s:1=here; ours / printed:2=over"),
        *of_their_arms("arm", "spread suite n_predict n_valid"),
        id="table-4",
        note=f"{note} {measured_apart(plain[plain['trial_id'].isin(trials)])}".strip(),
    )


def table_5(study: Study) -> Table:
    """Speculative decoding: the study's rows, printed, ours, and the ratio."""
    return table(
        "Table 5: speculative decoding",
        study_rows(study),
        *columns("study's pair=pair; gamma:n; printed tok/s:n=tok_s; printed speedup:n=printed"),
        *columns("printed α, %:n=acceptance_percent; audit of it=audit; ours=name"),
        *of_their_arms("ours", "tok_s speedup"),
        *columns("ours / printed:2=over; effect"),
        *of_their_arms("ours", "acceptance_rate mgl"),
        id="table-5",
        note=f"{_other_models(study)} Arms in no row of the study stand under All settings.".strip(),
    )  # fmt: skip


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length, which the study shows as figure 5; 0 where a prompt has no exact length."""
    printed = {row["n_prompt"]: row for row in printed_rows("figure 5")}
    arms = [(arm, arm.text.removeprefix("length-")) for arm in study.results if arm.question.suite == "F"]
    rows = [(arm, int(n) if n.isdigit() else 0, printed.get(n)) for arm, n in arms if not arm.is_plain]
    return table(
        "Figure 5 as a table: prompt length",
        sorted(rows, key=lambda row: (row[0].case.target.id, row[0].setting, row[1])),
        column("arm", of=lambda row: f"{row[0].case.target.id} + {row[0].setting}"),
        column("prompt tokens", "n", "the case's prompt", lambda row: row[1] or row[0].text),
        *of_their_arms("0", "n_predict plain_tok_s tok_s speedup effect acceptance_rate"),
        column("printed speedup", "n", "", lambda row: row[2] and _caption(row[2])),
        *columns("audit of it=2.audit"),
        id="table-f",
        note="The study's caption prints two values: 1.26 at 32 tokens, about 1.19 from 256 tokens on."
        if rows
        else "Suite F was not measured here: mlsd run F.",
    )


def _caption(row: dict[str, Any]) -> str:
    """One value of a caption that speaks of every length from 256 on is no value of each."""
    return f"{row['speedup']}x" if row["n_prompt"] == "32" else "~1.19x from 256 on"


def _other_models(study: Study) -> str:
    """Which models stand in the place of the study's. Raises: AnalysisError where none does."""
    if study.profile == "study":
        return ""
    profile = profile_of(study)
    if profile is None or not models_of(study):
        raise AnalysisError("No profile binds these models to the study's roles.", hint="mlsd run B D --profile tiny")
    why = grouped(profile.left_out.items(), lambda left: left[1])
    left_out = "".join(f" No {', '.join(role for role, _ in roles)}: {reason}." for reason, roles in why.items())
    return (
        f"Profile {study.profile}: other models than the study's in the same roles, on another machine. Compare the "
        f"direction of effects, not their size.{left_out}"
    )
