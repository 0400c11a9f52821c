"""Searching settings: what wins, when the search ends, and that it goes on where it stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mlsd.cli.models.tune import tune as command
from mlsd.drafters import METHODS, find_method, resolve_spec, search_space
from mlsd.drafters.options import Choice
from mlsd.errors import InputError, MlsdError
from mlsd.gguf_tools.shapes import TINY_ATTENTION
from mlsd.hardware import read_environment
from mlsd.measure.run.tune import (
    Setting,
    TuneRequest,
    log_ratio,
    search_name,
    separated,
    tune,
    winner,
)
from mlsd.measure.store.newest import study_databases
from mlsd.measure.store.store import Store
from mlsd.planning.prepare import BenchRequest, prepare_bench
from mlsd.records import DrafterSpec, EngineOptions, Environment, Trial
from tests.gguf_tools.adapters import write_adapter

PLD = DrafterSpec(name="pld", options={"match": "first"})


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches write under results/ of the folder they run in."""
    monkeypatch.chdir(tmp_path)


def request(path: Path = Path("t.gguf"), **changes: object) -> TuneRequest:
    """A quick search; what it does not know itself is changed of its settings."""
    own = {name: changes.pop(name) for name in ("drafter", "trials", "budget_s") if name in changes}
    quick = {"n_predict": 8, "repeats": 2, "prompts": ("factual",), "engine": EngineOptions(n_threads=1)}
    setting = BenchRequest(target=str(path), **{**quick, **changes})  # type: ignore[arg-type]
    return TuneRequest(**{"drafter": PLD, "trials": 2, "setting": setting, **own})  # type: ignore[arg-type]


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


def test_how_long_to_search_makes_no_other_search_but_what_is_measured_does(tiny: Path):
    def name(environment: Environment, **changes: object) -> str:
        wanted = request(tiny / "llama.gguf", **changes)
        example = msgspec.structs.replace(wanted.setting, drafters=(PLD,), gamma=(1,))
        return search_name(prepare_bench(example).plan, wanted.drafter, environment)

    here = read_environment()
    assert name(here) == name(here, trials=99, budget_s=5.0, seed=3, repeats=7)
    there = msgspec.structs.replace(here, host="there")
    assert len({name(here), name(here, n_predict=9), name(there), name(here, drafter=DrafterSpec(name="pld"))}) == 4


# --- on a model ---------------------------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_stopped_and_its_trials_are_a_study(tiny: Path):
    heard: list[int] = []

    def search(trials: int):
        wanted = request(tiny / "llama.gguf", trials=trials, prompts=("factual", "code"))
        return tune(wanted, on_setting=lambda _, number: heard.append(number))

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
    assert [str(path) for path in study_databases()] == [more.database] == ["results/bench.sqlite"]
    with Store.open(Path(more.database), create=False) as store:
        trials = [stored.trial for stored in store.trials(rounds=False)]
        assert {case.suite for case in store.cases().values()} == {"tune"}
    assert len(trials) == 3 * 2 * 2 * 2  # settings, blocks, prompts, arms
    for block in {trial.block for trial in trials}:
        assert sorted(trial.arm for trial in trials if trial.block == block) == ["ar", "sd"]


def test_a_setting_that_cannot_run_fails_with_its_reason_and_the_search_goes_on(tiny: Path, foreign: Path):
    wanted = request(tiny / "llama.gguf", drafter=DrafterSpec(name="draft-model"), drafts=(str(foreign),))
    result = tune(wanted)
    assert result.best is None
    assert {each.state for each in result.settings} == {"failed"}
    assert all("do not share a vocabulary" in (each.reason or "") for each in result.settings)


def test_a_setting_that_falls_behind_is_dropped_after_two_blocks_and_its_trials_are_kept(tiny: Path, monkeypatch):
    monkeypatch.setattr("optuna.Trial.should_prune", lambda trial: True)
    result = tune(request(tiny / "llama.gguf", trials=1, repeats=5))
    assert [(each.state, each.n_blocks) for each in result.settings] == [("pruned", 1)]
    with Store.open(Path(result.database), create=False) as store:
        assert len(list(store.trials(rounds=False))) == 2


@pytest.mark.parametrize(
    ("name", "drafter", "reason"),
    [("qwen35", DrafterSpec(name="lookahead"), "recurrent"), ("llama", DrafterSpec(name="none"), "One method")],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(
    tiny: Path, tmp_path: Path, name: str, drafter: DrafterSpec, reason: str
):
    with pytest.raises(MlsdError, match=reason):
        tune(request(tiny / f"{name}.gguf", drafter=drafter))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"repeats": 1}, {"trials": 0}, {"n_predict": 1}, {"budget_s": 0.0}])
def test_numbers_that_mean_nothing_are_refused(change: dict[str, object]):
    with pytest.raises(InputError, match="must be"):
        tune(request(**change))


def test_a_file_that_is_no_search_is_left_alone(tiny: Path, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look at " * 40)
    with pytest.raises(InputError, match="no search file"):
        tune(request(tiny / "llama.gguf"), search_file=tmp_path / "notes.txt")


def test_the_command_prints_one_object_and_says_each_setting(tiny: Path, tmp_path: Path):
    target = str(tiny / "llama.gguf")
    quick = ["--n-predict", "8", "--repeats", "2", "--trials", "1", "--n-threads", "1", "--json"]
    done = CliRunner().invoke(command, [target, "--drafter", "pld:ngram=2", "--prompt", "factual", *quick])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["study"] == "results/bench.sqlite"
    assert answer["result"]["settings"][0]["options"]["ngram"] == 2
    assert answer["result"]["settings"][0]["n_blocks"] == 2
    assert "[1] gamma" in done.stderr
