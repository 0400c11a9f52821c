"""``mlsd bench`` and ``mlsd doctor`` on tiny real models: the JSON contract, the table, and bad input."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mlsd.gguf_tools.source import Source
from mlsd.planning.plan import plan_bench
from mlsd.planning.request import bench_request
from mlsd.records import EngineOptions, Environment
from mlsd.report.render import terminal
from mlsd.report.render.table import Table, formatted
from mlsd.report.tables.arms import head_line
from mlsd.store.rows import TrialFilter
from mlsd.store.sessions import sessions
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from tests.cli.conftest import Mlsd, drafted
from tests.gguf_tools.random_heads import write_random_dflash, write_random_eagle3

QUICK = ("--n-threads", 1, "--n-predict", 24, "--repeats", 2)
# Which of them is the cheapest is for the machine to say.
OF_HYBRID_DRAFTS = ("ladder", "device-ladder", "checkpoint")
TIMES = ("draft_ns", "verify_ns", "rollback_ns", "sample_ns", "other_ns")


def bench_json(mlsd: Mlsd, *arguments: object) -> dict[str, Any]:
    result = mlsd("bench", *arguments, "--json")
    assert result.code == 0, result.err
    answer: dict[str, Any] = json.loads(result.out)
    return answer


def test_bench_reports_every_trial_and_a_summary_of_each_arm(mlsd: Mlsd, tiny: Path) -> None:
    answer = bench_json(
        mlsd, tiny / "qwen35moe.gguf", "--draft", tiny / "qwen35moe-noise003.gguf", "--gamma", "2,4", *QUICK
    )
    assert sorted((t["arm"], t["gamma"], t["repeat"]) for t in answer["trials"]) == [
        (arm, gamma, repeat) for arm, gamma in (("ar", 0), ("sd", 2), ("sd", 4)) for repeat in (0, 1)
    ]
    for trial in answer["trials"]:
        assert trial["verdict"] in ("lossless", "near_tie")
        assert trial["valid"] is True
        assert trial["failed_native_calls"] == 0
        assert trial["decode_tok_s"] == pytest.approx((trial["n_tokens"] - 1) / trial["decode_ns"] * 1e9)
        assert sum(trial[part] for part in TIMES) == trial["decode_ns"]
        assert len(trial["round_records"]) == trial["rounds"]
        assert trial["n_tokens"] - 1 == trial["rounds"] + trial["accepted"]
        if trial["arm"] == "sd":
            assert trial["rollback_target"] in ("snapshots", "checkpoint")
            assert trial["rollback_draft"] in OF_HYBRID_DRAFTS
            assert trial["acceptance_rate"] == pytest.approx(trial["accepted"] / trial["proposed"])
            assert trial["mgl"] == pytest.approx(1 + trial["accepted"] / trial["rounds"])
    arms = {(row["arm"], row["gamma"]): row for row in answer["summary"]}
    assert set(arms) == {("ar", 0), ("sd", 2), ("sd", 4)}
    assert arms["sd", 4]["speedup"] == pytest.approx(arms["sd", 4]["tok_s"] / arms["sd", 4]["plain_tok_s"])
    drafted = [trial for trial in answer["trials"] if (trial["arm"], trial["gamma"]) == ("sd", 4)]
    assert arms["sd", 4]["acceptance_rate"] == pytest.approx(
        sum(trial["accepted"] for trial in drafted) / sum(trial["proposed"] for trial in drafted)
    )


def test_the_table_shows_both_arms_with_their_verdict(mlsd: Mlsd, tiny: Path) -> None:
    result = mlsd("bench", tiny / "llama.gguf", "--draft", tiny / "llama-noise003.gguf", "--gamma", "2", *QUICK)
    assert result.code == 0
    header = next(line for line in result.out.splitlines() if "speedup" in line)
    for column in ("tok/s", "95 % CI", "acceptance", "MGL", "draft", "verify", "rollback", "sample", "verdict"):
        assert column in header
    assert "\x1b" not in result.out, "colours must be off when piped"
    assert result.out.count("lossless") == 2
    head = r"llama Q8_0, .+, 1 thread, llama\.cpp .+: prompt code \(\d+ tokens\), 24 output tokens, prefill \d+ tok/s"
    assert re.fullmatch(head, result.out.splitlines()[0])
    with Store.open(Path("results/bench.sqlite"), read_only=True) as store:
        (session,), (run,) = sessions(store), store.runs()
    nothing = structs.replace(run, environment=Environment(host="", os="", machine=""), plan={})
    arms = [one for one in session.results() if one.is_plain]
    unread = [structs.replace(one, trials=(), case=structs.replace(one.case, engine=EngineOptions())) for one in arms]
    assert head_line(unread, nothing, {}) == "llama: 24 output tokens", "what is not stored is not named"


def test_unchecked_rollback_shows_the_artefact_and_calls_it_invalid(mlsd: Mlsd, tiny: Path) -> None:
    pair = (tiny / "qwen35moe.gguf", "--draft", tiny / "qwen35moe-other.gguf")
    answer = bench_json(mlsd, *pair, "--gamma", "4,16", "--rollback", "unchecked", *QUICK)
    speculative = [trial for trial in answer["trials"] if trial["arm"] == "sd"]
    for trial in speculative:
        assert trial["valid"] is False
        assert trial["failed_native_calls"] > 0
        assert "unchecked rollback" in trial["reason"]
    assert all(trial["valid"] for trial in answer["trials"] if trial["arm"] == "ar")
    result = mlsd("bench", *pair, "--gamma", "4", "--rollback", "unchecked", *QUICK)
    assert "INVALID" in result.out
    assert "native calls failed and were ignored" in result.err


def test_the_same_seed_gives_the_same_sampled_tokens(mlsd: Mlsd, tiny: Path) -> None:
    arguments = (tiny / "llama.gguf", "--temperature", "1", "--fresh", *QUICK)
    first, second, other = (bench_json(mlsd, *arguments, "--seed", seed)["trials"] for seed in (1, 1, 2))
    assert [t["tokens"] for t in first] == [t["tokens"] for t in second]
    assert [t["tokens"] for t in first] != [t["tokens"] for t in other]
    assert all(t["verdict"] is None and t["valid"] for t in first), "nothing to compare with, and yet it counts"


def test_probe_names_the_exact_strategies(mlsd: Mlsd, tiny: Path) -> None:
    result = mlsd("doctor", "model", tiny / "qwen35.gguf", "--n-threads", 1, "--json")
    answer = json.loads(result.out)
    assert [row["gamma"] for row in answer["chosen"]] == 2 * [1, 2, 4, 8, 16], "those of bench"
    assert {(row["role"], row["strategy"]) for row in answer["chosen"]} == {
        ("target", "snapshots"),
        ("draft", "ladder"),
    }
    tried = {(row["role"], row["strategy"]) for row in answer["checks"] if row["exact"]}
    assert tried == {("target", "snapshots"), ("target", "checkpoint"), *(("draft", name) for name in OF_HYBRID_DRAFTS)}
    assert answer["kernel_noise"] >= 0
    shown = mlsd("doctor", "model", tiny / "falcon-h1.gguf", "--n-threads", 1, "--gamma", "2,8").out
    assert "the engine keeps no snapshots" in shown
    assert "As a target: checkpoint.  As a draft: ladder." in shown


def test_several_drafts_methods_and_prompts_are_one_bench_in_one_table(mlsd: Mlsd, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one two three one two three one two", encoding="utf-8")
    asked = ("tiny-dense", "--draft", "tiny-draft", "--drafter", "pld", "--drafter", "ngram-cache", "--gamma", "3")
    prompts = ("--prompt", "factual", "--prompt", tmp_path / "notes.txt")
    answer = bench_json(mlsd, *asked, *prompts, *QUICK)
    drafters = ["none", "draft-model", "ngram-cache", "pld"]
    wanted = [(prompt, drafter) for prompt in ("factual", "file:notes") for drafter in drafters]
    assert [(row["text"], row["drafter"]) for row in answer["summary"]] == wanted
    assert all((row["speedup"] is None) == (row["drafter"] == "none") for row in answer["summary"])
    with Store.open(Path("results/bench.sqlite"), create=False) as store:
        cases, trials = store.cases(), [stored.trial for stored in store.trials(rounds=False)]
    assert len(cases) == 8
    for repeat in (0, 1):  # all prompts of a repeat before the next one; the arms of a prompt in one block
        repeated = trials[8 * repeat : 8 * repeat + 8]
        assert {trial.repeat for trial in repeated} == {repeat}
        for block in {trial.block for trial in repeated}:
            assert len({cases[t.case_id].prompt.key for t in repeated if t.block == block}) == 1
            assert len([t for t in repeated if t.block == block]) == 4


def test_the_same_bench_again_adds_trials_and_fresh_lets_the_old_ones_count_no_more(
    mlsd: Mlsd, tiny: Path, tmp_path: Path
) -> None:
    asked = (tiny / "llama.gguf", "--drafter", "pld", "--gamma", "2", "--db", tmp_path / "b.sqlite", *QUICK)
    first, again = bench_json(mlsd, *asked), bench_json(mlsd, *asked)
    assert {trial["repeat"] for trial in first["trials"]} == {0, 1}
    assert {trial["repeat"] for trial in again["trials"]} == {2, 3}
    assert not {trial["block"] for trial in first["trials"]} & {trial["block"] for trial in again["trials"]}
    bench_json(mlsd, *asked, "--fresh")
    with Store.open(tmp_path / "b.sqlite", create=False) as store:
        assert len(list(store.trials(rounds=False))) == 4
        assert len(list(store.trials(TrialFilter(superseded=True), rounds=False))) == 12


def test_a_question_goes_on_with_its_blocks_whatever_the_call_and_each_look_is_paid_for(mlsd: Mlsd) -> None:
    """Three calls were three sessions, of which only the last was shown."""
    asked = ("tiny-dense", "--n-predict", 16, "--n-threads", 1, "--drafter")

    def arms(*arguments: object) -> dict[str, dict[str, Any]]:
        ran = mlsd(*arguments, "--json")
        assert ran.code == 0, ran.err
        printed = json.loads(ran.out)
        return {row["setting"]: row for row in printed.get("summary", printed.get("arms"))}

    first = arms("bench", *asked, "pld", "--gamma", 2, "--repeats", 3)
    assert first["pld, gamma 2"]["n_blocks"] == 3
    other = arms("bench", *asked, "ngram-cache", "--gamma", 2, "--repeats", 3)
    blocks = {name: row["n_blocks"] for name, row in other.items() if name != "plain"}
    assert blocks == {"pld, gamma 2": 3, "ngram-cache, gamma 2": 3}
    with Store.open(Path("results/bench.sqlite"), read_only=True) as store:
        (session,) = sessions(store)
        assert session.plan.stopping is Stopping.FIXED, "each arm was measured once, as planned"
    more = arms("bench", *asked, "pld", "--gamma", 2, "--until", "decided", "--budget-s", 0.1)
    assert more["pld, gamma 2"]["n_blocks"] > 3, "a block comes whatever the budget: so short trials decide nothing"
    again = arms("bench", *asked, "pld", "--gamma", 2, "--repeats", 2)
    assert again["pld, gamma 2"]["n_blocks"] == more["pld, gamma 2"]["n_blocks"] + 2
    with Store.open(Path("results/bench.sqlite"), read_only=True) as store:
        (session,) = sessions(store)
        assert session.plan.stopping is Stopping.SEQUENTIAL, "whoever measures more has seen what there was"
    shown = arms("results")
    assert shown["pld, gamma 2"]["n_blocks"] == again["pld, gamma 2"]["n_blocks"]
    assert shown["ngram-cache, gamma 2"]["n_blocks"] == 3
    fresh = arms("bench", *asked, "pld", "--gamma", 2, "--repeats", 1, "--fresh")
    assert {name: row["n_valid"] for name, row in fresh.items()} == {"plain": 1, "pld, gamma 2": 1}


def test_a_bench_until_it_is_decided_stays_a_table_at_80_columns(mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, render = [], terminal.render
    widest = {"decision": "not decided yet: 12 more blocks needed", "95 % CI": "0.47 .. 0.95", "tok/s": "1701.5"}

    def narrow(table: Table, **_: Any) -> str:
        rows = [
            tuple(
                formatted(widest[head.label]) if head.label in widest else cell
                for head, cell in zip(table.heads, row, strict=True)
            )
            for row in table.rows
        ]
        shown.append(render(structs.replace(table, rows=tuple(rows)), width=80))
        return shown[-1]

    monkeypatch.setattr(terminal, "render", narrow)
    few = ("--drafter", "ngram-cache", "--gamma", "2", "--n-predict", 16, "--n-threads", 1)
    assert mlsd("bench", "tiny-dense", *few, "--until", "decided", "--budget-s", 1).code == 0
    head = next(line for line in shown[0].splitlines() if line.split()[:1] == ["arm"])
    assert {"gamma", "tok/s", "speedup", "95", "decision", "verdict"} <= set(head.split())


def test_drafts_go_to_the_methods_that_take_one_and_else_are_draft_models(tiny: Path) -> None:
    def arms(*drafters: str, drafts: tuple[str, ...] = ()) -> list[tuple[str, str | None]]:
        request = bench_request(target=target, drafts=drafts, drafters=drafters, gammas=(1,))
        specs = [case.drafter for case in plan_bench(request).cases().values() if case.arm == "sd"]
        return sorted((spec.name, spec.draft.id if spec.draft else None) for spec in specs)

    target, near, far = (str(tiny / f"{name}.gguf") for name in ("llama", "llama-noise01", "llama-other"))
    assert arms("pld", drafts=(near,)) == [("draft-model", "llama-noise01"), ("pld", None)]
    assert arms("draft-tree", drafts=(near,)) == [("draft-tree", "llama-noise01")]
    both = [("draft-model", "llama-noise01"), ("draft-tree", "llama-other")]
    assert arms(f"draft-tree:draft={far}", drafts=(near,)) == both
    assert arms(drafts=(target,)) == [("draft-model", "llama")], "a target may draft for itself"


def test_a_target_alone_is_answered_in_a_sentence_with_settings_that_agree(
    mlsd: Mlsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlsd.cli.commands import bench

    monkeypatch.setattr(bench, "_BUDGET_S", 3.0)
    ran = mlsd("bench", "tiny-moe", "--n-threads", 1, "--gamma", 2)
    assert ran.code == 0, ran.err
    assert "No method given: trying pld, ngram-cache, tiny-draft." in ran.err
    (answer,) = [line for line in ran.out.splitlines() if line.startswith("Answer for code: ")]
    server = [line for line in ran.out.splitlines() if line.startswith("llama-server: ")]
    if "not decided yet" in answer:  # a flag is for what is decided
        goes_on = re.search(r"What decides it( \(about .*\))?: mlsd bench tiny-moe", ran.out)
        too_brief = "raise --n-predict" in answer and "Measuring again would give the same. Mend" in ran.out
        assert server == [] and (goes_on or too_brief)  # the latter on a fast processor, however often it is repeated
    else:
        off = "leave speculation off" in answer
        assert off != (": use " in answer) and ("leave it off" in server[0]) == off
    assert all(name in ran.out for name in ("pld", "ngram-cache", "tiny-draft"))


def test_a_target_alone_with_a_time_to_decide_in_tries_the_same_methods(mlsd: Mlsd) -> None:
    """It measured nothing, printed nothing and ended with 0."""
    ran = mlsd("bench", "tiny-moe", "--gamma", 2, "--until", "decided", "--budget-s", 1, *QUICK[:4])
    assert ran.code == 0 and "No method given: trying pld, ngram-cache, tiny-draft." in ran.err
    assert "Answer for code: " in ran.out


def test_a_chat_is_measured_in_the_models_template_and_named_so(mlsd: Mlsd, smollm2: Path, tmp_path: Path) -> None:
    talk = tmp_path / "talk.json"
    talk.write_text('[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}]')
    answer = bench_json(
        mlsd, smollm2, "--drafter", "pld", "--gamma", 2, "--prompt", "code", "--prompt", talk, "--chat",
        "--n-predict", 8, "--repeats", 1, "--n-threads", 1,
    )  # fmt: skip
    assert {trial["prompt"] for trial in answer["trials"]} == {"code+chat", "file:talk+chat"}
    assert all(trial["valid"] for trial in answer["trials"])


def test_a_template_without_a_switch_for_thinking_is_asked_for_none(mlsd: Mlsd, smollm2: Path) -> None:
    result = mlsd("bench", smollm2, "--drafter", "pld", "--think", "off")
    assert (result.code, "no switch for thinking" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("method", "write"), [("eagle3-tree:depth=2,top_k=3", write_random_eagle3), ("dflash", write_random_dflash)]
)
def test_a_head_is_measured_by_name(mlsd: Mlsd, tiny: Path, tmp_path: Path, method: str, write: Any) -> None:
    target, head = tiny / "llama.gguf", tmp_path / "head.gguf"
    write(head, Source(target), (1, 3, 5))
    sd = drafted(mlsd, target, "--drafter", method, "--draft", head, "--gamma", 4)
    assert sd["valid"] is True
    assert sd["verdict"] in ("lossless", "near_tie")
    assert sd["proposed"] > 0
    assert sd["stats"]["draft_forward_ns"] > 0
