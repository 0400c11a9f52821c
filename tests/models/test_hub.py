"""Downloads against a real server on loopback: whole, cut off, limited, refused, large, under a tag, offline."""

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, get_session, try_to_load_from_cache
from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

from mlsd.errors import HubError
from mlsd.models.hub import Hub
from mlsd.models.lock import HubFile
from tests.hub_server import COMMIT, OTHER_COMMIT, REPO, HubServer

CHUNK = 4096
DATA = random.Random(0).randbytes(40 * CHUNK + 17)
WANTED = HubFile(repo=REPO, file="quants/model.gguf")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", CHUNK)
    with HubServer({WANTED.file: DATA}) as running:
        yield running


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.url, cache_dir=tmp_path / "cache")


def pull(hub: Hub, wanted: HubFile = WANTED, **kwargs: object) -> Path:
    return hub.pull(wanted, hub.stated(wanted), **kwargs)  # type: ignore[arg-type]


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
    path = pull(hub, on_bytes=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (len(DATA), len(DATA))
    assert path.read_bytes() == DATA
    assert try_to_load_from_cache(REPO, WANTED.file, cache_dir=hub.cache_dir, revision=COMMIT) == str(path)
    assert pull(hub) == path
    assert server.sent_bytes == len(DATA), "a second pull downloads nothing"


def test_what_is_larger_than_the_library_takes_over_plain_http_comes_all_the_same(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1)
    assert pull(hub).read_bytes() == DATA


def test_what_the_hub_keeps_in_xet_storage_is_left_to_hf_xet(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def xet_get(*, incomplete_path: Path, expected_size: int, tqdm_class: type, **_: object) -> None:
        with XetDownloadProgressReporter(
            reconstruction_desc="model.gguf: reconstructing file",
            total=expected_size,
            log_level=0,
            tqdm_class=tqdm_class,
        ) as reporter:
            for n_bytes in (0, len(DATA)):
                come = {"total_bytes_completed": n_bytes, "total_transfer_bytes_completed": n_bytes // 2}
                rates = dict.fromkeys(("total_bytes_completion_rate", "total_transfer_bytes_completion_rate"))
                reporter.update_progress(SimpleNamespace(**come, **rates, total_bytes=len(DATA)))
        incomplete_path.write_bytes(DATA)

    monkeypatch.setattr("huggingface_hub.file_download.xet_get", xet_get)
    server.xet = True
    seen: list[tuple[int, int | None]] = []
    assert pull(hub, on_bytes=lambda done, total: seen.append((done, total))).read_bytes() == DATA
    assert seen == [(len(DATA), len(DATA))]
    assert server.ranges() == []


def test_the_end_of_a_file_of_60_gb_is_brought_where_the_rest_is_here(hub: Hub, server: HubServer) -> None:
    server.holes[WANTED.file] = 60 * 10**9
    stated = hub.stated(WANTED)
    assert stated.n_bytes == hub.missing_bytes(WANTED, stated) == 60 * 10**9 + len(DATA)
    _, part, _ = hub._places(WANTED, stated)
    part.parent.mkdir(parents=True)
    with part.open("wb") as out:
        out.truncate(60 * 10**9)
    assert hub.missing_bytes(WANTED, stated) == len(DATA)
    with pull(hub).open("rb") as whole:
        whole.seek(60 * 10**9)
        assert whole.read() == DATA
    assert server.sent_bytes == len(DATA) and hub.missing_bytes(WANTED, stated) == 0


def test_a_connection_that_drops_again_and_again_still_ends_in_the_right_file(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    hosts = SimpleNamespace(level=0, handle=lambda record: printed.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [hosts])
    server.cut_after_bytes = 7 * CHUNK
    assert pull(hub).read_bytes() == DATA
    assert len(server.ranges()) >= 6
    assert server.sent_bytes < 2 * len(DATA)
    assert not printed  # the library would print each retry over our progress
    logging.getLogger("huggingface_hub.http").warning("for the host")
    assert printed == ["for the host"]


@pytest.mark.parametrize("stalls", [False, True])
def test_a_server_that_sends_nothing_more_fails_with_what_to_do_and_what_came_is_kept(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch, stalls: bool
) -> None:
    begin(hub)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    if stalls:
        server.hold_after_bytes = 0
    else:
        server.cut_after_bytes = 0
    with pytest.raises(HubError, match="came over plain HTTP is kept"):
        pull(hub)
    assert hub.cached(WANTED) is None
    server.go_on.set()
    server.hold_after_bytes = server.cut_after_bytes = None
    assert pull(hub).read_bytes() == DATA
    resumed = server.ranges()[-1]
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) >= 19 * CHUNK


def test_a_server_that_ignores_the_range_does_not_double_the_file_nor_does_too_long_a_part_stop_later_pulls(
    hub: Hub, server: HubServer
) -> None:
    _, part, _ = hub._places(WANTED, hub.stated(WANTED))
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA + b"more")
    (whole := pull(hub)).resolve().unlink()  # as a caller does that finds another hash
    assert not part.exists()
    whole.unlink()
    begin(hub)
    server.ignores_range = True
    assert pull(hub).read_bytes() == DATA


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (HubFile(repo="someone/nothing", file="x.gguf"), "someone/nothing/x.gguf.*no such repository"),
        (HubFile(repo=REPO, file="gone.gguf"), "no such file at revision main"),
        (HubFile(repo=REPO, file=WANTED.file, revision="f" * 40), "no revision ffff"),
        (HubFile(repo="../..", file=WANTED.file), r"Check the manifest|Check the name"),
        (HubFile(repo=REPO, file=WANTED.file, sha256="cd" * 32), r"on the hub, not cdcd.*pin `revision`"),
    ],
)
def test_what_the_hub_does_not_have_is_named_before_a_download(
    hub: Hub, server: HubServer, wanted: HubFile, message: str
) -> None:
    with pytest.raises(HubError, match=message):
        pull(hub, wanted)
    assert server.sent_bytes == 0


