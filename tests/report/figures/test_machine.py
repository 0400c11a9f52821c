"""Figures of the machine show what they were given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from mlsd.analysis.experts.amortization import mixture
from mlsd.analysis.experts.coverage import coverage_table
from mlsd.analysis.fits.bandwidth import bytes_lines as fit_lines
from mlsd.analysis.fits.calibration import target_curve
from mlsd.analysis.study.machine_findings import Machine, PassWork
from mlsd.errors import AnalysisError
from mlsd.report.figures.machine import (
    bytes_lines,
    expert_shares,
    pass_curves,
    roofline,
)
from mlsd.report.render import plot
from mlsd.stats import Interval
from tests.analysis.experts.test_coverage import MIXTURE, routed
from tests.analysis.fits.test_bandwidth import passes
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


def test_theory_count_time_and_claim_stand_together() -> None:
    found = mixture("mix", coverage_table(routed(0.5), MIXTURE), MIXTURE, points({1: 10.0, 2: 15.0, 4: 24.0}))
    svg = plot.render(lambda: expert_shares([found, found]), "e")
    drawn(
        svg, "counted, text", "independent uniform (MoESD)", "one correlation", "time, measured", "all weights a pass"
    )
    figure = expert_shares([found])
    times = next(line for line in figure.axes[1].lines if line.get_label() == "time, measured")
    assert list(np.asarray(times.get_ydata(), dtype=float)) == pytest.approx([1.0, 0.75, 0.6], rel=0.05)


def test_the_line_of_each_quantization_is_labelled_with_its_rate() -> None:
    timed = [*passes("Q8_0", 20.0, 1.0), *passes("F16", 10.0, 1.0)]
    found = SimpleNamespace(passes=timed, lines=fit_lines(timed))
    svg = plot.render(lambda: bytes_lines(found), "b")
    drawn(svg, "Q8_0", "F16", "GB/s", "fixed")


def test_nothing_to_draw_is_an_error_with_the_next_step() -> None:
    with pytest.raises(AnalysisError) as error:
        pass_curves({})
    assert "mlsd" in error.value.hint


def test_a_roofline_sets_passes_against_the_memory_that_was_measured() -> None:
    work = {"a-model": [PassWork(k=k, n_bytes=1e8, gflop=0.2 * k, ms=10.0 + k) for k in (1, 2, 4)]}
    memory = SimpleNamespace(stream={1: Interval(value=10.0)}, n_threads=1)
    left, right = roofline(cast("Machine", SimpleNamespace(work=work, bandwidth=memory))).axes
    assert [float(ms) for ms in np.asarray(left.lines[0].get_ydata())] == [11.0, 12.0, 14.0]
    times, speeds = (np.asarray(ax.lines[-1].get_xydata()) for ax in (left, right))
    assert times[:, 1] == pytest.approx(times[:, 0] / 10)  # MB over GB/s are ms
    assert speeds[:, 1] == pytest.approx(10 * speeds[:, 0])
    assert list(np.asarray(right.lines[0].get_xdata(), dtype=float)) == pytest.approx([2.0, 4.0, 8.0])
