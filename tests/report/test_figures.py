"""Every figure draws what there is, beside what was published, and never a plot of nothing."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure

import mlsd
from mlsd.analysis import frames
from mlsd.analysis.experts.coverage import coverage_table, mixture
from mlsd.analysis.fits.calibration import target_curve
from mlsd.analysis.frames import made
from mlsd.analysis.study.study import Study
from mlsd.analysis.study.traffic import Roof, timed_passes
from mlsd.errors import AnalysisError
from mlsd.records import ModelFacts, ModelRef
from mlsd.report.figures.machine import expert_shares, pass_curves, roofline
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.render import plot
from mlsd.report.render.sections import Page
from mlsd.report.tables.paper import study_rows
from tests.analysis.experts.test_coverage import MIXTURE, routed
from tests.analysis.fits.test_calibration import points
from tests.analysis.studies import DENSE, DRAFT, MACHINE, MOE, blocks, case, failed, model, trial, write

ALL = (*STUDY_FIGURES, *ROUND_FIGURES)
IDS = [entry[0] for entry in ALL]


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Study:
    of = case(MOE, "code", 4)
    path = write(tmp_path_factory.mktemp("study") / "failed.sqlite", [(of, failed(of, 1))])
    return mlsd.open_study(path)


@pytest.mark.heavy
def test_every_figure_of_a_whole_study_is_a_picture_with_ids_of_its_own_and_no_fixed_ink(page: Page) -> None:
    drawn = {picture.id: picture for picture in page.pictures}
    ids_before: set[str] = set()
    for entry in ALL:
        svg = drawn[entry.id].svg or ""
        root = ET.fromstring(plot.standalone(svg).encode())
        assert root.tag.endswith("svg") and len(list(root.iter())) > 40
        ids = set(re.findall(r'\bid="([^"]+)"', svg))
        assert not ids_before & ids and set(re.findall(r'href="#([^"]+)"', svg)) <= ids
        ids_before |= ids
        assert plot.INK + ";" not in svg.replace(f"var(--ink, {plot.INK})", "")
        if entry in STUDY_FIGURES:
            words = " ".join(root.itertext())
            assert "tiny-moe-q4_0" in words and "published; impossible" in words


@pytest.mark.parametrize("entry", ALL, ids=IDS)
def test_a_figure_of_nothing_says_what_is_missing(nothing: Study, entry: tuple) -> None:
    with pytest.raises(AnalysisError) as caught:
        entry[2](nothing)
    assert len(str(caught.value)) > 20


@pytest.mark.parametrize("name", ["$x_{", "a<b>&\"c'", "名前", "=HYPERLINK(1)"])
def test_a_strange_model_name_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    target = msgspec.structs.replace(MOE, ref=msgspec.structs.replace(MOE.ref, id=name))
    arms = [case(target, "code", gamma) for gamma in (0, 4, 8)]
    path = write(tmp_path / "s.sqlite", [(c, trial(c, r, r, i)) for r in range(3) for i, c in enumerate(arms)])
    study = mlsd.open_study(path)
    draw: Callable[[Study], Figure] = STUDY_FIGURES[1].draw
    svg = plot.render(lambda: draw(study), "name")
    assert name in " ".join(ET.fromstring(svg).itertext())


def test_a_sweep_of_prompts_without_lengths_is_no_figure_of_lengths(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE, "F", prompts=("code", "factual"), gammas=(8,)))
    study = mlsd.open_study(path)
    with pytest.raises(AnalysisError, match="exact length"):
        STUDY_FIGURES[-1].draw(study)


def test_every_length_is_a_line_and_a_label_and_many_lines_are_small_multiples(tmp_path: Path) -> None:
    made: dict[tuple, tuple] = {}
    for target, suite in ((MOE, "B"), (DENSE, "D")):
        for draft, length in itertools.product((DRAFT, model("other-draft")), (64, 256)):
            alpha = 0.0 if draft is DRAFT else 1.0
            found = blocks(target, suite, prompts=("code",), draft=draft, n_predict=length, alpha=alpha)
            made |= {(of.id, own.block, own.position): (of, own) for of, own in found}
    path = write(tmp_path / "s.sqlite", list(made.values()), msgspec.structs.replace(MACHINE, backend="CPU"))
    study = mlsd.open_study(path)
    active, over_gamma, _, acceptance, _ = (entry.draw for entry in STUDY_FIGURES)
    for draw in (over_gamma, acceptance):
        panels = draw(study).axes
        lines = [[line for line in ax.lines if "tiny-" in str(line.get_label())] for ax in panels]
        assert list(map(len, lines)) == [4, 4]
        assert all(list(line.get_xdata()) == [4, 8, 16] for own in lines for line in own)
        assert all(max(map(float, line.get_ydata())) < panels[0].get_ylim()[1] for own in lines for line in own)
        assert all(len({line.get_color() for line in own}) == len({line.get_label() for line in own}) for own in lines)
    with_interval = [bars for ax in active(study).axes for bars in ax.containers if bars.has_yerr]
    assert len(with_interval) == 8, "an arm with one prompt has its interval"
    assert not any(ax.lines[0].get_transform() == ax.transData for ax in active(study).axes), "intervals overlap"


def test_what_was_published_stands_at_the_gamma_of_the_axis(tmp_path: Path) -> None:
    study = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, gammas=(4,), prompts=("code",))))
    (ax,) = STUDY_FIGURES[0].draw(study).axes
    assert ax.get_ylabel() == "speedup at gamma 4"
    printed = {float(y) for line in ax.lines if "published" in str(line.get_label()) for y in line.get_ydata()}
    at = {row.gamma: {float(one.cells["speedup"]) for one in study_rows(study) if one.gamma == row.gamma}
          for row in study_rows(study)}  # fmt: skip
    assert printed and printed <= at[4] and not printed <= at[8]


def test_pairs_for_which_a_figure_has_no_room_are_counted_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [one for target, suite in ((MOE, "B"), (DENSE, "D")) for one in blocks(target, suite, prompts=("code",))]
    study = mlsd.open_study(write(tmp_path / "s.sqlite", made))
    draw = {entry.id: entry.draw for entry in ROUND_FIGURES}["equations"]
    assert not draw(study).texts
    monkeypatch.setattr("mlsd.report.figures.rounds._MOST_PAIRS", 1)
    assert [one.get_text() for one in draw(study).texts] == ["1 more pairs of models are not shown"]


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


def test_theory_and_count_stand_together() -> None:
    found = mixture("mix", coverage_table(routed(0.5), MIXTURE), MIXTURE, points({1: 10.0, 2: 15.0, 4: 24.0}))
    svg = plot.render(lambda: expert_shares([found, found, found]), "e")
    assert all(word in svg for word in ("counted, text", "independent uniform (MoESD)", "one correlation"))
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
    frame = made([msgspec.structs.replace(one, roof=roof) for one in own], frames.BANDWIDTH)
    assert list(frame["of_stated"] * 2) == pytest.approx(list(frame["of_measured"]))
    (ax,) = roofline(frame).axes
    named = {str(line.get_label()): np.asarray(line.get_xydata(), dtype=float) for line in ax.lines}
    assert list(named["a-model"][:, 0]) == pytest.approx([2.0, 4.0, 8.0, 16.0])  # operations a byte
    here = next(line for label, line in named.items() if label.startswith("here, measured: 12 GB/s"))
    assert here[0, 1] == pytest.approx(12.0 * here[0, 0]), "the slope of memory"
    assert here[-1, 1] == pytest.approx(80.0, rel=0.1), "the level of arithmetic: the fastest wide pass"
    assert any("M2 Ultra" in label and "ridge at 23.6" in label for label in named)


def test_what_a_reader_draws_beside_speedups_lies_inside_the_axes(tmp_path: Path) -> None:
    arms = mlsd.open_study(write(tmp_path / "s.sqlite", blocks(MOE, prompts=("code",)))).arms
    ax = mlsd.draw.speedups(arms)
    assert ax.get_ylim()[0] == 0.0
    ax.plot([4, 8], [0.5, 40.0], "x")  # as published
    low, high = ax.get_ylim()
    assert low == 0.0 and high > 40.0
    plt.close(ax.figure)
