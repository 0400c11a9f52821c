"""Timing passes: every cell once a repeat, in random order, until tight or late; experts beside it."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mlsd.clock import MonotonicClock
from mlsd.errors import EngineError, ModelFileError, PromptError
from mlsd.measure.messages import CalibrateJob, Passes
from mlsd.measure.parent.calibration import run_calibration, time_and_store
from mlsd.measure.worker.calibrate import Calibration, contexts
from mlsd.models.library import resolve_model
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import load_prompt
from mlsd.records import EngineOptions
from mlsd.store.rows import CalibrationPoint, Coverage
from mlsd.store.store import Store

WIDTHS = (1, 2, 3, 5)
ENGINE = EngineOptions(n_threads=1)


def model_file(path: Path) -> ModelFile:
    model = resolve_model(str(path))
    return ModelFile(ref=model.ref, path=str(model.path))


def job(target: Path, draft: Path | None = None, **changes: object) -> CalibrateJob:
    made = CalibrateJob(
        target=model_file(target),
        draft=None if draft is None else model_file(draft),
        engine=ENGINE,
        text=load_prompt("length-256").text,
        rows=WIDTHS,
        depths=(24,),
        budget_s=0.01,
        least_repeats=2,
    )
    return msgspec.structs.replace(made, **changes)


def passes(work: CalibrateJob) -> list[Passes]:
    with closing(Calibration(work, MonotonicClock())) as calibration:
        return list(calibration.repeats())


@pytest.mark.parametrize("name", ["llama", "qwen35moe", "falcon-h1"])
def test_each_repeat_times_every_cell_once(tiny: Path, name: str) -> None:
    found = passes(job(tiny / f"{name}.gguf", tiny / f"{name}-noise01.gguf"))
    assert len(found) == 2  # the budget is over at once, but so many repeats were asked for
    for repeat, event in enumerate(found):
        cells = [(p.model_key, p.kind, p.rows, p.depth) for p in event.points]
        assert len(cells) == len(set(cells))
        assert {p.repeat for p in event.points} == {repeat}
        assert all(p.span_ns > 0 for p in event.points)
        assert len({p.model_key for p in event.points}) == 2
        kinds = {(p.kind, p.rows) for p in event.points}
        assert {("target_pass", width) for width in WIDTHS} <= kinds
        assert {("sample", width) for width in WIDTHS} <= kinds
        assert {("draft_step", 1), ("draft_step", 2), ("prefill", 24), ("rollback", 5)} <= kinds
        assert (("checkpoint", 0) in kinds) == (name != "llama")
    cells_of = [[(p.model_key, p.kind, p.rows) for p in event.points] for event in found]
    assert set(cells_of[0]) == set(cells_of[1])


def test_repeats_go_on_until_intervals_are_tight_or_time_is_up(tiny: Path) -> None:
    one = passes(job(tiny / "llama.gguf", rows=(1, 2), budget_s=600.0, precision=1e9, least_repeats=0))
    assert len(one) == 3  # the first repeat count that has an interval
    assert one[-1].half_width is not None and one[0].half_width is None
    late = passes(job(tiny / "llama.gguf", rows=(1, 2), budget_s=0.5, precision=1e-9, least_repeats=0))
    assert late[-1].half_width is None or late[-1].half_width > 1e-9


class PassClock:
    """A clock that moves by a second each time it is read: a pass takes a second or more."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        self.ns += 1_000_000_000
        return self.ns


def test_the_budget_binds_between_passes_and_what_matters_most_comes_first(tiny: Path) -> None:
    widths = tuple(range(1, 18))
    timed: dict[float, list[int]] = {}
    important = [1, 2, 5, 9, 17]
    for budget_s in (1.0, 100.0, 200.0, 300.0, 1e6):
        clock = PassClock()
        work = job(tiny / "llama.gguf", rows=widths, budget_s=budget_s, precision=1e9, least_repeats=0)
        with closing(Calibration(work, clock)) as calibration:
            first = next(iter(calibration.repeats()))
            spent = calibration.spent()
        timed[budget_s] = [p.rows for p in first.points if p.kind == "target_pass"]
        measured = sum(seconds for part, seconds in spent.seconds.items() if part not in ("load", "prefill"))
        # T(1) takes some readings of the clock however short the budget is; after it one pass and its book-keeping.
        assert measured <= max(30.0, budget_s + 10)
    assert timed[1.0] == [1]
    assert sorted(timed[1e6]) == list(widths)
    counts = []
    for found in timed.values():
        most = [width for width in important if width in found]
        assert most == important[: len(most)]
        assert [width for width in found if width in important] == most  # in this order
        counts.append(len(found))
    assert counts == sorted(counts)
    assert 1 < counts[1] < counts[3] < len(widths)


