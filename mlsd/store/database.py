"""Opening a study database: which file is ours, of which version, and what SQLite's failures mean to a user.

Owns the connection, the look at a file before and while it is written, and the one translation of SQLite errors.
"""

import functools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mlsd.errors import DatabaseLockedError, StoreError
from mlsd.names import clean
from mlsd.store import schema

WRITER_WAIT_S = 30
_READER_WAIT_S = 5.0  # a writer waits longer: a run holds trials that it cannot measure again
MOST_VALUE_BYTES = 256 << 20  # of one text; the longest is the output of a trial


# What SQLite's primary result codes mean to a user, and what to do.
_LOCKED = (
    "{path} is locked by another program, for longer than {limit}.",
    "Wait for the other run to end, or close the other program.",
)
_UNWRITABLE = (
    "{path} cannot be opened for writing ({error}).",
    "Check the permissions of the file and of its folder, or give a writable place with --db.",
)
_FAILURES = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_NOTADB: ("{path} is not a results database.", "Give the file that `mlsd run --db` wrote."),
    sqlite3.SQLITE_FULL: (
        "The disk that holds {path} is full.", "Free some space and run again: finished trials are kept."
    ),
    sqlite3.SQLITE_CORRUPT: (
        "{path} is damaged ({error}).", "Restore a copy, or save what is left with `sqlite3 FILE .recover`."
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "{path} refused a row: {error}.", "The same measurement may have been written by another run."
    ),
}  # fmt: skip
_ANY_FAILURE = ("{path}: {error}.", "Check the disk, and the file with `mlsd results check`.")


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn every SQLite failure inside into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte of an extended result code is the primary one (sqlite.org/rescode.html).
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        message, hint = _FAILURES.get(code, _ANY_FAILURE)
        kind, limit = (DatabaseLockedError, f"{WRITER_WAIT_S} s") if message == _LOCKED[0] else (StoreError, "")
        raise kind(message.format(path=path, error=error, limit=limit), hint=hint) from error


def connect(path: Path, *, create: bool, read_only: bool) -> sqlite3.Connection:
    """Open `path`, or make it.

    Raises: StoreError for a database of another version and for anything else that is not a study database, and
        leaves such files untouched.
    """
    _check_path(path, create=create and not read_only)
    with store_errors(path):
        if read_only:
            return _connect_read_only(path)
        connection = _raw_connection(path, "rwc" if create else "rw")
        with _closed_on_failure(connection):
            if not _is_empty(connection, path):
                _check_whole(connection, path)
            connection.execute("PRAGMA journal_mode = WAL")
            # In WAL mode NORMAL survives the death of any process; only a power cut may cost the last trials.
            connection.execute("PRAGMA synchronous = NORMAL")
            if _is_empty(connection, path):
                with transaction(connection):
                    if _is_empty(connection, path):  # another process may have made them by now
                        _make_tables(connection)
            connection.execute("PRAGMA foreign_keys = ON")
        return connection


def is_study(path: Path) -> bool:
    """Whether mlsd wrote the file, in today's version; nothing is changed."""
    return last_runs(path) is not None


def last_runs(path: Path) -> tuple[str, str] | None:
    """When the last run began that was measured into a database, not imported, and the last of those that hold trials.

    ISO 8601, empty where there is none or it cannot be read; None where mlsd did not write the file. Nothing is
    changed: not even an empty write-ahead log is made.
    """
    # Opened read-only alone, SQLite makes a write-ahead log where there is none.
    log, moments = Path(f"{path}-wal"), None
    try:
        mode = "ro" if log.exists() and log.stat().st_size else "ro&immutable=1"
        with closing(_raw_connection(path, mode)) as connection:
            if not _is_empty(connection, path):
                moments = "", ""
                _check_programs(connection, path)
                began = "max(CAST(started_at AS TEXT))"
                held = "EXISTS (SELECT 1 FROM block WHERE block.run_id = run.id)"
                from_record = f"CASE WHEN json_valid(plan) THEN json_extract(plan, '$.{schema.FROM_RECORD}') END"
                query = f"SELECT {began}, {began} FILTER (WHERE {held}) FROM run WHERE {from_record} IS NULL"
                every, with_trials = connection.execute(query).fetchone()
                moments = every or "", with_trials or ""
    except (sqlite3.Error, StoreError):
        pass
    return moments


