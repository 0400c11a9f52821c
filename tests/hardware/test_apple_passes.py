"""What passes take on a chip by public rows: anchors, directions, and constants that are what the fit gives."""

import pytest
from msgspec.structs import replace

from benchmarks import published
from mlsd.analysis.advise import ask
from mlsd.analysis.advise.known_model import by_sizes, named
from mlsd.hardware import apple_passes as passes
from mlsd.hardware import chips
from mlsd.hardware.apple_passes import Runtime, Work, apple_chip, constants, head_work, work_of
from mlsd.planning.time_estimate import rates_from_chips
from mlsd.records import ModelRef
from tests.planning.test_time_estimate import case


def work(name: str) -> Work:
    pass_work = work_of(named(name).facts)
    assert pass_work is not None
    return pass_work


def on(chip: str, program: str = "llama.cpp", build: int = 0) -> Runtime:
    bins = apple_chip(chip)
    assert bins is not None
    return Runtime(chip=bins, program=program, build=build)


@pytest.mark.parametrize(
    ("model", "chip", "engine", "tok_s"),
    [
        ("llama-2-7b-q4_0", "M2 Ultra", "llama.cpp", 94.27),  # llama.cpp discussion 4167
        ("llama-3.1-8b-4bit", "M3 Ultra", "mlx", 119.4),  # Rapid-MLX, community rows
        ("qwen3.5-9b-q4_k_m", "M4 Pro", "llama.cpp", 36.95),  # llmfit, community rows
        ("ling-3.0-flash-124b-a5.1b-mxfp4_moe", "M3 Ultra", "llama.cpp", 56.5),  # by its sizes: llama.cpp 26608
        ("qwen3.8-27b-q3_k_m", "M1 Max", "llama.cpp", 12.63),  # llama.cpp 27525
    ],
)
def test_public_figures_lie_in_the_range(model: str, chip: str, engine: passes.Engine, tok_s: float) -> None:
    there, model_work = on(chip, engine), work(model)
    factor = there.spread(model_work)
    assert 1 / factor < there.plain_ms(model_work) * tok_s / 1e3 < factor


@pytest.mark.slow
def test_rows_that_nothing_was_fitted_to_lie_in_the_range_and_none_is_decided_wrongly() -> None:
    asked = published.kept_aside()
    assert {row.stated for row in asked} == {True, False}, "rounds as long as they propose, and drafts ended by p_min"
    assert sum(row.inside for row in asked) >= 0.85 * len(asked)
    decided = [row for row in asked if row.decided]
    assert len(decided) >= 0.5 * len(asked) and all((row.low > 1) == (row.measured > 1) for row in decided)


def test_more_bytes_older_chips_and_more_rows_take_longer() -> None:
    old, new = on("M1 Max"), on("Apple M4 Max")
    small, large = work("qwen3.5-9b-q4_k_m"), work("qwen3.5-9b-q8_0")
    assert new.plain_ms(small) < new.plain_ms(large) < old.plain_ms(large)
    assert new.prefill_ms(small) < old.prefill_ms(small) < old.plain_ms(small)


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["M1 Max", "M2 Ultra", "M4 Pro"])
def test_a_wider_pass_costs_more_by_how_weights_are_stored_and_by_build(chip: str) -> None:
    def lengths(quant: str, build: int = 0) -> list[float]:
        model_work = work(f"qwen3.5-9b-{quant}")
        return [on(chip, build=build).pass_length(model_work, rows, 30.0) for rows in range(1, 41)]

    k, q4, q8 = map(lengths, ("q4_k_m", "q4_0", "q8_0"))
    assert k[0] == q8[0] == 1.0
    for rows in (2, 3, 4, 6, 8):
        assert k[rows - 1] > q4[rows - 1] > q8[rows - 1] > q8[rows - 2], "a row of a K-quant is the most arithmetic"
    assert k[31] == k[12], "a matrix kernel computes 32 rows at once"
    new = lengths("q4_k_m", 11_404)
    assert new[1] == k[1] and all(a < b for a, b in zip(new[2:8], k[2:8], strict=True)), "from three rows on"
    experts = [
        on(chip, build=build).pass_length(work("qwen3.5-35b-a3b-q8_0"), rows, 20.0)
        for build in (0, 11_404)
        for rows in range(1, 32)
    ]
    assert experts == sorted(experts[:31]) * 2, "experts take matrix kernels from 32 rows on, as metal_kernels has it"


# One line of the table each: what comes next, and what may.
NEW = (*chips._bins("Apple M6 Pro", (20,), 350, 64), *chips._bins("Apple M10", (12,), 200, 32))


