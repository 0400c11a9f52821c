"""What a database says must not say where files lie on its maker's machine."""

from pathlib import Path

import msgspec
import pytest

from mlsd.records import Losslessness
from mlsd.store.rowcodec import without_folders
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from tests.measure import examples
from tests.measure.examples import ENVIRONMENT


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("llama.cpp cannot load /home/jane/models/m.gguf: no reason.", "llama.cpp cannot load m.gguf: no reason."),
        ("'/opt/a/b.gguf' and ~/c/d.sqlite", "'b.gguf' and d.sqlite"),
        ('File "/usr/lib/python3/mlsd/rig.py", line 3', 'File "rig.py", line 3'),
        (
            "8.1 tok/s at 1/2 of gamma; see https://example.org/a/b",
            "8.1 tok/s at 1/2 of gamma; see https://example.org/a/b",
        ),
        ("results/tiny.sqlite", "results/tiny.sqlite"),
        (f"{Path.home()}/My Models/x.gguf", "My Models/x.gguf"),
    ],
)
def test_absolute_paths_are_cut_and_nothing_else_is(text: str, told: str) -> None:
    assert without_folders(text) == told


def test_plans_and_failed_trials_are_stored_without_folders(tmp_path: Path) -> None:
    case = examples.case()
    failed = examples.failed(case, reason=f"Cannot load {tmp_path}/m.gguf.")
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run(ENVIRONMENT, {"options": {"db": str(tmp_path / "s.sqlite"), "files": [str(tmp_path)]}}, 0)
        store.add_cases(run, [case])
        store.add(run, [failed])
        assert store.runs()[0].plan["options"] == {"db": "s.sqlite", "files": [tmp_path.name]}
        (stored,) = store.trials(TrialFilter(failed=True))
        assert stored.trial.reason == "Cannot load m.gguf."
    assert str(tmp_path).encode() not in (tmp_path / "s.sqlite").read_bytes()


def test_a_memory_that_lost_a_token_can_be_read_back(tmp_path: Path) -> None:
    lost = Losslessness(verdict="diverged", n_positions_off=-3)
    case = examples.case()
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run(ENVIRONMENT, {}, 0)
        store.add_cases(run, [case])
        store.add(run, [msgspec.structs.replace(examples.trial(case), losslessness=lost)])
        (stored,) = store.trials()
    assert stored.trial.losslessness == lost
