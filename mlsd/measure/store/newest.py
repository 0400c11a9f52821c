"""Which study database is meant where none is named: the newest one under results/.

Other files there are no study databases and are passed over.
"""

from __future__ import annotations

from pathlib import Path

from mlsd.errors import StoreError
from mlsd.measure.store.database import holds_trials, is_study

RESULTS = Path("results")
BENCHES = "bench"  # the study that benches, searches and first calibrations go to


def study_path(name: str) -> Path:
    """Where the study of that name is kept unless the user says otherwise."""
    return RESULTS / f"{name}.sqlite"


def study_databases() -> list[Path]:
    """Every study database under results/, the one written last at the end."""
    return sorted(filter(is_study, RESULTS.glob("*.sqlite")), key=_written_at)


def newest_study() -> Path:
    """The study database under results/ that was written last, of those with trials where there are any.

    A table that was imported last stands in nobody's way. Raises: StoreError without any.
    """
    if not (found := study_databases()):
        raise StoreError(
            "There is no study database under results/.",
            hint="Measure first (`mlsd run B`), or name a file with --db.",
        )
    return next(filter(holds_trials, reversed(found)), found[-1])


def newest_or_new() -> Path:
    """Where a measurement goes that belongs beside trials: the newest study database, or a first one."""
    found = study_databases()
    return found[-1] if found else study_path(BENCHES)


def _written_at(path: Path) -> float:
    """When a database was written; the newest rows may still be in its write-ahead log."""
    log = path.with_name(f"{path.name}-wal")
    return max(place.stat().st_mtime for place in (path, log) if place.exists())
