"""Downloads against a real server on loopback: whole, cut off, wrong, refused, too large, offline."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, try_to_load_from_cache

import mlsd.models.hub
from mlsd.errors import HubError
from mlsd.models.hub import Hub, HubFile, Pulled
from tests.hub_server import COMMIT, OTHER_COMMIT, REPO, HubServer

CHUNK = 4096
DATA = random.Random(0).randbytes(40 * CHUNK + 17)
WANTED = HubFile(repo=REPO, file="quants/model.gguf")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    no_pause = SimpleNamespace(sleep=lambda _: None)  # between the library's retries
    monkeypatch.setattr("huggingface_hub.file_download.time", no_pause)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    with HubServer({WANTED.file: DATA}) as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a limited hub was waited for; nobody sleeps."""
    found: list[float] = []
    monkeypatch.setattr(mlsd.models.hub, "time", SimpleNamespace(sleep=found.append))
    return found


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.url, cache_dir=tmp_path / "cache")


def pull(hub: Hub, wanted: HubFile = WANTED, **kwargs: object) -> Pulled:
    return hub.pull(wanted, hub.stated(wanted), **kwargs)  # type: ignore[arg-type]


def files_of(hub: Hub) -> list[Path]:
    """Everything in the cache that looks like a model under its final name."""
    return [path for path in hub.cache_dir.rglob("*") if path.is_file() and path.parent.name in ("blobs", "quants")]


def begin(hub: Hub) -> None:
    """Half a download, stopped as Ctrl-C does."""

    def stop(done: int, total: int | None) -> None:
        if done >= 20 * CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(hub, on_bytes=stop)


