"""The audit of what people paste: honest rows pass, each kind of wrong one is found, and a plain speed is judged."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import audit
from mlsd.analysis.audit.plain_speed import plain_speed
from mlsd.analysis.audit.rows import Audit, AuditContext, AuditRow, RowAudit
from mlsd.analysis.audit.tables import Assumed, table_contexts
from mlsd.cli.main import cli
from mlsd.formats.printed import exact
from tests.analysis.studies import MOE, blocks, write

PASTED = sorted((Path(__file__).parent / "data" / "pasted").iterdir())


def judged(tmp_path: Path, text: str, **assumed: object) -> Audit:
    path = tmp_path / "paste.md"
    path.write_text(text, encoding="utf-8")
    return audit("paste", *table_contexts(path, Assumed(**assumed)))


def finding(row: RowAudit, rule: str) -> str:
    return next((found.sentence for found in row.findings if found.rule == rule), "")


def test_of_478_rows_kept_aside_none_is_impossible_and_two_that_contradict_each_other_are_suspicious() -> None:
    counts = Counter[str]()
    for path in PASTED:
        counts.update(audit(path.name, *table_contexts(path)).counts())
    assert counts["impossible"] == 0
    assert counts["suspicious"] == 2  # one file at 34 and 66 tok/s on one machine
    assert counts["possible"] >= 190 and counts.total() >= 478


@pytest.mark.parametrize("program", ["program", "colour"])
def test_a_table_of_failed_decodes_is_refuted_whether_or_not_it_says_that_two_programs_ran_it(
    tmp_path: Path, program: str
) -> None:
    phases = published.load("apple-silicon-inference").tables
    cells = [table.cells for table in phases]
    rows = [row | {"ran": table.program or ""} for table, own in zip(phases, cells, strict=True) for row in own]
    heads = [*cells[1][0], "ran"]
    lines = [",".join(row.get(head, "") for head in heads) for row in rows]
    text = "\n".join([",".join(heads).replace("ran", program), *lines])
    found = Counter(row.verdict for row in judged(tmp_path, text).rows if row.identity["drafter"] != "none")
    assert found["impossible"] >= 28 and found.total() == 30


def test_two_programs_of_one_engine_bound_each_other_with_a_margin_and_two_engines_do_not(tmp_path: Path) -> None:
    head = "model,program,tok/s,gamma,mgl\nm,llama-bench,20,0,\n"
    assert judged(tmp_path, f"{head}m,llama-speculative,27,4,1.2\n").rows[1].verdict == "possible"
    assert judged(tmp_path, f"{head}m,llama-speculative,40,4,1.2\n").rows[1].verdict == "impossible"
    other = judged(tmp_path, f"{head}m,mlx-lm,40,4,1.2\n").rows[1]
    assert other.verdict == "possible" and not finding(other, "round_shorter_than_its_parts")


def test_a_row_without_a_chip_is_not_given_that_of_its_neighbour(tmp_path: Path) -> None:
    result = judged(tmp_path, "model,chip,tok/s\nQwen3.5-27B 4-bit,M4 Pro,15\nQwen3.5-27B 4-bit,,33.4\n")
    assert result.rows[1].verdict == "not judged" and "(--peak-gb-s, or a chip)" in result.rows[1].missing[0]


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


@pytest.mark.parametrize(
    ("model", "chip", "tok_s"),
    [
        ("gemma-4-26b-a4b-it-4bit", "M5 Max", 124.6),
        ("gemma-4-26b-a4b-it", "M5 Max", 100),
        ("qwen3.5-35b-a3b-q8_0", "M4 Max", 62),
        ("Qwen3.6-35B 4-bit", "M5 Max", 130),
        ("gpt-oss-20b-MXFP4-Q8", "M2 Max", 80),
        ("Qwen3.6-27B Q4_K_M", "M1 64GB", 20),  # an M1 with 64 GB is an M1 Max
    ],
)
def test_an_honest_plain_run_is_not_condemned_by_how_its_name_is_written(
    tmp_path: Path, model: str, chip: str, tok_s: float
) -> None:
    result = judged(tmp_path, f"model,chip,tok/s\n{model},{chip},{tok_s}\n")
    assert result.rows[0].verdict in ("possible", "not judged")


def test_the_stated_quantization_bounds_a_row_whose_name_states_another(tmp_path: Path) -> None:
    table = "model,quantization,chip,tok/s\nQwen3.6-27B-MTPLX-Optimized-Speed-FP16,{},M4 Max,20\n"
    assert judged(tmp_path, table.format("4-bit")).rows[0].verdict == "possible"
    assert judged(tmp_path, table.format("")).rows[0].verdict == "impossible"


@pytest.mark.parametrize("chip", ["MacBook Pro M5 Max", "M5 Max 128GB", "Apple M5 Max (40-core)", "m5 max"])
def test_a_chip_as_people_write_it_bounds_a_row(tmp_path: Path, chip: str) -> None:
    result = judged(tmp_path, f"model,chip,tok/s\nQwen3.6-27B 8-bit,{chip},90\n")
    assert "of the 614 that the memory has: this cannot be true" in result.rows[0].findings[0].sentence


def test_a_gain_in_per_cent_is_one_more_than_it_says(tmp_path: Path) -> None:
    table = "config,tok/s,gain\nbaseline,18.1,\nMTP n-max 3,{},+59.8 %\n"
    assert judged(tmp_path, table.format("28.92")).rows[1].verdict == "possible"
    row = judged(tmp_path, table.format("18.0")).rows[1]
    assert row.verdict == "suspicious"
    message = finding(row, "figures_disagree")
    assert message.startswith("Speedup is 1.598, tok_s 18 over the plain 18.1 is 0.98")
    assert "differ by a factor of 1.597" in message


def test_a_rate_and_its_counts_must_agree(tmp_path: Path) -> None:
    head = "model,tok/s,gamma,acceptance,accepted,drafted\nm,20,0,,,\n"
    assert judged(tmp_path, f"{head}m,30,3,0.834,136,163\n").rows[1].verdict != "suspicious"
    row = judged(tmp_path, f"{head}m,30,3,0.734,136,163\n").rows[1]
    assert "Acceptance is 0.734, 136 of 163 is 0.8344" in finding(row, "figures_disagree")


@pytest.mark.parametrize(
    ("heads", "cells", "told"),
    [
        ("acceptance_pct", "120", "120 % of tokens are said to be accepted"),
        ("acceptance", "120%", "120 % of tokens are said to be accepted"),
        ("n_accept,n_drafted", "300,250", "300 of 250 proposed tokens are said to be accepted"),
        ("acceptance", "300/250", "300 of 250 proposed tokens are said to be accepted"),
    ],
)
def test_more_accepted_than_proposed_cannot_be_under_the_names_that_authors_give(
    tmp_path: Path, heads: str, cells: str, told: str
) -> None:
    row = judged(tmp_path, f"model,method,n-max,eff_tps,{heads}\nm,mtp,3,30,{cells}\n").rows[0]
    assert row.verdict == "impossible" and finding(row, "trial_not_valid").startswith(told)


def test_a_table_of_speedups_without_speeds_is_judged_by_the_tokens_a_round(tmp_path: Path) -> None:
    table = (
        "| model | method | speedup | MAT |\n|--|--|--|--|\n| m | EAGLE | 2.1x | 3.2 |\n| m | PLD | 2.52x | 1.65 |\n"
    )
    assert [row.verdict for row in judged(tmp_path, table).rows] == ["possible", "impossible"]


TABLE_5 = """Target\tDraft\tγ\ttok/s\tSpeedup\tα (%)
MoE Q4\t0.8B\t4\t63.4\t1.15\t2.6
\t0.8B\t8\t65.2\t1.18\t1.1
\t2B\t4\t56.6\t1.03\t4.0
Dense 9B\t0.8B\t8\t55.0\t1.64\t0.9
\t0.8B\t16\t67.7\t2.03\t0.4
"""
TABLE_6 = """Target / γ\tDraft 0.8B\t\t\tDraft 2B\t\t
\tSpeedup\tα\ttok/s\tSpeedup\tα\ttok/s
MoE Q4 / $\\gamma=4$\t$1.15\\times$\t2.6%\t63.4\t$1.03\\times$\t4.0%\t56.6
MoE Q8 / $\\gamma=16$\t$1.30\\times$\t0.2%\t64.8\t$1.16\\times$\t0.9%\t58.0
"""
TASKS = """Task\tMethod\tQwen2.5-1.5B\t\tVicuna-7B\t
\t\tSpeedup\tMGL\tSpeedup\tMGL
Translation\tPLD\t1.03 ± 0.02\t1.10\tN/A\tN/A
\tEAGLE-2\t9.9* \\pm 0.00\t2.59\t1.98\t3.22
"""


def test_a_page_of_a_paper_is_read_with_its_captions_two_levels_of_heads_and_cells_that_stand_for_rows_below(
    tmp_path: Path,
) -> None:
    page = (
        f"Words before, with some\ttabs.\n\nTable 5: Results.\n\n{TABLE_5}\nMore words.\n\n{TASKS}\nTable 9: Tasks.\n"
    )
    rows = judged(tmp_path, page).rows
    assert Counter(row.identity["table"] for row in rows) == {"Table 5": 5, "Table 9": 3}
    tasks = [row for row in rows if row.identity["table"] == "Table 9"]
    told = [(row.identity["target"], row.identity["drafter"], row.identity["prompt"], row.verdict) for row in tasks]
    assert told == [
        ("Qwen2.5-1.5B", "pld", "Translation", "possible"),
        ("Qwen2.5-1.5B", "eagle-2", "Translation", "impossible"),
        ("Vicuna-7B", "eagle-2", "Translation", "possible"),
    ]


@pytest.mark.parametrize(("table", "n"), [(TABLE_5, 5), (TABLE_6, 4)])
def test_the_figures_of_a_published_study_are_judged_as_the_one_that_ships(tmp_path: Path, table: str, n: int) -> None:
    result = judged(tmp_path, table)
    assert [row.verdict for row in result.rows] == ["impossible"] * n
    assert any("are those of Does Speculative Decoding Help Mixture-of-Experts?" in note for note in result.notes)


def test_the_answers_of_a_log_are_no_repeats_and_what_failed_to_decode_refutes_the_next(tmp_path: Path) -> None:
    answer = (
        "prompt eval time = 9 ms / {} tokens\n eval time = 900 ms / 99 tokens ( 9 ms per token, {} tokens per second)\n"
    )
    log = (
        "llama-server -m Qwen3-4B-Q8_0.gguf\n"
        + answer.format(1, 40.0)
        + answer.format(1, 21.0)
        + answer.format(1, 39.0)
    )
    assert {row.verdict for row in judged(tmp_path, log).rows} <= {"possible", "not judged"}
    failing = log + "llama_decode: failed to decode, ret = -1\n" * 3 + answer.format(4, 38.0)
    rows = judged(tmp_path, failing).rows
    assert [row.verdict == "impossible" for row in rows] == [False, False, False, True]
    assert finding(rows[3], "trial_not_valid").startswith("3 native calls failed")
    summed = (
        "decoded  201 tokens in    3.6 seconds, speed:   55.142 t/s\nn_draft   = 4\nn_drafted = 680\nn_accept  = 30\n"
    )
    row = judged(tmp_path, f"init: failed to decode\n{summed}").rows[0]
    assert (row.verdict, row.identity["gamma"]) == ("impossible", 4)


def test_what_mlsd_prints_is_audited_without_a_false_verdict(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, alpha=0.8, gammas=(4, 8), prompts=("code", "chinese")))
    ask = CliRunner().invoke
    assert ask(cli, ["report", "--db", str(path), "-o", str(tmp_path / "r")]).exit_code == 0
    result = audit("report", *table_contexts(tmp_path / "r" / "report.md"))
    assert [row for row in result.rows if row.verdict in ("suspicious", "impossible")] == []
    assert result.counts()["possible"] > 20
    assert {"code", "chinese"} <= {row.identity.get("prompt") for row in result.rows}
    assert not any("3 519.4" in note for note in result.notes)
    printed = judged(tmp_path, BENCH)
    assert [row.verdict for row in printed.rows if row.identity["drafter"] != "none"] == ["possible"] * 2
    assert [row.identity.get("gamma") for row in printed.rows] == [None, None, 2, None, 4]


BENCH = """tiny-dense Q8_0, CPU: prompt code (92 tokens), 48 output tokens, prefill 3172 tok/s

 arm         gamma    tok/s  plain tok/s  speedup  decision                   acceptance   MGL  draft  verdict
 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
 plain           -  1 105.4            -        -  -                                   -  1.00   0.00  lossless
 tiny-draft      2    554.6      1 105.4    0.50x  slower than plain decoding      100 %  3.00   1.49  lossless
 pld             4    524.8      1 105.4    0.47x  slower than plain decoding     24.6 %  1.57   0.02  lossless

