"""Searching settings: what wins, when the search ends, and that it goes on where it stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from mlsd.cli.models.tune import tune as command
from mlsd.drafters import METHODS, find_method, resolve_spec, search_space
from mlsd.drafters.options import Choice
from mlsd.errors import InputError, UnsupportedError
from mlsd.gguf_tools.shapes import TINY_ATTENTION
from mlsd.measure.messages import ModelFile
from mlsd.measure.run.tune import (
    Setting,
    TuneRequest,
    log_ratio,
    ratio_interval,
    separated,
    study_name,
    tune,
    tune_job,
    winner,
)
from mlsd.planning.prompts import load_prompt
from mlsd.records import DrafterSpec, EngineOptions, ModelRef, Trial
from mlsd.stats import paired_ratio
from tests.gguf_tools.adapters import write_adapter

PLD = DrafterSpec(name="pld", options={"match": "first"})


def request(path: Path = Path("t.gguf"), **changes: object) -> TuneRequest:
    given: dict[str, object] = {
        "target": ModelFile(ref=ModelRef(id=path.stem, sha256="0"), path=str(path)),
        "drafter": PLD,
        "prompts": (load_prompt("factual"),),
        "n_predict": 8,
        "blocks": 2,
        "trials": 2,
        "engine": EngineOptions(n_threads=1),
        "environment_key": "here",
    }
    return TuneRequest(**{**given, **changes})  # type: ignore[arg-type]


def setting(low: float, high: float, **more: object) -> Setting:
    given = {"gamma": 4, "options": {}, "state": "measured", "speedup": math.sqrt(low * high), "n_blocks": 4}
    return Setting(**{**given, "low": low, "high": high, **more})  # type: ignore[arg-type]


# --- deciding -----------------------------------------------------------------------------------------------------


def test_off_wins_when_no_setting_is_decided_to_be_faster():
    assert winner([setting(0.9, 1.8), setting(0.5, 0.6)]) is None
    assert winner([]) is None


def test_the_fastest_setting_that_beats_plain_decoding_wins_and_a_dropped_one_does_not():
    best = setting(1.3, 1.5)
    assert winner([setting(1.1, 1.2), best, setting(1.9, 2.0, state="pruned")]) is best


def test_the_search_ends_when_the_leader_is_told_apart_from_the_others_and_from_off():
    slow = [setting(0.5, 0.9), setting(0.6, 1.1), setting(0.9, 1.2)]
    assert separated([*slow, setting(1.3, 1.4)])
    assert not separated([*slow, setting(1.15, 1.4)])
    assert not separated([setting(0.5, 0.6), setting(0.5, 0.6), setting(0.5, 0.6), setting(0.8, 1.4)])


def test_off_leads_when_every_interval_lies_below_one():
    assert separated([setting(0.5, 0.9)] * 3 + [setting(0.6, 0.99)])
    assert not separated([setting(0.5, 0.9)] * 3 + [setting(0.6, 1.01)])


def test_few_settings_decide_nothing_and_dropped_ones_do_not_count():
    assert not separated([setting(2.0, 2.1), setting(0.5, 0.6), setting(0.5, 0.6)])
    assert not separated([setting(2.0, 2.1)] + [setting(0.5, 0.6, state="pruned")] * 5)


@settings(deadline=None)  # the first call imports scipy
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_the_interval_is_that_of_the_bench(logs: list[float]):
    expected = paired_ratio([math.exp(x) for x in logs], [1.0] * len(logs))
    assert ratio_interval(logs) == pytest.approx((expected.value, expected.low, expected.high))


def test_a_blocks_ratio_is_the_geometric_mean_over_its_prompts():
    def one(arm: str, decode_ns: int) -> Trial:
        common = {"case_id": "c", "gamma": 0, "block": 0, "repeat": 0, "position": 0, "status": "ok", "started_at": ""}
        return Trial(**common, arm=arm, decode_ns=decode_ns, tokens=tuple(range(11)))  # type: ignore[arg-type]

    block = [one("ar", 100), one("sd", 50), one("ar", 1000), one("sd", 125)]
    assert math.exp(log_ratio(block)) == pytest.approx(math.sqrt(2 * 8))


# --- spaces and jobs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_value_of_a_methods_space_is_an_option_it_takes(name: str, tmp_path: Path):
    write_adapter(tmp_path, TINY_ATTENTION["qwen2"])
    required = {"rest": {"store": "shipped"}, "kangaroo": {"adapter": str(tmp_path)}}.get(name, {})
    given = DrafterSpec(name=name, options=required)  # type: ignore[arg-type]
    space = search_space(given)
    assert "gamma" in space
    for option, span in space.items():
        values = span.values if isinstance(span, Choice) else (span.low, span.high)
        for value in values if option != "gamma" else ():
            resolve_spec(DrafterSpec(name=name, options={**required, option: value}))
    assert set(find_method(name).space) <= space.keys() | required.keys()


def test_what_the_user_gives_is_not_searched():
    assert "ngram" not in search_space(DrafterSpec(name="pld", options={"ngram": 2}))
    assert "fraction" not in search_space(DrafterSpec(name="layer-skip", options={"exit": 3}))
    assert "fraction" in search_space(DrafterSpec(name="layer-skip"))


def test_every_block_holds_plain_decoding_and_the_setting_on_every_prompt():
    wanted = request(prompts=(load_prompt("factual"), load_prompt("code")), blocks=3)
    job = tune_job(wanted, PLD, 5, seed=1)
    for block in range(3):
        arms = [(slot.case.prompt.key, slot.case.gamma) for slot in job.slots if slot.block == block]
        assert sorted(arms) == [("code", 0), ("code", 5), ("factual", 0), ("factual", 5)]
    first = [slot.case for slot in job.slots if slot.block == 0]
    for case in first:
        plain = next(i for i, other in enumerate(first) if other.arm == "ar" and other.prompt == case.prompt)
        assert plain <= first.index(case)


def test_how_long_to_search_makes_no_other_study_but_what_is_measured_does():
    assert study_name(request()) == study_name(request(trials=99, budget_s=5.0, seed=3, blocks=7))
    names = {study_name(request(**{key: value})) for key, value in (("n_predict", 9), ("environment_key", "there"))}
    assert len(names | {study_name(request())}) == 3


# --- on a model ---------------------------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_stopped(tiny: Path, tmp_path: Path):
    heard: list[int] = []
    storage = tmp_path / "new" / "tune.sqlite"

    def search(trials: int):
        wanted = request(tiny / "llama.gguf", trials=trials)
        return tune(wanted, storage, lambda _, number: heard.append(number))

    first = search(2)
    again = search(2)
    assert again == first
    assert first.stopped == "trials"
    assert sum(each.n_blocks for each in first.settings) == 2 * 2
    more = search(3)
    assert heard == [1, 2, 3]
    assert sum(each.n_blocks for each in more.settings) == 3 * 2
    assert all(each.options["match"] == "first" for each in more.settings)
    assert all(each.state == "measured" and each.speedup and each.mgl for each in more.settings)
    assert (more.best is None) == all((each.low or 0) <= 1 for each in more.settings)


def test_a_setting_that_cannot_run_fails_with_its_reason_and_the_search_goes_on(tiny: Path, tmp_path: Path):
    unrelated = ModelFile(ref=ModelRef(id="other", sha256="1"), path=str(tmp_path / "nothing.gguf"))
    drafter = DrafterSpec(name="draft-model", draft=unrelated.ref)
    wanted = request(tiny / "llama.gguf", drafter=drafter, draft=unrelated)
    result = tune(wanted, tmp_path / "t.sqlite")
    assert result.best is None
    assert {each.state for each in result.settings} == {"failed"}
    assert all("nothing.gguf" in (each.reason or "") for each in result.settings)


def test_a_method_that_the_target_cannot_serve_is_refused_before_anything_is_written(tiny: Path, tmp_path: Path):
    wanted = request(tiny / "qwen35.gguf", drafter=DrafterSpec(name="lookahead"))
    with pytest.raises(UnsupportedError, match="recurrent"):
        tune(wanted, tmp_path / "t.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"blocks": 1}, {"trials": 0}, {"n_predict": 1}, {"budget_s": 0.0}])
def test_numbers_that_mean_nothing_are_refused(tmp_path: Path, change: dict[str, object]):
    with pytest.raises(InputError, match="must be"):
        tune(request(**change), tmp_path / "t.sqlite")


def test_a_file_that_is_no_study_is_left_alone(tiny: Path, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look at " * 40)
    with pytest.raises(InputError, match="no study file"):
        tune(request(tiny / "llama.gguf"), tmp_path / "notes.txt")


def test_the_command_prints_one_object_and_says_each_setting(tiny: Path, tmp_path: Path):
    target, study = str(tiny / "llama.gguf"), str(tmp_path / "t.sqlite")
    quick = ["--n-predict", "8", "--repeats", "2", "--trials", "1", "--n-threads", "1", "--study", study, "--json"]
    done = CliRunner().invoke(command, [target, "--drafter", "pld:ngram=2", "--prompt", "factual", *quick])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["result"]
    assert found["settings"][0]["options"]["ngram"] == 2
    assert found["settings"][0]["n_blocks"] == 2
    assert "[1] gamma" in done.stderr