@pytest.mark.slow
@pytest.mark.parametrize("name", dict.fromkeys(chip.name for chip in (*chips.CHIPS, *NEW) if chip.peak_bandwidth_gb_s))
@pytest.mark.parametrize("engine", ["llama.cpp", "mlx"])
def test_every_chip_of_the_table_is_advised_and_planned_for(
    name: str, engine: passes.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chips, "CHIPS", (*chips.CHIPS, *NEW))
    answer = ask.advise("qwen3.5-9b-q4_k_m", drafts=("mtp",), chip=name, runtime=engine)
    assert answer.modelled and answer.recommendation
    there, dense = on(name, engine), work("qwen3.5-9b-q4_k_m")
    planned = replace(case(0), target=ModelRef(id="qwen3.5-9b-q4_k_m"))
    assert rates_from_chips({planned.target.id: dense}, [there.chip], lambda _: 100)(planned) is not None
    if name == "Apple M6 Pro":
        assert there.plain_ms(dense) < on("M5 Pro", engine).plain_ms(dense), "a newer chip is not behind"


def test_chips_that_nobody_measured_are_refused_and_bare_bandwidths_are_less_sure() -> None:
    assert apple_chip("NVIDIA H200") is None and apple_chip("M9 Max") is None
    assert apple_chip("M6") is None, "no bandwidth is published"
    neo, largest = apple_chip("A18 Pro"), apple_chip("M5 Max")
    assert neo is not None and (neo.peak_gb_s, neo.gpu_cores, neo.generation) == (60, 5, 4)
    assert largest is not None and (largest.peak_gb_s, largest.gpu_cores) == (614, 40)
    bare, model_work = Runtime(chip=passes.unnamed_chip(614)), work("qwen3.5-9b-q8_0")
    assert bare.spread(model_work) > on("M5 Max").spread(model_work)


def test_context_slows_a_pass_and_programs_on_one_engine_differ() -> None:
    target, there = work("qwen3.5-27b-4bit"), on("M1 Max")
    shape = named("qwen3.5-27b-4bit").shape
    assert shape is not None
    deep = replace(target, always_bytes=target.always_bytes + 12_700 * passes.context_bytes(shape))
    assert 1.04 < there.plain_ms(deep) / there.plain_ms(target) < 1.12, "14.29 to 13.33 tok/s in llama.cpp 27525"
    step = head_work(target, "mtp")
    vlm, mtplx = (on("M1 Max", name).round_length(target, "mtp", 3, step=step) for name in ("mlx-vlm", "mtplx"))
    assert mtplx < 0.7 * vlm


@pytest.mark.parametrize(
    "name", ["qwen3-8b", "llama-3.1-8b", "gemma-3-27b", "qwen2.5-72b", "mistral-7b", "qwen3-30b-a3b"]
)
def test_a_model_by_its_sizes_is_as_fast_as_by_its_shape(name: str) -> None:
    sized, there = by_sizes(f"unheard-of-{name.partition('-')[2]}-q8_0"), on("M4 Max")
    assert sized is not None
    pass_work = work_of(sized.facts)
    assert pass_work is not None
    assert there.plain_ms(pass_work) == pytest.approx(there.plain_ms(work(f"{name}-q8_0")), rel=0.15)


def test_a_round_is_a_pass_drafting_and_overhead_and_its_range_holds_it() -> None:
    target, there = work("qwen3.5-27b-q8_0"), on("M2 Ultra")
    bare, looked_up, drafted = (
        there.round_length(target, method, 2, step=head_work(target, method)) for method in ("", "pld", "mtp")
    )
    assert 1 < bare < looked_up < drafted
    low, high = there.round_range(drafted, target, 2)
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


@pytest.mark.slow
def test_the_constants_are_those_that_the_published_tables_give() -> None:
    plain, rounds, shipped = published.plain_rows(), published.round_rows(), constants()
    fitted = published.fit_rounds(rounds, published.fit_prefill(plain, published.fit_plain(plain, shipped)))
    for name in ("share", "layer_ms", "mlx", "recurrent", "free_rows", "rows_ultra"):
        assert getattr(fitted, name) == pytest.approx(getattr(shipped, name), rel=0.01), name
    assert fitted.programs == pytest.approx(shipped.programs, rel=0.01)
    assert fitted.rows == pytest.approx(shipped.rows, rel=0.01)
    assert fitted.roofline == pytest.approx(shipped.roofline, rel=0.01)
    assert fitted.round_ms == pytest.approx(shipped.round_ms, rel=0.01)
    assert fitted.prefill == pytest.approx(shipped.prefill, rel=0.01)
    assert replace(fitted, share=1.0) != shipped
