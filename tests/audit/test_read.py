"""What people paste, read as cells by field."""

from pathlib import Path

import pytest

from mlsd.audits.read import read_pasted
from mlsd.audits.rows import PastedRow
from mlsd.errors import TableError


def pasted(text: str) -> tuple[list[PastedRow], list[str]]:
    return read_pasted(text.encode(), "paste")


_ON_A_CHIP = "\n| Model | tok/s |\n|---|---|\n| Qwen3.5-9B Q4_K_M | 25.1 |\n"
_TIMED = """
llama-server -m models/Qwen3.6-27B-Q8_0.gguf --spec-type draft-mtp --spec-draft-n-max 3
prompt eval time =    8584.47 ms /  3258 tokens (    2.63 ms per token,   379.52 tokens per second)
       eval time =    1287.69 ms /    57 tokens (   22.59 ms per token,    44.27 tokens per second)
draft acceptance = 0.57576 (   19 accepted /    33 generated), mean len = 1.50
       eval time =    1000.00 ms /    20 tokens (   50.00 ms per token,    20.00 tokens per second)
"""
# A text, and some of the cells of each of its rows.
TEXTS: dict[str, tuple[str, list[dict[str, str]]]] = {
    "a Markdown table under the chip's name": (
        "## M4 Pro\n\n| Model | tok/s | gamma | Acceptance |\n|---|---:|---|---|\n"
        "| Qwen3.5-9B Q4_K_M | **25.1** | - | — |\n| Qwen3.5-9B Q4_K_M | 31.0 | 4 | 62 % |\n",
        [
            {"target": "Qwen3.5-9B Q4_K_M", "tok_s": "25.1", "drafter": "none", "chip": "M4 Pro"},
            {"tok_s": "31.0", "gamma": "4", "acceptance": "62 %", "drafter": "unnamed"},
        ],
    ),
    "a machine named in the text": (f"Measured on an M2 Ultra.\n{_ON_A_CHIP}", [{"chip": "M2 Ultra"}]),
    **{
        f"cells divided by {mark!r}": (
            "model,tok/s,gamma,acceptance\nm,20,0,\nm,30,2,0.8\n".replace(",", mark),
            [{"drafter": "none"}, {"target": "m", "tok_s": "30", "gamma": "2", "acceptance": "0.8"}],
        )
        for mark in ",;\t"
    },
    "counts and n-max where they stand": (
        "config,tok/s,acceptance\noff,18.1,\nMTP n-max 3,28.9,146/329\n",
        [{"drafter": "none"}, {"drafter": "mtp", "gamma": "3", "n_accepted": "146", "n_proposed": "329"}],
    ),
    "a gain that is no number": ("config,tok/s,gain\nMTP,28.9,+x %\n", [{"speedup": "+x %"}]),
    "a column of speeds under a method's name": (
        "| Tokens | Baseline (tok/s) | DFlash (tok/s) | Speedup |\n|--|--|--|--|\n| 256 | 74.72 | 194.80 | 2.61x |\n",
        [{"baseline_tok_s": "74.72", "tok_s": "194.80", "n_predict": "256", "speedup": "2.61x", "drafter": "dflash"}],
    ),
    "a gain whose sign stands in the heading": (
        "method,tok/s,% faster\nnone,20,\nmtp n-max 3,40,100\n", [{"drafter": "none"}, {"speedup": "1.995-2.005"}],
    ),
    "what the processor's cores computed, by its backend, else by its layers on the GPU": (
        "model,backend,threads,ngl,tok/s\nm,CPU,4,,7\nm,,4,0,7\n", [{"on_cpu": "1"}, {"on_cpu": "1"}],
    ),
    "a share of the baseline": (
        "method,tok/s,% of baseline\nplain,40,100\nmtp n-max 3,27.2,68\n", [{"drafter": "none"}, {"speedup": "68%"}],
    ),
    "tests as rows, two builds as columns": (
        "| test | t/s (main) | t/s (PR) |\n|--|--|--|\n| tg128 | 40.1 | 44.2 |\n| tg256 | 39.9 | 43.9 |\n",
        [{"tok_s": "40.1"}, {"tok_s": "44.2"}, {"tok_s": "39.9"}, {"tok_s": "43.9", "n_predict": "256"}],
    ),
    "flags as a method": (
        "flags,tok/s\n--spec-type none,20\n--spec-type draft-mtp --spec-draft-n-max 2,30\n",
        [{"drafter": "none"}, {"drafter": "mtp", "gamma": "2"}],
    ),
    "a receipt": (
        '{"receipt": {"ar_tok_s": 14.2, "mtp_tok_s": 22.4, "depth": 3, "acceptance": 0.86}}',
        [{"baseline_tok_s": "14.2", "tok_s": "22.4", "drafter": "mtp", "gamma": "3"}],
    ),
    "two columns of speeds": (
        "| prompt | plain | MTP n=2 | MTP n=4 |\n|--|--|--|--|\n| code | 20 | 30 | 33 |\n",
        [{"tok_s": "30", "gamma": "2"}, {"tok_s": "33", "gamma": "4"}],
    ),
    # A block drafts a token less; accepted tokens a round hold the target's own or not.
    "a block": (
        "block_size,tok/s,accepted/round\n(no draft),13.5,-\n6 (text),8.81,1.65\n",
        [{"drafter": "none"}, {"drafter": "unnamed", "gamma": "5", "mgl": "1.65-2.65"}],
    ),
    "llama-bench's decoding, without its prefill, alone or timed together": (
        "## apple-m4-pro\n\n| model | test | t/s |\n|--|--|--|\n| m | pp512 | 900.1 ± 2 |\n"
        "| m | pp4096+tg128 | 2211.38 |\n| m | tg128 @ d4096 | 30.58 ± 0.09 |\n",
        [{"tok_s": "30.58 ± 0.09", "n_predict": "128", "n_prompt": "4096", "chip": "M4 Pro"}],
    ),
    "llama-server's timings, with the command above them": (
        _TIMED,
        [
            {
                "target": "Qwen3.6-27B-Q8_0.gguf", "n_output": "57", "tok_s": "44.27", "n_accepted": "19",
                "n_proposed": "33", "acceptance": "0.57576", "mgl": "1.50", "gamma": "3",
            },
            {"drafter": "none", "tok_s": "20.00"},
        ],
    ),
    "mtp-bench's lines": (
        "  code_python  pred= 192 draft=   0 acc=   0 rate=n/a tok/s=6.7\n"
        "  code_python  pred= 192 draft= 163 acc= 136 rate=0.834 tok/s=17.7\n",
        [
            {"drafter": "none", "prompt": "code_python"},
            {"n_output": "192", "n_proposed": "163", "n_accepted": "136", "acceptance": "0.834", "drafter": "unnamed"},
        ],
    ),
}  # fmt: skip