Kept in b.sqlite: mlsd report --db b.sqlite, or mlsd advise.
"""


def test_engines_over_one_plain_run_are_not_doubted_where_no_ratio_is_claimed(tmp_path: Path) -> None:
    rows = "m,mlx-lm,20,0,,\nm,MTPLX,33,2,0.8,{}\nm,omlx,31,2,0.75,{}\n"
    head = "model,engine,tok/s,gamma,acceptance,speedup\n"
    assert {row.verdict for row in judged(tmp_path, head + rows.format("", "")).rows} <= {"possible", "not judged"}
    claimed = judged(tmp_path, head + rows.format("1.65", "1.55")).rows[1]
    assert claimed.verdict == "suspicious"
    assert "program (mlx-lm against MTPLX)" in finding(claimed, "arms_do_not_match")


@pytest.mark.parametrize(("drafter", "verdict"), [("oracle", "possible"), ("pld", "possible"), ("mtp", "suspicious")])
def test_all_accepted_is_expected_of_controls_and_look_ups_and_of_no_other(drafter: str, verdict: str) -> None:
    plain = AuditRow(table="t", label="ar", target="m", n_predict=256, tok_s=exact(20.0))
    row = msgspec.structs.replace(
        plain, label="sd", drafter=drafter, gamma=4, fixed_length=True, tok_s=exact(70.0), acceptance=exact(1.0)
    )
    assert audit("t", AuditContext(rows=(plain, row))).rows[1].verdict == verdict


def test_columns_that_are_read_by_nobody_are_mentioned(tmp_path: Path) -> None:
    result = judged(tmp_path, "model,tok/s,baseline_tok_s,n_drafted,n_accepted,stars\nm,30,20,329,146,5\n")
    assert "Columns that no rule uses: stars." in result.notes
    assert [row.identity["drafter"] != "none" for row in result.rows] == [False, True]
    assert "Fewer rules apply: no row says gamma, n_predict." in result.notes  # the counts say its acceptance


def test_a_rate_that_no_pass_allows_is_impossible_though_nothing_says_how_it_drafted(tmp_path: Path) -> None:
    burst = judged(tmp_path, "model,method,tok/s\nm,none,326\nm,spec,164030\n").rows[1]
    assert burst.verdict == "impossible"
    assert "The speedup is 502.4, no round commits more than 256 tokens" in finding(burst, "speedup_above_mgl")
    for tok_s in (120, 900):  # a look-up of 64 tokens may be 45 times as fast
        assert judged(tmp_path, f"model,method,tok/s\nm,none,20\nm,spec,{tok_s}\n").rows[1].verdict == "not judged"


def test_a_slow_plain_run_is_asked_about_and_so_is_a_ratio_to_it(tmp_path: Path) -> None:
    head = "model,chip,n-max,tok/s,speedup,acceptance\n"
    slow = judged(tmp_path, f"{head}Qwen3-4B Q4_K_M,M4,0,13.5,,\nQwen3-4B Q4_K_M,M4,3,27,2.00,0.6\n")
    assert all(any(f.rule == "slower_than_the_machine" and f.ask for f in row.findings) for row in slow.rows)
    assert "a ratio to it is too high" in finding(slow.rows[1], "slower_than_the_machine")
    usual = judged(tmp_path, f"{head}Qwen3-4B Q4_K_M,M4,0,33,,\n")
    assert "lies within the" in finding(usual.rows[0], "slower_than_the_machine")


def test_the_range_of_a_plain_speed_grows_with_bandwidth_and_is_none_of_what_is_not_known() -> None:
    slow, fast = plain_speed("Qwen3.5-9B Q4_K_M", "M4"), plain_speed("Qwen3.5-9B Q4_K_M", "M4 Max 40-core")
    assert slow is not None and fast is not None
    assert slow[0] < slow[1] < fast[1] and slow[0] < fast[0]
    assert plain_speed("Qwen3.5-9B", "M4") is None  # no bits
    assert plain_speed("Qwen3.5-9B Q4_K_M", "RTX 3090") is None


def test_a_rounds_rate_copied_to_other_lengths_of_draft_is_found_unless_a_cap_explains_it(tmp_path: Path) -> None:
    head = "model,gamma,tok/s,acceptance\nm,0,20,\n"
    copied = [("2", "31", "0.713"), ("4", "35", "0.713"), ("8", "27", "0.713")]
    rows = judged(tmp_path, head + "".join(f"m,{','.join(cells)}\n" for cells in copied)).rows
    assert [row.verdict for row in rows[1:]] == ["suspicious"] * 3
    assert "3 such pairs in the table" in finding(rows[1], "figures_copied")
    capped = "".join(f"m,{gamma},31.0,0.713\n" for gamma in (2, 4, 8))
    assert "suspicious" not in {row.verdict for row in judged(tmp_path, head + capped).rows}


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("m,1e30,2,", "larger than any figure"),
        (f"m,{'9' * 400},2,", "not a finite number"),
        ("m,-3,2,", "not above 0"),
        ("m,nan,2,", "not a finite number"),
        ("m,30,2.5,", "not a count"),
    ],
)
def test_a_figure_that_none_can_be_leaves_its_row_out_and_is_named(tmp_path: Path, cells: str, message: str) -> None:
    result = judged(tmp_path, f"model,tok/s,gamma,mgl\nm,20,0,\n{cells}\n")
    assert len(result.rows) == 1
    assert any("line 3" in note and message in note for note in result.notes)


def test_a_model_of_no_parameters_has_no_speed_to_expect(tmp_path: Path) -> None:
    result = judged(tmp_path, "model,chip,tok/s,gamma,mgl\nx-0b 4-bit,M4,20,0,\nx-0b 4-bit,M4,20,2,0\n")
    assert len(result.rows) == 2
