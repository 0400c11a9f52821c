"""What a study's sections on bandwidth and equations need beside its trials: T(k) of its targets, and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlsd.measure.run.bandwidth import measure_bandwidth
from mlsd.measure.run.calibration import calibrate
from mlsd.measure.run.runner import Watcher
from mlsd.measure.store.rows import CalibrationPoint, StreamRead
from mlsd.measure.store.store import Store
from mlsd.records import DRAFT_MODEL, EngineOptions, ModelRef

_SIZES_MB, _QUANTS, _READ_MB = (128, 256), ("Q8_0", "Q4_0", "F16"), 512
_WIDE = 5  # rows of a pass from which a model counts as timed as a target


def measure_costs(db: Path, suites: Sequence[str], watcher: Watcher, engine: EngineOptions, budget_s: float) -> None:
    """Time passes of every target of these suites beside its first draft, then read the memory; what is there stays.

    Raises: LockError, InputError, EngineError, WorkerError, StoreError.
    """
    with Store.open(db, create=False, read_only=True) as store:
        cases = [case for case in store.cases().values() if case.suite in suites]
        timed = {point.model_key for _, point in store.figures(CalibrationPoint) if point.rows >= _WIDE}
        read = any(True for _ in store.figures(StreamRead))
    drafts: dict[ModelRef, ModelRef | None] = {case.target: None for case in cases}
    for case in cases:
        if case.drafter.name == DRAFT_MODEL and drafts[case.target] is None:
            drafts[case.target] = case.drafter.draft
    for target, draft in drafts.items():
        if target.key not in timed:
            watcher.tell(f"T(k) of {target.id}: {budget_s:g} s")
            calibrate(target.id, None if draft is None else draft.id, db, watcher, budget_s=budget_s, engine=engine)
    if not read:
        watcher.tell("memory bandwidth")
        measure_bandwidth(db, watcher, sizes_mb=_SIZES_MB, quants=_QUANTS, repeats=3, read_mb=_READ_MB, engine=engine)
