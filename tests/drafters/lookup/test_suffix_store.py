"""The store: sorted as a plain sort would, found as a scan would find, refused when it is not what it says."""

import os
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsd.drafters.lookup.suffix_store import SEPARATOR, SuffixStore, read_header, suffix_array, write_store
from mlsd.drafters.trees import commonest_prefixes
from mlsd.engine.tree import Tree
from mlsd.errors import InputError
from mlsd.records import ModelRef
from tests.engine.fake import path_to

tokens = st.lists(st.integers(-1, 3), min_size=1, max_size=60)


def written(path: Path, ids: Sequence[int]) -> SuffixStore:
    array = np.array(ids, dtype=np.int32)
    write_store(path, array, n_vocab=9, vocabulary_sha256="x", model=ModelRef(id="m"))
    return SuffixStore(path)


@given(ids=tokens, depth=st.integers(1, 40), offset=st.sampled_from([0, 70_000, 240_000]))
def test_places_stand_in_the_order_of_what_follows_them(ids: list[int], depth: int, offset: int) -> None:
    array = np.array([i if i < 0 else i + offset for i in ids], dtype=np.int32)
    order, reached = suffix_array(array, depth)
    assert reached >= depth
    assert sorted(order.tolist()) == list(range(len(ids)))
    texts = [array[i : i + depth].tolist() for i in order]
    assert texts == sorted(texts)


@given(ids=tokens.filter(lambda ids: max(ids) >= 0), context=st.lists(st.integers(0, 3), max_size=8), data=st.data())
def test_a_search_finds_what_a_scan_of_the_text_finds(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], context: list[int], data: st.DataObject
) -> None:
    shortest, longest, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    store = written(tmp_path_factory.mktemp("store") / "s", ids)
    n_matched, places = store.find_longest(context, longest, shortest)
    hits: list[int] = []
    expected = 0
    for n in range(min(longest, len(context)), shortest - 1, -1):
        end = context[len(context) - n :]
        hits = [i for i in range(len(ids) - n + 1) if ids[i : i + n] == end]
        if hits:
            expected = n
            break
    assert n_matched == expected
    rows = store.continuations(places, n_matched, length, at_most=1000)
    padded = [*ids, *([SEPARATOR] * length)]
    assert rows.tolist() == sorted(padded[i + n_matched : i + n_matched + length] for i in hits)


def counted(tree: Tree, rows: Sequence[Sequence[int]]) -> list[int]:
    """How often each node's path begins a row."""
    paths = [path_to(tree, node) for node in range(len(tree.tokens))]
    return [sum(tuple(row[: len(path)]) == path for row in rows) for path in paths]


@given(
    rows=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(-1, 2), min_size=n, max_size=n), min_size=1, max_size=30)
    ),
    n_nodes=st.integers(1, 12),
)
def test_the_tree_holds_the_commonest_prefixes(rows: list[list[int]], n_nodes: int) -> None:
    rows.sort()
    tree = commonest_prefixes(np.array(rows, dtype=np.int32), n_nodes)
    prefixes = Counter(tuple(row[:n]) for row in rows for n in range(1, len(row) + 1) if SEPARATOR not in row[:n])
    best = sorted(prefixes.values(), reverse=True)[:n_nodes]
    found = counted(tree, rows)
    assert sorted(found, reverse=True) == best
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(found[node])
    assert all(counts == sorted(counts, reverse=True) for counts in children.values()), "commoner children come first"


def test_of_many_hits_some_are_taken_all_along_the_range(tmp_path: Path) -> None:
    store = written(tmp_path / "s", [token for i in range(8) for token in (9, i)])
    _, places = store.find_longest([9], 1, 1)
    assert store.continuations(places, 1, 1, at_most=3).ravel().tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda data: b"GGUF" + data[4:], "is not a REST store"),
        (lambda data: data[:20], "header of .* is damaged"),
        (lambda data: data[:-4], "its header states"),
        (lambda data: data[:8] + b"\x09" + data[9:], "store of version 9"),
        (lambda data: b"", "is not a REST store"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path: Path, damage, complaint: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "s"
    written(path, [1, 2, 3])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=complaint):
        read_header(path)


@pytest.mark.parametrize("name", ["none", "x" * 300])
def test_a_missing_store_is_refused_with_the_command_that_makes_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="mlsd models make store"):
        read_header(tmp_path / name)


def test_a_pipe_is_not_waited_for_and_a_gigabyte_of_header_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        read_header(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"MLSDREST" + (1).to_bytes(4, "little") + (2**30 - 99).to_bytes(4, "little"))
        file.truncate(2**30)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"header of .* is damaged"):
        read_header(tmp_path / "sparse")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_texts_without_a_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold no token"):
        written(tmp_path / "s", [SEPARATOR, SEPARATOR])
    assert list(tmp_path.iterdir()) == []
