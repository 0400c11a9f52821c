"""``mlsd models methods``: the list, one method, as table and JSON; presets from the command line to the trial."""

import json
from pathlib import Path

import pytest

from mlsd.drafters import METHODS, UNAVAILABLE
from tests.cli.conftest import Mlsd


def test_all_methods_are_listed_and_those_that_cannot_run_say_why(mlsd: Mlsd) -> None:
    listed = mlsd("models", "methods")
    assert listed.code == 0
    assert all(name in listed.out for name in METHODS)
    assert all(f"Not available: {name}: " in listed.err for name in UNAVAILABLE)
    found = json.loads(mlsd("models", "methods", "--json").out)
    assert [method["name"] for method in found["methods"]] == sorted(METHODS)
    assert {method["name"] for method in found["unavailable"]} == UNAVAILABLE.keys()


def test_one_method_shows_its_options_and_presets(mlsd: Mlsd) -> None:
    shown = mlsd("models", "methods", "pld").out
    assert "min_ngram" in shown
    assert "ngram=12, min_ngram=12, match=last" in shown
    found = json.loads(mlsd("models", "methods", "lookahead", "--json").out)
    window = next(option for option in found["options"] if option["name"] == "window")
    assert window == {"name": "window", "meaning": "W: columns", "values": "2 .. 100", "default": 15, "required": False}
    store = json.loads(mlsd("models", "methods", "rest", "--json").out)["options"][0]
    assert (store["name"], store["required"], store["default"]) == ("store", True, None)


@pytest.mark.parametrize(("name", "words"), [("medusa", "not available in llama.cpp"), ("magic", "no drafting method")])
def test_what_is_no_method_is_refused(mlsd: Mlsd, name: str, words: str) -> None:
    refused = mlsd("models", "methods", name)
    assert refused.code == 2
    assert words in refused.err


def test_a_preset_gives_a_bench_its_options_and_its_gamma(mlsd: Mlsd, tiny: Path) -> None:
    options = ("--n-threads", 1, "--n-predict", 24, "--repeats", 1, "--json")
    done = mlsd("bench", tiny / "falcon-h1.gguf", "--drafter", "layer-skip:preset=falcon-h1-ssm", *options)
    assert done.code == 0, done.err
    (sd,) = [trial for trial in json.loads(done.out)["trials"] if trial["arm"] == "sd"]
    assert (sd["gamma"], sd["valid"]) == (2, True)
    refused = mlsd("bench", tiny / "llama.gguf", "--drafter", "pld:preset=paper", *options)
    assert refused.code == 2
    assert "Choose from qwen2.5-1.5b, smollm2" in refused.err


def test_a_preset_in_a_suite_is_the_same_case_as_its_values(mlsd: Mlsd, tmp_path: Path) -> None:
    def cases(options: str) -> list[object]:
        suite = tmp_path / "x.toml"
        drafter = f'{{ name = "pld", gammas = [15], options = {options} }}'
        part = f'[[parts]]\ntargets = ["moe-q8"]\nprompts = ["code"]\ndrafters = [{drafter}]\n'
        suite.write_text(f'name = "X"\ntitle = "x"\n{part}', encoding="utf-8")
        planned = mlsd("run", "--dry-run", suite, "--profile", "tiny", "--json")
        assert planned.code == 0, planned.err
        return list(json.loads(planned.out)["cases"])

    assert cases('{ preset = "smollm2" }') == cases("{ ngram = 3 }")
