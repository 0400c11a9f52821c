"""What people paste, read as cells by field."""

import pytest

from mlsd.errors import TableError
from mlsd.formats.pasted import Pasted, read_pasted


def pasted(text: str) -> Pasted:
    return read_pasted(text.encode(), "paste")


def cells(text: str) -> list[dict[str, str]]:
    return [row.cells for row in pasted(text).rows]


def test_a_markdown_table_is_read_by_the_names_people_give_its_columns() -> None:
    plain, drafted = cells(
        "## M4 Pro\n\n| Model | tok/s | gamma | Acceptance |\n|---|---:|---|---|\n"
        "| Qwen3.5-9B Q4_K_M | **25.1** | - | — |\n| Qwen3.5-9B Q4_K_M | 31.0 | 4 | 62 % |\n"
    )
    assert plain == {
        "target": "Qwen3.5-9B Q4_K_M",
        "tok_s": "25.1",
        "acceptance": "—",
        "drafter": "none",
        "chip": "M4 Pro",
    }
    assert (drafted["tok_s"], drafted["gamma"], drafted["acceptance"]) == ("31.0", "4", "62 %")
    assert drafted["drafter"] != "none"


def test_rows_of_a_text_that_compares_a_chip_with_another_machine_are_not_given_it() -> None:
    table = "\n| Model | tok/s |\n|---|---|\n| Qwen3.5-9B Q4_K_M | 25.1 |\n"
    assert cells(f"Measured on an M2 Ultra.\n{table}")[0]["chip"] == "M2 Ultra"
    assert "chip" not in cells(f"Published of an M2 Ultra, measured here on an AMD EPYC.\n{table}")[0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_commas_tabs_and_semicolons_divide_cells(mark: str) -> None:
    rows = cells(f"model{mark}tok/s{mark}gamma{mark}acceptance\nm{mark}20{mark}0{mark}\nm{mark}30{mark}2{mark}0.8\n")
    assert [row["drafter"] for row in rows] == ["none", "unnamed"]
    assert rows[1] | {"drafter": ""} == {"target": "m", "tok_s": "30", "gamma": "2", "acceptance": "0.8", "drafter": ""}


def test_counts_n_max_and_gains_are_read_where_they_stand() -> None:
    off, on = cells("config,tok/s,acceptance,gain\noff,18.1,,\nMTP n-max 3,28.9,146/329,+59.8 %\n")
    assert off["drafter"] == "none"
    assert (on["drafter"], on["gamma"], on["n_accepted"], on["n_proposed"]) == ("mtp", "3", "146", "329")
    low, high = map(float, on["speedup"].split("-"))
    assert low < 1.598 < high < 1.6


def test_a_column_of_speeds_under_a_methods_name_is_that_methods() -> None:
    (row,) = cells(
        "| Tokens | Baseline (tok/s) | DFlash (tok/s) | Speedup |\n|--|--|--|--|\n| 256 | 74.72 | 194.80 | 2.61× |\n"
    )
    assert (row["baseline_tok_s"], row["tok_s"], row["n_predict"], row["speedup"]) == (
        "74.72",
        "194.80",
        "256",
        "2.61×",
    )
    assert row["drafter"] == "dflash"
    two = cells("| prompt | plain | MTP n=2 | MTP n=4 |\n|--|--|--|--|\n| code | 20 | 30 | 33 |\n")
    assert [(row["tok_s"], row["gamma"]) for row in two] == [("30", "2"), ("33", "4")]


def test_a_block_drafts_a_token_less_and_accepted_tokens_a_round_are_mgl_less_the_bonus() -> None:
    plain, drafted = cells("block_size,tok/s,accepted/round\n(no draft),13.5,-\n6 (text),8.81,1.65\n")
    assert plain["drafter"] == "none" != drafted["drafter"]
    assert (drafted["gamma"], drafted["mgl"]) == ("5", "2.65")


def test_a_prompt_and_its_output_timed_together_by_llama_bench_are_no_decoding() -> None:
    head = "## apple-m4-pro\n\n| model | test | t/s |\n|--|--|--|\n"
    (row,) = cells(f"{head}| llama 1B | pp4096+tg128 | 2211.38 |\n| llama 1B | tg128 | 242.56 |\n")
    assert (row["tok_s"], row["chip"]) == ("242.56", "M4 Pro")


def test_llama_servers_timings_give_a_row_an_answer_with_the_command_above_them() -> None:
    log = """
llama-server -m models/Qwen3.6-27B-Q8_0.gguf --spec-type draft-mtp --spec-draft-n-max 3
prompt eval time =    8584.47 ms /  3258 tokens (    2.63 ms per token,   379.52 tokens per second)
       eval time =    1287.69 ms /    57 tokens (   22.59 ms per token,    44.27 tokens per second)
draft acceptance = 0.57576 (   19 accepted /    33 generated), mean len = 1.50
       eval time =    1000.00 ms /    20 tokens (   50.00 ms per token,    20.00 tokens per second)
"""
    drafted, plain = cells(log)
    assert drafted["target"] == "Qwen3.6-27B-Q8_0.gguf"
    named = ("n_output", "tok_s", "n_accepted", "n_proposed", "acceptance", "mgl", "gamma")
    assert [drafted[name] for name in named] == ["57", "44.27", "19", "33", "0.57576", "1.50", "3"]
    assert (plain["drafter"], plain["tok_s"]) == ("none", "20.00")


def test_lines_of_a_log_that_are_skipped_are_counted_and_the_first_ones_quoted() -> None:
    chatter = "".join(f"slot {n} is idle\n" for n in range(1, 6))
    found = pasted(f"{chatter}\neval time = 1000 ms / 20 tokens (50 ms per token, 20.00 tokens per second)\n")
    assert found.notes == (
        "5 lines of the log were skipped: line 1: slot 1 is idle; line 2: slot 2 is idle; line 3: slot 3 is idle; "
        "and 2 more.",
    )


def test_mtp_benchs_lines_are_rows_and_those_without_drafts_are_plain() -> None:
    plain, drafted = cells(
        "  code_python  pred= 192 draft=   0 acc=   0 rate=n/a tok/s=6.7\n"
        "  code_python  pred= 192 draft= 163 acc= 136 rate=0.834 tok/s=17.7\n"
    )
    assert (plain["drafter"], plain["prompt"]) == ("none", "code_python")
    assert [drafted[name] for name in ("n_output", "n_proposed", "n_accepted", "acceptance")] == [
        "192",
        "163",
        "136",
        "0.834",
    ]
    assert drafted["drafter"] != "none"


def test_llama_benchs_prefill_rows_are_left_out_and_its_deviations_kept() -> None:
    table = "| model | test | t/s |\n|--|--|--|\n| m | pp512 | 900.1 ± 2 |\n| m | tg128 @ d4096 | 30.58 ± 0.09 |\n"
    (row,) = cells(table)
    assert (row["tok_s"], row["n_predict"], row["n_prompt"]) == ("30.58 ± 0.09", "128", "4096")


def test_columns_that_nothing_reads_are_named_and_a_table_of_something_else_is_passed_over() -> None:
    found = pasted(
        "| model | tok/s | mood |\n|--|--|--|\n| m | 20 | good |\n\n| depth | delta MiB |\n|--|--|\n| n1 | 1142 |\n"
    )
    assert found.unused == ("mood",)
    assert len(found.rows) == 1
    with pytest.raises(TableError, match="holds no row with a speed"):
        pasted("| a | b |\n|--|--|\n| 1 | 2 |\n")


def test_a_gain_that_is_no_number_is_left_to_whoever_asks_for_it() -> None:
    assert cells("config,tok/s,gain\nMTP,28.9,+x %\n")[0]["speedup"] == "+x %"
