"""``mlsd demo`` through the command line: what a newcomer runs first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlsd.cli.start.demo import loss, win
from mlsd.measure.store.store import Store
from tests.cli.conftest import Ran
from tests.trials.made import result

Mlsd = Callable[..., Ran]


@pytest.mark.heavy
@pytest.mark.smollm2
def test_the_demo_ends_with_a_report_of_trials_it_just_ran(mlsd: Mlsd, tmp_path: Path) -> None:
    (tmp_path / "demo.sqlite").write_text("left by an earlier version")
    ran = mlsd("demo", "--quick", "--n-threads", "1", "-o", tmp_path)
    assert ran.code == 0, ran.err
    assert "lossless" in ran.out
    with Store.open(tmp_path / "demo.sqlite", create=False) as store:
        trials = [stored.trial for stored in store.trials()]
        runs = list(store.runs())
    assert len(runs) == 3
    # A busy machine may disturb others; those say so.
    invalid = [t for t in trials if not t.valid and not t.disturbed]
    assert invalid and all(trial.rollback_target == "unchecked" for trial in invalid)
    assert all("native calls failed and were ignored" in (trial.invalid_reason or "") for trial in invalid)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert runs[0].started_at[:10] in page and "tiny-moe" in page
    for ending in ("WIN", "LOSS", "THE INVALID ONE"):
        assert ending in ran.err + ran.out


def test_a_win_is_said_only_where_it_is_decided_and_always_with_its_bound() -> None:
    oracle = result(1.4, 1.5, 1.6, drafter="oracle")
    assert "THE HONEST WIN" in win([result(1.2, 1.3, 1.4, drafter="pld"), oracle])
    for undecided in (result(0.9, 1.3, 1.7, drafter="pld"), result(0.7, 0.8, 0.9, drafter="pld")):
        said = win([undecided, oracle])
        assert said.startswith("NO WIN on this machine") and "1.50 times" in said


def test_a_loss_is_said_only_where_there_is_one() -> None:
    assert "THE HONEST LOSS" in loss([result(0.5, 0.6, 0.7)])
    assert "not decided" in loss([result(0.7, 0.9, 1.1)])
    assert "NO LOSS" in loss([result(0.9, 1.1, 1.3)])
    wrong = result(0.5, 0.6, 0.7)
    trial = msgspec.structs.replace(wrong.trials[0].trial, valid=False, invalid_reason="diverged")
    wrong = msgspec.structs.replace(wrong, fates={"diverged": 1}, trials=(wrong.trials[0]._replace(trial=trial),))
    assert loss([wrong]) == "NO LOSS that counts: diverged."