def test_a_fresh_pull_is_whole_and_found_by_every_program_that_uses_the_cache(hub: Hub, server: HubServer) -> None:
    assert hub.cached(WANTED) is None
    seen: list[tuple[int, int | None]] = []
    pulled = pull(hub, on_bytes=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (len(DATA), len(DATA))
    assert pulled.path.read_bytes() == DATA
    assert (pulled.revision, pulled.sha256) == (COMMIT, server.sha256(WANTED.file))
    found = try_to_load_from_cache(REPO, WANTED.file, cache_dir=hub.cache_dir, revision=COMMIT)
    assert found == str(pulled.path)
    assert pull(hub) == pulled
    assert server.sent_bytes == len(DATA), "a second pull downloads nothing"


def test_a_hash_other_than_the_manifests_is_refused_before_the_download(hub: Hub, server: HubServer) -> None:
    with pytest.raises(HubError, match=r"on the hub, not cdcd.*pin `revision`"):
        pull(hub, HubFile(repo=REPO, file=WANTED.file, sha256="cd" * 32))
    assert server.sent_bytes == 0


def test_a_full_disk_is_noticed_before_the_download(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlsd.models.hub, "free_bytes", lambda _: len(DATA))
    with pytest.raises(HubError, match=r"some-model needs 67\.\d\d MB .*163\.86 kB are free"):
        hub.check_free_disk(hub.missing_bytes(WANTED, hub.stated(WANTED)), "some-model")
    assert server.sent_bytes == 0


def test_a_connection_that_drops_again_and_again_still_ends_in_the_right_file(
    hub: Hub, server: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("huggingface_hub").addHandler(caplog.handler)
    server.cut_after_bytes = 7 * CHUNK
    assert pull(hub).path.read_bytes() == DATA
    assert len(server.ranges()) >= 6
    assert server.sent_bytes < 2 * len(DATA)
    assert not caplog.records  # the library would print each retry over our progress


def test_a_connection_that_gives_nothing_fails_with_what_to_do_and_keeps_what_came(hub: Hub, server: HubServer) -> None:
    begin(hub)
    server.cut_after_bytes = 0
    with pytest.raises(HubError, match="goes on where this one stopped"):
        pull(hub)
    assert files_of(hub) == []
    server.cut_after_bytes = None
    before = server.sent_bytes
    assert pull(hub).path.read_bytes() == DATA
    assert server.sent_bytes - before < len(DATA)


def test_a_server_that_ignores_the_range_does_not_double_the_file(hub: Hub, server: HubServer) -> None:
    begin(hub)
    server.ignores_range = True
    assert pull(hub).path.read_bytes() == DATA


def test_bytes_that_do_not_have_the_stated_hash_are_deleted_and_never_named(hub: Hub, server: HubServer) -> None:
    server.stated_sha256[WANTED.file] = "ab" * 32
    with pytest.raises(HubError, match=r"was downloaded with the hash .*, not abab"):
        pull(hub)
    assert files_of(hub) == []
    assert not list(hub.cache_dir.rglob("*.part"))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (HubFile(repo="someone/nothing", file="x.gguf"), "has no repository someone/nothing, or it is private"),
        (HubFile(repo=REPO, file="x.gguf"), "has no file x.gguf at revision main"),
        (HubFile(repo=REPO, file=WANTED.file, revision="v9"), "has no revision v9"),
        (HubFile(repo="a b/c", file="x.gguf"), "cannot be downloaded: Repo id must"),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub: Hub, wanted: HubFile, words: str) -> None:
    with pytest.raises(HubError, match=words):
        hub.stated(wanted)


def test_a_gated_repository_asks_for_a_token_and_takes_it(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "hf_secret"
    with pytest.raises(HubError, match=r"is gated.*HF_TOKEN"):
        pull(hub)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert pull(hub).path.read_bytes() == DATA


def test_what_is_here_already_needs_no_disk(hub: Hub) -> None:
    stated = hub.stated(WANTED)
    assert hub.missing_bytes(WANTED, stated) == len(DATA)
    begin(hub)
    assert 0 < hub.missing_bytes(WANTED, stated) <= len(DATA) - 19 * CHUNK
    pull(hub)
    assert hub.missing_bytes(WANTED, stated) == 0


def test_a_disk_that_fills_up_while_downloading_keeps_what_came(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(done: int, total: int | None) -> None:
        if done > 10 * CHUNK:
            raise OSError(28, "No space left on device")

    with pytest.raises(HubError, match=r"could not be stored: .*No space left"):
        pull(hub, on_bytes=full)
    assert files_of(hub) == []
    assert pull(hub).path.read_bytes() == DATA


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with HubServer({}) as gone:
        url = gone.url
    with pytest.raises(HubError, match=f"could not be downloaded from {url}"):
        Hub(endpoint=url, cache_dir=tmp_path).stated(WANTED)


def test_a_token_is_not_sent_to_the_storage_that_the_hub_points_to(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with HubServer(server.files) as storage:
        server.storage_url = storage.url
        begin(hub)
        assert pull(hub).path.read_bytes() == DATA
        assert storage.sent_bytes > 0 == server.sent_bytes
        assert storage.tokens == {None}
        assert storage.ranges()[-1] is not None


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ([{"Retry-After": "30"}] * 2, [30, 30]),
        ([{"RateLimit": '"resolvers";r=0;t=55'}], [30, 25]),  # a notice each half minute
        ([{}, {"Retry-After": "soon"}], [1, 2]),
    ],
)
def test_a_hub_that_limits_requests_is_waited_for_as_long_as_it_asks_and_this_is_said(
    hub: Hub, server: HubServer, pauses: list[float], method: str, headers: list[dict[str, str]], waits: list[float]
) -> None:
    begin(hub)
    server.limits[method] = list(headers)
    words: list[str] = []
    assert hub.pull(WANTED, hub.stated(WANTED, words.append), on_wait=words.append).path.read_bytes() == DATA
    assert pauses == waits
    assert len(words) == len(pauses) and all("limits requests (HTTP 429): trying again in" in text for text in words)
    assert server.ranges()[-1] is not None  # it went on where it had stopped


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(("asked", "n_pauses"), [("86400", 0), ("250", 2), ("0", 9)])
def test_a_hub_that_limits_requests_for_too_long_is_named_and_what_came_is_kept(
    hub: Hub, server: HubServer, pauses: list[float], method: str, asked: str, n_pauses: int
) -> None:
    begin(hub)
    server.limits[method] = [{"Retry-After": asked}] * 1000
    with pytest.raises(HubError, match=r"limits requests \(HTTP 429\).*waits 10 minutes at most.*goes on.*HF_TOKEN"):
        pull(hub)
    assert len(pauses) == n_pauses
    server.limits.clear()
    before = server.sent_bytes
    assert pull(hub).path.read_bytes() == DATA
    assert server.sent_bytes - before < len(DATA)


def test_two_pulls_of_the_same_bytes_do_not_write_into_each_other(hub: Hub) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slowly(done: int, total: int | None) -> None:
        started.set()
        assert go_on.wait(10)

    results: list[Pulled] = []
    first = threading.Thread(target=lambda: results.append(pull(hub, on_bytes=slowly)))
    first.start()
    assert started.wait(10)
    second = threading.Thread(target=lambda: results.append(pull(hub)))
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert [result.path.read_bytes() == DATA for result in results] == [True, True]


# --- a server that means harm -----------------------------------------------------------------------------------


def all_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("etag", ["/{0}/planted", "../../../planted", "..", "a/b", "x" * 129, "a\\b", "caf\xe9"])
def test_an_etag_that_is_no_file_name_is_refused_and_nothing_is_written(
    hub: Hub, server: HubServer, tmp_path: Path, etag: str
) -> None:
    server.etag = etag.format(str(tmp_path).lstrip("/"))
    before = all_files(tmp_path)
    with pytest.raises(HubError, match="returned an invalid"):
        pull(hub)
    assert all_files(tmp_path) == before


@pytest.mark.parametrize("commit", ["../../planted", "main", "0123456", "g" * 40, "/tmp/x", ""])
def test_a_commit_that_is_no_hexadecimal_number_is_refused(hub: Hub, server: HubServer, commit: str) -> None:
    server.commit = commit
    if commit == "0123456":
        assert pull(hub).revision == commit
        return
    with pytest.raises(HubError, match=r"returned an invalid|names neither"):
        pull(hub)
    assert not all_files(hub.cache_dir)


def test_a_server_that_changes_its_etag_between_two_answers_places_nothing(
    hub: Hub, server: HubServer, tmp_path: Path
) -> None:
    stated = hub.stated(WANTED)
    server.etag = "../../../planted"
    pulled = hub.pull(WANTED, stated)
    assert pulled.path.read_bytes() == DATA
    assert not list(tmp_path.rglob("planted*"))


@pytest.mark.parametrize("file", ["../../../outside.gguf", "/outside.gguf"])
def test_a_name_that_leads_out_of_the_cache_is_refused(hub: Hub, server: HubServer, file: str) -> None:
    server.files[file] = DATA
    stated = hub.stated(WANTED)
    with pytest.raises(HubError, match=r"is outside the cache|Check the manifest"):
        hub.pull(HubFile(repo=REPO, file=file), stated)


def test_a_body_longer_than_stated_is_cut_off(hub: Hub, server: HubServer) -> None:
    server.stated_size = len(DATA) // 2
    with pytest.raises(HubError):
        pull(hub)
    assert sum(path.stat().st_size for path in all_files(hub.cache_dir)) <= len(DATA)
    assert files_of(hub) == []


@pytest.mark.parametrize("phase", ["head", "body"])
def test_a_starved_download_is_given_up_and_keeps_what_came(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(mlsd.models.hub, "PATIENCE_S", 0.5)
    begin(hub)
    stated = hub.stated(WANTED)
    server.trickle_s = 0.05
    server.trickles = phase
    with pytest.raises(HubError, match=r"sent \d+ bytes in 0\.5 s.*goes on where this one stopped"):
        pull(hub) if phase == "head" else hub.pull(WANTED, stated)
    server.trickles = None
    assert pull(hub).path.read_bytes() == DATA
    resumed = server.ranges()[-1]
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) >= 19 * CHUNK


def test_the_part_of_a_file_that_was_replaced_is_removed(hub: Hub, server: HubServer) -> None:
    begin(hub)
    assert len(list(hub.cache_dir.rglob("*.part"))) == 1
    server.files[WANTED.file] = DATA[::-1]
    server.commit = OTHER_COMMIT
    assert pull(hub).path.read_bytes() == DATA[::-1]
    assert not list(hub.cache_dir.rglob("*.part"))


def test_a_cache_that_is_a_file_is_named(server: HubServer, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    with pytest.raises(HubError, match="could not be stored"):
        pull(Hub(endpoint=server.url, cache_dir=tmp_path / "cache"))


def test_a_name_too_long_for_the_disk_is_named(hub: Hub, server: HubServer) -> None:
    long = "x" * 300 + ".gguf"
    server.files[long] = DATA
    with pytest.raises(HubError, match=r"could not be stored: .*too long"):
        pull(hub, HubFile(repo=REPO, file=long))


@pytest.mark.parametrize(("system", "counted"), [("darwin", True), ("linux", False)])
def test_a_full_disk_of_a_mac_is_told_of_with_what_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, system: str, counted: bool
) -> None:
    monkeypatch.setattr("mlsd.models.hub.sys.platform", system)
    assert ("purgeable" in mlsd.models.hub.space_hint()) is counted
