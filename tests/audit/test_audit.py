import json
import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.truth_audit import found_rates, honest_rates, mistakes_found
from mlsd.audits import published_tables as published
from mlsd.audits.check import RULES, audit
from mlsd.audits.frame import UNSEEN_NOISE, frame
from mlsd.audits.printed import exact, parse_printed
from mlsd.audits.rows import Audit, AuditContext, AuditRow
from mlsd.audits.tables import Assumed, table_contexts
from mlsd.audits.trials import database_context, refuted, trials_context
from mlsd.records import Environment, ModelFacts, Status
from mlsd.store.sessions import sessions
from mlsd.store.store import Store
from mlsd.trials.results import Measured
from tests.analysis.pair_studies import Arm, Study, write_study
from tests.audit.honest import CORRUPTED, HONEST, MISTAKES, ROLLBACK, World, ordinary, simulate, stated, write


def table_context(path: Path, assumed: Assumed | None = None) -> AuditContext:
    (context,) = table_contexts(path, assumed or Assumed())
    return context


def audit_rows(rows: list[dict[str, str]], **options) -> Audit:
    with tempfile.TemporaryDirectory() as folder:
        return audit("simulated", table_context(write(Path(folder) / "t.csv", rows), Assumed(**options)))


def flagged(result: Audit, rule: str) -> list[str]:
    return [
        str(row.identity["label"])
        for row in result.rows
        for finding in row.findings
        if finding.rule == rule and finding.verdict != "possible"
    ]


# --- published tables -------------------------------------------------------------------------------------------


def test_all_eighteen_speculative_rows_of_the_study_are_impossible_by_three_rules_and_no_baseline_is() -> None:
    result = audit("study", published.context(published.load("study")))
    five = [row for row in result.rows if row.identity["table"] == "table 5"]
    assert [row.verdict for row in five] == ["impossible"] * 18
    assert {row.verdict for row in result.rows if row.identity["table"] == "table 4"} == {"possible"}
    rules = Counter(f.rule for row in five for f in row.findings if f.verdict == "impossible")
    assert rules["round_shorter_than_its_parts"] == 18
    assert rules["more_bandwidth_than_the_chip"] >= 5 and rules["speedup_above_mgl"] >= 3
    worst = next(row for row in five if row.identity["target"] == "dense_9b" and row.identity["gamma"] == 16)
    figures = {finding.rule: finding.figures for finding in worst.findings}
    assert figures["speedup_above_mgl"]["speedup"] == pytest.approx(2.03)
    assert figures["speedup_above_mgl"]["mgl_at_most"] == pytest.approx(1.072)
    assert figures["round_shorter_than_its_parts"]["round_ms"] == pytest.approx(15.9, abs=0.1)
    assert figures["more_bandwidth_than_the_chip"]["needed_gb_s"] > 1000
    # Its own explanations break on its own figures: 256 tokens in 16 rounds at 0.2 %, all experts in every pass.
    of = {str(row.identity["table"]): {f.rule: f for f in row.findings} for row in result.rows}
    assert of["section 5.2"]["figures_disagree"].verdict == "impossible"
    assert of["section 4.1"]["more_bandwidth_than_the_chip"].figures["needed_gb_s"] > 1100


@pytest.mark.slow
@pytest.mark.parametrize("name", published.names())
def test_each_row_of_each_published_table_has_its_verdict_for_its_reason(name: str) -> None:
    expected = json.loads((Path(__file__).parent / "data" / "verdicts.json").read_text())[name]
    rows = audit(name, *published.contexts(published.load(name))).rows
    assert "".join(row.verdict[0] for row in rows) == expected["verdicts"]
    doubted = {str(i): row for i, row in enumerate(rows) if row.verdict in ("suspicious", "impossible")}
    because = {i: sorted(f.rule for f in row.findings if f.verdict == row.verdict) for i, row in doubted.items()}
    assert because == expected["because"]


