"""The set of tiny models: every architecture, perturbed copies of it as drafts, and an unrelated model."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from mlsd.errors import InputError, choose
from mlsd.gguf_tools.shape import TINY, TINY_ATTENTION, Shape
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.table import TensorTable, read_tables
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.hashes import OnBytes, digest
from mlsd.records import Record

# Suffix of a perturbed copy -> how far its weights are from the original's, as a fraction of each weight.
NOISES = {"-noise003": 0.003, "-noise01": 0.01}
OTHER = "-other"
TABLES = read_tables()
# What is written when nothing is named: every architecture that speculative decoding is tested on.
TINY_SET: dict[str, Shape | TensorTable] = {**TINY, **TABLES}
_SHAPES = {**TINY_SET, **TINY_ATTENTION}


class TinyFile(Record, frozen=True, kw_only=True):
    """One file of the set."""

    name: str  # the file's name without .gguf
    path: str
    n_bytes: int
    sha256: str
    shape: str
    seed: int
    noise: float  # 0 for a model, else the fraction by which its weights differ from the model of the same seed
    n_parameters: int


def write_tiny_set(
    folder: Path, *, names: Iterable[str] = tuple(TINY_SET), seed: int = 0, on_bytes: OnBytes | None = None
) -> Iterator[TinyFile]:
    """Write each named shape, its perturbed copies and an unrelated model, yielding each file. Raises: InputError."""
    for name in names:
        if name not in _SHAPES:
            raise InputError(f"There is no tiny model {name!r}.", hint=choose(name, _SHAPES))
        shape, base = _SHAPES[name], folder / f"{name}.gguf"
        copies = [(f"{name}{suffix}", seed, noise) for suffix, noise in NOISES.items()]
        for file, own_seed, noise in ((name, seed, 0.0), *copies, (f"{name}{OTHER}", seed + 1, 0.0)):
            path = folder / f"{file}.gguf"
            if noise:
                perturb(base, path, noise=noise, seed=own_seed, on_bytes=on_bytes)
            else:
                write_random(path, shape, seed=own_seed, on_bytes=on_bytes)
            yield TinyFile(
                name=file,
                path=str(path),
                n_bytes=path.stat().st_size,
                sha256=digest(path),
                shape=shape.name,
                seed=own_seed,
                noise=noise,
                n_parameters=shape.n_parameters,
            )