# A line or more of a log, or a table of another kind, and some of the cells of its last row.
LOGS = {
    "vLLM": (
        "(APIServer pid=1) INFO 09-16 05:26:57 Engine 000: Avg prompt throughput: 4.0 tokens/s, Avg generation "
        "throughput: 43.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs\n"
        "INFO 09-16 05:26:57 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.80, Accepted throughput: "
        "9.00 tokens/s, Drafted throughput: 10.00 tokens/s, Accepted: 90 tokens, Drafted: 100 tokens, Per-position "
        "acceptance rate: 0.950, 0.850, Avg Draft acceptance rate: 90.0%\n",
        {"tok_s": "43.5", "mgl": "2.80", "n_accepted": "90", "n_proposed": "100", "drafter": "spec"},
    ),
    "SGLang": (
        "[2026-09-17 11:37:01 TP0] Decode batch, #running-req: 1, #full token: 7936, accept len: 3.10, accept rate: "
        "0.70, cuda graph: True, gen throughput (token/s): 88.4, #queue-req: 0\n",
        {"tok_s": "88.4", "mgl": "3.10", "users": "1"},
    ),
    "text-generation-webui": (
        "Output generated in 9.43 seconds (21.10 tokens/s, 199 tokens, context 36, seed 1)\n",
        {"tok_s": "21.10", "n_output": "199", "drafter": "none"},
    ),
    "oMLX": (
        "DFlash generation complete: 142 tokens, 3.1 tok/s, acceptance=49.3%, cycles=72\n",
        {"tok_s": "3.1", "acceptance_of": "output", "rounds": "72", "drafter": "dflash"},
    ),
    "mlxcel": (
        "[bench/mtp] Done: prompt=32 prefill_ms=120.5 decode_ms=4000.1 generated=128 tok/s=32.0 (wall 4.2s)\n",
        {"tok_s": "32.0", "n_output": "128", "drafter": "mtp"},
    ),
    "a fork of llama.cpp": ("eval time = 59544.24 ms / 2736 tokens = 45.95 tok/s\n", {"tok_s": "45.95"}),
    "llama-speculative of 2023": (
        "generated  129 tokens in    3.6 seconds, speed:   35.142 t/s\nn_draft   = 4\nn_drafted = 680\nn_accept  = 30\n"
        "draft:\nllama_print_timings: eval time = 900.00 ms / 7 runs ( 128.0 ms per token, 7.82 tokens per second)\n",
        {"tok_s": "35.142", "n_proposed": "680", "gamma": "4"},
    ),
    "MTPLX tune": ("AR   14.2 tok/s\nD3   22.4 tok/s  accept 0.86\n", {"tok_s": "22.4", "gamma": "3"}),
    "llama-bench -o sql": (
        "INSERT INTO test (gpu_info, model_filename, n_prompt, n_gen, avg_ts) VALUES "
        "('Apple M1 Ultra', 'm.gguf', '0', '128', '167.36');\n",
        {"tok_s": "167.36", "n_predict": "128", "chip": "Apple M1 Ultra"},
    ),
    "JSON lines of llama-server": (
        '{"timings": {"predicted_n": 200, "predicted_per_second": 18.05}}\n'
        '{"timings": {"predicted_n": 210, "predicted_per_second": 19.05, "draft_n": 30, "draft_n_accepted": 20}}\n',
        {"tok_s": "19.05", "n_proposed": "30", "n_accepted": "20"},
    ),
    "arms as columns": (
        "| metric | plain | MTP n-max 3 |\n|--|--|--|\n| tok/s | 20 | 31 |\n| acceptance | | 0.8 |\n",
        {"tok_s": "31", "acceptance": "0.8", "drafter": "mtp", "gamma": "3"},
    ),
    "two workloads side by side": (
        "| method | Narr TPS | Narr AL | Code TPS | Code AL |\n|--|--|--|--|--|\n| mtp | 30 | 2.1 | 41 | 3.0 |\n",
        {"tok_s": "41", "mgl": "3.0", "prompt": "code"},
    ),
    "a draft in a cell of a configuration": (
        "## Qwen3-8B-Q8_0\n\n| config | tok/s |\n|--|--|\n| none | 20 |\n| Qwen3-0.6B-Q8_0 n-max 16 | 31 |\n",
        {"drafter": "draft-model", "draft": "Qwen3-0.6B-Q8_0", "gamma": "16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TEXTS, *LOGS])
def test_each_row_is_read_as_cells_by_field(name: str) -> None:
    text, expected = TEXTS[name] if name in TEXTS else (LOGS[name][0], [LOGS[name][1]])
    rows, _ = pasted(text)
    for row, cells in zip(rows if name in TEXTS else rows[-1:], expected, strict=True):
        assert row.cells | cells == row.cells


def test_rows_of_a_text_that_compares_a_chip_with_another_machine_are_not_given_it() -> None:
    rows, _ = pasted(f"Published of an M2 Ultra, measured here on an AMD EPYC.\n{_ON_A_CHIP}")
    assert "chip" not in rows[0].cells


def test_a_gain_is_one_more_than_it_says_within_its_rounding() -> None:
    (row,), _ = pasted("config,tok/s,gain\nMTP n-max 3,28.9,+59.8 %\n")
    low, high = map(float, row.cells["speedup"].split("-"))
    assert low < 1.598 < high < 1.6


def test_lines_of_a_log_that_are_skipped_are_counted_and_the_first_ones_quoted() -> None:
    chatter = "".join(f"slot {n} is idle\n" for n in range(1, 6))
    _, notes = pasted(f"{chatter}\neval time = 1000 ms / 20 tokens (50 ms per token, 20.00 tokens per second)\n")
    first = "line 1: slot 1 is idle; line 2: slot 2 is idle; line 3: slot 3 is idle"
    assert notes == [f"5 lines of the log were skipped: {first}; and 2 more."]


def test_columns_that_nothing_reads_are_named_and_a_table_of_something_else_is_passed_over() -> None:
    rows, notes = pasted(
        "| model | tok/s | mood |\n|--|--|--|\n| m | 20 | good |\n\n| depth | delta MiB |\n|--|--|\n| n1 | 1142 |\n"
    )
    assert notes == [
        "Tables without a column of decode speeds were passed over (line 7: depth, delta MiB).",
        "Columns that no rule uses: mood.",
    ]
    assert len(rows) == 1
    with pytest.raises(TableError, match="holds no row with a speed"):
        pasted("| a | b |\n|--|--|\n| 1 | 2 |\n")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"tok_s": 1e400}', '{"tok_s": NaN}'])
def test_json_that_no_record_can_hold_is_no_table(text: str) -> None:
    with pytest.raises(TableError, match="holds no row"):
        pasted(text)


def test_a_page_of_words_is_no_table_of_rows_though_its_words_are_headings() -> None:
    """A page of help gave 712 rows that nobody judged, since one of its lines names a speedup between two commas."""
    for page in ("docs/commands.md", "docs/glossary.md", "docs/data.md"):
        with pytest.raises(TableError, match="holds no row with a speed"):
            read_pasted(Path(page).read_bytes(), page)
