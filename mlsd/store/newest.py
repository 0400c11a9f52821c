"""Which study database is meant where none is named: the one under results/ that was measured into last.

Other files there are not study databases and are passed over.
"""

from pathlib import Path

from mlsd.errors import StoreError
from mlsd.store.database import is_study, last_run

RESULTS = Path("results")
BENCHES = "bench"  # the study that benches, searches and first calibrations go to


def study_path(name: str) -> Path:
    """Where the study of that name is kept unless the user says otherwise."""
    return RESULTS / f"{name}.sqlite"


def study_databases() -> list[Path]:
    """Every study database under results/, the one that was measured into last at the end."""
    return sorted(filter(is_study, RESULTS.glob("*.sqlite")), key=lambda path: (last_run(path), path.name))


def newest_study() -> Path:
    """The study database under results/ with the last run of ours, of those with trials where there are any.

    Raises: StoreError without any.
    """
    if not (found := study_databases()):
        raise StoreError(
            "There is no study database under results/.", hint="Measure first (`mlsd run B`), or name a file with --db."
        )
    began = {path: last_run(path, with_trials=True) for path in found}
    return max(found, key=lambda path: (began[path], found.index(path)))


def newest_or_new() -> Path:
    """Where a measurement goes that belongs beside trials: the study database with our last run, or a first one."""
    ours = [path for path in study_databases() if last_run(path)]
    return ours[-1] if ours else study_path(BENCHES)
