"""Acceptance of a study as controls."""

from pathlib import Path

import pytest

from mlsd.analysis.predict.replay import replays
from mlsd.drafters import resolve_spec
from mlsd.drafters.oracle import parse_rates
from mlsd.errors import InputError
from mlsd.planning.question import parse_drafter

TINY = Path(__file__).parents[3] / "notebooks" / "data" / "tiny.sqlite"


def test_each_drafter_of_a_study_becomes_a_control_with_its_rates_and_its_draft() -> None:
    controls = replays(TINY, "tiny-dense")
    assert controls and all(control.gammas and "rounds at gamma" in control.sentence for control in controls)
    for control in controls:
        spec = parse_drafter(control.drafter)
        resolve_spec(parse_drafter(control.drafter.partition(",draft=")[0]))
        rates = parse_rates(str(spec.options["accept"]))
        assert spec.name == "oracle" and len(rates) == control.gammas[-1] and all(0 <= rate <= 1 for rate in rates)
    assert any(parse_drafter(control.drafter).options.get("draft") == "tiny-draft" for control in controls)


def test_a_study_of_other_targets_is_refused_by_their_names() -> None:
    with pytest.raises(InputError, match="tiny-dense"):
        replays(TINY, "tiny-draft")
