"""The study's tables beside ours: what they compare, and what they say of it."""

from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.records import Case, Trial
from mlsd.report.tables.paper import table_4
from tests.analysis.studies import DENSE, MOE, blocks, write

Made = list[tuple[Case, Trial]]


def later(made: Made, hours: int) -> Made:
    times = [one.started_at.replace("T12", f"T{12 + hours}") for _, one in made]
    return [(of, msgspec.structs.replace(one, started_at=at)) for (of, one), at in zip(made, times, strict=True)]


@pytest.mark.parametrize(("hours", "said"), [(0, False), (2, True)])
def test_table_4_says_where_its_targets_were_measured_one_after_the_other(
    tmp_path: Path, hours: int, said: bool
) -> None:
    """Each repeat of both in one minute; or all of one target hours after the other."""
    made = blocks(MOE, "A", gammas=()) + later(blocks(DENSE, "C", gammas=()), hours)
    note = table_4(mlsd.open_study(write(tmp_path / "s.sqlite", made))).note
    assert ("measured one after the other, up to 120.0 minutes apart" in note) == said
