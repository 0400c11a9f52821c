"""The corpus: the source and built-in documentation of the running interpreter's standard library.

Owns which files are read, in which order, and which of them are held out. The interpreter's licence (PSF-2.0) covers
all of them. A file is held out when the hash of its relative name says so, so the split never depends on the machine.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

END = "<|endoftext|>"
_SKIPPED_PARTS = frozenset(
    # Tests, vendored code of other projects and tables of character codes teach little about Python.
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "ensurepip",
        "encodings",
        "_vendor",
        "pydoc_data",
    }
)
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")
_HELD_OUT_OF_256 = 12


@dataclass(frozen=True)
class Document:
    """One source file of the standard library."""

    name: str
    """Path below the standard library, with forward slashes."""
    text: str
    """Its content, newlines normalised."""
    held_out: bool
    """True when no model may be trained on it."""


def held_out(name: str) -> bool:
    """Whether the file called `name` belongs to the held-out part (12 of 256 hash values, about 5 %)."""
    return hashlib.sha256(name.encode()).digest()[0] < _HELD_OUT_OF_256


def is_skipped(name: str) -> bool:
    """Whether a part of the path `name` says that the file teaches little about Python."""
    parts = name.split("/")
    return bool(_SKIPPED_PARTS.intersection(parts)) or any(p.startswith(_SKIPPED_PREFIXES) for p in parts)


def documents(root: Path | None = None) -> list[Document]:
    """Every corpus file below `root` (default: this interpreter's standard library), sorted by name."""
    base = root or Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(base.rglob("*.py")):
        name = path.relative_to(base).as_posix()
        if is_skipped(name):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            found.append(Document(name=name, text=text, held_out=held_out(name)))
    return found


def digest(docs: list[Document]) -> str:
    """SHA-256 over names and texts in order: two machines with the same digest train on the same bytes."""
    total = hashlib.sha256()
    for doc in docs:
        total.update(doc.name.encode() + b"\0" + doc.text.encode() + b"\0")
    return total.hexdigest()
