from __future__ import annotations

import json
import re

from click.testing import CliRunner, Result

from mlsd.cli.main import cli
from mlsd.records import Environment


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


def test_the_card_names_every_field_and_says_which_are_not_known() -> None:
    output = run().output
    environment = json.loads(run("--json").output)["environment"]
    assert environment["chip"] is None or environment["chip"] in output
    assert f"llama-cpp-python {environment['llama_cpp_python_version']}" in re.sub(" +", " ", output)
    assert output.count("not known: ") >= sum(value is None for value in environment.values())
    assert "disk free for models" in output


def test_json_gives_a_reason_for_every_null_and_a_verdict_for_every_profile() -> None:
    document = json.loads(run("--json").output)
    environment = document["environment"]
    assert set(environment) == set(Environment.__struct_fields__)
    assert set(document["missing"]) == {name for name, value in environment.items() if value is None}
    assert environment["backend"] is not None
    verdicts = {fit["profile"]: fit["verdict"] for fit in document["profiles"]}
    assert set(verdicts) >= {"study", "tiny", "smollm2", "mac-16gb", "mac-32gb", "mac-48gb", "mac-64gb", "mac-128gb"}
    assert set(verdicts.values()) <= {"fits", "tight", "raise the limit", "does not fit", "unknown"}
    assert document["conditions"]["available_bytes"] > 0
