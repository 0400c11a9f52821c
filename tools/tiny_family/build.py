"""One command from the standard library to the files in the package: corpus, training, distillation, GGUF, card.

    python tools/tiny_family/build.py --run run --out mlsd/assets/tiny

`--family mlsd/assets/tiny` takes the trainings of the shipped family as done and only teaches its draft more. Each
stage is a function of a file in this folder and leaves its result and a mark in the run folder; a stage whose mark is
there is not repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import evaluate
import export
import mtp
import speech
import torch
import train
import wide
from measure import measure
from ngram import score
from prepare import prepare
from restore import restore

_TRAINED = ("tiny-dense", "tiny-moe", "tiny-draft", "tiny-draft-distilled")


def stage(mark: Path, work: Callable[[], None], n_threads: int = 1) -> None:
    """Do some work and leave `mark`, unless the mark is there already."""
    if mark.exists():
        print(f"{mark} is there, its stage is not run again")
        return
    torch.set_num_threads(n_threads)
    work()
    mark.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, required=True, help="folder for everything that does not ship")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files that ship")
    parser.add_argument("--family", type=Path, help="shipped family to go on from; by default all is trained anew")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    run, out, n_threads = options.run, options.out, options.threads
    run.mkdir(parents=True, exist_ok=True)
    stage(run / "prepare.done", partial(prepare, run))
    if options.family:
        stage(run / "restore.done", partial(restore, options.family, run))
    else:
        stage(run / "ngram.done", partial(score, run))
        for name in _TRAINED:
            stage(run / f"{name}.done", partial(train.train, name, run), n_threads)
        stage(run / "mtp.done", partial(mtp.train, run))
        stage(run / "targets.done", partial(export.write_targets, run))
    for target in train.TARGETS:
        stage(run / f"{target}-speech.done", partial(speech.write, target, run))
    stage(run / "tiny-draft-wide.done", partial(wide.train, run), n_threads)
    stage(run / "evaluate.done", partial(evaluate.write, run))
    stage(run / "files.done", partial(export.write_files, run, out))
    stage(run / "measure.done", partial(measure, out, run))
    stage(run / "card.done", partial(export.write_card, run, out))


if __name__ == "__main__":
    main()
