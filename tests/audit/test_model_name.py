from pathlib import Path

import pytest

from mlsd.audits.model_name import read_model_name, same_model

NAMES = [
    line.split("\t")
    for line in (Path(__file__).parent / "data" / "model_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
]


def number(text: str) -> float | None:
    return None if text == "-" else float(text)


def test_two_hundred_names_of_published_files_say_their_sizes_in_any_case() -> None:
    assert len({name for name, *_ in NAMES}) == len(NAMES) >= 200
    for name, *sizes in NAMES:
        for written in (name, name.lower(), name.upper()):
            read = read_model_name(written)
            assert [read.total_b, read.active_b, read.bits] == [number(size) for size in sizes], written


@pytest.mark.parametrize("name", ["Qwen3.6 35B 4-bit", "qwen3-30b 8-bit", "Mistral-Small-4-119B Q4_K_M", "OLMoE Q8_0"])
def test_a_name_that_may_leave_its_active_part_out_bounds_nothing(name: str) -> None:
    assert read_model_name(name).least_bytes is None


def test_a_stated_quantization_counts_before_the_one_in_the_name() -> None:
    assert read_model_name("Qwen3.6-27B-MTPLX-Optimized-Speed-FP16", "4-bit").bits == 4
    assert read_model_name("gpt-oss-120b-MXFP4-Q8").bits == 4  # the least of what it states


def test_files_of_one_model_differ_in_nothing_but_how_the_weights_are_stored() -> None:
    assert same_model("Qwen3.8-27B 4-bit", "qwen3.8-27b 8-bit")
    assert same_model("gemma-4-31b-it-Q4_K_M", "gemma-4-31b-it-UD-Q8_K_XL")
    assert not same_model("Qwen3.8-27B 4-bit", "Qwen3.6-27B 4-bit")
