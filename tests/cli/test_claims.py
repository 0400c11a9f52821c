import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlsd.cli.main import cli, main
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


def test_a_missing_database_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["claims", "--db", "none.sqlite"], ["claims"], ["fit"]):
        with pytest.raises(SystemExit) as exit_info:
            main(arguments)
        assert exit_info.value.code == 2
        assert "Traceback" not in capsys.readouterr().err


def test_the_newest_database_under_results_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    write_study(tmp_path / "results" / "tiny.sqlite", Study(prompts=("code",), repeats=1))
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["claims"], catch_exceptions=False).exit_code == 0
