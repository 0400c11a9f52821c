"""What a database holds of the machine: the newest of each kind, this machine only, and what to measure next."""

from pathlib import Path

import msgspec
import pytest

import mlsd
from mlsd.analysis.predict.evidence import read_evidence
from mlsd.analysis.results.comparability import choose
from mlsd.errors import AnalysisError
from mlsd.records import EngineOptions, ModelFacts
from mlsd.store.rows import CalibrationPoint, PassKind, StreamRead, TimedPass, environment_key
from mlsd.store.store import Store
from tests.analysis.studies import DENSE, DRAFT, MACHINE, MOE, blocks, write

ELSEWHERE = msgspec.structs.replace(MACHINE, host="b" * 16)


def timed(
    store: Store, times: list[tuple[ModelFacts, PassKind, int, float]], host: str = MACHINE.host, **engine: object
) -> None:
    """A calibration run with these times in ms, three repeats of each."""
    plan = {"command": "calibrate", "engine": {**msgspec.to_builtins(EngineOptions()), **engine}}
    run_id = store.begin_run(msgspec.structs.replace(MACHINE, host=host), plan, 0)
    store.add_models([MOE, DENSE, DRAFT])
    store.add_figures(
        run_id,
        [
            CalibrationPoint(
                model_key=model.ref.key,
                kind=kind,
                rows=rows,
                depth=64,
                repeat=repeat,
                span_ns=round(1e6 * ms),
            )
            for model, kind, rows, ms in times
            for repeat in range(3)
        ],
    )
    store.end_run(run_id)


def curve(model: ModelFacts, t_one: float) -> list[tuple[ModelFacts, PassKind, int, float]]:
    """T(k) at three k."""
    return [(model, "target_pass", k, t_one + 0.5 * (k - 1)) for k in (1, 2, 4)]


def test_a_model_calibrated_as_target_and_then_as_draft_keeps_both(tmp_path: Path) -> None:
    with Store.open(tmp_path / "c.sqlite") as store:
        timed(store, curve(DRAFT, 1.0))
        pair: list[tuple[ModelFacts, PassKind, int, float]] = [
            (DRAFT, "draft_step", 1, 1.1),
            (DRAFT, "target_pass", 1, 1.2),
            (DRAFT, "target_pass", 2, 1.7),
        ]
        timed(store, [*curve(MOE, 9.0), *pair])
    found = mlsd.open_study(tmp_path / "c.sqlite").machine
    assert {name: curve.passes[0].ms.value for name, curve in found.curves.items()} == {
        "tiny-draft": 1.0,
        "tiny-moe-q4_0": 9.0,
    }
    costs = found.evidence.costs(environment_key(MACHINE), MOE.ref, DRAFT.ref)
    assert costs is not None
    assert (costs.step_ms, costs.pair_ms) == (1.1, 1.5)


def test_the_newest_calibration_counts_and_other_machines_do_not(tmp_path: Path) -> None:
    with Store.open(tmp_path / "c.sqlite") as store:
        timed(store, curve(DENSE, 5.0))
        timed(store, curve(DENSE, 6.0))
        timed(store, curve(MOE, 7.0), host=ELSEWHERE.host)
        timed(store, [(DENSE, "target_pass", 1, 8.0), (DENSE, "target_pass", 2, 6.5)])  # as a draft
    found = mlsd.open_study(tmp_path / "c.sqlite").machine
    assert {name: curve.passes[0].ms.value for name, curve in found.curves.items()} == {"tiny-dense": 6.0}


def test_the_newest_bandwidth_run_is_read_with_its_threads(tmp_path: Path) -> None:
    with Store.open(tmp_path / "c.sqlite") as store:
        for speed in (10.0, 20.0):
            run_id = store.begin_run(MACHINE, {"command": "bandwidth", "n_threads": 2}, 0)
            passes = [
                TimedPass(quant="Q8_0", n_bytes=n * 10**8, block=block, ms=1.0 + n * 100 / speed)
                for n in (1, 2, 4)
                for block in range(3)
            ]
            reads = [StreamRead(n_threads=n, repeat=0, gb_s=speed * n / 2) for n in (1, 2)]
            store.add_figures(run_id, [*reads, *passes])
            store.end_run(run_id)
    found = mlsd.open_study(tmp_path / "c.sqlite").machine.bandwidth
    assert found.lines[0].bandwidth_gb_s.value == pytest.approx(20.0, rel=1e-3)
    assert found.lines[0].fixed_ms.value == pytest.approx(1.0, rel=1e-2)
    assert {n: stream.value for n, stream in found.stream.items()} == {1: 10.0, 2: 20.0}
    assert found.verdict.agrees


def test_what_was_not_measured_says_the_command_that_measures_it(tmp_path: Path) -> None:
    db = tmp_path / "s.sqlite"
    study = mlsd.open_study(write(db, blocks(MOE, repeats=1, gammas=(4,))))
    for part, hint in (
        ("curves", f"mlsd calibrate MODEL --db {db}"),
        ("mixtures", f"mlsd calibrate tiny-moe-q4_0 --db {db}"),
        ("bandwidth", f"mlsd calibrate memory --db {db}"),
    ):
        with pytest.raises(AnalysisError) as error:
            getattr(study.machine, part)
        assert hint in error.value.hint


def test_passes_timed_under_other_settings_than_the_trials_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path / "s.sqlite", blocks(MOE))
    with Store.open(path) as store:
        timed(store, curve(MOE, 10.0), n_ctx=4096)  # more room changes no pass
        timed(store, curve(MOE, 3.0), n_threads=7)
        times = {p.span_ns for p in read_evidence([store]).passes[environment_key(MACHINE), MOE.ref.key]}
    assert min(times) == 10_000_000
    assert {p.span_ns for p in mlsd.open_study(path).machine.timed[MOE.ref.key]} == times
    with Store.open(path, read_only=True) as store:
        (note,) = choose(store).notes
    assert "run 3 is left out (n_threads 7 instead of auto)" in note
