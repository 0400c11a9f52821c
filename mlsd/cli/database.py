"""Options that say which study database a command reads, and which of its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlsd.cli.output import note, working

if TYPE_CHECKING:
    from mlsd.analysis.study.study import Study
    from mlsd.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])


def db_option(
    default: str = "the newest study database under results/", *names: str, **changes: Any
) -> Callable[[F], F]:
    """``--db``, with one help text everywhere; the command receives `db`, None when it was not given."""
    help_ = f"Study database [default: {default}]."
    return click.option("--db", *names, type=click.Path(path_type=Path), help=help_, **changes)


def study_options(command: F) -> F:
    """Add ``--db``, ``--machine`` and ``--settings``; the command receives `db`, `machine` and `settings`."""
    settings = "Which settings or file [default: those of most trials of a target]."
    machine = "Which machine, by the start of its key [default: the latest]."
    command = click.option("--settings", metavar="KEY", help=settings)(command)
    return db_option()(click.option("--machine", metavar="KEY", help=machine)(command))


def open_study(db: Path | None, machine: str | None, settings: str | None, *, say: bool = True) -> Study:
    """The trials of a database that may be compared; notes what was left out, without `say` only what cannot be."""
    from mlsd.store.store import Store

    with Store.open(find_database(db), create=False, read_only=True) as store:
        from mlsd.analysis.results.comparability import choose, left_out

        chosen = choose(store, machine, settings)  # what holds nothing is refused before anything heavy is imported
        with working("Loading the analysis"):
            from mlsd.analysis.study.study import study_of

        study = study_of(store, chosen)
        for text in study.notes if say else left_out(store):
            note(text)
    return study


def find_database(db: Path | None) -> Path:
    """The database given, else the newest; says which one where there are several. Raises: StoreError without any."""
    from mlsd.store.newest import newest_study, study_databases

    if db is not None:
        return db
    path = newest_study()
    if (count := len(study_databases())) > 1:
        note(f"Reading {path}, the newest of {count} databases; --db names another.")
    return path


def database_to_fill(db: Path | None) -> Path:
    """The database given, else the newest of ours, or a first one; says which before anything is measured."""
    from mlsd.store.newest import newest_or_new

    path = db or newest_or_new()
    if db is None and path.exists():
        note(f"Measuring into {path}; --db names another database.")
    return path


@contextmanager
def reading(db: Path | None) -> Iterator[Store]:
    """The database, open for reading only."""
    from mlsd.store.store import Store

    with Store.open(find_database(db), read_only=True) as store:
        yield store


def note_left_out(store: Store) -> None:
    """Say on standard error how many trials of the database cannot be true, where there are any."""
    from mlsd.analysis.results.comparability import left_out

    for text in left_out(store):
        note(text)
