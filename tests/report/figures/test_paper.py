"""Every figure draws what there is, beside what was published, and never a plot of nothing."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure

import mlsd
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.report.figures.paper import STUDY_FIGURES
from mlsd.report.figures.rounds import ROUND_FIGURES
from mlsd.report.render import plot
from mlsd.report.render.sections import Page
from mlsd.report.tables.paper import study_rows
from tests.analysis.studies import DENSE, DRAFT, MACHINE, MOE, blocks, case, failed, model, trial, write

ALL = (*STUDY_FIGURES, *ROUND_FIGURES)
IDS = [entry[0] for entry in ALL]


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Study:
    of = case(MOE, "code", 4)
    path = write(tmp_path_factory.mktemp("study") / "failed.sqlite", [(of, failed(of, 1))])
    return mlsd.open_study(path)


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
            found = blocks(target, suite, prompts=("code",), draft=draft, n_predict=length)
            made |= {(of.id, own.block, own.position): (of, own) for of, own in found}
    path = write(tmp_path / "s.sqlite", list(made.values()), msgspec.structs.replace(MACHINE, backend="CPU"))
    study = mlsd.open_study(path)
    active, over_gamma, _, acceptance, _ = (entry.draw for entry in STUDY_FIGURES)
    for draw in (over_gamma, acceptance):
        panels = draw(study).axes
        lines = [[line for line in ax.lines if "tiny-" in str(line.get_label())] for ax in panels]
        assert list(map(len, lines)) == [4, 4]
        assert all(list(line.get_xdata()) == [4, 8, 16] for own in lines for line in own)
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