def test_a_disk_that_fills_up_while_downloading_keeps_what_came(hub: Hub) -> None:
    def full(done: int, total: int | None) -> None:
        if done > 10 * CHUNK:
            raise OSError(28, "No space left on device")

    with pytest.raises(HubError, match=r"No space left.*the disk"):
        pull(hub, on_bytes=full)
    assert hub.cached(WANTED) is None
    assert pull(hub).read_bytes() == DATA


def test_a_server_that_is_not_there_and_a_cache_that_is_a_file_are_named(
    hub: Hub, server: HubServer, tmp_path: Path, pauses: list[float]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(HubError, match="Check your connection and the disk"):
        pull(Hub(endpoint=server.url, cache_dir=tmp_path / "file"))
    with HubServer({}) as gone:
        url = gone.url
    with pytest.raises(HubError, match=f"of {url}: .*Check your connection"):
        Hub(endpoint=url, cache_dir=tmp_path).stated(WANTED)


def test_a_gated_repository_asks_for_a_token_which_is_not_sent_to_the_storage_that_the_hub_points_to(
    hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "hf_secret"
    with pytest.raises(HubError, match=r"is gated.*HF_TOKEN"):
        pull(hub)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with HubServer(server.files) as storage:
        server.storage_url = storage.url
        begin(hub)
        assert pull(hub).read_bytes() == DATA
        assert storage.sent_bytes > 0 == server.sent_bytes
        assert storage.tokens == {None}
        assert storage.ranges()[-1] is not None


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ([{"Retry-After": "30"}] * 2, [31, 31]),
        ([{"RateLimit": '"resolvers";r=0;t=55'}], [56]),
        ([{}, {"Retry-After": "soon"}], [1, 2]),
    ],
)
def test_a_hub_that_limits_requests_is_waited_for_as_long_as_it_asks_and_this_is_said(
    hub: Hub, server: HubServer, pauses: list[float], method: str, headers: list[dict[str, str]], waits: list[float]
) -> None:
    begin(hub)
    server.limits[method] = list(headers)
    said: list[str] = []
    assert hub.pull(WANTED, hub.stated(WANTED, said.append), on_wait=said.append).read_bytes() == DATA
    assert pauses == waits
    assert len(said) == len(pauses) and all("etry" in text for text in said)
    assert server.ranges()[-1] is not None  # it went on where it had stopped


def test_a_limit_that_does_not_end_is_an_error_and_the_process_keeps_its_own_client(
    hub: Hub, server: HubServer
) -> None:
    begin(hub)
    server.limits["GET"] = [{"Retry-After": "1"}] * 1000
    with pytest.raises(HubError, match=r"429.*is kept.*HF_TOKEN"):
        pull(hub)
    assert get_session().get(f"{server.url}/{REPO}/resolve/main/{WANTED.file}").status_code == 429
    server.limits.clear()
    before = server.sent_bytes
    assert pull(hub).read_bytes() == DATA
    assert server.sent_bytes - before < len(DATA)


def test_two_pulls_of_the_same_bytes_do_not_write_into_each_other(hub: Hub, server: HubServer) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slowly(done: int, total: int | None) -> None:
        started.set()
        assert go_on.wait(10)

    results: list[Path] = []
    first = threading.Thread(target=lambda: results.append(pull(hub, on_bytes=slowly)))
    first.start()
    assert started.wait(10)
    second = threading.Thread(target=lambda: results.append(pull(hub)))
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert [path.read_bytes() == DATA for path in results] == [True, True]
    assert server.sent_bytes == len(DATA)


@pytest.mark.parametrize("what", ["etag", "commit"])
@pytest.mark.parametrize("said", ["../../../planted", "..", "a/b", "a\\b", ""])
def test_what_is_no_name_of_a_file_is_refused_and_nothing_is_written(
    hub: Hub, server: HubServer, tmp_path: Path, what: str, said: str
) -> None:
    setattr(server, what, said)
    with pytest.raises(HubError, match="is HF_ENDPOINT a Hugging Face hub"):
        pull(hub)
    assert not list(tmp_path.rglob("*"))


def test_a_branch_that_moves_while_it_is_brought_ends_in_an_error_not_in_other_bytes(
    hub: Hub, server: HubServer
) -> None:
    stated = hub.stated(WANTED)
    server.files[WANTED.file], server.commit = DATA[::-1], OTHER_COMMIT
    with pytest.raises(HubError, match="no revision"):
        hub.pull(WANTED, stated)
