"""Databases of every past version: what version 1 wrote, taken through the steps since, with rows in what they add."""

import re
import sqlite3
from pathlib import Path

from mlsd.store import schema

DATABASES = Path(__file__).parent / "databases"


def old_database(version: int, path: Path) -> Path:
    """A database as that version left it behind."""
    rows = re.split(r"-- version (\d+)\n", (DATABASES / "later.sql").read_text(encoding="utf-8"))
    added = dict(zip(map(int, rows[1::2]), rows[2::2], strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.executescript((DATABASES / "v1.sql").read_text(encoding="utf-8"))
    for step in range(2, version + 1):
        database.executescript(schema.MIGRATIONS[step - 1] + added.get(step, ""))
    database.execute(f"PRAGMA user_version = {version}")
    database.commit()
    database.close()
    return path
