"""The arms of a target: what is judged, and that the same thing is judged once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.measure.worker import arms as arms_module
from mlsd.measure.worker.arms import Arms
from mlsd.measure.worker.probe_cache import ProbeCache
from tests.measure.kill_script import make_jobs


def test_repeats_of_an_output_that_differs_are_judged_once(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[int, ...]] = []

    def counting(tokens: tuple[int, ...], *rest: Any) -> Any:
        judged.append(tokens)
        return judge(tokens, *rest)

    judge = arms_module.judge
    monkeypatch.setattr(arms_module, "judge", counting)
    job = make_jobs(tiny, repeats=2)[1]
    plain = next(slot for slot in job.slots if slot.case.arm == "ar")
    drafted = next(slot for slot in job.slots if slot.case.arm == "sd" and slot.case.prompt == plain.case.prompt)
    with Arms(job, MonotonicClock(), ProbeCache(tmp_path)) as arms:
        reference = arms.run(plain)
        # A forged reference: from here on every output of this prompt differs from it.
        for key, tokens in arms._references.items():
            arms._references[key] = ((tokens[0] + 1) % 256, *tokens[1:])
        verdicts = [arms.run(msgspec.structs.replace(drafted, repeat=repeat)).losslessness for repeat in range(3)]
    assert reference.losslessness is not None and reference.losslessness.verdict == "lossless"
    assert len(judged) == 1
    assert verdicts[0] is not None and verdicts[0].first_difference == 0
    assert verdicts[1] == verdicts[2] == verdicts[0]
