"""The bandwidth model against figures it was not fitted to."""

from __future__ import annotations

import pytest

from mlsd.analysis.advise.chip_check import check_chip, published_figures, sentence
from mlsd.analysis.advise.chip_model import chip_costs, chip_passes, pass_ratio, state_bytes
from mlsd.analysis.advise.known_model import KnownModel, shape_facts
from mlsd.analysis.predict.arms import Known
from mlsd.gguf_tools.shapes import FULL
from mlsd.measure.store.rows import CalibrationPoint, Coverage

MOE = FULL["qwen3.5-35b-a3b"]
NOTHING = Known(groups=(), passes={}, coverage={}, models={})


def test_public_figures_of_other_chips_show_how_far_plain_decoding_is_predicted() -> None:
    figures = published_figures()
    assert {figure.chip for figure in figures} == {"M4", "M4 Pro", "M1 Max", "M1 Pro", "M2 Pro"}
    check = check_chip(NOTHING)
    assert check.median_error < 0.15
    assert check.worst_error > 0.5  # an M1 Max is far slower than its memory: the text must not hide it
    assert check.n_inside >= 0.7 * len(figures)
    text = sentence(check)
    for words in ("not measured", "9 public figures of other chips", "worst 78 %", "no calibration is stored"):
        assert words in text


def test_stored_passes_are_compared_with_the_modelled_range() -> None:
    facts = shape_facts("m", FULL["qwen3.5-0.8b"], "Q8_0")
    spans = {1: 10.0, 2: 15.0, 5: 1000.0}
    points = tuple(
        CalibrationPoint(model_key="k", kind="target_pass", rows=k, depth=8, repeat=0, span_ns=round(ms * 1e6))
        for k, ms in spans.items()
    )
    check = check_chip(Known(groups=(), passes={("here", "k"): points}, coverage={}, models={"k": facts}))
    assert (check.n_ratios, check.n_ratios_inside) == (2, 1)
    assert "1 of 2 stored T(k)/T(1)" in sentence(check)


def test_counted_experts_narrow_the_range() -> None:
    facts = shape_facts("m", MOE, "Q8_0")
    counted = [
        Coverage(model_key="m", source="text", layer=0, window=k, distinct={n: 1})
        for k, n in ((1, 8), (2, 14), (4, 22), (9, 40))
    ]
    blind, seen = pass_ratio(facts, 9), pass_ratio(facts, 9, counted)
    assert blind.low <= seen.low < seen.high < blind.high
    # Nine rows read 40 of 256 experts of each layer, and the rest once; further rows cost at least their share.
    always, routed = 1_939.8 / 2_946.4, 1_006.6 / 2_946.4
    assert seen.low == pytest.approx(always + routed * 5 + 0.086 * 8 * always, rel=0.03)


@pytest.mark.parametrize(
    ("name", "mib"),
    [("qwen3.5-0.8b", 19.27), ("qwen3.5-4b", 50.25), ("qwen3.5-27b", 149.63), ("qwen3.5-35b-a3b", 62.81)],
)
def test_recurrent_states_have_the_published_size(name: str, mib: float) -> None:
    assert state_bytes(FULL[name]) / 2**20 == pytest.approx(mib, abs=0.005)
    assert state_bytes(FULL["smollm2-135m"]) == 0


def test_the_worst_case_of_a_hybrid_pair_writes_states_and_replays() -> None:
    target = KnownModel(facts=shape_facts("t", MOE, "Q8_0"), shape=MOE, quant="Q8_0", here=False)
    small = FULL["qwen3.5-0.8b"]
    draft = KnownModel(facts=shape_facts("d", small, "Q8_0"), shape=small, quant="Q8_0", here=False)
    found = chip_costs(target, draft, 800, (1, 5), NOTHING)
    assert not found.low.rest_ms and not found.low.replays
    assert found.high.replays
    state = 5 * state_bytes(MOE) + 2 * state_bytes(small)
    assert found.high.rest_ms[5] == pytest.approx(state / 800e6 / 0.852, rel=0.01)
    assert "modelled" in found.source
    passes = chip_passes(target.facts, 800, (1, 5))
    assert found.low.verify_ms[5] == passes[5].low and found.high.verify_ms[5] == passes[5].high
