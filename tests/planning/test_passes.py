"""What passes take on a chip by public rows: anchors, directions, and constants that are what the fit gives."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks import published
from mlsd.analysis.advise.known_model import named
from mlsd.planning import passes
from mlsd.planning.passes import Work, apple_chip, constants, head_work, plain_ms, prefill_ms, rows_ms, work_of


def work(name: str) -> Work:
    found = work_of(named(name).facts)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "chip", "engine", "tok_s"),
    [
        ("llama-2-7b-q4_0", "M2 Ultra", "llama.cpp", 94.27),  # llama.cpp discussion 4167
        ("llama-3.1-8b-4bit", "M3 Ultra", "mlx", 119.4),  # Rapid-MLX, community rows
        ("qwen3.5-9b-q4_k_m", "M4 Pro", "llama.cpp", 36.95),  # llmfit, community rows
    ],
)
def test_public_figures_lie_in_the_range(model: str, chip: str, engine: passes.Engine, tok_s: float) -> None:
    known, one = apple_chip(chip), work(model)
    assert known is not None
    factor = passes.spread_of(one, known)
    assert 1 / factor < plain_ms(one, known, engine) * tok_s / 1e3 < factor


def test_more_bytes_older_chips_and_more_rows_take_longer() -> None:
    old, new = apple_chip("M1 Max"), apple_chip("Apple M4 Max")
    assert old is not None and new is not None
    small, large = work("qwen3.5-9b-q4_k_m"), work("qwen3.5-9b-q8_0")
    assert plain_ms(small, new) < plain_ms(large, new) < plain_ms(large, old)
    assert 0 < rows_ms(small, new, 1) < rows_ms(small, new, 4)
    assert rows_ms(small, new, 4, build=11_404) < rows_ms(small, new, 4)
    assert rows_ms(large, new, 4) < rows_ms(small, new, 4)  # K-quants cost more arithmetic
    assert prefill_ms(small, new) < prefill_ms(small, old) < plain_ms(small, old)


def test_chips_that_nobody_measured_are_refused_and_bare_bandwidths_are_less_sure() -> None:
    assert apple_chip("NVIDIA H200") is None and apple_chip("M9 Max") is None
    largest = apple_chip("M5 Max")
    assert largest is not None and (largest.peak_gb_s, largest.gpu_cores) == (614, 40)
    bare, one = passes.unnamed_chip(614), work("qwen3.5-9b-q8_0")
    assert passes.spread_of(one, bare) > passes.spread_of(one, largest)


def test_a_round_is_a_pass_drafting_and_overhead_and_its_range_holds_it() -> None:
    target, chip = work("qwen3.5-27b-q8_0"), apple_chip("M2 Ultra")
    assert chip is not None
    bare, looked_up, drafted = (
        passes.round_length(target, chip, method, 2, step=head_work(target, method)) for method in ("", "pld", "mtp")
    )
    assert 1 < bare < looked_up < drafted
    low, high = passes.round_range(drafted, target)
    assert 0.7 < low < drafted < high


def test_acceptance_is_known_by_text_where_rows_say_theirs() -> None:
    of_any, code, chat = (passes.acceptance_of("mtp", text) for text in ("", "code", "chat"))
    assert of_any[0] < code[0] and chat[1] < of_any[1] < code[1]
    assert passes.acceptance_of("dspark", "code") == passes.acceptance_of("unheard-of")


def test_a_prediction_block_reads_one_layer_and_the_lm_head() -> None:
    target = work("qwen3.5-27b-q8_0")
    mtp, block = head_work(target, "mtp"), head_work(target, "dflash")
    assert mtp is not None and block is not None
    assert mtp.n_parameters == pytest.approx(target.n_parameters / 64 + 248_320 * 5120)
    assert mtp.always_bytes < block.always_bytes < target.always_bytes / 4
    assert head_work(target, "pld") is None


def test_the_constants_are_those_that_the_published_tables_give() -> None:
    plain, rounds, shipped = published.plain_rows(), published.round_rows(), constants()
    found = published.fit_rounds(rounds, published.fit_prefill(plain, published.fit_plain(plain, shipped)))
    for name in ("share", "layer_ms", "mlx", "recurrent", "free_rows", "rows_ultra", "rows_plain_blocks"):
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=0.01), name
    assert found.rows == pytest.approx(shipped.rows, rel=0.01)
    assert found.round_ms == pytest.approx(shipped.round_ms, rel=0.01)
    assert found.prefill == pytest.approx(shipped.prefill, rel=0.01)
    assert msgspec.structs.replace(found, share=1.0) != shipped
