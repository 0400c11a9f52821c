"""Cut drafts are made once, and the folder that keeps them does not grow without end."""

import multiprocessing
from pathlib import Path

import pytest

from mlsd.gguf_tools.surgery.edit import cached_draft, clear_drafts, draft_folder, drafts_bytes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))


def write(path: Path, n_bytes: int = 100) -> None:
    path.write_bytes(bytes(n_bytes))


def never(path: Path) -> None:
    raise AssertionError("it was there")


def names() -> set[str]:
    return {path.name for path in draft_folder().glob("*.gguf")}


def test_a_draft_is_made_once_and_its_modification_time_stays() -> None:
    path = cached_draft("a.gguf", write)
    modified = path.stat().st_mtime_ns
    assert cached_draft("a.gguf", never) == path
    assert path.stat().st_mtime_ns == modified
    assert drafts_bytes() == 100


def test_the_least_recently_used_go_first_and_the_newest_always_stays() -> None:
    for name in ("a.gguf", "b.gguf", "c.gguf", "d.gguf", "e.gguf"):
        cached_draft(name, write, most_bytes=500)
    cached_draft("a.gguf", never, most_bytes=500)
    cached_draft("f.gguf", write, most_bytes=500)
    assert names() == {"a.gguf", "c.gguf", "d.gguf", "e.gguf", "f.gguf"}


def test_four_of_a_size_stay_however_large_so_that_the_arms_of_a_session_do_not_remove_each_others() -> None:
    for name in ("a.gguf", "b.gguf", "c.gguf", "d.gguf"):
        cached_draft(name, write, most_bytes=100)
    assert names() == {"a.gguf", "b.gguf", "c.gguf", "d.gguf"}
    cached_draft("e.gguf", write, most_bytes=100)
    assert names() == {"b.gguf", "c.gguf", "d.gguf", "e.gguf"}


def test_cleaning_removes_all_and_says_how_much() -> None:
    assert clear_drafts() == 0
    cached_draft("a.gguf", write)
    (draft_folder() / "b.gguf.part").write_bytes(bytes(50))  # an interrupted writer's
    assert clear_drafts() == 150
    assert drafts_bytes() == 0


def _make(folder: str, count: "multiprocessing.Queue[int]") -> None:  # generic only for type checkers
    import os

    os.environ["MLSD_CACHE"] = folder

    def slowly(path: Path) -> None:
        count.put(1)
        write(path)

    cached_draft("shared.gguf", slowly)


@pytest.mark.slow
def test_two_processes_that_need_the_same_draft_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    count = context.Queue()
    workers = [context.Process(target=_make, args=(str(tmp_path), count)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert count.get(timeout=5) == 1
    assert count.empty()
