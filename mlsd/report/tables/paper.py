"""Tables 1 to 6 of the study, and figure 5 as a table: what it printed, ours, and the ratio, in its order and shape.

A profile binds the study's roles to models, so a row of the study is ours when the profile puts a model in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from msgspec import structs

from mlsd.analysis.claims.claim_tests import measured_apart
from mlsd.analysis.claims.claims import audited
from mlsd.analysis.study.study import Study
from mlsd.audits import published_tables as published
from mlsd.audits.rows import RowAudit
from mlsd.errors import AnalysisError, SuiteError
from mlsd.planning.suite import Profile, find_profile
from mlsd.records import Record
from mlsd.report.render.table import Cell, Column, Table, number, numbers, table, text, words
from mlsd.report.tables.columns import ARM, effect_cell, experts, millions, of_their_arms
from mlsd.report.tables.records import TONES
from mlsd.stats import grouped
from mlsd.trials.results import ArmResult
from mlsd.units import format_bytes

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


class StudyRow(Record, frozen=True, kw_only=True):
    """A row of the study's tables and the arm of ours in its place."""

    cells: dict[str, str]  # as printed
    verdict: RowAudit | None
    ours: ArmResult | None = None

    @property
    def gamma(self) -> int:
        return int(self.cells["gamma"])

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
def printed_rows(table: str) -> tuple[StudyRow, ...]:
    """The rows of a table of the study, with what the audit says of each."""
    names = ("target", "draft", "gamma", "n_prompt")
    rows = (row for row in audited("study").rows if row.identity["table"] == table)
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
    cores = None if own.logical_cores is None else str(own.logical_cores)
    here = (own.chip, memory, peak, own.device, cores, own.llama_cpp_build)
    printed = ("Apple M2 Ultra", "192 GB LPDDR5", "800 GB/s", "76 (Metal)", "24 (16P + 8E)", "llama.cpp v8240/8280")
    names = ("chip", "memory", "memory bandwidth", "GPU cores or device", "CPU cores", "llama.cpp")
    return table(
        "Table 1: hardware",
        zip(names, printed, here, strict=True),
        words("component", itemgetter(0)),
        words("printed", itemgetter(1)),
        words("here", itemgetter(2)),
        id="table-1",
    )


def table_2(study: Study) -> Table:
    """The study's models beside ours in their places."""
    ours, note = models_of(study), _other_models(study)
    return table(
        "Table 2: models",
        [(row.cells, study.facts.get(ours.get(row.cells["id"], ""))) for row in printed_rows("table 2")],
        words("study's id", lambda row: row[0]["id"]),
        words("printed model", lambda row: row[0]["model"]),
        words("active, total, 10⁹", lambda row: f"{row[0]['active_b']}, {row[0]['total_b']}"),
        words("role", lambda row: row[0]["role"]),
        words("ours in its place", lambda row: ours.get(row[0]["id"])),
        numbers("active, 10⁶", lambda row: millions(row[1].n_parameters_active if row[1] else None, 1)),
        numbers("total, 10⁶", lambda row: millions(row[1].n_parameters if row[1] else None, 1)),
        words("experts", lambda row: row[1] and experts(row[1])),
        numbers("weights", lambda row: text(format_bytes(row[1].weight_bytes) if row[1] else None)),
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
        words("suite", lambda row: row[0]["suite"]),
        words("what", lambda row: row[0].get("what")),
        numbers("printed runs", lambda row: int(row[0]["runs"])),
        numbers("trials here", lambda row: int(row[1]["size"]) if row[1] else text("not measured", "quiet")),
        numbers("of them valid", lambda row: int(row[1]["sum"]) if row[1] else None),
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
        words("study's model", lambda row: row[0]["target"]),
        words("active, total, 10⁹", lambda row: f"{row[0]['active_b']}, {row[0]['total_b']}"),
        numbers("printed tok/s", lambda row: text(row[0]["tok_s"])),
        words("ours in its place", lambda row: row[1], "the profile of the latest run"),
        numbers("tok/s", lambda row: ARM["tok/s"][1](row[2]) if row[2] else text("not measured", "quiet")),
        numbers("ours / printed", lambda row: _ratio(row[2].tok_s if row[2] else None, row[0]["tok_s"].split()[0])),
        *of_their_arms(itemgetter(2), "spread", "suite", "output tokens"),
        numbers("trials", lambda row: row[2].n_valid if row[2] else None),
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

    def of_printed(row: StudyRow) -> Cell:
        return _ratio(row.ours.ratio.value if row.ours and row.ours.ratio else None, row.cells["speedup"])

    return table(
        "Table 5: speculative decoding",
        study_rows(study),
        words("study's pair", lambda row: row.pair),
        numbers("gamma", lambda row: row.gamma),
        numbers("printed tok/s", lambda row: text(row.cells["tok_s"])),
        numbers("printed speedup", lambda row: text(f"{row.cells['speedup']}x")),
        numbers("printed α, %", lambda row: text(row.cells["acceptance_percent"])),
        words("audit of it", lambda row: _audit_cell(row.verdict)),
        words("ours", lambda row: row.ours and f"{row.ours.case.target.id} + {row.ours.label}"),
        *of_their_arms(attrgetter("ours"), "tok/s", "speedup [95 % CI]"),
        numbers("ours / printed", of_printed, "of the speedup"),
        words("effect", lambda row: effect_cell(row.ours)),
        *of_their_arms(attrgetter("ours"), "acceptance", "MGL"),
        id="table-5",
        note=f"{_other_models(study)} Arms in no row of the study stand under All settings.".strip(),
    )


def table_6(study: Study) -> Table:
    """The two drafts on the mixtures of experts, side by side."""
    rows = {(row.cells["target"], row.gamma, row.cells["draft"]): row for row in study_rows(study)}
    places = [(t, g) for t, g, draft in rows if draft == "draft_0.8b" and (t, g, "draft_2b") in rows]

    def printed(draft: str) -> Column[tuple[str, int]]:
        def cell(place: tuple[str, int]) -> Cell:
            cells = rows[place[0], place[1], draft].cells
            return text(f"{cells['speedup']}x, {cells['acceptance_percent']} %, {cells['tok_s']}")

        return numbers(f"{draft} printed", cell, "speedup, acceptance, tok/s")

    def ours(draft: str) -> tuple[Column[tuple[str, int]], ...]:
        def arm(place: tuple[str, int]) -> ArmResult | None:
            return rows[place[0], place[1], draft].ours

        own = of_their_arms(arm, "speedup [95 % CI]", "acceptance", "tok/s")
        return tuple((structs.replace(head, label=f"{draft} here: {head.label}"), get) for head, get in own)

    return table(
        "Table 6: the two drafts",
        places,
        words("target", itemgetter(0)),
        numbers("gamma", itemgetter(1)),
        printed("draft_0.8b"),
        printed("draft_2b"),
        *ours("draft_0.8b"),
        *ours("draft_2b"),
        id="table-6",
        note=_other_models(study),
    )


def _ratio(ours: float | None, printed: str) -> Cell:
    return number(None if ours is None else ours / float(printed))


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
        words("arm", lambda row: f"{row[0].case.target.id} + {row[0].setting}"),
        numbers("prompt tokens", lambda row: row[1] or text(row[0].text), "the case's prompt"),
        *of_their_arms(
            itemgetter(0), "output tokens", "plain tok/s", "tok/s", "speedup [95 % CI]", "effect", "acceptance"
        ),
        numbers("printed speedup", lambda row: text(row[2] and caption(row[2]))),
        words("audit of it", lambda row: row[2] and _audit_cell(row[2].verdict)),
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
