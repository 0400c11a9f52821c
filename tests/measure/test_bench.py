"""A bench measures a block by one call, and does not wait for ever until a worker is ready."""

import msgspec
import pytest

from mlsd.errors import WorkerError
from mlsd.measure.messages import report_progress
from mlsd.records import Case
from tests.measure.simulated_mac import Mac, MacArms, mac_job


@pytest.mark.parametrize(("checked_s", "is_ready"), [(60.0, True), (600.0, False)])
def test_a_worker_that_gets_ready_without_end_is_given_up_whatever_it_says(
    monkeypatch: pytest.MonkeyPatch, checked_s: float, is_ready: bool
) -> None:
    """Each of three arms is checked for so long, with a word every twelve seconds."""
    mac, job = Mac(), msgspec.structs.replace(mac_job(n_blocks=1), strict=True)

    def check(arms: MacArms, case: Case) -> None:
        for _ in range(round(checked_s / 12)):
            mac.clock.advance(12 * 10**9)
            report_progress("checking how it rolls back")

    monkeypatch.setattr(MacArms, "check", check)
    with mac.bench(job) as bench:
        if is_ready:
            assert all(trial.valid for trial in bench.measure(job.blocks[0]).trials)
        else:
            with pytest.raises(WorkerError, match=r"took over .* longer than expected"):
                bench.measure(job.blocks[0])
    assert mac.n_workers == 1
