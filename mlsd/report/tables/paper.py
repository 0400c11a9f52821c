"""Tables 1 to 6 of the study, and figure 5 as a table: what it printed, ours, and the ratio, in its order and shape.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import structs

from mlsd.analysis.claims.claim_tests import measured_apart
from mlsd.analysis.study.study import Study
from mlsd.audits import published_tables as published
from mlsd.audits.check import audit
from mlsd.audits.rows import Audit, RowAudit
from mlsd.columns import column
from mlsd.errors import AnalysisError, SuiteError
from mlsd.planning.suite import Profile, find_profile
from mlsd.records import Record
from mlsd.report.render.table import Cell, Table, table, text
from mlsd.report.tables.columns import effect_cell, experts, millions, of_their_arms
from mlsd.report.tables.records import TONES
from mlsd.stats import grouped
from mlsd.trials.results import ArmResult

if TYPE_CHECKING:
    import pandas as pd

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
_NOT_MEASURED = text("not measured", "quiet")


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: ArmResult | None = None

    @property
    def gamma(self) -> int:
        return int(self.cells["gamma"])

    @property
    def printed(self) -> str:
        return f"{self.cells['speedup']}x, {self.cells['acceptance_percent']} %, {self.cells['tok_s']}"

    @property
    def pair(self) -> str:
        """The study's models."""
        return f"{self.cells['target']} + {self.cells['draft']}"


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
def _printed_audit() -> Audit:
    return audit("study", published.context(published.load("study")))


@cache
def printed_rows(table: str) -> tuple[StudyRow, ...]:
    """The rows of a table of the study, with what the audit says of each."""
    names = ("target", "draft", "gamma", "n_prompt")
    rows = (row for row in _printed_audit().rows if row.identity["table"] == table)
    verdicts = {tuple(str(row.identity.get(name, "")) for name in names): row for row in rows}
    return tuple(
        StudyRow(cells=cells, verdict=verdicts.get(tuple(cells.get(name, "") for name in names)))
        for cells in published.load("study").table(table).cells
    )


def study_rows(study: Study) -> list[StudyRow]:
    """Table 5 of the study with our arms."""

    def place_of(arm: ArmResult) -> tuple[str | None, str | None, int, str]:
        draft = arm.case.drafter.draft
        return arm.case.target.id, draft.id if draft else None, arm.case.gamma, arm.question.suite

    ours, arms = models_of(study), grouped((arm for arm in study.pooled if not arm.is_plain), place_of)
    rows = []
    for row in printed_rows("table 5"):
        suite = "B" if row.cells["target"].startswith("moe") else "D"
        place = (ours.get(row.cells["target"]), ours.get(row.cells["draft"]), row.gamma, suite)
        rows.append(structs.replace(row, ours=arms.get(place, [None])[0]))
    return rows


def _audit_cell(row: RowAudit | None) -> Cell:
    if row is None:
        return text(None)
    reasons = " ".join(f.sentence for f in row.findings if f.verdict == row.verdict)
    return Cell(text=row.verdict, sort=row.verdict, tone=TONES[row.verdict], note=reasons)


# --- the tables -------------------------------------------------------------------------------------------------


def table_1(study: Study) -> Table:
    """The study's machine beside this one."""
    own = study.environment
    memory = None if own.memory_bytes is None else f"{own.memory_bytes / 2**30:.0f} GiB"
    peak = None if own.peak_bandwidth_gb_s is None else f"{own.peak_bandwidth_gb_s:g} GB/s"
    rows = (
        ("chip", "Apple M2 Ultra", own.chip),
        ("memory", "192 GB LPDDR5", memory),
        ("memory bandwidth", "800 GB/s", peak),
        ("GPU cores or device", "76 (Metal)", own.device),
        ("CPU cores", "24 (16P + 8E)", own.logical_cores),
        ("llama.cpp", "llama.cpp v8240/8280", own.llama_cpp_build),
    )
    columns = (column("component", of="0"), column("printed", of="1"), column("here", of="2"))
    return table("Table 1: hardware", rows, *columns, id="table-1")


