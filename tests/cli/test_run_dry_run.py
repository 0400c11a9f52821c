import json
import re

import pytest
from click.testing import CliRunner

from mlsd.cli.commands.run import run as command
from mlsd.planning.plan import expand
from mlsd.records import Environment, Round, Status, Trial
from mlsd.store.store import Store

pytestmark = pytest.mark.heavy  # each plans contexts in a worker


@pytest.fixture(autouse=True)
def own_hub_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def on(monkeypatch):
    """Plan as on a machine of these facts."""

    def on(**facts):
        here = Environment(**{"host": "h", "os": "Linux", "machine": "x86_64", **facts})
        monkeypatch.setattr("mlsd.measure.parent.forecast.read_environment", lambda: here)
        return here

    return on


def run(*arguments: str):
    return CliRunner().invoke(command, [*arguments, "--dry-run"], catch_exceptions=False)


def plan_json(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json").stdout)


def test_the_tables_show_counts_loads_memory_that_adds_up_and_what_is_missing():
    text = run("B", "--profile", "mac-32gb").stdout
    assert "qwen3.5-35b-a3b-q4_k_m" in text
    assert "22.02 GB" not in text  # suite B loads it with a draft only
    assert "22.55 GB" in text
    assert "Left out of suite B: moe-q8 (72 trials): its 36.9 GB of weights do not fit into 32 GB" in text
    assert "not on this machine: qwen3.5-35b-a3b-q4_k_m" in text
    parts = ("weights", "KV", "states", "compute", "output", "total", "limit", "judging", "qwen3.5-2b-q4_k_m, gamma 16")
    assert all(word in text for word in parts)
    raised = "first `sudo sysctl iogpu.wired_limit_mb=26000` (until the Mac restarts)"
    assert raised in " ".join(text.split())
    for load in plan_json("B", "--profile", "mac-32gb")["needs"]["memory"]:
        terms = [load[f"{name}_bytes"] for name in ("weights", "kv", "states", "compute", "output")]
        assert load["total_bytes"] == sum(terms) > load["least_bytes"] > load["limit_bytes"]
        assert [arm["arm"] for arm in load["arms"]] == [
            "plain",
            *(f"{load['models'][1]}, gamma {n}" for n in (4, 8, 16)),
            "judging",
        ]


def test_the_time_of_a_load_stays_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setattr("mlsd.cli.output.columns", lambda: 80)
    loads = run("A", "--profile", "mac-32gb").stdout.partition("loads")[2].partition("memory\n")[0]
    assert re.search(r"qwen3.5-35b-a3b-q4_k_m .* s\)\n", loads)


def test_without_a_profile_it_says_that_it_is_the_tiny_one():
    result = run("A")
    assert result.stderr.startswith("Planning...\nNo profile was chosen: tiny, nothing larger is downloaded")
    assert plan_json("A")["profile"] == "tiny"


def test_overrides_change_the_plan():
    plan = plan_json(
        "B", "--profile", "study", "--gamma", "2", "--repeats", "1", "--prompt", "code", "--n-predict", "8"
    )
    assert (plan["suites"], plan["study_trials"], plan["paired_baselines"]) == ({"B": 4}, 4, 4)
    assert {case["case"]["gamma"] for case in plan["cases"]} == {0, 2}
    assert {case["case"]["n_predict"] for case in plan["cases"]} == {8}


def test_a_load_larger_than_the_machine_is_named_before_anything_runs(on):
    on(memory_bytes=8 << 30)
    text = run("A", "--profile", "study").stdout
    assert "does not fit: qwen3.5-35b-a3b-q8_0: 37." in text
    verdicts = [load["verdict"] for load in plan_json("A", "--profile", "study")["needs"]["memory"]]
    assert verdicts == ["does not fit"] * 2


def test_a_mac_that_never_measured_gets_a_range_that_holds_what_was_published_of_its_chip(on):
    on(os="macOS", machine="arm64", memory_bytes=192 << 30, chip="Apple M2 Ultra", peak_bandwidth_gb_s=800.0)
    needs = plan_json("A", "--profile", "study")["needs"]
    assert needs["time"]["sources"] == {"public rows": 18}
    share = 2_946_429_568 / 34_660_610_688
    roofline = 9 * 255 * (22_016_023_168 + 36_903_139_968) * share / 800e9
    measured = 9 * 256 * (1 / 55.28 + 1 / 49.95)  # the study's plain runs of these models on that chip, without prefill
    assert needs["time"]["low_seconds"] < measured < needs["time"]["high_seconds"]
    assert needs["time"]["seconds"] > 2 * roofline
    assert needs["time"]["high_seconds"] < 3.5 * needs["time"]["low_seconds"]


def test_a_profile_for_a_mac_is_estimated_for_the_chips_that_were_sold_with_its_memory(on):
    on(memory_bytes=64 << 30)
    text = run("A", "B", "C", "D", "F", "--profile", "mac-16gb").stdout
    assert "132 trials (108 study trials, 24 paired baselines)" in text
    assert re.search(r"time: .* \(.* to .*\); by public rows of M1, .*M4, M5", text)
    needs = plan_json("A", "--profile", "study")["needs"]
    assert needs["time"]["seconds"] is None, "of another machine nothing is public"


def test_a_plan_for_a_mac_knows_the_kernels_of_the_build_that_set_up_installs_there(on, monkeypatch):
    on(memory_bytes=64 << 30)
    times = [plan_json("D", "--profile", "mac-16gb")["needs"]["time"]["seconds"]]
    monkeypatch.setattr("mlsd.measure.parent.forecast.installed_build", lambda place: 0)
    times.append(plan_json("D", "--profile", "mac-16gb")["needs"]["time"]["seconds"])
    assert times[0] < times[1], "kernels made for verification take less"


def test_earlier_results_of_this_machine_give_the_time(on, tmp_path):
    here = on(memory_bytes=64 << 30)
    from mlsd.models.library import Library
    from mlsd.planning.plan import known_models
    from mlsd.planning.suite import find_profile, load_suites

    planned = expand(load_suites(["A"]), find_profile("study"), known_models(Library()))
    first = next(planned.slots())
    plain = Round(
        proposed=0, accepted=0, committed=1, rows=1,
        draft_ns=0, verify_ns=200_000_000, rollback_ns=0, sample_ns=0, other_ns=0,
    )  # fmt: skip
    trial = Trial(
        case_id=first.case_id, arm="ar", gamma=0, block=1, repeat=0, position=0, status=Status.VALID,
        started_at="2026-11-21T05:00:00.000+00:00", tokens=tuple(range(256)), decode_ns=51_000_000_000,
        rounds=255 * (plain,),
    )  # fmt: skip
    for name, host in (("own", here), ("foreign", Environment(host="there", os="Linux", machine="x86_64"))):
        with Store.open(tmp_path / f"{name}.sqlite") as store:
            run_id = store.begin_run(host, {}, 0)
            store.add_cases(run_id, [first.case])
            store.add(run_id, [trial])
    time = plan_json("A", "--profile", "study", "--db", str(tmp_path / "own.sqlite"))["needs"]["time"]
    # one target's nine trials at 5 tok/s; nothing is known of the other target
    assert [time[f"{end}seconds"] for end in ("", "low_", "high_")] == pytest.approx([9 * 51] * 3)
    assert (time["n_trials"], time["n_unknown"], time["sources"]) == (18, 9, {"results": 9})
    needs = plan_json("A", "--profile", "study", "--db", str(tmp_path / "foreign.sqlite"))["needs"]
    assert needs["time"]["seconds"] is None


def test_what_matters_comes_first_and_a_plan_of_which_nothing_fits_ends_with_1(monkeypatch):
    fits = run("B", "--profile", "tiny")
    assert fits.exit_code == 0 and " cases, " in fits.stdout.splitlines()[0]
    assert fits.stdout.index("memory: ") < fits.stdout.index("─")
    monkeypatch.setattr("mlsd.measure.parent.memory.fit", lambda *_: ("does not fit", "it is too large"))
    assert run("B", "--profile", "tiny").exit_code == 1
