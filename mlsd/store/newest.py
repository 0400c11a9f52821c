"""Which study database is meant where none is named: the one under results/ that was measured into last.

Other files there are not study databases and are passed over.
"""

from pathlib import Path

from mlsd.errors import StoreError
from mlsd.store.database import last_runs

RESULTS = Path("results")
BENCHES = "bench"  # the study that benches, searches and first calibrations go to


def study_path(name: str) -> Path:
    """Where the study of that name is kept unless the user says otherwise."""
    return RESULTS / f"{name}.sqlite"


def study_databases() -> dict[Path, tuple[str, str]]:
    """Every study database under results/, the one that was measured into last at the end, with its `last_runs`."""
    databases = {path: began for path in RESULTS.glob("*.sqlite") if (began := last_runs(path)) is not None}
    return dict(sorted(databases.items(), key=lambda study: (study[1][0], study[0].name)))


def newest_study() -> Path:
    """The study database under results/ with the last run of ours, of those with trials where there are any.

    Raises: StoreError without any.
    """
    if not (databases := study_databases()):
        raise StoreError(
            "There is no study database under results/.", hint="Measure first (`mlsd run B`), or name a file with --db."
        )
    return max(reversed(databases), key=lambda path: databases[path][1])


def newest_or_new() -> Path:
    """Where a measurement goes that belongs beside trials: the study database with our last run, or a first one."""
    ours = [path for path, (began, _) in study_databases().items() if began]
    return ours[-1] if ours else study_path(BENCHES)
