import json
from pathlib import Path

from click.testing import CliRunner

from mlsd.cli.main import cli
from tests.analysis.pair_studies import Arm, Study, write_study


def test_claims_are_printed_with_verdict_print_and_audit(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(target="moe", per_row=0.4, alpha=0.3),)))
    result = CliRunner().invoke(cli, ["claims", "--db", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert (
        "does not hold here  Speculative decoding with a small dense draft makes a mixture of experts faster."
        in result.output
    )
    assert "which refutes the print: 12 rows impossible" in result.output


def test_claims_as_json_carry_effects_intervals_and_trials(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study())
    result = CliRunner().invoke(cli, ["claims", "--db", str(path), "--json"], catch_exceptions=False)
    verdicts = json.loads(result.stdout)
    assert len(verdicts) == 12
    first = verdicts[0]
    assert first["decision"] == "does not hold here"
    assert first["effect"]["low"] < first["effect"]["value"] < first["effect"]["high"]
    assert len(first["trials"]) == 48
