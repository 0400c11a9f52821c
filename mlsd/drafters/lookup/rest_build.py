"""Building a REST store: text files in, one suffix store out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mlsd.drafters.lookup.suffix_store import SEPARATOR, StoreHeader, write_store
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.vocabulary import vocabulary_sha256
from mlsd.errors import InputError
from mlsd.records import ModelRef

_PIECE_BYTES = 1 << 20


def build_store(
    texts: Sequence[Path],
    model_path: Path,
    model: ModelRef,
    out: Path,
    on_bytes: Callable[[str, int], None] | None = None,
) -> StoreHeader:
    """Tokenize `texts`, each a document, with the tokenizer of the GGUF at `model_path`, sort them and write `out`.

    Only the vocabulary of the model is loaded. `on_bytes` hears the name of a file and how many bytes of it were read.
    Raises: InputError when a text cannot be read or `out` not be written, ModelFileError for the model.
    """
    if not out.parent.is_dir():
        raise InputError(f"There is no folder {out.parent}.", hint="Make it first.")
    for path in texts:
        if not path.is_file():
            raise InputError(f"There is no text file {path}.")
    parts: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    with LlamaModel(model_path, n_gpu_layers=0, vocab_only=True) as loaded:
        for path in texts:
            for piece, n_bytes in _pieces(path):
                parts.append(np.array(loaded.tokenize(piece, add_special=False), dtype=np.int32))
                if on_bytes is not None:
                    on_bytes(path.name, n_bytes)
            parts.append(np.array([SEPARATOR], dtype=np.int32))
        sha256 = vocabulary_sha256(loaded)
        n_vocab = loaded.vocabulary.n_tokens
    return write_store(out, np.concatenate(parts), n_vocab=n_vocab, vocabulary_sha256=sha256, model=model)


def _pieces(path: Path) -> Iterator[tuple[str, int]]:
    """The text of a file in pieces of whole lines, so that a large one never stands in memory as a whole."""
    try:
        with path.open("rb") as file:
            while lines := file.readlines(_PIECE_BYTES):
                data = b"".join(lines)
                yield data.decode("utf-8"), len(data)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8 and try again.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error
