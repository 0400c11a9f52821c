import json
import math
import os
import re
from pathlib import Path

import pytest

from mlsd.cli import output
from mlsd.measure.parent.builds import find_build
from mlsd.records import Environment
from mlsd.store.store import Store
from tests.cli.conftest import Mlsd
from tests.native_shim import copy_of_installed


def test_the_card_names_every_field_with_a_reason_for_what_is_not_known_and_a_verdict_for_every_profile(
    mlsd: Mlsd,
) -> None:
    card = mlsd("doctor").out
    document = json.loads(mlsd("doctor", "--json").out)
    environment = document["environment"]
    assert environment["chip"] is None or environment["chip"] in card
    assert f"llama-cpp-python {environment['llama_cpp_python_version']}" in re.sub(" +", " ", card)
    assert card.count("not known: ") >= sum(value is None for value in environment.values())
    assert "disk free for models" in card
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
    monkeypatch.setitem(output._sign, "last_s", -math.inf)  # what an earlier command said is no reason for silence
    assert "Starting llama.cpp" in mlsd("doctor").err


def test_a_build_is_measured_under_its_own_key(mlsd: Mlsd, tmp_path: Path) -> None:
    folder = copy_of_installed(tmp_path / "lib")
    quick = ("tiny-dense", "--n-predict", "8", "--repeats", "1", "--n-threads", "1", "--db", tmp_path / "one.sqlite")
    before = dict(os.environ)
    assert mlsd("bench", *quick, "--build", folder).code == 0
    assert {**os.environ} == before | {"PYTEST_CURRENT_TEST": os.environ["PYTEST_CURRENT_TEST"]}
    with Store.open(tmp_path / "one.sqlite", read_only=True) as store:
        (run,) = store.runs()
    assert (run.environment.llama_cpp_build or "").endswith(f"+{find_build(str(folder)).fingerprint}")


def test_builds_are_listed_with_what_fits(mlsd: Mlsd, tmp_path: Path) -> None:
    builds = json.loads(mlsd("doctor", "builds", "--json").out)
    assert builds[0]["name"] == "."
    assert builds[0]["fits"]["memory_version"] in (3, 4)
    text = tmp_path / "text"
    text.write_text("no build")
    tried = mlsd("doctor", "builds", text)
    assert tried.code == 1
    assert "is not a build of llama.cpp" in tried.out
