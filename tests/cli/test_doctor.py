import json
import re

import pytest

from mlsd.records import Environment
from tests.cli.conftest import Mlsd


def test_the_card_names_every_field_and_says_which_are_not_known(mlsd: Mlsd) -> None:
    output = mlsd("doctor").out
    environment = json.loads(mlsd("doctor", "--json").out)["environment"]
    assert environment["chip"] is None or environment["chip"] in output
    assert f"llama-cpp-python {environment['llama_cpp_python_version']}" in re.sub(" +", " ", output)
    assert output.count("not known: ") >= sum(value is None for value in environment.values())
    assert "disk free for models" in output


def test_json_gives_a_reason_for_every_null_and_a_verdict_for_every_profile(mlsd: Mlsd) -> None:
    document = json.loads(mlsd("doctor", "--json").out)
    environment = document["environment"]
    assert set(environment) == set(Environment.__struct_fields__)
    assert set(document["missing"]) == {name for name, value in environment.items() if value is None}
    assert environment["backend"] is not None
    verdicts = {fit["profile"]: fit["verdict"] for fit in document["profiles"]}
    assert set(verdicts) >= {"study", "tiny", "smollm2", "mac-16gb", "mac-32gb", "mac-48gb", "mac-64gb", "mac-128gb"}
    assert set(verdicts.values()) <= {"fits", "tight", "raise the limit", "does not fit", "unknown"}
    assert document["conditions"]["available_bytes"] > 0


def test_a_worker_that_starts_for_long_gives_signs_of_life(mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac compiles Metal's kernels when a build first starts."""
    monkeypatch.setattr("mlsd.measure.process.SIGN_S", 0.02)
    assert "has been silent for 0 s while starting llama.cpp" in mlsd("doctor").err
