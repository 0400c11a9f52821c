"""Executes the notebooks and keeps what they show. Run: python -m tools.notebook_outputs [NAME ...]."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
MEASURES = "running_a_suite"  # leaves results and a report where it runs


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, and nothing of when and where it ran."""
    book = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as place:
        where = place if path.stem == MEASURES else FOLDER
        NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(where)}}).execute()
    book.metadata = {"kernelspec": book.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in book.cells:
        cell.metadata = {}
    return book


if __name__ == "__main__":
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if not sys.argv[1:] or notebook.stem in sys.argv[1:]:
            nbformat.write(executed(notebook), notebook)
