"""Executes the notebooks and keeps what they show. Run: python -m tools.notebook_outputs [--measure] [NAME ...].

With `--measure` the database that they read is measured anew before, by the commands of `notebooks/data/README.md`.
"""

import json
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
MEASURES = "running_a_suite"  # leaves results and a report where it runs
DATABASE = FOLDER / "data" / "tiny.sqlite"


def commands() -> list[list[str]]:
    """What made the database, each without `mlsd`."""
    lines = (FOLDER / "data" / "README.md").read_text(encoding="utf-8").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("    mlsd ")]


def measure() -> None:
    """The database anew; a machine with nothing else to do, or its times mean little."""
    with TemporaryDirectory() as place:
        for words in commands():
            subprocess.run([sys.executable, "-m", "mlsd", *words], cwd=place, check=True)
        made = Path(place) / "study.sqlite"
        with sqlite3.connect(made) as db:  # the folder of the checkout, in the paths of models
            for run_id, plan in db.execute("SELECT id, plan FROM run").fetchall():
                cut = plan.replace(json.dumps(f"{FOLDER.parent}/")[1:-1], "")
                db.execute("UPDATE run SET plan = ? WHERE id = ?", (cut, run_id))
        db.execute("VACUUM")
        db.close()
        DATABASE.write_bytes(made.read_bytes())


def executed(path: Path, database: Path = DATABASE) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, and nothing of when and where it ran; of another database by its one line."""
    book = nbformat.read(path, as_version=4)
    for cell in book.cells if database != DATABASE else ():
        cell.source = cell.source.replace('"data/tiny.sqlite"', repr(str(database)))
    with TemporaryDirectory() as place:
        where = place if path.stem == MEASURES else FOLDER
        NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(where)}}).execute()
    book.metadata = {"kernelspec": book.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in book.cells:
        cell.metadata = {}
    return book


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure()
    named = [name for name in sys.argv[1:] if name != "--measure"]
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if not named or notebook.stem in named:
            nbformat.write(executed(notebook), notebook)