def test_no_honest_row_on_a_mac_is_doubted_and_each_false_one_is_found_or_not_judged_for_a_stated_want() -> None:
    study = published.load("mac-2026")
    doubts: dict[str, set[str]] = {table.name: set() for table in study.tables if table.known_error}
    result = audit("macs", *published.contexts(study))
    for row in result.rows:
        if (name := str(row.identity["table"])) in doubts:
            doubts[name].add(row.verdict)
        else:
            assert row.verdict in ("possible", "not judged"), row
        assert bool(row.missing) == (row.verdict == "not judged"), row
    assert doubts["mlx-swift-lm 308"] == {"impossible"}  # 534 tok/s of an 8B on 150 GB/s
    for name in ("qwen-mlx-offline", "mlx-vlm 1167", "llama.cpp 27788", "MTPLX 68, M1"):
        assert "suspicious" in doubts[name], name
    for name in ("omlx 1551", "mlx-serve 317", "MTPLX, head absent"):  # a speed alone tells nothing
        assert doubts[name] <= {"not judged", "possible"}, name
    # Two lengths of draft with one rate and one speed are asked about, and not doubted.
    capped = [row for row in result.rows if any(f.ask and f.rule == "figures_copied" for f in row.findings)]
    assert [(row.identity["table"], row.identity["gamma"]) for row in capped] == [("mlxcel 1613", 7)]


@pytest.mark.slow
def test_a_ratio_to_another_column_is_a_slip_and_a_speedup_above_one_drafted_token_names_the_rate_that_fits() -> None:
    vllm = audit("vllm", published.context(published.load("vllm-eagle")))
    assert flagged(vllm, "figures_disagree") == ["llama-3.1-8b, eagle, gamma 5", "llama-3.1-8b, eagle, gamma 6"]
    mlx = audit("mlx", published.context(published.load("mlx-mtp")))
    pro = next(row for row in mlx.rows if row.identity["label"] == "M4 Pro")
    assert pro.verdict == "possible"
    assert any("if the rate is accepted over output tokens" in finding.sentence for finding in pro.findings)


def test_the_small_model_study_is_possible_but_for_cells_of_which_one_exceeds_its_mgl() -> None:
    result = audit("small models", published.context(published.load("small-models")))
    assert flagged(result, "speedup_above_mgl") == ["llama-3.2-1b, prompt-lookup, translation"]
    assert {r.identity["table"] for r in result.rows if r.verdict != "possible"} == {"table 2", "table 4"}


# --- honest tables ----------------------------------------------------------------------------------------------

worlds = st.builds(
    World,
    t_one_ms=st.floats(0.5, 200.0),
    draft_ms=st.floats(0.0, 50.0),
    per_row=st.floats(0.0, 1.2),
    rollback_ms=st.floats(0.0, 20.0),
    acceptance=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4).map(tuple),
    gammas=st.lists(st.integers(1, 16), min_size=1, max_size=3, unique=True).map(tuple),
    n_predict=st.integers(16, 400),
    repeats=st.integers(1, 3),
    noise=st.floats(0.0, UNSEEN_NOISE),  # more than the audit assumes where no repeats show it breaks bounds by chance
    digits=st.integers(1, 4),
    full_drafts=st.booleans(),
    trims=st.booleans(),
    own_baselines=st.booleans(),
    seed=st.integers(0, 10_000),
)


@pytest.mark.heavy
@settings(max_examples=40)
@given(world=worlds, stated_length=st.booleans())
def test_an_honest_table_is_never_called_impossible(world: World, stated_length: bool) -> None:
    result = audit_rows(simulate(world), full_drafts=world.full_drafts if stated_length else None)
    impossible = [(row.identity, row.findings) for row in result.rows if row.verdict == "impossible"]
    assert impossible == []


@pytest.mark.heavy
@settings(max_examples=30)
@given(t_one=st.floats(1.0, 100.0), alpha=st.floats(0.0, 1.0), gamma=st.integers(1, 16), peak=st.floats(50.0, 800.0))
def test_an_honest_memory_bound_loop_stays_under_the_peak(t_one: float, alpha: float, gamma: int, peak: float) -> None:
    # Passes that take exactly the time their bytes need at the peak, printed with few digits.
    target_bytes, draft_bytes = t_one * peak * 1e6, 0.1 * t_one * peak * 1e6
    mgl = 1 + gamma * alpha
    round_ms = t_one + gamma * 0.1 * t_one
    base = AuditRow(table="t", label="ar", target="m", tok_s=parse_printed(f"{1e3 / t_one:.1f}"))
    row = msgspec.structs.replace(
        base, label="sd", drafter="draft-model", draft="d", gamma=gamma, fixed_length=True,
        tok_s=parse_printed(f"{1e3 * mgl / round_ms:.1f}"),
        acceptance=parse_printed(f"{alpha:.2f}").each(lambda rate: min(rate, 1.0)),
    )  # fmt: skip
    sizes = {"m": target_bytes, "d": draft_bytes}
    context = AuditContext(rows=(base, row), peak_gb_s=peak, pass_bytes=sizes, draft_token_ms={"d": 0.1 * t_one})
    assert audit("roof", context).counts()["impossible"] == 0


