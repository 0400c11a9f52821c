"""A study as one file that others can check: its database, compressed, without what is nobody else's business.

It says nothing of who measured: no host name, no user name, no path (`PRIVATE`); machines are told apart by the key of
their host. Whether what a record says can be true is asked by `mlsd.analysis.audit.record_check`.
"""

import getpass
import gzip
import hashlib
import io
import platform
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from mlsd.errors import InputError, StoreError, TableError
from mlsd.formats.exports import write_file
from mlsd.outside import check_regular, read_given
from mlsd.store import database, rowcodec
from mlsd.store.merge import Merged, merge
from mlsd.store.rows import TrialFilter
from mlsd.store.schema import FROM_RECORD
from mlsd.store.store import Store

_MAGIC = b"SQLite format 3\0"
_MOST_BYTES = 128 << 20  # of an unpacked record


def _public_plan(text: str) -> str:
    plan = rowcodec.decode(text, dict[str, Any], "a plan")
    suites = [Path(suite).stem for suite in plan.get("suites") or ()]
    return rowcodec.encode({"profile": plan.get("profile"), "suites": suites, "decides": plan.get("decides")})


def _anonymous(text: str | None) -> str | None:
    """A text that a program wrote, without folders and without the names of this machine and its user."""
    user = ""
    with suppress(KeyError, OSError):  # a user without a name, as in containers
        user = getpass.getuser()
    for name, instead in ((platform.node(), "HOST"), (user, "USER")):
        if text is not None and name:
            text = re.sub(rf"\b{re.escape(name)}\b", instead, text)
    return rowcodec.without_folders(text)


def _public_trial(text: str) -> str:
    trial = rowcodec.trial_record(text, "a trial")
    reason, fell_back = _anonymous(trial.reason), _anonymous(trial.fell_back)
    return rowcodec.encode(replace(trial, text=None, reason=reason, fell_back=fell_back))


# Columns of which a record holds what these leave of them; all others hold nothing private.
PRIVATE: dict[tuple[str, str], Callable[[str], str | None]] = {
    ("run", "plan"): _public_plan,
    ("trial", "record"): _public_trial,
    ("warning", "message"): _anonymous,
}
# Servers of other programs count as they like, and agree with nothing; what cannot be is of no use to anybody.
_LEFT_OUT = """
DELETE FROM trial WHERE id IN (SELECT id FROM left_out);
DELETE FROM trial WHERE case_id IN (SELECT id FROM "case" WHERE json_extract(record, '$.server') IS NOT NULL);
DELETE FROM warning WHERE case_id IS NOT NULL AND case_id NOT IN (SELECT case_id FROM trial);
DELETE FROM "case" WHERE id NOT IN (SELECT case_id FROM trial);
DELETE FROM block WHERE id NOT IN (SELECT block_id FROM trial);
DROP TABLE temp.left_out;
"""


class RecordFile(NamedTuple):
    """A record as it was read."""

    store: Store
    data: bytes  # of the database


def write_record(store: Store, path: Path) -> int:
    """Write the record of a database to a file that appears whole or not at all; returns how many trials count in it.

    Raises: InputError, StoreError.
    """
    has_trials, left_out = any(store.trials(rounds=False)), [(trial_id,) for trial_id in store.impossible]
    with database.store_errors(store.path), closing(store.copy()) as copy:
        copy.execute("CREATE TEMP TABLE left_out (id INTEGER PRIMARY KEY)")
        copy.executemany("INSERT INTO left_out VALUES (?)", left_out)
        copy.executescript(_LEFT_OUT)
        for (table, column), rewrite in PRIVATE.items():
            copy.create_function("rewritten", 1, rewrite)
            copy.execute(f'UPDATE "{table}" SET "{column}" = rewritten("{column}")')
        copy.execute("VACUUM")
        n_trials: int = copy.execute("SELECT count(*) FROM current_trial").fetchone()[0]
        data = copy.serialize()
    if has_trials and not n_trials:
        raise InputError("It holds only trials of servers.", hint="A record holds what mlsd's own loop measured.")
    packed = gzip.compress(data, compresslevel=9, mtime=0)
    write_file(path, lambda out: out.write(packed))
    return n_trials


@contextmanager
def opened_study(path: Path) -> Iterator[Store]:
    """The trials of a database, or of a record of one, to be read."""
    beginning = b""
    with suppress(OSError):  # which the reader of a record names
        check_regular(path)  # a pipe would be waited for
        with path.open("rb") as file:
            beginning = file.read(len(_MAGIC))
    if beginning == _MAGIC:
        with Store.open(path, create=False, read_only=True) as store:
            yield store
    else:
        with opened_record(path) as record:
            yield record.store


@contextmanager
def opened_record(path: Path) -> Iterator[RecordFile]:
    """Raises: TableError for a file that is not a record, or of another version of mlsd."""
    hint = "Give a file that `mlsd record write DB` wrote."
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(read_given(path, TableError, hint))) as file:
            data = file.read(_MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TableError(f"{path} is not a record: {error}.", hint=hint) from error
    if len(data) > _MOST_BYTES:
        raise TableError(f"{path} unpacks to more than {_MOST_BYTES:,} bytes.", hint=hint)
    if not data.startswith(_MAGIC):
        raise TableError(f"{path} is not a record: it holds no database.", hint=hint)
    try:
        store = Store(path, database.image(data, path))
    except StoreError as error:
        raise TableError(f"{path} is not a record: {error.message}", hint=error.hint) from error
    with store:
        yield RecordFile(store, data)


def import_record(store: Store, file: RecordFile) -> Merged:
    """Add a record without problems to a database, whose runs then say where they came from. Raises: StoreError."""
    came = {FROM_RECORD: hashlib.sha256(file.data).hexdigest()}
    return merge(store, file.store, lambda run: replace(run, plan=run.plan | came))


def n_superseded(store: Store) -> int:
    """How many trials were measured again; they stand in the record, and count no more."""
    every, counts = (sum(1 for _ in store.trials(TrialFilter(superseded=all_), rounds=False)) for all_ in (True, False))
    return every - counts
