"""Tables of profiled passes, and of methods whose trials measured something else than the method's speed."""

from pathlib import Path

import msgspec
import pytest

from mlsd.analysis.study.study import Study, read_study
from mlsd.drafters import drafting_key
from mlsd.errors import AnalysisError
from mlsd.records import Case, DrafterSpec, Trial
from mlsd.report.page import build
from mlsd.report.render.table import Table
from mlsd.report.tables.columns import effect_of
from mlsd.report.tables.methods import kind_table, methods_by_kind, pass_table, timing_table
from mlsd.report.tables.results import speedup_table
from mlsd.store.rows import PassShares
from mlsd.store.store import Store
from tests.analysis.studies import DENSE, DRAFT, MACHINE, blocks, case, trial, write

INPLACE = DrafterSpec(name="layer-skip", options={"mode": "inplace", "exit": 2})
SYNC = DrafterSpec(name="layer-skip", options={"mode": "sync", "exit": 2})
PLD = DrafterSpec(name="pld")
FELL_BACK = "another release"
LOOKED = {"match_rounds": 1.0, "no_match_rounds": 1.0, "match_propose_ns": 2e6, "no_match_propose_ns": 1e6}


def arm(spec: DrafterSpec, repeat: int, position: int, **more: object) -> tuple[Case, Trial]:
    drafted = msgspec.structs.replace(case(DENSE, "qa", suite="E"), drafter=spec, gamma=2)
    return drafted, trial(drafted, 9, repeat, position, 0.5, **more)


def shares(**changes: object) -> PassShares:
    base = PassShares(
        model_key=DENSE.ref.key,
        rows=1,
        depth=64,
        n_passes=4,
        plain_ns=1_000_000,
        profiled_ns=1_200_000,
        headless_ns=700_000,
        parts_ns={"attention": 200_000, "ffn": 500_000, "head": 300_000},
    )
    return msgspec.structs.replace(base, **changes)


def study_of(path: Path, *profiled: PassShares) -> Study:
    trials = blocks(DENSE, "E", prompts=("qa",), gammas=(2,), alpha=0.9, noise=0.0)
    for repeat in range(2):
        plain = case(DENSE, "qa", suite="E")
        trials.append((plain, trial(plain, 9, repeat, 0)))
        trials.append(arm(INPLACE, repeat, 1, decode_ns=None, timed=False, stats={"draft_steps": 4.0}))
        trials.append(arm(SYNC, repeat, 2, rollback_draft="checkpoint", fell_back=FELL_BACK))
        trials.append(arm(PLD, repeat, 3, stats=LOOKED))
    write(path, trials)
    with Store.open(path) as store:
        store.add_figures(1, profiled)
        return read_study(store)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    draft, cut = DRAFT.ref.key, drafting_key(SYNC)
    return study_of(
        tmp_path_factory.mktemp("passes") / "e.sqlite",
        shares(rows=3),
        shares(model_key=draft, parts_ns={"head": 400_000, "attention": 600_000}),
        shares(drafting_key=cut, profiled_ns=5_000_000),
    )


def cells(table: Table, label: str) -> dict[str, str]:
    (row,) = (row for row in table.rows if any(cell.text.startswith(label) for cell in row[:2]))
    return {head.label: cell.text for head, cell in zip(table.heads, row, strict=True)}


def test_every_profiled_pass_has_its_shares_and_doubt_is_marked(study: Study) -> None:
    table = pass_table(study)
    by_name = {row[0].text: [cell.text for cell in row] for row in table.rows}
    heads = [head.label for head in table.heads]
    assert heads[4:7] == ["attention", "FFN", "LM head"]  # parts that no network has are no columns
    assert by_name["tiny-dense"][1:] == ["3", "64", "1.000", "20.0 %", "50.0 %", "30.0 %", "30.0 %", "1.00", "1.20"]
    assert by_name["tiny-draft"][4:7] == ["60.0 %", "-", "40.0 %"]
    assert by_name["tiny-dense, draft of layer-skip"][4:7] == ["20.0 % ?", "50.0 % ?", "30.0 % ?"]


def test_a_methods_timing_names_the_heads_share_of_its_draft_step(study: Study) -> None:
    table = timing_table(study)
    label = "LM head of a draft step"
    assert cells(table, "tiny-draft")[label] == "40.0 %"
    assert cells(table, "layer-skip (exit 2, mode sync)")[label] == "30.0 % ?"
    assert cells(table, "pld")[label] == "-"


def test_the_newest_breakdown_counts(tmp_path: Path) -> None:
    path = tmp_path / "e.sqlite"
    study_of(path, shares(rows=9))
    with Store.open(path) as store:
        later = store.begin_run(store.runs()[0].environment, {"command": "breakdown"}, seed=0)
        store.add_figures(later, [shares(rows=5)])
        store.end_run(later)
        table = pass_table(read_study(store))
    assert [row[1].text for row in table.rows] == ["5"]


def test_a_study_without_a_breakdown_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"mlsd calibrate parts TARGET --drafter NAME --db .*e\.sqlite"):
        pass_table(study_of(tmp_path / "e.sqlite"))


def test_a_draft_inside_its_target_has_no_speed_in_any_table(study: Study) -> None:
    (inside,) = (one for one in study.pooled if one.case.drafter == INPLACE)
    assert (inside.ratio, inside.tok_s, inside.timed) == (None, None, False)
    assert inside.mgl is not None and inside.acceptance_rate is not None
    assert effect_of(inside) == "not timed"
    shown = cells(kind_table(study, "speedup"), "layer-skip (exit 2, mode inplace), not timed")
    assert (shown["all tasks"], shown["qa"]) == ("not timed", "not timed")
    assert not any("inplace" in row[1].text for row in timing_table(study).rows)
    assert all(one.timed for one in study.pooled if one.case.drafter != INPLACE)


def test_a_fallback_stands_beside_the_method_wherever_its_numbers_do(study: Study) -> None:
    (row,) = (row for row in methods_by_kind(study) if "sync" in row.overall.arm.name)
    assert row.overall.fell_back == FELL_BACK
    assert row.overall.setting.endswith("gamma 2 (not sync)")
    for table in (kind_table(study, "speedup"), timing_table(study)):
        (cell,) = (row[1] for row in table.rows if "mode sync" in row[1].text)
        assert cell.text.endswith(", not sync")
    assert any(row[1].text.endswith("(not sync)") for row in speedup_table(study.results).rows)


def test_a_database_of_breakdowns_alone_has_a_report_of_them(tmp_path: Path) -> None:
    with Store.open(tmp_path / "b.sqlite") as store:
        run = store.begin_run(MACHINE, {"command": "breakdown"}, seed=0)
        store.add_models([DENSE])
        store.add_figures(run, [shares()])
        store.end_run(run)
        drafted = build(read_study(store))
    (table,) = (table for section in drafted.sections for table in section.tables if table.id == "pass-shares")
    assert table.rows[0][0].text == "tiny-dense"