def table_2(study: Study) -> Table:
    """The study's models beside ours in their places."""
    ours, note = models_of(study), _other_models(study)
    return table(
        "Table 2: models",
        [(row.cells, study.facts.get(ours.get(row.cells["id"], ""))) for row in printed_rows("table 2")],
        column("study's id", of="0.id"),
        column("printed model", of="0.model"),
        column("active, total, 10⁹", of=lambda row: f"{row[0]['active_b']}, {row[0]['total_b']}"),
        column("role", of="0.role"),
        column("ours in its place", of=lambda row: ours.get(row[0]["id"])),
        column("active, 10⁶", "1", "", lambda row: millions(row[1] and row[1].n_parameters_active)),
        column("total, 10⁶", "1", "", lambda row: millions(row[1] and row[1].n_parameters)),
        column("experts", of=lambda row: experts(row[1])),
        column("weights", "bytes", "", "1.weight_bytes"),
        id="table-2",
        note=f"{note} {_FILES}".strip(),
    )


# Sizes are those of gguf_manifest.toml; GiB are 2^30 bytes.
_FILES = (
    "The study gives its MoE files 20.6 and 38.7 GB; those of the manifest have 22.02 GB (20.5 GiB) and 36.90 GB (34.4 "
    "GiB): the first fits in GiB, the second in neither unit. It prints 128 experts with top-2 routing (section 2.3), "
    "the model's configuration has 256, 8 a token."
)


def table_3(study: Study) -> Table:
    """Runs of each suite: printed, and measured and valid here."""
    own = study.trials.groupby("suite")["valid"].agg(["size", "sum"]).to_dict("index")
    suites = [row.cells["suite"] for row in printed_rows("table 3")]
    known = [own[suite] for suite in suites if suite in own]
    total = {name: sum(int(found[name]) for found in known) for name in ("size", "sum")} if known else None
    return table(
        "Table 3: suites",
        [(row.cells, (own | {"total": total}).get(row.cells["suite"])) for row in printed_rows("table 3")],
        column("suite", of="0.suite"),
        column("what", of="0.what"),
        column("printed runs", "n", "", lambda row: int(row[0]["runs"])),
        column("trials here", "n", "", lambda row: int(row[1]["size"]) if row[1] else _NOT_MEASURED),
        column("of them valid", "n", "", lambda row: int(row[1]["sum"]) if row[1] else None),
        id="table-3",
        note="Trials here include the plain ones measured beside every speculative trial, which the study has not.",
    )


def table_4(study: Study) -> Table:
    """Baseline throughput."""
    ours, note = models_of(study), _other_models(study)
    rows = [
        (row.cells, model := ours.get(row.cells["target"]), study.plain_by_target.get(model or ""))
        for row in printed_rows("table 4")
    ]
    return table(
        "Table 4: baseline throughput, tok/s",
        rows,
        column("study's model", of="0.target"),
        column("active, total, 10⁹", of=lambda row: f"{row[0]['active_b']}, {row[0]['total_b']}"),
        column("printed tok/s", "n", "", lambda row: text(row[0]["tok_s"])),
        column("ours in its place", "", "the profile of the latest run", "1"),
        column("tok/s", "1", "", lambda row: row[2].tok_s if row[2] else _NOT_MEASURED),
        column("ours / printed", "2", "", lambda row: _over(row[2] and row[2].tok_s, row[0]["tok_s"].split()[0])),
        *of_their_arms("2", "spread suite n_predict n_valid"),
        id="table-4",
        note=f"{note} {measured_apart(_plain_of(rows, study))}".strip(),
    )


def _plain_of(rows: Sequence[tuple[dict[str, str], str | None, ArmResult | None]], study: Study) -> pd.DataFrame:
    """The plain trials behind a table's rows."""
    ids = {one.id for _, _, arm in rows if arm is not None for one in arm.trials}
    plain = study.paired.plain
    return plain[plain["trial_id"].isin(ids)]


def table_5(study: Study) -> Table:
    """Speculative decoding: the study's rows, printed, ours, and the ratio."""
    return table(
        "Table 5: speculative decoding",
        study_rows(study),
        column("study's pair", of="pair"),
        column("gamma", "n"),
        column("printed tok/s", "n", "", lambda row: text(row.cells["tok_s"])),
        column("printed speedup", "n", "", lambda row: text(f"{row.cells['speedup']}x")),
        column("printed α, %", "n", "", lambda row: text(row.cells["acceptance_percent"])),
        column("audit of it", of=lambda row: _audit_cell(row.verdict)),
        column("ours", of=lambda row: row.ours and f"{row.ours.case.target.id} + {row.ours.label}"),
        *of_their_arms("ours", "tok_s speedup"),
        column("ours / printed", "2", "of the speedup",
               lambda row: _over(row.ours and row.ours.ratio and row.ours.ratio.value, row.cells["speedup"])),
        column("effect", of=lambda row: effect_cell(row.ours)),
        *of_their_arms("ours", "acceptance_rate mgl"),
        id="table-5",
        note=f"{_other_models(study)} Arms in no row of the study stand under All settings.".strip(),
    )  # fmt: skip