@pytest.mark.heavy
@pytest.mark.parametrize("kind", HONEST)
def test_honest_tables_raise_hardly_a_suspicion_and_nothing_impossible(kind: str, tmp_path: Path) -> None:
    rates = honest_rates(kind, 600, tmp_path)
    assert rates["impossible"] == 0.0
    assert rates["suspicious"] < 0.02


@pytest.mark.heavy
@pytest.mark.parametrize("kind", sorted(set(MISTAKES) - {"drafting time left out"}))
def test_a_mistake_is_found_in_a_table_that_states_tokens_a_round_files_and_two_plain_runs(
    kind: str, tmp_path: Path
) -> None:
    tables, rows = mistakes_found(kind, 8, tmp_path, says_all=True)
    assert tables == 1.0 and rows > 0.4


@pytest.mark.heavy
def test_a_table_that_states_it_all_and_is_honest_is_not_doubted(tmp_path: Path) -> None:
    for seed in range(6):
        result = audit_rows(simulate(stated(seed)), full_drafts=True)
        assert {row.verdict for row in result.rows} <= {"possible", "not judged"}
        assert not any(finding.ask for row in result.rows for finding in row.findings)


def test_whether_drafts_have_full_length_is_decided_for_each_draft(tmp_path: Path) -> None:
    head = "target_model,draft_model,draft_len,n_predict,tokens_per_sec,draft_acceptance_rate,mgl\nm,none,0,256,50,,\n"
    full = "".join(f"m,d,4,{n},60,{a / (4 * r):.6f},\n" for n, r, a in ((201, 70, 130), (251, 90, 160), (301, 99, 201)))
    (tmp_path / "t.csv").write_text(f"{head}{full}m,look-up,8,256,55,0.5,1.15\n")
    context = table_context(tmp_path / "t.csv")
    assert {row.draft: row.fixed_length for row in context.rows if row.speculative} == {"d": True, "look-up": False}
    assert flagged(audit("t", context), "figures_disagree") == []
    assert any(note.startswith("Full-length drafts of d, others of unknown length") for note in context.notes)


def test_a_single_fast_repeat_of_an_honest_case_may_be_doubted_and_is_not_impossible() -> None:
    rows = simulate(ordinary(3, per_row=0.0))
    fast = next(row for row in rows if row["draft_len"] != "0")
    fast |= {"tokens_per_sec": f"{9 * float(fast['tokens_per_sec']):.5f}", "eval_ms_per_token": ""}
    (doubted,) = (r for r in audit_rows(rows, full_drafts=True).rows if r.identity["label"] == fast["job_id"])
    assert doubted.verdict == "suspicious"


# --- corrupted copies -------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("kind", CORRUPTED)
def test_a_corrupted_table_is_found(kind: str, tmp_path: Path) -> None:
    share, impossible = found_rates(kind, 10, tmp_path)
    assert share >= 0.8
    assert impossible >= 0.9 or kind not in ROLLBACK


@pytest.mark.slow
def test_halved_acceptance_shows_in_the_slope_of_a_table_whose_every_row_is_within_its_bounds(tmp_path: Path) -> None:
    world, halve = CORRUPTED["acceptance x 0.5 in all cases"]
    fitted = {}
    for name, change in (("honest", lambda rows, _: rows), ("halved", halve)):
        rows = change(simulate(world(2)), random.Random(0))
        result = audit("t", table_context(write(tmp_path / "t.csv", rows), Assumed(full_drafts=True)))
        figures = [f.figures for row in result.rows for f in row.findings if f.rule == "speed_ignores_acceptance"]
        fitted[name] = [one["slope"] for one in figures if "slope" in one]
    assert fitted["honest"] == pytest.approx([1.0] * len(fitted["honest"]), abs=0.06)
    assert min(fitted["halved"]) > 1.2


