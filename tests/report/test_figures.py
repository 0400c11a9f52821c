"""Every figure draws what there is, beside what was published, and never a plot of nothing."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import mlsd
from mlsd.analysis import frames
from mlsd.analysis.experts.coverage import coverage_table, mixture
from mlsd.analysis.fits.calibration import target_curve
from mlsd.analysis.frames import frame_of
from mlsd.analysis.study.study import Study
from mlsd.analysis.study.traffic import Roof, timed_passes
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.figures.draw import curve
from mlsd.report.figures.machine import expert_shares, pass_curves
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.render import plot
from mlsd.report.render.sections import Page
from mlsd.report.tables.paper import study_rows
from tests.analysis.experts.test_coverage import MIXTURE, routed
from tests.analysis.fits.test_calibration import points
from tests.analysis.studies import DENSE, DRAFT, MACHINE, MOE, blocks, case, failed, model, trial, write

IDS = [entry.id for entry in STUDY_FIGURES]


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Study:
    of = case(MOE, "code", 4)
    path = write(tmp_path_factory.mktemp("study") / "failed.sqlite", [(of, failed(of, 1))])
    return mlsd.open_study(path)


@pytest.mark.heavy
def test_every_figure_of_a_whole_study_is_a_picture_with_ids_of_its_own_and_no_fixed_ink(page: Page) -> None:
    drawn = {picture.id: picture for picture in page.pictures}
    ids_before: set[str] = set()
    for entry in STUDY_FIGURES:
        svg = drawn[entry.id].svg or ""
        root = ET.fromstring(plot.standalone(svg).encode())
        assert root.tag.endswith("svg") and len(list(root.iter())) > 40
        ids = set(re.findall(r'\bid="([^"]+)"', svg))
        assert not ids_before & ids and set(re.findall(r'href="#([^"]+)"', svg)) <= ids
        ids_before |= ids
        assert plot.INK + ";" not in svg.replace(f"var(--ink, {plot.INK})", "")
        content = " ".join(root.itertext())
        assert "tiny-moe-q4_0" in content and "published; impossible" in content


def test_an_interval_beyond_tenfold_is_not_drawn() -> None:
    values = pd.DataFrame({"gamma": [4, 8], "speedup": 0.5, "speedup_low": [0.4, 0.04], "speedup_high": [0.6, 6.0]})
    _, (ax,) = plot.canvas()
    curve(ax, values, "gamma", "speedup", "one", plot.look(0))
    low, high = ax.dataLim.intervaly
    assert (low, high) == (0.4, 0.6)


@pytest.mark.parametrize("entry", STUDY_FIGURES, ids=IDS)
def test_a_figure_of_nothing_says_what_is_missing(nothing: Study, entry: tuple) -> None:
    with pytest.raises(AnalysisError) as caught:
        entry[2](nothing)
    assert len(str(caught.value)) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$x_{", "a<b>&\"c'", "名前", "=HYPERLINK(1)"])
def test_a_strange_model_name_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    target = msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, id=name))
    arms = [case(target, "code", gamma) for gamma in (0, 4, 8)]
    path = write(tmp_path / "s.sqlite", [(c, trial(c, r, r, i)) for r in range(3) for i, c in enumerate(arms)])
    study = mlsd.open_study(path)
    draw: Callable[[Study], Figure] = STUDY_FIGURES[1].draw
    svg = plot.render(lambda: draw(study), "name")
    assert name in " ".join(ET.fromstring(svg).itertext())


def test_every_length_is_a_line_and_a_label_and_many_lines_are_small_multiples(tmp_path: Path) -> None:
    by_position: dict[tuple, tuple] = {}
    for target, suite in ((MOE, "B"), (DENSE, "D")):
        for draft, length in itertools.product((DRAFT, model("other-draft")), (64, 256)):
            alpha = 0.0 if draft is DRAFT else 1.0
            trials = blocks(target, suite, prompts=("code",), draft=draft, n_predict=length, alpha=alpha)
            by_position |= {(of.id, one.block, one.position): (of, one) for of, one in trials}
    path = write(tmp_path / "s.sqlite", list(by_position.values()), msgspec.structs.replace(MACHINE, backend="CPU"))
    study = mlsd.open_study(path)
    active, over_gamma, acceptance = (entry.draw for entry in STUDY_FIGURES)
    for draw in (over_gamma, acceptance):
        panels = draw(study).axes
        lines = [[line for line in ax.lines if "tiny-" in str(line.get_label())] for ax in panels]
        assert list(map(len, lines)) == [4, 4]
        assert all(list(line.get_xdata()) == [4, 8, 16] for group in lines for line in group)
        assert all(max(map(float, line.get_ydata())) < panels[0].get_ylim()[1] for group in lines for line in group)
        looks = [({line.get_color() for line in group}, {line.get_label() for line in group}) for group in lines]
        assert all(len(colors) == len(labels) for colors, labels in looks)
    with_interval = [bars for ax in active(study).axes for bars in ax.containers if bars.has_yerr]
    assert len(with_interval) == 8, "an arm with one prompt has its interval"


def test_what_was_published_stands_at_the_gamma_of_the_axis(tmp_path: Path) -> None:
    study = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, gammas=(4,), prompts=("code",))))
    (ax,) = STUDY_FIGURES[0].draw(study).axes
    assert ax.get_ylabel() == "speedup at gamma 4"
    printed = {float(y) for line in ax.lines if "published" in str(line.get_label()) for y in line.get_ydata()}
    at_4, at_8 = ({float(row["speedup"]) for row in study_rows(study) if row["gamma"] == gamma} for gamma in (4, 8))
    assert printed and printed <= at_4 and not printed <= at_8


@pytest.mark.parametrize("count", [3, 30])
def test_a_legend_of_many_lines_leaves_the_axes_their_size(count: int) -> None:
    figure, (ax,) = plot.canvas(3.4)
    for index in range(count):
        ax.plot([1, 2], label=f"tiny-moe-q4_0 + layer-skip (component recurrent, mode sync), gamma {index}")
    with plot.style():
        plot.legend([ax], 1)
        figure.draw_without_rendering()
        box, key = ax.get_window_extent(), figure.legends[0].get_window_extent()
    assert box.height / figure.dpi > 2
    assert key.y1 <= ax.get_tightbbox().y0


def test_a_curve_shows_its_kernel_step_and_names_its_model() -> None:
    curve = target_curve(points({k: 10 + 0.5 * k + (6 if k >= 9 else 0) for k in range(1, 34)}))
    svg = plot.render(lambda: pass_curves({"a-model": curve}), "t")
    assert all(word in svg for word in ("a-model", "T(k), ms", "Target efficiency"))
    figure = pass_curves({"a-model": curve})
    data = [np.asarray(line.get_xdata(), dtype=float) for line in figure.axes[0].lines]
    assert 8.5 in {x[0] for x in data if len(x) == 2 and x[0] == x[1]}


@pytest.mark.slow
def test_theory_and_count_stand_together() -> None:
    mixed = mixture("mix", coverage_table(routed(0.5), MIXTURE), MIXTURE, points({1: 10.0, 2: 15.0, 4: 24.0}))
    svg = plot.render(lambda: expert_shares([mixed, mixed, mixed]), "e")
    assert all(word in svg for word in ("counted, text", "independent uniform (MoESD)", "one correlation"))
    counted = next(line for line in expert_shares([mixed]).axes[0].lines if line.get_label() == "counted, text")
    assert list(np.asarray(counted.get_ydata(), dtype=float)) == [row.text for row in mixed.coverage.rows]


def test_nothing_to_draw_is_an_error_with_the_next_step() -> None:
    with pytest.raises(AnalysisError) as error:
        pass_curves({})
    assert "mlsd" in error.value.hint


def test_a_roofline_has_both_roofs_the_passes_and_an_m2_ultra() -> None:
    facts = ModelFacts(
        ref=ModelRef(id="m"), architecture="qwen2", weight_bytes=10**8, active_bytes=10**8, n_parameters_active=10**8
    )
    group = timed_passes("a-model", facts, target_curve(points({1: 10.0, 2: 11.0, 4: 13.0, 8: 20.0})))
    roof = Roof(name="x", gb_s=12.0, gflop_s=80.0, stated_gb_s=24.0, source="")
    frame = frame_of([msgspec.structs.replace(one, roof=roof) for one in group], frames.BANDWIDTH)
    assert list(frame["of_stated"] * 2) == pytest.approx(list(frame["of_measured"]))
    ax = mlsd.draw.roofline(frame)
    named = {str(line.get_label()): np.asarray(line.get_xydata(), dtype=float) for line in ax.lines}
    assert list(named["a-model"][:, 0]) == pytest.approx([2.0, 4.0, 8.0, 16.0])  # operations a byte
    here = next(line for label, line in named.items() if label.startswith("here, measured: 12 GB/s"))
    assert here[0, 1] == pytest.approx(12.0 * here[0, 0]), "the slope of memory"
    assert here[-1, 1] == pytest.approx(80.0, rel=0.1), "the level of arithmetic: the fastest wide pass"
    assert any("M2 Ultra" in label and "ridge at 23.6" in label for label in named)
    plt.close(ax.figure)


def test_what_a_reader_draws_beside_speedups_lies_inside_the_axes(tmp_path: Path) -> None:
    arms = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, prompts=("code",)))).arms
    ax = mlsd.draw.speedups(arms)
    assert ax.get_ylim()[0] == 0.0
    ax.plot([4, 8], [0.5, 40.0], "x")  # as published
    low, high = ax.get_ylim()
    assert low == 0.0 and high > 40.0
    plt.close(ax.figure)
