"""What one gamma fails is that arm's rows with their reason; the others are measured all the same."""

from pathlib import Path

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.engine.rollback_choice import RollbackCheck
from mlsd.errors import EngineError
from mlsd.measure.messages import BlockMeasured, Event, Turn
from mlsd.measure.probe_cache import ProbeCache
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.serve import measure_slots
from mlsd.planning.job import Job
from mlsd.records import Status
from tests.measure.kill_script import make_jobs

REASON = "logits are off by 0.45, rounding explains 0.005"


def refuse(monkeypatch: pytest.MonkeyPatch, gammas: set[int]) -> None:
    """Nothing is exact at these gammas."""
    check = ProbeCache.check

    def refused(cache: ProbeCache, *of: object) -> RollbackCheck:
        found = check(cache, *of)  # type: ignore[arg-type]
        return msgspec.structs.replace(found, exact=False, reason=REASON) if found.gamma in gammas else found

    monkeypatch.setattr(ProbeCache, "check", refused)


def measured(job: Job) -> dict[int, tuple[Status, str | None]]:
    """By gamma, what became of the first block's trials."""
    events = list[Event]()
    with Arms(job, MonotonicClock(), ProbeCache()) as arms:
        measure_slots(job, events.append, [Turn(slots=job.blocks[0].slots)], arms, MonotonicClock())
    (block,) = (event for event in events if isinstance(event, BlockMeasured))
    return {trial.gamma: (trial.status, trial.reason) for trial in block.trials}


def test_a_gamma_that_nothing_is_exact_for_fails_alone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, {4})
    found = measured(msgspec.structs.replace(make_jobs(tiny, repeats=1)[1], strict=True))
    assert set(found) == {0, 2, 4} and found[0][0] is Status.VALID and found[2][0] is Status.VALID
    status, reason = found[4]
    assert status is Status.FAILED and reason is not None
    assert f"at gamma 4: trim: {REASON}; checkpoint: {REASON}" in reason


def test_where_no_drafted_arm_can_run_the_session_says_so_before_it_measures(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, {2, 4})
    with pytest.raises(EngineError, match="No rollback is exact"):
        measured(msgspec.structs.replace(make_jobs(tiny, repeats=1)[1], strict=True))