@pytest.mark.slow
def test_rounds_that_cost_more_on_some_texts_are_no_acceptance_that_makes_no_speed() -> None:
    for seed in range(20):
        rows, rng = simulate(ordinary(seed, per_row=0.0)), random.Random(f"texts {seed}")
        slower = {prompt: math.exp(rng.gauss(0, 0.1)) for prompt in dict.fromkeys(row["prompt_key"] for row in rows)}
        for row in rows:
            if row["draft_len"] != "0":
                row["tokens_per_sec"] = f"{float(row['tokens_per_sec']) / slower[row['prompt_key']]:.5f}"
                row["eval_ms_per_token"] = ""
        assert flagged(audit_rows(rows, full_drafts=True), "speed_ignores_acceptance") == []


def test_the_noise_of_a_table_is_that_of_its_baselines_whatever_its_suspects_do(tmp_path: Path) -> None:
    world, draw = CORRUPTED["rollback pattern, drawn anew each repeat"]
    honest = simulate(world(1))
    contexts = [table_context(write(tmp_path / "t.csv", rows)) for rows in (honest, draw(honest, random.Random(0)))]
    noises = {frame(context)["noise"].iloc[0] for context in contexts}
    assert len(noises) == 1 and noises.pop() < 0.03


@pytest.mark.slow
def test_a_table_whose_drafts_may_end_is_not_taken_for_one_of_full_drafts_by_a_few_digits(tmp_path: Path) -> None:
    for seed in range(20):
        rows = simulate(ordinary(seed, full_drafts=False, rate_digits=2))
        assert any("unknown length" in note for note in table_context(write(tmp_path / "t.csv", rows)).notes)
    rows = simulate(ordinary(0, rate_digits=5))
    assert any("Full-length drafts: decided" in note for note in table_context(write(tmp_path / "t.csv", rows)).notes)


def test_rows_of_the_studys_own_file_are_judged_with_the_sizes_of_its_models() -> None:
    context = table_context(Path(__file__).parents[1] / "analysis" / "data" / "study_runs_excerpt.csv")
    assert context.peak_gb_s == 800.0
    assert any("Full-length drafts: decided from the counts" in note for note in context.notes)
    verdicts = {str(row.identity["label"]): row.verdict for row in audit("runs", context).rows}
    assert all(verdict == "impossible" for label, verdict in verdicts.items() if label.startswith("B_"))
    assert all(verdict == "possible" for label, verdict in verdicts.items() if label.startswith(("A_", "F_base")))
    # At 100 % acceptance the row breaks no bound, but it contradicts the others and accepted everything.
    assert verdicts["F_sd_np32_r0"] == "suspicious"


# --- printed numbers --------------------------------------------------------------------------------------------


@given(value=st.floats(0.001, 1e4), decimals=st.integers(0, 6))
def test_a_printed_number_holds_what_it_was_rounded_from(value: float, decimals: int) -> None:
    printed = parse_printed(f"{value:.{decimals}f}")
    assert printed.low - 1e-9 <= value <= printed.high + 1e-9


def test_bounds_and_estimates_in_print_are_intervals() -> None:
    assert (parse_printed("<4").low, parse_printed("<4").high) == (0.0, 4.0)
    assert (parse_printed("~16").low, parse_printed("~16").high) == (15.0, 17.0)
    assert (parse_printed("0.5-0.9").low, parse_printed("0.5-0.9").high) == pytest.approx((0.45, 0.95))
    assert parse_printed("-1.5").value == -1.5
    assert parse_printed("1e-3").value == 0.001
    assert exact(1.0).over(exact(50.0)).value == 0.02
    for text in ("inf", "nan", "fast", ""):
        with pytest.raises(ValueError, match="number"):
            parse_printed(text)


@pytest.mark.parametrize("name", published.names())
def test_without_what_is_possible_an_audit_gives_the_same_verdicts_and_doubts(name: str) -> None:
    contexts = published.contexts(published.load(name))
    whole, doubts = audit(name, *contexts).rows, audit(name, *contexts, possible=False).rows
    assert [(row.identity, row.verdict, row.missing) for row in doubts] == [
        (row.identity, row.verdict, row.missing) for row in whole
    ]
    assert [row.findings for row in doubts] == [
        tuple(finding for finding in row.findings if finding.ask or finding.verdict != "possible") for row in whole
    ]


# --- own trials -------------------------------------------------------------------------------------------------


