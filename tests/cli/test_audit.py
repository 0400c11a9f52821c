import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from tests.analysis.pair_studies import Arm, Study, write_study

HEADER = "target_model,draft_model,draft_len,n_predict,tokens_per_sec,draft_acceptance_rate\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["audit", *arguments], catch_exceptions=False)


@pytest.mark.slow
def test_the_study_is_audited_by_name_and_its_impossible_rows_are_printed() -> None:
    result = run("published", "study")
    assert result.exit_code == 0
    assert "impossible  22 rows: round shorter than its parts\n    table 5: moe_q4" in result.output
    assert "and 19 more (--all names them)" in result.output
    assert run("published", "study", "--all").output.count("impossible  table 5:") == 18
    assert "31 rows: 6 possible, 0 suspicious, 25 impossible" in result.output


def test_json_gives_each_row_its_identity_verdict_and_rules() -> None:
    document = json.loads(run("published", "small-models", "--json").stdout)
    assert len(document["rows"]) == sum(document["counts"].values()) == 200
    row = next(row for row in document["rows"] if row["identity"].get("prompt") == "translation")
    assert set(row) == {"identity", "verdict", "rules", "missing", "round_cost"}
    assert set(row["rules"][0]) == {"rule", "verdict", "figures", "sentence", "ask"}
    assert row["verdict"] in {"possible", "suspicious", "impossible", "not judged"}


@pytest.mark.slow
def test_a_csv_is_audited_and_strict_makes_an_impossible_row_an_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(HEADER + "m,none,0,64,50.0,\nm,d,4,64,60.0,0.5\n")
    possible = run(str(path), "--strict")
    assert possible.exit_code == 0 and "m | d | 4" not in possible.output
    assert "possible    own.csv: m | d | 4 | 64 | 60.0 | 0.5" in run(str(path), "--all").output
    path.write_text(HEADER + "m,none,0,64,50.0,\nm,d,4,64,90.0,0.01\n")
    result = run(str(path), "--strict", "--all")
    assert result.exit_code == 1
    assert "The speedup is 1.80, a round commits at most 1.06 tokens under every meaning" in result.output
    assert "impossible  1 row: round shorter than its parts" in run(str(path)).output


def test_no_cell_of_a_table_is_markup_or_steers_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "job_id," + HEADER + '"\x1b]0;owned\x07\x1b[2J [red]x[/nope] a\nb \u202etxt",m,none,0,64,50.0,\n',
        encoding="utf-8",
        newline="",
    )
    output = run(str(path), "--all").output
    assert "[red]x[/nope]" in output and not set(output) & {"\x1b", "\x07", "\u202e"}
    assert len(output.splitlines()) == 4  # heading, one row, what it wants, counts


def test_published_without_a_name_lists_what_ships() -> None:
    result = run("published")
    assert result.exit_code == 0
    assert "mac-2026 " in result.output and "EAGLE and EAGLE-3 in vLLM" in result.output
    assert any(note.startswith("mac-2026: ") for note in json.loads(run("published", "--json").stdout)["notes"])


@pytest.mark.slow
def test_a_database_and_standard_input_are_audited_as_a_file_is(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s.sqlite", Study(arms=(Arm(),)))
    assert run(str(path)).output == run("study", "--db", str(path)).output
    text = HEADER + "m,none,0,64,50.0,\nm,d,4,64,90.0,0.01\n"
    piped = CliRunner().invoke(cli, ["audit", "-", "--strict"], input=text)
    assert piped.exit_code == 1 and "Audit of standard input" in piped.output
    assert "standard input: m | d | 4 | 64 | 90.0 | 0.01" in piped.output
