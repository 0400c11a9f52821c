"""A study beside an earlier one: ratios without intervals, and everything that was not the same is named."""

from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.analysis.study.earlier import EarlierStudy, against_earlier
from mlsd.errors import AnalysisError
from mlsd.records import Case, Environment, ModelFacts, Trial
from tests.analysis.studies import DENSE, DRAFT, MACHINE, MOE, blocks, lasting, write

Made = list[tuple[Case, Trial]]


def moved(made: Made, day: str, times: float = 1.0) -> Made:
    """The same trials on that day of the month, with so many times as long decoding."""
    return [
        (
            of,
            msgspec.structs.replace(
                lasting(one, round((one.decode_ns or 0) * times)),
                started_at=one.started_at.replace("-01T", f"-{day}T"),
            ),
        )
        for of, one in made
    ]


def measured(target: ModelFacts = MOE, prompts: tuple[str, ...] = ("code",)) -> Made:
    return blocks(target, gammas=(4,), prompts=prompts)


def compared(tmp_path: Path, new: Made, old: Made, machine: Environment = MACHINE) -> EarlierStudy:
    paths = write(tmp_path / "new.sqlite", new), write(tmp_path / "old.sqlite", old, machine)
    return against_earlier(*map(mlsd.open_study, paths))


def test_a_machine_that_slowed_down_shows_in_plain_decoding_and_not_in_the_speedup(tmp_path: Path) -> None:
    found = compared(tmp_path, moved(measured(), "04", 1.25), measured())
    assert {one.setting == "plain" for one in found.arms} == {True, False} and not found.other_machine
    for one in found.arms:
        assert one.tok_s_ratio == pytest.approx(0.8, rel=1e-6)
        assert not one.other and one.apart_s == pytest.approx(3 * 86_400)
        if one.setting != "plain":
            assert one.plain_ratio == pytest.approx(0.8, rel=1e-6)
            assert one.speedup_ratio == pytest.approx(1.0, rel=1e-6)
            assert one.speedup is not None and one.speedup_before is not None
    assert "Measured apart, 3.0 days" in found.sentence and "no interval" in found.sentence


def test_the_ratio_is_that_of_the_two_figures_and_a_later_study_called_earlier_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, measured(), moved(measured(), "02", 2.0))
    for one in found.arms:
        assert one.tok_s is not None and one.tok_s_before is not None
        assert one.tok_s_ratio == one.tok_s / one.tok_s_before == pytest.approx(2.0, rel=1e-6)
    assert f"Of {len(found.arms)} arms the earlier study has the later trials" in found.sentence


def test_another_machine_build_or_file_is_named(tmp_path: Path) -> None:
    file = msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, sha256="f" * 64))
    machine = msgspec.structs.replace(MACHINE, host="b" * 16, chip="Apple M1", llama_cpp_build="b8000")
    found = compared(tmp_path, measured(), measured(file), machine)
    assert found.other_machine == ("another host", "chip Apple M2 instead of Apple M1",
                                   "llama.cpp build b8240 instead of b8000")  # fmt: skip
    assert {one.other for one in found.arms} == {("another file of the target",)}


def test_another_draft_behind_the_same_name_is_named_for_its_arm_alone(tmp_path: Path) -> None:
    draft = msgspec.structs.replace(DRAFT, ref=msgspec.structs.replace(DRAFT.ref, sha256="e" * 64))
    found = compared(tmp_path, measured(), blocks(MOE, gammas=(4,), prompts=("code",), draft=draft))
    assert {one.setting == "plain": one.other for one in found.arms} == {
        True: (),
        False: ("another file of the draft",),
    }


@pytest.mark.slow
def test_arms_without_a_counterpart_are_counted_and_nothing_in_common_is_an_error(tmp_path: Path) -> None:
    found = compared(tmp_path, measured(prompts=("code", "factual")), measured())
    assert {one.text for one in found.arms} == {"code"}
    assert (found.n_only_here, found.n_only_earlier) == (2, 0)
    (tmp_path / "apart").mkdir()
    with pytest.raises(AnalysisError, match="no arm in common"):
        compared(tmp_path / "apart", measured(), measured(DENSE))