def test_a_budget_is_of_passes_and_not_of_filling_their_contexts(tiny: Path) -> None:
    text = load_prompt("length-1024").text
    for budget_s, n_timed in ((20.0, 1), (1e6, 4)):
        work = job(tiny / "llama.gguf", text=text, rows=(1, 3, 5, 9), depths=(700,), budget_s=budget_s, least_repeats=0)
        with closing(Calibration(work, PassClock())) as calibration:
            points = next(iter(calibration.repeats())).points
        assert len([point for point in points if point.kind == "target_pass"]) >= n_timed
        assert any(point.kind == "prefill" for point in points)


@pytest.mark.parametrize("name", ["qwen35", "falcon-h1"])
def test_rollbacks_are_timed_whether_the_engine_keeps_snapshots_or_not(tiny: Path, name: str) -> None:
    work = job(tiny / f"{name}.gguf", rows=(1, 2), budget_s=100.0, precision=1e9, least_repeats=0)
    with closing(Calibration(work, PassClock())) as calibration:
        rollbacks = [p for p in next(iter(calibration.repeats())).points if p.kind == "rollback"]
    assert [p.rows for p in rollbacks] == [2]


def test_contexts_keep_as_many_snapshots_as_their_widest_pass() -> None:
    assert contexts((1, 2, 3, 4, 5, 9, 16, 17, 33)) == [[1], [2], [3, 4], [5], [9, 16], [17], [33]]


def test_experts_are_counted_on_text_and_on_drafts(tiny: Path) -> None:
    work = job(tiny / "qwen35moe.gguf", tiny / "qwen35moe-noise01.gguf", windows=(1, 2, 4), n_experts=16)
    with closing(Calibration(work, MonotonicClock())) as calibration:
        found = calibration.coverage()
        n_text = len(calibration.text)
    assert {(c.source, c.window) for c in found.coverage} == {(s, w) for s in ("text", "draft") for w in (1, 2, 4)}
    for row in found.coverage:
        assert min(row.distinct) >= 4 and max(row.distinct) <= min(16, 4 * row.window)
        if row.window == 1:
            assert row.distinct_mean == 4  # K experts a token
    by_window = {c.window: c.n_windows for c in found.coverage if c.source == "text" and c.layer == 0}
    assert by_window[1] - by_window[4] == 3
    assert by_window[1] <= n_text
    for load in found.loads:
        if load.source == "text":
            assert sum(load.chosen) == 4 * by_window[1]


def test_text_depth_and_draft_that_cannot_work_are_refused_before_timing(tiny: Path) -> None:
    with pytest.raises(PromptError, match="--depth"):
        passes(job(tiny / "llama.gguf", text="too short", depths=(64,)))
    with pytest.raises(EngineError, match="positions of this model"):
        passes(job(tiny / "llama.gguf", text=load_prompt("length-1024").text * 3, depths=(5000,)))
    with pytest.raises(EngineError):
        passes(job(tiny / "llama.gguf", resolve_model("tiny-draft").path))
    broken = ModelFile(ref=model_file(tiny / "llama.gguf").ref, path=str(tiny / "none.gguf"))
    with pytest.raises(ModelFileError):  # the worker's own error comes through
        list(run_calibration(msgspec.structs.replace(job(tiny / "llama.gguf"), target=broken)))


def test_a_calibration_lies_in_the_store_beside_the_machine(tiny: Path, tmp_path: Path) -> None:
    work = job(tiny / "qwen35moe.gguf", windows=(1, 2), n_experts=16)
    result = time_and_store(work, tmp_path / "c.sqlite")
    with Store.open(tmp_path / "c.sqlite") as store:
        stored = list(store.figures(CalibrationPoint))
        assert tuple(point for _, point in stored) == result.target_points
        assert {run_id for run_id, _ in stored} == {result.run_id}
        assert tuple(c for _, c in store.figures(Coverage)) == result.coverage
        run = store.runs()[0]
    assert run.status == "finished"
    assert run.plan["command"] == "calibrate"
    assert run.plan["target"] == msgspec.to_builtins(work.target.ref)
    assert str(tiny) not in msgspec.json.encode(run.plan).decode()
    assert result.spent is not None and result.spent.seconds["passes"] > 0
    assert run.environment.llama_cpp_build
