"""Searching settings: what races next, that trials are a study, and that a search goes on where it stopped."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlsd.cli.commands.bench import search as command
from mlsd.drafters import find_method, resolve_spec, search_space
from mlsd.drafters.options import Range, Values
from mlsd.errors import MlsdError
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.measure.parent import memory
from mlsd.measure.parent import tune as tuning
from mlsd.measure.parent.requests import plan_here
from mlsd.measure.parent.tune import neighbouring_gammas, neighbouring_options, tune
from mlsd.measure.process import call
from mlsd.methods import METHODS
from mlsd.planning.options import SearchOptions
from mlsd.records import DrafterSpec, EngineOptions
from mlsd.store.newest import study_databases
from mlsd.store.store import Store
from tests.gguf_tools.adapters import write_adapter
from tests.measure.examples import ENVIRONMENT
from tests.measure.simulated_mac import Mac

PLD = DrafterSpec(name="pld", options={"match": "first"})


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches write under results/ of the folder they run in."""
    monkeypatch.chdir(tmp_path)


def request(path: Path = Path("tiny-dense"), **changes: object) -> SearchOptions:
    """A quick search; what it does not know itself is changed of its settings."""
    quick = {
        "drafter": PLD,
        "settings": 5,
        "n_predict": 8,
        "repeats": 3,
        "prompts": ("factual",),
        "engine": EngineOptions(n_threads=1),
    }
    return SearchOptions(path, **{**quick, **changes})  # type: ignore[arg-type]


# --- waves --------------------------------------------------------------------------------------------------------

SPACE = {
    "gamma": Range(low=1, high=16),
    "ngram": Range(low=1, high=3),
    "top": Range(low=1, high=16),
    "match": Values(values=("first", "last")),
}


def test_the_neighbours_of_a_gamma_lie_half_way_to_the_next_that_were_tried():
    first = (1, 2, 4, 8, 16)
    assert neighbouring_gammas(4, first, SPACE) == (3, 6)
    assert neighbouring_gammas(1, first, SPACE) == ()
    assert neighbouring_gammas(2, first, SPACE) == (3,)
    assert neighbouring_gammas(16, first, SPACE) == (11,)
    assert neighbouring_gammas(4, (3, 4, 5), SPACE) == ()


def test_the_neighbours_of_options_differ_in_one_and_name_no_default():
    defaults = {"ngram": 2, "top": 4, "match": "last"}
    assert list(neighbouring_options({}, defaults, SPACE)) == [
        {"ngram": 1}, {"ngram": 3}, {"top": 2}, {"top": 8}, {"match": "first"},
    ]  # fmt: skip
    assert {} in list(neighbouring_options({"ngram": 1}, defaults, SPACE))


# --- spaces and jobs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_value_of_a_methods_space_is_an_option_it_takes(name: str, tmp_path: Path):
    write_adapter(tmp_path, TINY_ATTENTION["qwen2"])
    required = {"rest": {"store": "shipped"}, "kangaroo": {"adapter": str(tmp_path)}}.get(name, {})
    given = DrafterSpec(name=name, options=required)  # type: ignore[arg-type]
    space = search_space(given)
    assert "gamma" in space
    for option, span in space.items():
        values = span.values if isinstance(span, Values) else (span.low, span.high)
        for value in values if option != "gamma" else ():
            resolve_spec(DrafterSpec(name=name, options={**required, option: value}))
    assert set(find_method(name).space) <= space.keys() | required.keys()


def test_what_the_user_gives_is_not_searched():
    assert "ngram" not in search_space(DrafterSpec(name="pld", options={"ngram": 2}))
    assert "fraction" not in search_space(DrafterSpec(name="layer-skip", options={"exit": 3}))
    assert "fraction" in search_space(DrafterSpec(name="layer-skip"))


# --- on a model ---------------------------------------------------------------------------------------------------


def test_a_search_is_a_study_and_goes_on_from_the_trials_of_earlier_calls(tiny: Path):
    first = tune(request(tiny / "llama.gguf", settings=5, repeats=3))
    assert {one.case.drafter.options["match"] for one in first.results} == {"first"}
    assert len(first.results) == 5 and first.answer is not None
    assert all(one.decision and one.n_blocks for one in first.results)
    assert (first.answer.use == "on") == any(one.effect == "faster" for one in first.results)
    assert [str(path) for path in study_databases()] == [first.database] == ["results/bench.sqlite"]
    again = tune(request(tiny / "llama.gguf", settings=5, repeats=3, budget_s=1e-9))
    assert again.results == first.results and again.answer == first.answer
    with Store.open(Path(first.database), create=False) as store:
        assert {case.suite for case in store.cases().values()} == {"tune"}


def test_all_waves_are_measured_by_one_worker_and_the_fastest_setting_wins(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    mac, asked = Mac(), list[object]()
    monkeypatch.setattr(memory, "call", lambda work, **how: asked.append(work) or call(work, **how))
    monkeypatch.setattr(tuning, "plan_here", lambda *asked: (ENVIRONMENT, plan_here(*asked)[1]))  # of a Mac
    found = tune(request(tiny / "llama.gguf", settings=9, n_predict=64), start=mac.bench)
    assert mac.n_workers == 1 and len({(block, hot) for block, _, hot in mac.measured}) > 4, "several waves"
    gammas = [arm.case.gamma for arm in found.results]
    assert gammas[0] == 20 and 17 in gammas, "everything is accepted: the longest draft wins, after its neighbours ran"
    assert len(found.results) == 9 and found.stopped.startswith("as many settings")
    assert len(asked) == 1, "llama.cpp is asked once for the contexts of every wave"
    assert all(arm.memory_bytes for arm in found.results)


def test_a_method_that_cannot_run_is_refused_with_its_reason(tiny: Path, foreign: Path):
    with pytest.raises(MlsdError, match="do not share a vocabulary"):
        tune(request(tiny / "llama.gguf", drafter=DrafterSpec(name="draft-model"), drafts=(str(foreign),)))


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


@pytest.mark.parametrize(
    "change", [{"repeats": 2}, {"settings": 0}, {"n_predict": 1}, {"budget_s": 0.0}, {"prompts": ("code", "factual")}]
)
def test_numbers_that_mean_nothing_are_refused(change: dict[str, object]):
    with pytest.raises(MlsdError, match=r"must be|Two prompts say nothing"):
        tune(request(**change))


def test_the_command_prints_one_object_and_says_each_setting(tiny: Path, tmp_path: Path):
    target = str(tiny / "llama.gguf")
    quick = ["--n-predict", "8", "--repeats", "3", "--settings", "5", "--n-threads", "1", "--json"]
    done = CliRunner().invoke(command, [target, "--drafter", "pld:ngram=2", "--prompt", "factual", *quick])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["database"] == "results/bench.sqlite"
    assert answer["settings"][0]["options"]["ngram"] == 2
    assert len(answer["settings"]) == 5 and len(answer["answers"]) == 1
    assert "5 settings race" in done.stderr and "Loading, and checking how arms roll back: about" in done.stderr