@contextmanager
def transaction(connection: sqlite3.Connection, check: Callable[[], None] | None = None) -> Iterator[None]:
    """Everything inside or nothing; the write lock is taken at the start. `check` may still refuse the commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if check is not None:
            check()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled back already
            connection.execute("ROLLBACK")
        raise


class DatabaseFile:
    """Which file a connection writes to: SQLite goes on writing into one that was deleted."""

    def __init__(self, path: Path) -> None:
        names = (path.absolute(), Path(f"{path.absolute()}-wal"))
        self._files: dict[Path, tuple[int, int] | None] = dict.fromkeys(names)
        self.check()

    def check(self) -> None:
        """Raises: StoreError when the database, or its write-ahead log, is not the file that was opened."""
        for name, identity in self._files.items():
            try:
                status = name.stat()
                now = status.st_dev, status.st_ino
            except OSError:
                now = None
            if identity is None:
                self._files[name] = now
            elif now != identity:
                raise StoreError(
                    f"{name} was {'deleted' if now is None else 'replaced'} while it was being written.",
                    hint="What was measured before that is in the old file; put it back, or run again into a new one.",
                )


def schema_problems(connection: sqlite3.Connection) -> list[str]:
    """Tables, columns, indexes and views that the file does not have, and programs that it has."""
    missing = sorted(f"{what} is missing" for what in _wanted().keys() - _contents(connection).keys())
    return missing + _strange(connection)


def additions(connection: sqlite3.Connection) -> list[str]:
    """Tables, columns and indexes that mlsd did not make: they may hold anything."""
    return sorted(f"{what} is not of mlsd" for what in _contents(connection).keys() - _wanted().keys())


def _strange(connection: sqlite3.Connection) -> list[str]:
    """Views and triggers that mlsd did not make: they run whenever a table is read or written."""
    programs = {what: sql for what, sql in _contents(connection).items() if sql}
    return sorted(
        f"{what} is not the one that mlsd made" for what, sql in programs.items() if _wanted().get(what) != sql
    )


def _check_programs(connection: sqlite3.Connection, path: Path) -> None:
    if strange := _strange(connection):
        raise StoreError(
            f"{path}: {strange[0]}.",
            hint="It was changed by another program: restore a copy, or take the tables out by hand.",
        )


def _contents(connection: sqlite3.Connection) -> dict[str, str]:
    """Each table, column and index, and the SQL of each program: views, triggers and virtual tables."""
    program = "(type IN ('view', 'trigger') OR sql LIKE 'create virtual%')"
    rows = connection.execute(
        f"SELECT type || ' ' || name, iif({program}, sql, '') FROM sqlite_schema "
        f"WHERE name NOT LIKE 'sqlite_%' OR {program} UNION ALL "
        "SELECT 'column ' || kind.name || '.' || own.name, '' FROM sqlite_schema AS kind, pragma_table_info(kind.name) "
        "AS own WHERE kind.type = 'table' AND kind.sql NOT LIKE 'create virtual%'"
    )
    return {str(what): " ".join(str(sql).split()).rstrip(";") for what, sql in rows}


@functools.cache
def _wanted() -> dict[str, str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _make_tables(connection)
        return _contents(connection)


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in schema.TABLES.split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def _check_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse to write into a file that has a damaged page or lacks a table: that would cost what is left of it."""
    problems = [str(line) for (line,) in connection.execute("PRAGMA quick_check(3)") if line != "ok"]
    problems += schema_problems(connection)
    if problems:
        raise StoreError(
            f"{path} is damaged: {problems[0]}.",
            hint="Nothing was written. Restore a copy, or save what is left with `sqlite3 FILE .recover`.",
        )


def _check_path(path: Path, *, create: bool) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder, not a results database.", hint="Give the path of a file with --db.")
    if path.exists():
        return
    if not create:
        raise StoreError(
            f"There is no results database at {path}.",
            hint="Run a suite first (`mlsd run B`), or give another file with --db.",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The folder {path.parent} cannot be created: {error.strerror}.", hint="Give a writable place with --db."
        ) from error


def _raw_connection(path: Path, mode: str) -> sqlite3.Connection:
    """A connection with SQLite's defences on: a database may come from anybody (sqlite.org/security.html).

    Raises: StoreError for a pipe or a device, which may never end.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is not a regular file.", hint="Give the path of a results database with --db.")
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    wait_s = _READER_WAIT_S if mode.startswith("ro") else WRITER_WAIT_S
    return _defended(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=wait_s))


def _defended(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
    connection.text_factory = lambda data: clean(data.decode("utf-8", "replace"))
    return connection


def _connect_read_only(path: Path) -> sqlite3.Connection:
    try:
        return _readable(_raw_connection(path, "ro"), path)
    except sqlite3.OperationalError:
        if Path(f"{path}-wal").exists():
            raise
        # In a folder that cannot be written SQLite cannot make the WAL's index; without a WAL nothing is missing.
        return _readable(_raw_connection(path, "ro&immutable=1"), path)


def image(data: bytes, path: Path) -> sqlite3.Connection:
    """The database that these bytes are, in memory, defended as any other. Raises: StoreError."""
    with store_errors(path):
        connection = _defended(sqlite3.connect(":memory:", isolation_level=None))
        with _closed_on_failure(connection):
            # In memory there is no write-ahead log: bytes 18 and 19 say whether there is one (sqlite.org/fileformat).
            connection.deserialize(data[:18] + b"\1\1" + data[20:])
            return _readable(connection, path)


@contextmanager
def _closed_on_failure(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _readable(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The connection to a database that has nothing strange."""
    with _closed_on_failure(connection):
        if _is_empty(connection, path):
            raise StoreError(f"{path} is an empty file.", hint="Run a suite into it, or give another file with --db.")
        _check_programs(connection, path)
    return connection


def copied(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A copy in memory."""
    copy = _defended(sqlite3.connect(":memory:", isolation_level=None))
    connection.backup(copy)
    return copy


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has no tables yet. Raises: StoreError for another version, and for somebody else's database."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (n_objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if n_objects == 0 and version == 0 and application == 0:
        return True
    if application != schema.APPLICATION_ID:
        raise StoreError(f"{path} is an SQLite database that mlsd did not write.", hint="Give another file with --db.")
    if version != schema.VERSION:
        raise StoreError(
            f"{path} was written by another version of mlsd: its tables are version {version}, and this one reads "
            f"version {schema.VERSION}.",
            hint="Read it with the mlsd that wrote it, or measure into a new file with --db.",
        )
    return False
