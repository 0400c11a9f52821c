"""The audit of what people paste: honest rows pass, each kind of wrong one is found, and a plain speed is judged."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlsd.audits import published_tables as published
from mlsd.audits.check import audit
from mlsd.audits.plain_speed import plain_speed
from mlsd.audits.rows import Audit, RowAudit
from mlsd.audits.tables import Assumed, table_contexts
from mlsd.cli.main import cli
from tests.analysis.studies import MOE, blocks, write

PASTED = sorted((Path(__file__).parent / "data" / "pasted").iterdir())


def judged(tmp_path: Path, text: str, **assumed: object) -> Audit:
    path = tmp_path / "paste.md"
    path.write_text(text, encoding="utf-8")
    return audit("paste", *table_contexts(path, Assumed(**assumed)))


def finding(row: RowAudit, rule: str) -> str:
    return next((found.sentence for found in row.findings if found.rule == rule), "")


@pytest.mark.heavy
def test_of_478_rows_kept_aside_none_is_impossible_and_two_that_contradict_each_other_are_suspicious() -> None:
    counts = Counter[str]()
    for path in PASTED:
        counts.update(audit(path.name, *table_contexts(path)).counts())
    assert counts["impossible"] == 0
    assert counts["suspicious"] == 2  # one file at 34 and 66 tok/s on one machine
    assert counts["possible"] >= 190 and counts.total() >= 478


@pytest.mark.slow
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
    counts = Counter(row.verdict for row in judged(tmp_path, text).rows if row.identity["drafter"] != "none")
    assert counts["impossible"] >= 28 and counts.total() == 30


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
    printed = [(row.identity["target"], row.identity["drafter"], row.identity["prompt"], row.verdict) for row in tasks]
    assert printed == [
        ("Qwen2.5-1.5B", "pld", "Translation", "possible"),
        ("Qwen2.5-1.5B", "eagle-2", "Translation", "impossible"),
        ("Vicuna-7B", "eagle-2", "Translation", "possible"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("table", "n"), [(TABLE_5, 5), (TABLE_6, 4)])
def test_the_figures_of_a_published_study_are_judged_as_the_one_that_ships(tmp_path: Path, table: str, n: int) -> None:
    result = judged(tmp_path, table)
    assert [row.verdict for row in result.rows] == ["impossible"] * n
    assert any("are those of Does Speculative Decoding Help Mixture-of-Experts?" in note for note in result.notes)


@pytest.mark.slow
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


@pytest.mark.heavy
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


def test_the_range_of_a_plain_speed_grows_with_bandwidth_and_is_none_of_what_is_not_known() -> None:
    slow, fast = plain_speed("Qwen3.5-9B Q4_K_M", "M4"), plain_speed("Qwen3.5-9B Q4_K_M", "M4 Max 40-core")
    assert slow is not None and fast is not None
    assert slow[0] < slow[1] < fast[1] and slow[0] < fast[0]
    assert plain_speed("Qwen3.5-9B", "M4") is None  # no bits
    assert plain_speed("Qwen3.5-9B Q4_K_M", "RTX 3090") is None


_STUDY = "target_model,draft_model,draft_len,n_predict,tokens_per_sec"
_COUNTS = "model,tok/s,gamma,acceptance,accepted,drafted\nm,20,0,,,\nm,30,3"
_FILES = f"{_STUDY},quantization,baseline_quantization,speedup_vs_baseline\n"
_GAIN = "config,tok/s,gain\nbaseline,18.1,\nMTP n-max 3,{},+59.8 %\n"
_ENGINES = "model,engine,tok/s,gamma,acceptance,speedup\nm,mlx-lm,20,0,,\nm,MTPLX,33,2,0.8,{}\nm,omlx,31,2,0.75,{}\n"
_PROGRAMS = "model,program,tok/s,gamma,mgl\nm,llama-bench,20,0,\nm,{},4,1.2\n"
_SLOW = "model,chip,n-max,tok/s,speedup,acceptance\nQwen3-4B Q4_K_M,M4,0,"
_STATED = "model,quantization,chip,tok/s\nQwen3.6-27B-MTPLX-Optimized-Speed-FP16,{},M4 Max,20\n"
_RATES = "model,gamma,tok/s,acceptance\nm,0,20,\n"
_FIGURE = "model,tok/s,gamma,mgl\nm,20,0,\n"
_CANNOT = "of tokens are said to be accepted"
_OF_250 = "300 of 250 proposed tokens are said to be accepted"

# What is printed, the first letters of its rows' verdicts, and what is said of the last row or of the table.
CASES: list[tuple[str, str, str]] = [
    # another chip's plain run judges nobody, and no chip is a neighbour's
    (f"chip,{_STUDY}\nM1 Ultra,m,none,0,256,20\nM1 Ultra,m,d,1,256,50\n", "ni", ""),
    (f"chip,{_STUDY}\nM1 Ultra,m,none,0,256,20\nM1 Ultra,m,d,1,256,50\nM5 Max,m,none,0,256,33\n", "nin", ""),
    ("model,chip,tok/s\nQwen3.5-27B 4-bit,M4 Pro,15\nQwen3.5-27B 4-bit,,33.4\n", "pn", "(--peak-gb-s, or a chip)"),
    # a share of output tokens is read as one, and named where the meaning is not said
    (f"{_STUDY},draft_acceptance_rate\nm,none,0,256,20,\nm,d,1,256,35,47.4 %\n", "np", "accepted over output tokens"),
    (f"{_STUDY},accepted_of_output\nm,none,0,256,20,\nm,d,1,256,35,47.4\n", "np", ""),
    (f"{_STUDY},accept rate,acceptance_of\nm,none,0,256,20,,\nm,d,1,256,35,0.474,proposed\n", "ns", "at most 1.47"),
    # tokens a round and rounds bound a row
    (f"{_STUDY},mgl\nm,none,0,256,20,\nm,d,8,256,95,1.2\n", "ni", ""),
    (f"{_STUDY},rounds\nm,none,0,256,20,\nm,d,8,256,95,213\n", "ni", ""),
    (f"{_STUDY},n_output\nm,none,0,256,20,\nm,d,8,256,40,259\n", "ns", "259 tokens where 256 were allowed"),
    ("model,method,speedup,MAT\nm,EAGLE,2.1x,3.2\nm,PLD,2.52x,1.65\n", "pi", ""),
    # a ratio to another file is doubted, whether stated or seen
    (f"{_FILES}m,none,0,256,15.5,8-bit,,\nm,mtp,,256,53.6,4-bit,,3.46\n", "ns", "over a plain run of m 8-bit"),
    (f"{_FILES}m,mtp,,256,53.6,4-bit,8-bit,3.46\n", "s", "over a plain run of m 8-bit"),
    # a table that says less is judged by less, and says so
    ("target_model,draft_model,tokens_per_sec\nm,none,50.0\nm,d,60.0\n", "np",
     "the speedup is 1.198, no round of such a drafter commits more than 65 tokens".capitalize()),
    ("target_model,draft_model,tokens_per_sec\nm,none,50.0\nm,d,60.0\n", "np",
     "Fewer rules apply: no row says gamma, n_predict, acceptance."),
    (f"{_STUDY},status\nm,none,0,64,50.0,ok\nm,none,0,64,50.0,timeout\n", "n", "1 rows are not ok and were left out."),
    ("model,tok/s,baseline_tok_s,n_drafted,n_accepted,stars\nm,30,20,329,146,5\n", "np",
     "Columns that no rule uses: stars."),
    # two programs of one engine bound each other with a margin, two engines do not
    (_PROGRAMS.format("llama-speculative,27"), "np", ""),
    (_PROGRAMS.format("llama-speculative,40"), "ni", "another program's plain run less 15 %"),
    (_PROGRAMS.format("mlx-lm,40"), "np", ""),
    (_ENGINES.format("", ""), "nnn", ""),
    (_ENGINES.format("1.65", "1.55"), "nss", "program (mlx-lm against omlx)"),
    # a name bounds what it states of its size, and condemns nothing by what it leaves out
    ("model,chip,tok/s\ngemma-4-26b-a4b-it-4bit,M5 Max,124.6\n", "p", ""),
    ("model,chip,tok/s\ngemma-4-26b-a4b-it,M5 Max,100\n", "n", ""),
    ("model,chip,tok/s\nqwen3.5-35b-a3b-q8_0,M4 Max,62\n", "p", ""),
    ("model,chip,tok/s\nQwen3.6-35B 4-bit,M5 Max,130\n", "n", ""),
    ("model,chip,tok/s\ngpt-oss-20b-MXFP4-Q8,M2 Max,80\n", "p", ""),
    ("model,chip,tok/s\nQwen3.6-27B Q4_K_M,M1 64GB,20\n", "p", ""),  # an M1 with 64 GB is an M1 Max
    ("model,chip,tok/s,gamma,mgl\nx-0b 4-bit,M4,20,0,\nx-0b 4-bit,M4,20,2,0\n", "pp", ""),
    (_STATED.format("4-bit"), "p", ""),
    (_STATED.format(""), "i", ""),
    *(
        (f"model,chip,tok/s\nQwen3.6-27B 8-bit,{chip},90\n", "i", "of the 614 that the memory has: this cannot be true")
        for chip in ("MacBook Pro M5 Max", "M5 Max 128GB", "Apple M5 Max (40-core)", "m5 max")
    ),
    # columns that say the same thing agree
    (_GAIN.format("28.92"), "np", ""),
    (_GAIN.format("18.0"), "ns", "Speedup is 1.598, tok_s 18 over the plain 18.1 is 0.989: they differ"),
    (f"{_COUNTS},0.834,136,163\n", "np", ""),
    (f"{_STUDY},acceptance\nm,none,0,256,20,\nm,d,12k,256,30,0.7312\n", "np", "Drafts of unknown length"),
    (f"{_COUNTS},0.734,136,163\n", "ns", "Acceptance is 0.734, 136 of 163 is 0.8344"),
    ("model,method,n-max,eff_tps,acceptance_pct\nm,mtp,3,30,120\n", "i", f"120 % {_CANNOT}"),
    ("model,method,n-max,eff_tps,acceptance\nm,mtp,3,30,120%\n", "i", f"120 % {_CANNOT}"),
    ("model,method,n-max,eff_tps,n_accept,n_drafted\nm,mtp,3,30,300,250\n", "i", _OF_250),
    ("model,method,n-max,eff_tps,acceptance\nm,mtp,3,30,300/250\n", "i", _OF_250),
    # a rate that no pass allows cannot be, though nothing says how it drafted; a look-up may be 45 times as fast
    ("model,method,tok/s\nm,none,326\nm,spec,164030\n", "ni",
     "502.4, no round of such a drafter commits more than 256 tokens"),
    ("model,method,tok/s\nm,none,20\nm,spec,120\nm,spec,900\n", "npp", ""),
    # a slow plain run is asked about, and so is a ratio to it
    (f"{_SLOW}13.5,,\n", "p", "is it hot, busy, on battery"),
    (f"{_SLOW}13.5,,\nQwen3-4B Q4_K_M,M4,3,27,2.00,0.6\n", "pp", "a ratio to it is too high"),
    (f"{_SLOW}33,,\n", "p", "lies within the"),
    # one rate of several lengths of draft was copied, unless a cap explains it
    (f"{_RATES}m,2,31,0.713\nm,4,35,0.713\nm,8,27,0.713\n", "nsss", "3 such pairs in the table"),
    (f"{_RATES}m,2,31.0,0.713\nm,4,31.0,0.713\nm,8,31.0,0.713\n", "nppp", "is the draft capped, or a row copied?"),
    # a figure that none can be leaves its row out
    (f"{_FIGURE}m,1e30,2,\n", "n", "larger than any figure"),
    (f"{_FIGURE}m,{'9' * 400},2,\n", "n", "not a finite number"),
    (f"{_FIGURE}m,-3,2,\n", "n", "not above 0"),
    (f"{_FIGURE}m,nan,2,\n", "n", "not a finite number"),
    (f"{_FIGURE}m,30,2.5,\n", "n", "not a count"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("text", "verdicts", "sentence"), CASES)
def test_each_row_of_a_table_has_its_verdict_and_reason(
    tmp_path: Path, text: str, verdicts: str, sentence: str
) -> None:
    result = judged(tmp_path, text)
    assert "".join(row.verdict[0] for row in result.rows) == verdicts
    last = result.rows[-1]
    assert sentence in "\n".join([*result.notes, *last.missing, *(found.sentence for found in last.findings)])


@pytest.mark.slow
def test_a_given_peak_bounds_any_model_whose_size_is_stated_or_says_that_it_cannot(tmp_path: Path) -> None:
    table = f"{_STUDY},model_gb\n{{}},none,0,256,{{}},{{}}\n"
    for cells, verdict in (
        (("Qwen3.5-9B Q4_K_M", 500, ""), "impossible"), (("Qwen3.5-9B Q4_K_M", 70, ""), "possible"),
        (("my model", 500, "5.7 GB"), "impossible"), (("my model", 500, ""), "not judged"),
    ):  # fmt: skip
        result = judged(tmp_path, table.format(*cells), peak_gb_s=400)
        assert result.rows[0].verdict == verdict
        assert any("bounds nothing of my model" in note for note in result.notes) == (verdict == "not judged")
