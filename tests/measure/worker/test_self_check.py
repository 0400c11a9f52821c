from __future__ import annotations

import pytest

from mlsd.measure.worker.self_check import synchronised


def test_a_pass_that_ends_before_its_work_is_found_by_its_time() -> None:
    assert synchronised({256: 10e6, 1024: 45e6}).ok
    cut_short = synchronised({256: 0.1e6, 1024: 0.12e6}, "tiny-dense")
    assert not cut_short.ok
    assert cut_short.answer == "4 times the tokens take 1.2 times as long"
    assert cut_short.figures == {"256 tokens, ms": pytest.approx(0.1), "1024 tokens, ms": pytest.approx(0.12)}
