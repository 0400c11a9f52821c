"""``mlsd demo`` through the command line: what a newcomer runs first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlsd.measure.store.study import Store
from tests.cli.conftest import Ran

Mlsd = Callable[..., Ran]


@pytest.mark.heavy
@pytest.mark.smollm2
def test_the_demo_ends_with_a_report_of_trials_it_just_ran(mlsd: Mlsd, tmp_path: Path) -> None:
    (tmp_path / "demo.sqlite").write_text("left by an earlier version")
    ran = mlsd("demo", "--quick", "--n-threads", "1", "-o", tmp_path)
    assert ran.code == 0, ran.err
    assert "lossless" in ran.out
    report = Path(ran.out.split()[-1])
    assert report.parent == tmp_path
    with Store.open(tmp_path / "demo.sqlite", create=False) as store:
        trials = [stored.trial for stored in store.trials()]
        (run,) = store.runs()
    assert trials
    assert all(trial.valid for trial in trials)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run.started_at[:10] in page
    assert "tiny-moe" in page
