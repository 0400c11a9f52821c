"""Figures of the machine show what they were given."""

import numpy as np
import pytest

from mlsd.analysis.experts.amortization import mixture
from mlsd.analysis.experts.coverage import coverage_table
from mlsd.analysis.fits.calibration import target_curve
from mlsd.analysis.study import study_frames
from mlsd.analysis.study.traffic import Roof, timed_passes
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.figures.machine import expert_shares, pass_curves, roofline
from mlsd.report.render import plot
from tests.analysis.experts.test_coverage import MIXTURE, routed
from tests.analysis.fits.test_calibration import points


def drawn(svg: str, *words: str) -> None:
    for word in words:
        assert word in svg


def test_a_curve_shows_its_kernel_step_and_names_its_model() -> None:
    curve = target_curve(points({k: 10 + 0.5 * k + (6 if k >= 9 else 0) for k in range(1, 34)}))
    svg = plot.render(lambda: pass_curves({"a-model": curve}), "t")
    drawn(svg, "a-model", "T(k), ms", "Target efficiency")
    figure = pass_curves({"a-model": curve})
    data = [np.asarray(line.get_xdata(), dtype=float) for line in figure.axes[0].lines]
    assert 8.5 in {x[0] for x in data if len(x) == 2 and x[0] == x[1]}


def test_theory_and_count_stand_together() -> None:
    found = mixture("mix", coverage_table(routed(0.5), MIXTURE), MIXTURE, points({1: 10.0, 2: 15.0, 4: 24.0}))
    svg = plot.render(lambda: expert_shares([found, found, found]), "e")
    drawn(svg, "counted, text", "independent uniform (MoESD)", "one correlation")
    counted = next(line for line in expert_shares([found]).axes[0].lines if line.get_label() == "counted, text")
    assert list(np.asarray(counted.get_ydata(), dtype=float)) == [row.text for row in found.coverage.rows]
    assert not expert_shares([found] * 4).texts
    assert [one.get_text() for one in expert_shares([found] * 6).texts] == ["2 more mixtures are not shown"]


def test_nothing_to_draw_is_an_error_with_the_next_step() -> None:
    with pytest.raises(AnalysisError) as error:
        pass_curves({})
    assert "mlsd" in error.value.hint


def test_a_roofline_has_both_roofs_the_passes_and_an_m2_ultra() -> None:
    facts = ModelFacts(
        ref=ModelRef(id="m"), architecture="qwen2", weight_bytes=10**8, active_bytes=10**8, n_parameters_active=10**8
    )
    own = timed_passes("a-model", facts, target_curve(points({1: 10.0, 2: 11.0, 4: 13.0, 8: 20.0})))
    roof = Roof(name="x", gb_s=12.0, gflop_s=80.0, stated_gb_s=24.0, source="")
    frame = study_frames.made(study_frames.traffic(own, None, roof), study_frames.BANDWIDTH)
    assert list(frame["of_stated"] * 2) == pytest.approx(list(frame["of_measured"]))
    (ax,) = roofline(frame).axes
    named = {str(line.get_label()): np.asarray(line.get_xydata(), dtype=float) for line in ax.lines}
    assert list(named["a-model"][:, 0]) == pytest.approx([2.0, 4.0, 8.0, 16.0])  # operations a byte
    here = next(line for label, line in named.items() if label.startswith("here, measured: 12 GB/s"))
    assert here[0, 1] == pytest.approx(12.0 * here[0, 0]), "the slope of memory"
    assert here[-1, 1] == pytest.approx(80.0, rel=0.1), "the level of arithmetic: the fastest wide pass"
    assert any("M2 Ultra" in label and "ridge at 23.6" in label for label in named)
