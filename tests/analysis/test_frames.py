"""Frames have the declared columns and types, and say of every trial what its records say."""

from pathlib import Path

import msgspec
import pandas as pd
import pytest

import mlsd
from mlsd.analysis import frames
from mlsd.records import Status
from mlsd.store.store import Store
from mlsd.trials.rates import speed, sums
from tests.analysis.studies import MOE, blocks, case, failed, whole_study, write


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_study(tmp_path_factory.mktemp("study") / "study.sqlite")


def read(path: Path) -> pd.DataFrame:
    with Store.open(path, read_only=True) as store:
        return frames.trials(list(store.trials(rounds=False)), store.runs())


def test_the_frame_of_trials_has_exactly_the_declared_columns_and_types(study: Path) -> None:
    frame = read(study)
    assert list(frame.columns) == [column.name for column in frames.TRIALS]
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {c.name: c.dtype for c in frames.TRIALS}


def test_an_empty_store_gives_the_same_columns_and_no_row(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.sqlite") as store:
        for frame, columns in (
            (frames.trials([], []), frames.TRIALS),
            (frames.outcomes(store, ()), frames.OUTCOMES),
        ):
            assert frame.empty
            assert {name: str(kind) for name, kind in frame.dtypes.items()} == {c.name: c.dtype for c in columns}


def test_every_figure_of_a_trial_is_what_its_records_give(study: Path) -> None:
    frame = read(study).set_index("trial_id")
    with Store.open(study, read_only=True) as store:
        for stored in store.trials():
            row, wanted = frame.loc[stored.id], sums(stored.trial.rounds)
            if stored.trial.status == "failed":
                continue
            assert row["decode_tok_s"] == pytest.approx(speed(stored.trial))
            assert row["mgl"] == pytest.approx(wanted.mgl)
            if wanted.proposed:
                assert row["accepted_of_output"] == pytest.approx(1 - 1 / row["mgl"])
            assert (row["proposed"], row["accepted"], row["rounds"]) == (
                wanted.proposed, wanted.accepted, wanted.rounds,
            )  # fmt: skip
            assert row["parts_ns"] == sum(r.wall_ns for r in stored.trial.rounds)


def test_what_was_not_measured_is_missing_and_never_zero(tmp_path: Path) -> None:
    of = case(MOE, "code", 4)
    frame = read(write(tmp_path / "s.sqlite", [(of, failed(of, 1))]))
    for name in ("decode_tok_s", "acceptance_rate", "mgl", "parts_ns", "decode_ns", "rounds"):
        assert frame[name].isna().all(), name


def test_outcomes_hold_the_same_sums_as_the_rounds_of_valid_trials(study: Path) -> None:
    with Store.open(study, read_only=True) as store:
        valid = [stored for stored in store.trials() if stored.trial.valid]
        outcomes = frames.outcomes(store, {stored.id for stored in valid})
    every = [r for stored in valid for r in stored.trial.rounds]
    assert outcomes["rounds"].sum() == len(every)
    assert (outcomes["proposed"] * outcomes["rounds"]).sum() == sum(r.proposed for r in every)
    assert (outcomes["accepted"] * outcomes["rounds"]).sum() == sum(r.accepted for r in every)
    assert outcomes["verify_ns"].sum() == sum(r.verify_ns for r in every)


@pytest.mark.slow
def test_every_frame_of_a_study_has_exactly_the_columns_that_are_declared(tmp_path: Path) -> None:
    study = mlsd.open_study(whole_study(tmp_path / "s.sqlite"))
    for name, fields in frames.FRAMES.items():
        found = getattr(study, name)
        assert list(found.columns) == [field.name for field in fields], name
        assert {str(kind) for kind in found.dtypes} <= {field.dtype for field in fields} | {"str"}, name
    assert len(study.rounds) == study.trials.loc[study.trials["valid"], "rounds"].sum()
    assert set(study.pairs["trial_id"]) <= set(study.trials["trial_id"])
    assert study.pairs["speedup"].notna().all() and (study.pairs["drafter"] == "draft-model").all()


def test_notes_call_disturbed_trials_disturbed_and_not_invalid(tmp_path: Path) -> None:
    made = blocks(MOE, prompts=("code",), gammas=(4,))
    changed = {0: Status.DISTURBED, 3: Status.DISTURBED, 5: Status.INVALID}
    rows = [
        (of, msgspec.structs.replace(one, status=changed[i], reason="why")) if i in changed else (of, one)
        for i, (of, one) in enumerate(made)
    ]
    notes = mlsd.open_study(write(tmp_path / "s.sqlite", rows)).notes
    assert "No speedup, fit or claim uses the 2 disturbed trials." in notes
    assert "No speedup, fit or claim uses the 1 invalid trial." in notes
