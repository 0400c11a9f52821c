"""A server that lies, stalls or breaks off: found every time, and the run goes on."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlsd.cli import main
from mlsd.errors import InputError, MlsdError, ServerError
from mlsd.records import Sampling
from mlsd.servers.connection import KEY_VARIABLE, Connection, check_url
from mlsd.servers.endpoint import Request, connect
from mlsd.servers.measure import ServerResult
from tests.servers.fake import FakeServer, Send, head, whole
from tests.servers.measured import pair, reasons, verdicts

TIMES = 6  # a fault must be found this often
N_PREDICT = 24

Event = dict[str, Any]
Fault = Callable[[Event], Event]
Measure = Callable[..., ServerResult]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Measure]:
    """Measures a plain and a drafting server, one of which alters what it says of completions."""
    with FakeServer() as plain, FakeServer(draft=True) as drafting:

        def run(
            fault: Fault, *, of_plain: bool = False, patience_s: float = 30.0, token_s: float = 0.0, **more: object
        ) -> ServerResult:
            lying = plain if of_plain else drafting
            lying.value = lambda path, value: fault(value) if path == "/completion" else value
            plain.token_s = drafting.token_s = token_s
            settings = {"n_predict": N_PREDICT, "repeats": TIMES, **more}
            with closing(connect(plain.url, patience_s)) as first, closing(connect(drafting.url, patience_s)) as second:
                return pair(first, second, tmp_path / "s.sqlite", gamma=1, **settings)

        yield run


def timings(event: Event, **changes: float) -> Event:
    return {**event, "timings": {**event["timings"], **changes}}


def altered(every: int) -> Fault:
    """One token in so many is another one, whichever way tokens are told."""
    count = itertools.count(1)

    def alters(event: Event) -> Event:
        return {**event, "tokens": [token + (next(count) % every == 0) for token in event["tokens"]]}

    return alters


def late(act: Callable[[], None]) -> Fault:
    """Acts in the middle of the measured answers, which are longer than those of the warm-up."""
    reached = itertools.count()

    def middle(event: Event) -> Event:
        if event["timings"]["predicted_n"] == N_PREDICT // 2 and next(reached) > 1:
            act()
        return event

    return middle


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("sampling", "case", "verdict"),
    [
        (Sampling(), Sampling(), "lossless"),
        (Sampling(seed=3), Sampling(), "lossless"),  # a greedy case is one for every seed of the order
        (Sampling(temperature=1.0), Sampling(temperature=1.0), None),
    ],
)
def test_an_honest_server_is_believed(behind: Measure, sampling: Sampling, case: Sampling, verdict: str | None) -> None:
    result = behind(lambda event: event, sampling=sampling)
    assert not reasons(result) and not reasons(result, "ar")
    assert set(verdicts(result)) == {verdict}
    assert {one.case.sampling for one in result.trials} == {case}


class Remembering(FakeServer):
    """Drafts better for a prompt that it has answered before, as llama.cpp 26100 replayed what it had drafted."""

    def __init__(self) -> None:
        super().__init__(draft=True)
        self.seen: set[tuple[int, ...]] = set()

    def _llama(self, wanted: Any) -> Iterator[Any]:
        prompt = tuple(wanted["prompt"])
        new = prompt not in self.seen
        self.seen.add(prompt)
        for event in super()._llama(wanted):
            yield timings(event, draft_n=2 * event["timings"].get("draft_n", 0)) if new else event


@pytest.mark.heavy
def test_calls_with_one_question_are_one_session_that_goes_on_with_its_blocks(behind: Measure) -> None:
    counts = [
        [(arm.n_trials, arm.n_valid) for arm in behind(lambda event: event, repeats=repeats, n_predict=n).results]
        for repeats, n in ((2, N_PREDICT), (3, N_PREDICT), (2, 2 * N_PREDICT))
    ]
    assert counts == [[(2, 2)] * 2, [(5, 5)] * 2, [(2, 2)] * 2]


@pytest.mark.slow
def test_a_draft_that_repeats_an_earlier_request_is_found_by_a_new_prompt_whoever_asked_before(tmp_path: Path) -> None:
    with FakeServer() as plain, Remembering() as drafting:
        for _ in range(2):  # the second time it knows every prompt of the first
            with closing(connect(plain.url, 5.0)) as reference, closing(connect(drafting.url, 5.0)) as other:
                result = pair(reference, other, tmp_path / "s.sqlite", n_predict=N_PREDICT, repeats=1)
            assert any("carries what it drafted from" in note for note in result.notes)


class Late(FakeServer):
    """Drafts from its fourth answer on, as a look-up that found nothing in the first texts."""

    n_answers = 0

    def _llama(self, wanted: Any) -> Iterator[Any]:
        self.n_answers += 1
        self.draft = self.n_answers > 3
        return super()._llama(wanted)


@pytest.mark.slow
def test_a_server_that_drafts_only_what_is_measured_is_not_called_plain(tmp_path: Path) -> None:
    with FakeServer() as plain, Late() as drafting:
        ends = connect(plain.url, 5.0), connect(drafting.url, 5.0)
        result = pair(*ends, tmp_path / "s.sqlite", n_predict=N_PREDICT, repeats=1)
    assert drafting.counts["proposed"]
    assert not any("two plain servers" in note for note in result.notes)


@pytest.mark.slow
def test_a_plain_server_that_drafts_and_one_of_another_model_are_found(tmp_path: Path) -> None:
    with FakeServer(draft=True) as server, FakeServer() as other:
        ends = connect(server.url, 5.0), connect(other.url, 5.0)
        result = pair(*ends, tmp_path / "s.sqlite", n_predict=N_PREDICT, repeats=1)
        assert ["should be plain" in reason for reason in reasons(result, "ar")] == [True]
        assert any("two plain servers" in note for note in result.notes)
        other.value = lambda path, value: {"data": [{"meta": {"n_vocab": 99}}]} if path == "/v1/models" else value
        with pytest.raises(InputError, match="different models"):
            pair(ends[0], connect(other.url, 5.0), tmp_path / "s.sqlite")


def test_altered_tokens_of_the_plain_server_are_named_and_nothing_is_said_of_losslessness(behind: Measure) -> None:
    # In two answers the altered ones stand at different places.
    result = behind(altered(N_PREDICT + 10), repeats=1, of_plain=True)
    assert not result.deterministic and any("does not repeat itself" in note for note in result.notes)
    assert set(verdicts(result)) == {None} and not reasons(result)


def accepted(factor: float) -> Fault:
    return lambda event: timings(event, draft_n_accepted=int(factor * event["timings"].get("draft_n_accepted", 0)))


def cached() -> Fault:
    events: dict[object, Event] = {}
    return lambda event: events.setdefault((event["timings"]["predicted_n"], event["stop"]), event)


def counted(name: str, change: Callable[[int], int]) -> Fault:
    return lambda event: {**event, name: change(event.get(name, 0))}


def cut() -> None:
    raise OSError


STALLS = {"patience_s": 1.0}  # whether the empty line behind the last piece came before or after is for the machine
FAULTS = [
    (altered(N_PREDICT - 2), "output differs from the plain server's at token", {}),
    (accepted(2), "drafted tokens accepted", {}),
    (accepted(0.5), "tokens accepted, its own counters", {}),
    (cached(), "cached answer", {}),
    (counted("tokens_predicted", lambda n: min(20, n)), f"20 of {N_PREDICT} tokens", {}),
    (counted("tokens_evaluated", lambda n: n + 1), "a template or a BOS token came on top", {}),
    (late(lambda: time.sleep(1.5)), "nothing of use for 1 s", {"repeats": 2, **STALLS}),
    (late(cut), "half an answer", {"repeats": 2}),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("fault", "why", "settings"), FAULTS, ids=[why for _, why, _ in FAULTS])
def test_a_fault_of_one_server_is_found_every_time(
    behind: Measure, fault: Fault, why: str, settings: dict[str, Any]
) -> None:
    result = behind(fault, **settings)
    assert reasons(result) and all(why in reason for reason in reasons(result)), reasons(result)
    assert len(reasons(result)) == TIMES or settings
    assert not reasons(result, "ar")


@pytest.mark.slow
def test_a_fast_clock_is_not_believed(behind: Measure) -> None:
    def fast(event: Event) -> Event:
        return timings(event, predicted_ms=event["timings"]["predicted_ms"] / 10)

    result = behind(fast, repeats=4, token_s=0.004)
    assert any("claims another time for its decoding than passed here" in note for note in result.notes)
    for trial in (trial.trial for trial in result.trials if trial.trial.arm == "sd"):
        # A tenth is claimed; how late the last pieces came is for the machine to say.
        assert trial.decode_ns is not None and trial.decode_ns > 2 * trial.stats["server_decode_ns"]
    (row,) = (row for row in result.results if not row.is_plain)
    assert row.ratio is None or row.ratio.value < 3


def test_an_answer_that_breaks_off_in_the_middle_is_one_message() -> None:
    def breaks(path: str, send: Send) -> bool:
        if path == "/completion":
            send(head({"Transfer-Encoding": "chunked"}) + b"5\r\nda")
        return path == "/completion"

    with FakeServer() as server, closing(connect(server.url, 5.0)) as endpoint:
        server.raw = breaks
        with pytest.raises(ServerError, match="broke off in the middle"):
            endpoint.complete(Request(prompt=(1, 2), n_predict=4))


def test_a_server_that_loads_is_waited_for_and_what_is_waited_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlsd.servers.connection._TELL_S", 0.1)
    n_before, said = itertools.count(), list[str]()

    def loads(path: str, send: Send) -> bool:
        loading = next(n_before) < 3
        if loading:
            whole(send, b'{"error": {"message": "Loading model", "code": 503}}', {}, 503)
        return loading

    with FakeServer(token_s=0.6) as server:
        server.raw = loads
        with closing(connect(server.url, 30.0, tell=said.append)) as endpoint:
            n_said = len(said)
            endpoint.complete(Request(prompt=(1, 2), n_predict=2))
    assert len(said) > n_said > 0 and all(line.startswith(f"Waiting for {server.url}, for ") for line in said)


def test_a_deadline_holds_though_whoever_is_told_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlsd.servers.connection._TELL_S", 0.1)

    def gone(line: str) -> None:
        raise BrokenPipeError

    with (
        FakeServer(token_s=30.0) as server,
        closing(connect(server.url, 1.0, tell=gone)) as endpoint,
        pytest.raises(ServerError, match="nothing of use for 1 s"),
    ):
        endpoint.complete(Request(prompt=(1, 2), n_predict=2))


@pytest.mark.parametrize("dialect", ["llama-server", "openai"])
def test_a_server_that_asks_for_a_key_is_named_and_nothing_is_advised(
    dialect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(path: str, send: Send) -> bool:
        whole(send, b'{"error": {"code": 401, "message": "Invalid API Key"}}', {}, 401)
        return True

    with FakeServer(dialect) as plain, FakeServer(dialect, draft=True) as other:
        other.raw = refuses
        with pytest.raises(SystemExit):
            main(["server", other.url, "--against", plain.url, "--db", str(tmp_path / "s.sqlite")])
    out, err = capsys.readouterr()
    assert "refused (401)" in err and KEY_VARIABLE in err and "eave" not in out + err


@pytest.mark.parametrize(
    ("template", "bos", "tokens"),
    [
        ("{{ strftime_now('%Y') }} {{ messages[0].content }}", "", b"2024 Why?"),  # the day that every template is told
        ("WW{{ messages[0].content }}", "", b"WWWhy?"),
        ("{{ messages[0].content }}", "^", b"^Why?"),
        ("{{ bos_token }}{{ messages[0].content }}", "^", b"^Why?"),
        ("", "^", b"^Why?"),
    ],
)
def test_a_template_is_put_on_here_and_one_bos_token_in_front(template: str, bos: str, tokens: bytes) -> None:
    with FakeServer() as server:
        server.bos = bos
        server.value = lambda path, value: {**value, "chat_template": template} if path == "/props" else value
        with closing(connect(server.url, 5.0)) as endpoint:
            assert bytes(int(token) - 1 for token in endpoint.chat(("Why?",)).prompt) == tokens


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://me:key@127.0.0.1:1", "no user, password or key"),
        ("http://127.0.0.1:1/?key=x", "no user, password or key"),
        ("ftp://127.0.0.1", "no URL of a server"),
        ("8080", r"no URL of a server.*llama-server 9931 \(8080 before b11524\)"),
        *((f"http://{host}:8080", "not this machine") for host in ("example.org", "192.168.1.5", "studio.local")),
        *((f"http://{host}", "not this machine") for host in ("127.example.com", "127.0.0.1.nip.io", "0.0.0.0")),
    ],
)
def test_a_url_that_leaves_the_machine_or_holds_a_key_is_refused(url: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_url(url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "127.8.9.1", "[::1]:1"])
def test_a_url_of_this_machine_and_that_of_a_clients_settings_are_taken(host: str) -> None:
    assert check_url(f"http://{host}/v1/") == f"http://{host}"
    assert check_url("http://192.168.1.5:8080/", remote=True) == "http://192.168.1.5:8080"


def test_a_server_that_is_not_there_is_one_message() -> None:
    with closing(Connection("http://127.0.0.1:9", 1.0)) as end, pytest.raises(MlsdError, match="No server answers"):
        end.get("/health")