def test_own_honest_trials_are_never_impossible(tmp_path: Path) -> None:
    arms = (Arm(), Arm(target="moe", draft="large", alpha=0.2), Arm(drafter="pld", draft=None))
    with Store.open(write_study(tmp_path / "s.sqlite", Study(arms=arms)), read_only=True) as store:
        context = database_context(store)
    result = audit("own", context)
    assert result.counts()["impossible"] == 0
    assert context.peak_gb_s == 100.0
    assert len(result.rows) == len(context.rows) > 0


def test_own_trials_with_failed_native_calls_or_too_short_rounds_are_not_possible_and_a_loop_is_asked_about(
    tmp_path: Path,
) -> None:
    with Store.open(write_study(tmp_path / "s.sqlite", Study(noise=0.0)), read_only=True) as store:
        trials = [measured for session in sessions(store) for measured in session.trials]
    failed = {"failed_native_calls": 7, "status": Status.INVALID, "reason": "native calls failed"}
    changes = {
        2: lambda trial: {"tokens": ((7, 8, 9) * len(trial.tokens))[: len(trial.tokens)]},
        4: lambda trial: {"decode_ns": trial.decode_ns // 4},
        8: lambda trial: failed,
    }
    ids = {gamma: next(measured.case.id for measured in trials if measured.case.gamma == gamma) for gamma in changes}
    for i, measured in enumerate(trials):
        if measured.case.id in ids.values():
            change = changes[measured.case.gamma](measured.trial)
            trials[i] = measured._replace(trial=msgspec.structs.replace(measured.trial, **change))
    rows = audit("own", trials_context(trials)).rows
    by_case = {measured.case.id: row for measured, row in zip(trials, rows, strict=True)}
    assert {by_case[ids[gamma]].verdict for gamma in (4, 8)} == {"impossible"}
    assert [finding.rule for finding in by_case[ids[2]].questions] == ["output_is_a_loop"]


@pytest.fixture(scope="module")
def own_trials(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Measured], dict[str, ModelFacts]]:
    path = write_study(tmp_path_factory.mktemp("own") / "s.sqlite", Study(arms=(Arm(), Arm(target="moe"))))
    with Store.open(path, read_only=True) as store:
        models = {facts.ref.id: facts for facts in store.models().values()}
        return list(store.trials(rounds=False)), models


@given(
    gamma=st.sampled_from((2, 4, 8)),
    factor=st.floats(1.0, 2.0),
    gigabytes=st.floats(0.5, 1.5),  # of the target, whose plain pass takes 10 ms
    peak_gb_s=st.none() | st.just(100.0),
)
@settings(max_examples=40, deadline=None)
def test_what_is_asked_before_an_audit_of_own_trials_misses_none_that_it_refutes(
    own_trials: tuple[list[Measured], dict[str, ModelFacts]],
    gamma: int,
    factor: float,
    gigabytes: float,
    peak_gb_s: float | None,
) -> None:
    trials, models = list(own_trials[0]), dict(own_trials[1])
    models["moe"] = msgspec.structs.replace(models["moe"], active_bytes=int(gigabytes * 1e9))
    for at, measured in enumerate(trials):
        if (measured.case.target.id, measured.case.gamma) == ("dense", gamma):
            faster = msgspec.structs.replace(measured.trial, decode_ns=int(measured.trial.decode_ns / factor))
            trials[at] = measured._replace(trial=faster)
    machine = Environment(host="h", os="Linux", machine="x86_64", peak_bandwidth_gb_s=peak_gb_s)
    rows = audit("own", trials_context(trials, machine, models)).rows
    impossible = {one.id for one, row in zip(trials, rows, strict=True) if row.verdict == "impossible"}
    assert refuted(trials, machine, models).keys() == impossible


def repeats_of(base: AuditRow, speeds: list[float], **changes: object) -> list[AuditRow]:
    rows = [msgspec.structs.replace(base, **changes) for _ in speeds]
    return [
        msgspec.structs.replace(row, label=f"{row.label} {i}", repeat=i, tok_s=exact(speed))
        for i, (row, speed) in enumerate(zip(rows, speeds, strict=True))
    ]