_DRAFTS, _PRINTED = ("draft_0.8b", "draft_2b"), "speedup, acceptance, tok/s"


def table_6(study: Study) -> Table:
    """The two drafts on the mixtures of experts, side by side."""
    rows = {(row.cells["target"], row.gamma, row.cells["draft"]): row for row in study_rows(study)}
    places = [(t, g) for t, g, draft in rows if draft == _DRAFTS[0] and (t, g, _DRAFTS[1]) in rows]

    return table(
        "Table 6: the two drafts",
        [(*place, *(rows[(*place, draft)] for draft in _DRAFTS)) for place in places],
        column("target", of="0"),
        column("gamma", "n", "", "1"),
        *(column(draft, "", _PRINTED, f"{i}.printed", f"{draft} printed") for i, draft in enumerate(_DRAFTS, 2)),
        *(
            one._replace(label=f"{draft} here: {one.label}")
            for i, draft in enumerate(_DRAFTS, 2)
            for one in of_their_arms(f"{i}.ours", "speedup acceptance_rate tok_s")
        ),
        id="table-6",
        note=_other_models(study),
    )


def _over(ours: float | None, printed: str) -> float | None:
    return None if ours is None else ours / float(printed)


def table_f(study: Study) -> Table:
    """Speedup over the prompt's length, which the study shows as figure 5."""
    by_length = {row.cells["n_prompt"]: row for row in printed_rows("figure 5")}
    rows = [(arm, length, by_length.get(str(length))) for arm, length in length_arms(study)]

    def caption(row: StudyRow) -> str:
        """One value of a caption that speaks of every length from 256 on is no value of each."""
        return f"{row.cells['speedup']}x" if row.cells["n_prompt"] == "32" else "~1.19x from 256 on"

    return table(
        "Figure 5 as a table: prompt length",
        rows,
        column("arm", of=lambda row: f"{row[0].case.target.id} + {row[0].setting}"),
        column("prompt tokens", "n", "the case's prompt", lambda row: row[1] or text(row[0].text)),
        *of_their_arms("0", "n_predict plain_tok_s tok_s speedup effect acceptance_rate"),
        column("printed speedup", "n", "", lambda row: text(row[2] and caption(row[2]))),
        column("audit of it", of=lambda row: row[2] and _audit_cell(row[2].verdict)),
        id="table-f",
        note="The study's caption prints two values: 1.26 at 32 tokens, about 1.19 from 256 tokens on."
        if rows
        else "Suite F was not measured here: mlsd run F.",
    )


def length_arms(study: Study) -> list[tuple[ArmResult, int]]:
    """The arms of suite F with the exact length of their prompt (``length-512``) or 0, by arm and length."""
    own = [one for one in study.results if one.question.suite == "F" and not one.is_plain]
    lengths = [one.text.removeprefix("length-") for one in own]
    found = [(one, int(n) if n.isdigit() else 0) for one, n in zip(own, lengths, strict=True)]
    return sorted(found, key=lambda row: (row[0].case.target.id, row[0].setting, row[1]))


def _other_models(study: Study) -> str:
    """Which models stand in the place of the study's. Raises: AnalysisError where none does."""
    if study.profile == "study":
        return ""
    profile = profile_of(study)
    if profile is None or not models_of(study):
        raise AnalysisError("No profile binds these models to the study's roles.", hint="mlsd run B D --profile tiny")
    why = grouped(profile.left_out.items(), lambda left: left[1])
    left_out = "".join(f" No {', '.join(role for role, _ in own)}: {reason}." for reason, own in why.items())
    return (
        f"Profile {study.profile}: other models than the study's in the same roles, on another machine. Compare the "
        f"direction of effects, not their size.{left_out}"
    )
