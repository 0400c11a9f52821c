"""One command from the standard library to the files in the package: corpus, training, distillation, GGUF, card.

    python tools/tiny_family/build.py --run run --out mlsd/assets/tiny

`--family mlsd/assets/tiny` takes the trainings of the shipped family as done and only teaches its draft more. Each
stage is a script of its own in this folder and leaves its result and a mark in the run folder; a stage whose mark is
there is not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).parent
_TRAINED = ("tiny-dense", "tiny-moe", "tiny-draft", "tiny-draft-distilled")
_TARGETS = ("tiny-dense", "tiny-moe")


def stage(mark: Path, script: str, *arguments: str) -> None:
    """Run one script of this folder and leave `mark`, unless the mark is there already."""
    if mark.exists():
        print(f"{mark} is there, {script} is not run again")
        return
    subprocess.run([sys.executable, str(_HERE / script), *arguments], check=True)
    mark.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, required=True, help="folder for everything that does not ship")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files that ship")
    parser.add_argument("--family", type=Path, help="shipped family to go on from; by default all is trained anew")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    run, out = options.run, options.out
    where = ("--run", str(run))
    threads = ("--threads", str(options.threads))
    stage(run / "prepare.done", "prepare.py", *where)
    if options.family:
        stage(run / "restore.done", "restore.py", *where, "--family", str(options.family))
    else:
        stage(run / "ngram.done", "ngram.py", *where)
        for name in _TRAINED:
            stage(run / f"{name}.done", "train.py", name, *where, *threads)
        stage(run / "mtp.done", "mtp.py", *where)
        stage(run / "targets.done", "export.py", "targets", *where)
    for target in _TARGETS:
        stage(run / f"{target}-speech.done", "speech.py", target, *where)
    stage(run / "tiny-draft-wide.done", "wide.py", *where, *threads)
    stage(run / "evaluate.done", "evaluate.py", *where)
    stage(run / "files.done", "export.py", "files", *where, "--out", str(out))
    stage(run / "measure.done", "measure.py", *where, "--family", str(out), "--out", str(run / "acceptance.json"))
    stage(run / "card.done", "export.py", "card", *where, "--out", str(out))


if __name__ == "__main__":
    main()
