"""A text's tokens with their suffix array in one memory-mapped file: where did these tokens occur, what followed?

File: the magic bytes, format version and header length (two little-endian uint32), a JSON header, zeros up to a whole
page, the int32 tokens, the int32 suffix array. Documents end with the id -1.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.vocabulary import vocabulary_sha256
from mlsd.errors import InputError
from mlsd.folders import replacing
from mlsd.hashes import OnBytes
from mlsd.outside import check_regular
from mlsd.records import ModelRef, Record

SEPARATOR = -1
DEPTH = 32  # tokens to which suffixes are sorted: the longest search and the longest continuation together
MAX_TOKENS = 2**31 - 1
_MAGIC = b"MLSDREST"
_VERSION = 1
_PAGE_BYTES = 4096
_HEAD_BYTES = len(_MAGIC) + 8
_MOST_HEADER_BYTES = 1 << 20
_KEY_BITS = 63
_PIECE_BYTES = 1 << 20

Tokens = npt.NDArray[np.int32]


class StoreHeader(Record, frozen=True, kw_only=True):
    """What a store holds and for which tokenizer."""

    n_tokens: int  # separators included
    n_documents: int
    n_vocab: int
    vocabulary_sha256: str  # see `engine.vocabulary.vocabulary_sha256`
    model: ModelRef  # whose tokenizer was used
    depth: int
    content: str  # the first 16 hex digits of the SHA-256 of the tokens


class SuffixStore:
    """An opened store. Nothing is read before it is needed."""

    def __init__(self, path: Path) -> None:
        self.header, start = read_header(path)
        n = self.header.n_tokens
        # Plain arrays and memoryviews over the map: indexing a numpy.memmap costs microseconds a time.
        content = np.asarray(np.memmap(path, dtype="<i4", mode="r", offset=start, shape=(2 * n,)))
        self._tokens, self._order = content[:n], content[n:]
        self._token_view, self._order_view = self._tokens.data, self._order.data

    def find(self, pattern: Sequence[int], first: int = 0, end: int | None = None) -> range:
        """Places in the suffix array whose text begins with `pattern`."""
        tokens, order, width = self._token_view, self._order_view, len(pattern)

        def text(index: int) -> list[int]:
            at: int = order[index]
            return tokens[at : at + width].tolist()

        end = self.header.n_tokens if end is None else end
        places = range(end)
        wanted = list(pattern)
        start = bisect_left(places, wanted, first, end, key=text)
        return range(start, bisect_right(places, wanted, start, end, key=text))

    def find_longest(self, context: Sequence[int], longest: int, shortest: int) -> tuple[int, range]:
        """Length and places of the longest end of `context` that occurs; length 0 when not even `shortest` does.

        An end that does not occur is part of no longer one that does, so lengths are halved like places are.
        """
        best, places = 0, range(0)
        low, high = shortest, min(longest, len(context))
        while low <= high:
            middle = (low + high) // 2
            matches = self.find(context[len(context) - middle :])
            if matches:
                best, places, low = middle, matches, middle + 1
            else:
                high = middle - 1
        return best, places

    def continuations(self, places: range, n_before: int, length: int, at_most: int) -> Tokens:
        """The `length` tokens after the first `n_before` of each place, in sorted order: shape (n, length).

        Of more than `at_most` places as many are taken, evenly spread. Past the end of the text stand separators.
        """
        if len(places) > at_most:
            chosen = np.linspace(places.start, places.stop - 1, at_most).astype(np.int64)
            starts = self._order[chosen]
        else:
            starts = self._order[places.start : places.stop]
        index = (starts.astype(np.int64) + n_before)[:, None] + np.arange(length)
        beyond = index >= self.header.n_tokens
        rows: Tokens = self._tokens[np.where(beyond, 0, index)] if beyond.any() else self._tokens[index]
        rows[beyond] = SEPARATOR
        return rows


def is_store(path: Path) -> bool:
    """Whether a file begins as a store does, whatever its name."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_header(path: Path) -> tuple[StoreHeader, int]:
    """The header of a store and where its tokens begin. Raises: InputError for anything else."""
    try:
        check_regular(path)  # a pipe would be waited for
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head[: len(_MAGIC)] != _MAGIC or len(head) < _HEAD_BYTES:
                raise InputError(f"{path} is not a REST store.", hint="Make one with `mlsd models make store`.")
            version, n_header = np.frombuffer(head, dtype="<u4", offset=len(_MAGIC)).tolist()
            if version > _VERSION:
                raise InputError(
                    f"{path} is a REST store of version {version}; this mlsd reads up to {_VERSION}.",
                    hint="Update mlsd, or build the store again.",
                )
            header = msgspec.json.decode(file.read(min(n_header, _MOST_HEADER_BYTES)), type=StoreHeader)
    except OSError as error:
        raise InputError(
            f"The REST store {path} cannot be read: {error.strerror}.", hint="Make one with `mlsd models make store`."
        ) from error
    except msgspec.DecodeError as error:
        raise InputError(f"The header of {path} is damaged: {error}.", hint="Build the store again.") from error
    start = _data_start(n_header)
    expected = start + 8 * header.n_tokens
    if path.stat().st_size != expected:
        raise InputError(
            f"{path} has {path.stat().st_size} bytes, its header states {expected}.", hint="Build the store again."
        )
    return header, start


