import json
from pathlib import Path

from tests.analysis.pair_studies import Arm, Study, write_study
from tests.cli.conftest import Mlsd


def test_claims_are_printed_with_verdict_print_and_audit(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(target="moe", per_row=0.4, alpha=0.3),)))
    out = mlsd("results", "--claims", "--db", path).out
    claim = "Speculative decoding with a small dense draft makes a mixture of experts faster."
    assert f"does not hold here  {claim}" in out and "which refutes the print: 12 rows impossible" in out


def test_claims_as_json_carry_effects_intervals_and_trials(mlsd: Mlsd, tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study())
    verdicts = json.loads(mlsd("results", "--claims", "--db", path, "--json").out)
    assert len(verdicts) == 19
    first = verdicts[0]
    assert first["decision"] == "does not hold here"
    assert first["effect"]["low"] < first["effect"]["value"] < first["effect"]["high"]
    assert len(first["trials"]) == 48
