"""A small real study and its record, and ways to alter one."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlsd.api import bench
from mlsd.formats.record import FORMAT, SCHEMA, RecordFile, read_record, write_record
from mlsd.records import EngineOptions
from mlsd.store.store import Store

Leaf = tuple[str | int, ...]


def small_study(folder: Path) -> Path:
    """Plain and speculative decoding of an embedded model on two shipped prompts, twice each."""
    path = folder / "study.sqlite"
    with pytest.MonkeyPatch.context() as folders:  # shared fixtures make it, before a test has folders of its own
        for name in ("MLSD_HOME", "MLSD_CACHE"):
            folders.setenv(name, str(folder / "own"))
        bench(
            "tiny-dense",
            db=path,
            drafts=("tiny-draft",),
            gammas=(2,),
            prompts=("factual", "code"),
            n_predict=24,
            repeats=2,
            engine=EngineOptions(n_threads=1),
        )
    return path


def record_of(database: Path, path: Path) -> Path:
    with Store.open(database, read_only=True) as store:
        write_record(store, path)
    return path


def body(path: Path) -> dict[str, Any]:
    """The study inside a record, as plain JSON values."""
    study: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))["study"]
    return study


def write_body(path: Path, study: dict[str, Any], digest: str | None = None, **envelope: Any) -> RecordFile:
    """A record with that study, its digest made anew unless one is given; returns it as mlsd reads it."""
    encoded = json.dumps(study, separators=(",", ":"), ensure_ascii=False)
    stated = digest or hashlib.sha256(encoded.encode()).hexdigest()
    head = {"format": FORMAT, "schema": SCHEMA, "digest": stated, **envelope}
    text = json.dumps(head, separators=(",", ":"))[:-1] + ',"study":' + encoded + "}"
    path.write_bytes(gzip.compress(text.encode(), 1))
    return read_record(path)


def leaves(value: Any, path: Leaf = ()) -> Iterator[Leaf]:
    """The place of every number and text, and of every key of a dictionary (ending in ``"<key>"``)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    elif isinstance(value, bool | int | float | str):
        yield path


def change(study: dict[str, Any], leaf: Leaf, new: Callable[[Any], Any]) -> None:
    """Alter one value in place."""
    inner: Any = study
    for step in leaf[:-1]:
        inner = inner[step]
    inner[leaf[-1]] = new(inner[leaf[-1]])
