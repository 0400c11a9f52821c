"""The study's tables beside ours: what they compare, and what they say of it."""

import math
from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.records import Case, Trial
from mlsd.report.tables.paper import table_4
from tests.analysis.studies import DENSE, MOE, blocks, write

Trials = list[tuple[Case, Trial]]


def later(measured: Trials, hours: int) -> Trials:
    times = [one.started_at.replace("T12", f"T{12 + hours}") for _, one in measured]
    return [(of, msgspec.structs.replace(one, started_at=at)) for (of, one), at in zip(measured, times, strict=True)]


@pytest.mark.parametrize(("hours", "said"), [(0, False), (2, True)])
def test_table_4_says_where_its_targets_were_measured_one_after_the_other(
    tmp_path: Path, hours: int, said: bool
) -> None:
    """Each repeat of both in one minute; or all of one target hours after the other."""
    measured = blocks(MOE, "A", gammas=()) + later(blocks(DENSE, "C", gammas=()), hours)
    note = table_4(mlsd.open_study(write(tmp_path / "s.sqlite", measured))).note
    assert ("measured one after the other, up to 120.0 minutes apart" in note) == said


def test_table_4_shows_the_frame_of_baselines_cell_for_cell(tmp_path: Path) -> None:
    measured = (
        blocks(MOE, "A", gammas=()) + blocks(DENSE, "C", gammas=()) + blocks(MOE, "B", prompts=("code",), gammas=(4,))
    )
    study = mlsd.open_study(write(tmp_path / "s.sqlite", measured))
    shown, frame = table_4(study), study.baselines.set_index("target")
    index = [head.label for head in shown.heads].index
    columns = {"tok/s": "tok_s", "output tokens": "n_predict", "trials": "n_valid"}
    rows = {row[index("ours in its place")].text: row for row in shown.rows if row[index("trials")].sort is not None}
    assert set(rows) == set(frame.index) == {MOE.ref.id, DENSE.ref.id}
    for target, row in rows.items():
        for label, name in columns.items():
            assert row[index(label)].sort == frame.loc[target, name], (target, label)
        assert row[index("suite")].text == frame.loc[target, "suite"]
        assert row[index("spread")].text == f"{100 * frame.loc[target, 'spread']:.1f} %"


def test_the_frame_of_baselines_holds_the_mean_over_texts_and_when_they_were_measured(tmp_path: Path) -> None:
    measured = blocks(MOE, "A", gammas=()) + later(blocks(DENSE, "C", gammas=()), 2)
    study = mlsd.open_study(write(tmp_path / "s.sqlite", measured))
    frame, trials = study.baselines.set_index("target"), study.trials
    for target, row in frame.iterrows():
        of_target = trials[trials["target"] == target]
        by_text = of_target.groupby(["prompt", "repeat"])["decode_tok_s"].mean()
        assert row["tok_s"] == pytest.approx(math.exp(by_text.map(math.log).mean()))
        assert row["n_valid"] == len(of_target)
        assert (row["first_at"], row["last_at"]) == (of_target["started_at"].min(), of_target["started_at"].max())
    assert frame.loc[MOE.ref.id, "last_at"] < frame.loc[DENSE.ref.id, "first_at"]
