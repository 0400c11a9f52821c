"""Tables of arms: every setting, and settings over the depth of their prompts."""

from pathlib import Path

from mlsd.analysis.study.study import read_study
from mlsd.report.tables.results import depth_table
from mlsd.store.store import Store
from tests.analysis.studies import MOE, blocks, write


def test_an_arm_stands_in_the_table_of_depths_once_for_each_depth(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, gammas=(4,), prompts=("code", "code@1024")))
    with Store.open(path, read_only=True) as store:
        shown = depth_table(read_study(store))
    rows = [[cell.text for cell in row[1:4]] for row in shown.rows]
    assert rows == [["tiny-draft, gamma 4", "code", "0"], ["tiny-draft, gamma 4", "code", "1\u202f024"]]
