"""The tables that compare methods on tasks, on a study of known content."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import AnalysisError
from mlsd.planning.prompts import KINDS
from mlsd.records import Case, DrafterSpec, Trial
from mlsd.report.tables.methods import distance_table, kind_table, kinds_of, methods_by_kind, timing_table
from mlsd.store.store import Store
from tests.analysis.claims.test_claims import distance
from tests.analysis.pair_studies import Arm, write_study
from tests.analysis.pair_studies import Study as Loops
from tests.analysis.studies import DENSE, MOE, blocks, case, trial, write

PLD = DrafterSpec(name="pld", options={"ngram": 3})
LOOKED_UP = {"match_rounds": 2.0, "no_match_rounds": 6.0, "match_propose_ns": 4e6, "no_match_propose_ns": 3e6}


def with_look_ups(repeat: int, kind: str, block: int, alpha: float) -> list[tuple[Case, Trial]]:
    plain = case(DENSE, kind, suite="E")
    drafted = msgspec.structs.replace(plain, drafter=PLD, gamma=4)
    stats = {**LOOKED_UP, "sync_ns": 8e6}
    return [(plain, trial(plain, block, repeat, 0)), (drafted, trial(drafted, block, repeat, 1, alpha, stats=stats))]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    trials = blocks(MOE, "E", prompts=("rag", "qa"), gammas=(4,), alpha=0.9, noise=0.0)
    for repeat in range(3):
        trials += with_look_ups(repeat, "qa", 500 + repeat, alpha=0.0)
        trials += with_look_ups(repeat, "summarization", 600 + repeat, alpha=1.0)
    trials += blocks(MOE, "B", prompts=("code",), gammas=(4,), alpha=0.1)
    path = write(tmp_path_factory.mktemp("methods") / "e.sqlite", trials)
    with Store.open(path, read_only=True) as store:
        return read_study(store)


def test_each_method_has_its_speedup_and_mgl_on_each_kind_it_was_measured_on(study: Study) -> None:
    by_method = {row.overall.arm.name: row for row in methods_by_kind(study)}
    assert set(by_method) == {"tiny-draft", "pld (ngram 3)"}
    pld = by_method["pld (ngram 3)"]
    assert set(pld.by_kind) == {"qa", "summarization"}
    assert pld.by_kind["qa"].mgl == 1.0
    assert (pld.by_kind["summarization"].mgl or 0) > 4
    slow, fast = pld.by_kind["qa"].ratio, pld.by_kind["summarization"].ratio
    assert slow is not None
    assert fast is not None
    assert slow.value < 1 < fast.value


def test_over_all_tasks_every_block_counts_once_and_other_prompts_do_not(study: Study) -> None:
    by_method = {row.overall.arm.name: row.overall for row in methods_by_kind(study)}
    assert by_method["pld (ngram 3)"].n_blocks == 6
    assert by_method["tiny-draft"].n_blocks == 6


def test_the_parts_of_a_round_are_means_over_all_rounds(study: Study) -> None:
    table = timing_table(study)
    (row,) = (row for row in table.rows if row[0].text == DENSE.ref.id)
    shown = {head.label: cell.sort for head, cell in zip(table.heads, row, strict=True)}
    of_pld = study.trials[(study.trials["drafter"] == "pld")]
    assert shown["rounds"] == of_pld["rounds"].sum()
    assert shown["ms/round"] == pytest.approx(of_pld["decode_ns"].sum() / of_pld["rounds"].sum() / 1e6)


def test_the_reports_tables_hold_every_kind_and_mark_what_is_decided(study: Study) -> None:
    table = kind_table(study, "speedup")
    assert [head.label for head in table.heads][-6:] == [
        *("multi turn", "translation", "summarization", "qa", "math reasoning", "rag"),
    ]
    row = next(row for row in table.rows if row[1].text == "pld (ngram 3)")
    assert [cell.text == "-" for cell in row[4:]] == [True, True, False, False, True, True]
    assert (row[6].tone, row[7].tone) == ("good", "bad")
    assert len(kind_table(study, "mgl").rows) == len(timing_table(study).rows) == 2
    assert not any("nan" in cell.text for row in timing_table(study).rows for cell in row)


def test_a_study_without_tasks_says_how_to_measure_them(tmp_path: Path) -> None:
    with Store.open(write(tmp_path / "b.sqlite", blocks(MOE)), read_only=True) as store:
        opened = read_study(store)
    with pytest.raises(AnalysisError, match="mlsd run E"):
        methods_by_kind(opened)


def test_a_suite_in_which_some_prompts_are_tasks_has_no_tables_by_task(tmp_path: Path) -> None:
    """As the tiny profile's suite B, which replaces two of its four prompts."""
    blocks_of_b = blocks(MOE, prompts=("code", "reasoning", "translation", "rag"))
    with Store.open(write(tmp_path / "b.sqlite", blocks_of_b), read_only=True) as store:
        opened = read_study(store)
    with pytest.raises(AnalysisError, match="mlsd run E"):
        kind_table(opened, "speedup")


def test_kinds_of_another_set_are_columns_of_their_own() -> None:
    ours = SimpleNamespace(by_kind={"rag": None})
    assert kinds_of([ours]) == KINDS  # type: ignore[list-item]
    theirs = SimpleNamespace(by_kind={"rag": None, "coding": None, "low_entropy 8k": None})
    assert kinds_of([theirs]) == ("rag", "coding", "low_entropy 8k")  # type: ignore[list-item]


def test_each_drafting_model_is_one_row_with_its_distance_and_its_acceptance(tmp_path: Path) -> None:
    half = Arm(drafter="layer-skip", draft=None, alpha=1.0, gammas=(2,), options={"mode": "sync", "fraction": 0.5})
    arms = (half, Arm(alpha=0.0, gammas=(4,)), Arm(drafter="pld", draft=None, gammas=(4,)))
    path = write_study(tmp_path / "s.sqlite", Loops(arms=arms))
    with Store.open(path) as store:
        cases = {case.drafter.name: case for case in store.cases().values()}
        store.add_distance(distance(cases["layer-skip"], ratio=1.5))
        store.add_distance(distance(cases["draft-model"], ratio=9.0, total_variation=0.9))
        study = read_study(store)
    table = distance_table(study)
    near, far = ({head.label: cell.text for head, cell in zip(table.heads, row, strict=True)} for row in table.rows)
    assert (near["arm"], near["gamma"], near["acceptance"]) == ("layer-skip (fraction 0.5, mode sync)", "2", "100.0 %")
    assert (far["arm"], far["gamma"], far["acceptance"]) == ("small", "4", "0.0 %")
    assert near["perplexity ratio"].startswith("1.50") and far["perplexity ratio"].startswith("9.00")
    assert far["total variation"] == "0.900"


def test_a_study_without_comparisons_says_how_to_make_them(tmp_path: Path) -> None:
    with Store.open(write_study(tmp_path / "s.sqlite", Loops())) as store:
        study = read_study(store)
    with pytest.raises(AnalysisError, match="No model that drafts was compared") as caught:
        distance_table(study)
    assert "--distances" in caught.value.hint
