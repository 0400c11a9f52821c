"""What became of a trial."""

from __future__ import annotations

from typing import Any

import pytest

from mlsd.records import Losslessness, Trial
from mlsd.trials.fates import Fate, fate_of


def _trial(**fields: Any) -> Trial:
    usual: dict[str, Any] = {"case_id": "c", "arm": "sd", "gamma": 4, "block": 0, "repeat": 0, "position": 0}
    return Trial(**{**usual, "status": "ok", "started_at": "2026-01-01T00:00:00+00:00", **fields})


@pytest.mark.parametrize(
    ("fields", "fate"),
    [
        ({"valid": True}, Fate.VALID),
        ({"status": "failed", "error": "killed"}, Fate.FAILED),
        ({"disturbed": True, "losslessness": Losslessness(verdict="lossless")}, Fate.DISTURBED),
        ({"failed_native_calls": 3}, Fate.CALLS_FAILED),
        ({"failed_native_calls": 3, "rollback_target": "unchecked"}, Fate.UNCHECKED),
        ({"rollback_target": "sabotage:lost-token:once"}, Fate.SABOTAGED),
        ({"losslessness": Losslessness(verdict="diverged")}, Fate.DIVERGED),
        ({"invalid_reason": "disturbed is only a word here"}, Fate.UNPROVEN),
    ],
)
def test_a_fate_follows_from_a_trials_fields_and_never_from_a_sentence(fields: dict[str, Any], fate: Fate) -> None:
    assert fate_of(_trial(**fields)) is fate
    assert fate.right == (fate in (Fate.VALID, Fate.DISTURBED))