PLAIN_ROW = AuditRow(table="t", label="plain", target="m", n_predict=96)
DRAFTED = msgspec.structs.replace(
    PLAIN_ROW, label="sd", drafter="draft-model", draft="d", gamma=4, fixed_length=True, acceptance=exact(0.5),
    mgl=exact(3.0),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"failed_native_calls": 400, "acceptance": exact(0.01), "mgl": exact(1.04)},
        {"invalid_reason": "diverged"},
        {"options": '{"p_min":0.6}'},
    ],
    ids=["failed calls", "diverged", "other options"],
)
def test_a_valid_trial_is_compared_with_no_invalid_one_and_with_none_of_other_options(other: dict[str, object]) -> None:
    rows = repeats_of(PLAIN_ROW, [50.0, 50.5, 49.5]) + repeats_of(DRAFTED, [60.0, 61.0, 59.0])
    fast = repeats_of(DRAFTED, [140.0, 141.0, 139.0], **{"label": "other", **other})
    verdicts = {str(row.identity["label"]): row.verdict for row in audit("t", AuditContext(rows=(*rows, *fast))).rows}
    assert {verdict for label, verdict in verdicts.items() if not label.startswith("other")} == {"possible"}
    if "failed_native_calls" in other:
        assert {verdicts[row.label] for row in fast} == {"impossible"}


def test_the_plain_runs_of_the_engine_and_of_a_server_are_no_repeats_of_each_other() -> None:
    engine_runs = repeats_of(PLAIN_ROW, [50.0, 50.5, 49.5], program="mlsd")
    server = repeats_of(PLAIN_ROW, [98.0, 97.0, 99.0], label="server", program="llama-server b1")
    assert audit("t", AuditContext(rows=(*engine_runs, *server))).counts() == {
        "possible": 6,
        "suspicious": 0,
        "impossible": 0,
    }
    drafted = repeats_of(DRAFTED, [152.0, 153.0, 151.0], program="mlsd")  # 3.04 times its own plain run, 1.55 of others
    context = AuditContext(rows=(*engine_runs, *server, *drafted))
    assert frame(context)["base_most"].iloc[6] == 50.5


def test_a_bound_that_the_mean_of_repeats_breaks_says_so_in_figures_that_break_it() -> None:
    plain = repeats_of(PLAIN_ROW, [50.0, 50.5, 49.5])
    drafted = repeats_of(DRAFTED, [150.0, 182.0, 183.0])
    first = audit("t", AuditContext(rows=(*plain, *drafted))).rows[3]
    finding = next(one for one in first.findings if one.rule == "round_shorter_than_its_parts")
    assert finding.verdict == "suspicious" and finding.sentence.startswith("In the mean of its repeats a round took")
    assert finding.figures["round_ms"] < finding.figures["target_pass_ms"] + finding.figures["draft_ms"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "gamma", "mgl", "verdict"),
    [("dflash", 15, 4.0, "possible"), ("draft-tree", 48, 3.0, "possible"), ("draft-model", 15, 4.0, "impossible")],
)
def test_a_block_costs_one_pass_of_its_draft_a_level_of_a_tree_one_and_a_token_of_a_chain_one(
    drafter: str, gamma: int, mgl: float, verdict: str
) -> None:
    plain = AuditRow(table="t", label="ar", target="m", tok_s=exact(40.0))
    row = msgspec.structs.replace(
        plain, label="sd", drafter=drafter, draft="d", gamma=gamma, fixed_length=True, mgl=exact(mgl), tok_s=exact(70.0)
    )
    sizes = {"m": 16e9, "d": 2e9}
    context = AuditContext(rows=(plain, row), peak_gb_s=700.0, pass_bytes=sizes, draft_token_ms={"d": 5.0})
    assert audit("t", context).rows[1].verdict == verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drafter", "lossless", "verdict"),
    [
        ("oracle", False, "possible"), ("pld", False, "possible"), ("mtp", False, "suspicious"),
        ("draft-model", False, "suspicious"), ("draft-model", True, "possible"),
    ],
)  # fmt: skip
def test_all_accepted_is_expected_of_controls_and_look_ups_and_where_the_output_was_compared(
    drafter: str, lossless: bool, verdict: str
) -> None:
    plain = msgspec.structs.replace(PLAIN_ROW, tok_s=exact(20.0))
    row = msgspec.structs.replace(
        DRAFTED, drafter=drafter, tok_s=exact(70.0), acceptance=exact(1.0), mgl=exact(4.9), lossless=lossless
    )
    assert audit("t", AuditContext(rows=(plain, row))).rows[1].verdict == verdict


def test_a_rule_has_one_name_and_asks_one_question() -> None:
    assert len({rule.__name__ for rule in RULES}) == len(RULES) <= 14
    assert all((rule.__doc__ or "").splitlines()[0].count("?") >= 1 for rule in RULES)