def write_store(path: Path, tokens: Tokens, *, n_vocab: int, vocabulary_sha256: str, model: ModelRef) -> StoreHeader:
    """Sort and write a store. Raises: InputError for no tokens, too many, or a file that cannot be written."""
    n_documents = int(np.count_nonzero(tokens == SEPARATOR))
    if len(tokens) == n_documents:
        raise InputError("The texts hold no token.", hint="Give files with text in them.")
    if len(tokens) > MAX_TOKENS:
        raise InputError(f"A store holds at most {MAX_TOKENS:,} tokens, the texts have {len(tokens):,}.")
    order, depth = suffix_array(tokens, DEPTH)
    header = StoreHeader(
        n_tokens=len(tokens),
        n_documents=n_documents,
        n_vocab=n_vocab,
        vocabulary_sha256=vocabulary_sha256,
        model=model,
        depth=depth,
        content=hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").data).hexdigest()[:16],
    )
    encoded = msgspec.json.encode(header)
    head = _MAGIC + np.array([_VERSION, len(encoded)], dtype="<u4").tobytes() + encoded
    with replacing(path, "Choose another place.") as part, part.open("wb") as file:
        file.write(head.ljust(_data_start(len(encoded)), b"\0"))
        tokens.astype("<i4").tofile(file)
        order.astype("<i4").tofile(file)
    return header


def _data_start(n_header: int) -> int:
    return -(-(_HEAD_BYTES + n_header) // _PAGE_BYTES) * _PAGE_BYTES


def suffix_array(tokens: Tokens, depth: int) -> tuple[Tokens, int]:
    """Positions of `tokens` sorted by the next `depth` tokens or more; returns the order and the depth it is exact to.

    Token ids are >= -1. A text's end sorts before every token. Prefix doubling (Manber and Myers 1993): ranks of
    sequences of length d give those of length 2d by sorting pairs; the first step packs as many tokens as fit into a
    64-bit key, so that depth 32 takes five sorts. Needs about 40 bytes a token.
    """
    n = len(tokens)
    if n == 0:
        return np.empty(0, dtype=np.int32), depth
    bits = max(1, int(tokens.max() + 2).bit_length())
    packed = max(1, _KEY_BITS // bits)
    key = np.zeros(n, dtype=np.int64)
    for offset in range(packed):
        key <<= bits
        if offset < n:
            key[: n - offset] += tokens[offset:].astype(np.int64) + 2  # 0 is the end of the text
    order, rank, n_ranks = _ranked(key)
    reached = packed
    while reached < depth and n_ranks < n:
        np.multiply(rank, n + 1, out=key)
        if reached < n:
            key[: n - reached] += rank[reached:] + 1
        order, rank, n_ranks = _ranked(key)
        reached *= 2
    return order.astype(np.int32), max(reached, depth) if n_ranks == n else reached


def _ranked(key: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    order = np.argsort(key)
    ordered = key[order]
    steps = np.empty(len(key), dtype=np.int64)
    steps[0] = 0
    np.not_equal(ordered[1:], ordered[:-1], out=steps[1:], casting="unsafe")
    np.cumsum(steps, out=steps)
    rank = np.empty_like(steps)
    rank[order] = steps
    return order, rank, int(steps[-1]) + 1


def build_store(
    texts: Sequence[Path],
    model_path: Path,
    model: ModelRef,
    out: Path,
    on_bytes: OnBytes | None = None,
) -> StoreHeader:
    """Tokenize `texts`, each a document, with the model's vocabulary, sort the tokens and write `out`.

    Raises: InputError, ModelFileError.
    """
    if not out.parent.is_dir():
        raise InputError(f"There is no folder {out.parent}.", hint="Make it first.")
    for path in texts:
        if not path.is_file():
            raise InputError(f"There is no text file {path}.")
    parts: list[Tokens] = []
    done, total = 0, sum(path.stat().st_size for path in texts)
    with LlamaModel(model_path, n_gpu_layers=0, vocab_only=True) as loaded:
        for path in texts:
            for piece, n_bytes in _pieces(path):
                parts.append(np.array(loaded.tokenize(piece, add_special=False), dtype=np.int32))
                done += n_bytes
                if on_bytes is not None:
                    on_bytes(done, total)
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
