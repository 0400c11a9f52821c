"""What servers answer is hostile until parsed: one message that names sender and field, no hang, no memory, no key."""

import ast
import gzip
import itertools
import json
import time
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import mlsd
from mlsd.cli import main
from mlsd.errors import InputError, MlsdError, ServerError
from mlsd.servers.connection import KEY_VARIABLE, Connection
from mlsd.servers.endpoint import Request, connect
from tests.servers.fake import DIALECTS, ENDLESS, EVENT, STREAM, FakeServer, Send, after, again, head
from tests.servers.measured import pair, prompt_of, reasons

pytestmark = pytest.mark.heavy  # servers that are waited for

KEY = "sk-of-somebody-else"
WRONG_VALUES: tuple[Any, ...] = (
    None, True, 7, -1, 0.5, 1e300, 2**70, "", "text", [], [None], [[]], [-1], ["x"], {}, {"a": {}}, [{}], [1, "x"],
)  # fmt: skip
WRONG_BYTES = (
    b"NaN", b"", b"{", b"\xff\xfe", b'"\\ud800"', b"[" * 5_000, b"1" * 5_000, b'{"a":' * 5_000, b"<html>", b"1e400",
)  # fmt: skip


def ask_everything(url: str, patience_s: float = 5.0) -> None:
    """Every request of which a measurement is made."""
    with closing(connect(url, patience_s, "draft")) as endpoint:
        prompt = endpoint.tokenize("The sky") or "The sky"
        endpoint.chat(("Why?",))
        request = Request(prompt=prompt, n_predict=4)
        answer = endpoint.settle(request, endpoint.complete(request))
        endpoint.counters()
        assert answer.total_ns >= 0 and answer.n_tokens < 2**54
        if endpoint.program.gives_probabilities:
            endpoint.complete(Request(prompt=prompt, n_predict=4, n_probs=5))


def fields_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of everything in a value, the whole first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, item in inner for place in fields_of(item, (*path, name)))]


def with_field(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The value with another one at a place."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_field(value[path[0]], path[1:], other)
    return copy


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_field_of_another_shape_is_one_message_that_names_the_sender(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.servers.endpoint._SETTLED_S", 0.0)
    pages: dict[str, Any] = {}
    with FakeServer(dialect, draft=True) as server:
        server.value = lambda path, value: pages.setdefault(path, value)
        with pytest.raises(MlsdError):  # every event is the first one: no stream ends
            ask_everything(server.url)
        server.value = lambda path, value: pages.setdefault(path, value) and value
        ask_everything(server.url)
        n_refused, values = 0, itertools.cycle(WRONG_VALUES)
        for page, honest in pages.items():
            for field in fields_of(honest):
                # Thousands more are tried by benchmarks/hostile.py.
                for wrong in (*WRONG_BYTES, *WRONG_VALUES) if not field else itertools.islice(values, 3):

                    def altered(path: str, value: Any, page: str = page, field: Any = field, wrong: Any = wrong) -> Any:
                        try:
                            return with_field(value, field, wrong) if path == page else value
                        except (KeyError, IndexError, TypeError):  # another event of the same path
                            return value

                    server.value = altered
                    try:
                        ask_everything(server.url)
                    except MlsdError as error:
                        n_refused += 1
                        assert server.url in str(error) or "server" in str(error), f"{page} {field} {wrong!r}: {error}"
    assert n_refused > 20


def test_a_server_that_answers_nonsense_costs_its_trials_and_not_the_run(tmp_path: Path) -> None:
    def altered(path: str, value: Any) -> Any:
        return {**value, "tokens_predicted": -5} if path == "/completion" and value["stop"] else value

    with FakeServer() as plain, FakeServer(draft=True) as broken:
        ends = connect(plain.url, 5.0), connect(broken.url, 5.0)
        broken.value = altered
        with closing(ends[0]), closing(ends[1]):
            result = pair(*ends, tmp_path / "s.sqlite", n_predict=6)
    assert not reasons(result, "ar")
    expected = ("$.tokens_predicted", f"{broken.url}/completion has a value", "`int` >= 0")  # the field, and of what
    assert [all(text in reason for text in expected) for reason in reasons(result)] == [True, True], reasons(result)


# --- without end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["/completion", "/tokenize"])
@pytest.mark.parametrize("attack", ENDLESS)
def test_an_answer_without_end_ends_in_one_message(attack: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlsd.servers.connection._ANSWER_S", 1.0)
    monkeypatch.setattr("mlsd.servers.connection._ANSWER_BYTES", 4 << 20)

    def raw(path: str, send: Send) -> bool:
        if path == page:
            ENDLESS[attack](send)
        return path == page

    with FakeServer() as server:
        server.raw = raw
        started = time.monotonic()
        with pytest.raises(ServerError, match=server.url):
            ask_everything(server.url, 0.5)
        assert time.monotonic() - started < 30  # a hang is what is looked for, not a time


@pytest.mark.parametrize("begun", [STREAM, STREAM + EVENT], ids=["before a token", "after one"])
@pytest.mark.parametrize("nothing", [b": ping\n\n", b'data: {"content": "", "tokens": [], "stop": false}\n\n'])
def test_what_is_no_token_is_no_life_and_a_silent_server_is_given_up(
    nothing: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.servers.connection._TOKEN_S", 1.0)
    sent = []

    def raw(path: str, send: Send) -> bool:
        if path == "/completion":
            sent.append(path)
            after(begun, again(nothing, 0.05))(send)
        return path == "/completion"

    with FakeServer() as server:
        server.raw = raw
        endpoint = connect(server.url, 1.0 if begun == STREAM else 60.0)
        for _ in range(8):
            with pytest.raises(ServerError, match="nothing of use for 1 s"):
                endpoint.complete(Request(prompt=(1, 2), n_predict=10_000))
    assert len(sent) == 1  # each further one would wait as long again


@pytest.mark.parametrize("held", [0.0, 0.15, 0.5, 1.0])
def test_a_server_that_holds_its_stream_back_is_not_faster(held: float, tmp_path: Path) -> None:
    with FakeServer("openai", token_s=0.004) as plain, FakeServer("openai", token_s=0.004) as holding:
        holding.held = held
        ends = [connect(server.url, 20.0) for server in (plain, holding)]
        result = pair(ends[0], ends[1], tmp_path / "x.sqlite", prompt_of("Why?"), n_predict=48, repeats=2)
    (row,) = (row for row in result.results if not row.is_plain)
    assert row.ratio is not None and 1 / 3 < row.ratio.value < 3  # 48 tokens sent at once would be 4.7 times as fast


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlsd.servers.connection._EVENT_BYTES", 100)
    with FakeServer() as server:
        server.value = lambda path, value: {**value, "more": "x" * 200} if path == "/completion" else value
        with pytest.raises(ServerError, match="an event of more than 100 bytes"):
            ask_everything(server.url)
        monkeypatch.setattr("mlsd.servers.connection._EVENT_BYTES", 10_000)
        ask_everything(server.url)


def test_a_compressed_answer_is_refused_unopened() -> None:
    packed = gzip.compress(b" " * (64 << 20))
    with FakeServer() as server:
        server.raw = lambda path, send: (
            send(head({"Content-Encoding": "gzip", "Content-Length": str(len(packed))}) + packed) or True
        )
        tracemalloc.start()
        with pytest.raises(ServerError, match="compressed its answer"):
            connect(server.url, 5.0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 << 20


# --- secrets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("escaped", [False, True])
def test_a_key_that_a_server_sends_back_is_neither_shown_nor_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], escaped: bool
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)

    def echo(path: str, value: Any) -> Any:
        if path == "/props":
            value = {**value, "model_alias": KEY, "model_path": f"/{KEY}.gguf", "build_info": KEY}
        if path == "/completion":
            value = {**value, "content": f"{KEY} {value['content']}", "stop_type": KEY}
        if isinstance(value, str):
            return value
        return json.dumps(value).replace(KEY, "".join(f"\\u{ord(c):04x}" for c in KEY) if escaped else KEY).encode()

    with FakeServer() as plain, FakeServer(draft=True) as other:
        plain.value = other.value = echo
        argv = ["server", other.url, "--against", plain.url, "--n-predict", "6", "--repeats", "1"]
        with suppress(SystemExit):  # answers that come at once are not timed
            main([*argv, "--db", str(tmp_path / "s.sqlite")])
        assert KEY in plain.keys
    out, err = capfd.readouterr()
    assert "***" in out and KEY not in out + err
    for path in tmp_path.iterdir():
        assert KEY.encode() not in path.read_bytes()


def test_a_key_in_a_refusal_or_in_an_event_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with FakeServer() as server:
        for event in ({"error": KEY}, {"error": {"message": KEY}}, {"tokens_evaluated": KEY}, KEY):
            server.value = lambda path, value, event=event: event if path == "/completion" else value
            with pytest.raises(ServerError) as refused:
                ask_everything(server.url)
            assert KEY not in str(refused.value)


def test_a_key_that_no_header_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("sk-\u202e", "sk\nx: y", "sk-\udcff"):
        monkeypatch.setenv(KEY_VARIABLE, key)
        with pytest.raises(InputError, match="no key can have"):
            Connection("http://127.0.0.1:9", 1.0)


# --- one place ----------------------------------------------------------------------------------------------------


# Who may decode what it did not define: all else names a type, and no type is Any.
UNTYPED = {
    "trials/arms.py",  # a column of ours
    "outside.py",  # the parser itself, which masks secrets in whatever came
    "formats/llama_bench.py",  # keeps the rows as they are, beside what it reads of them
    "hardware/darwin.py",  # what the system's own tools print of this machine
    "analysis/advise/acceptance.py",  # an asset of ours
    "analysis/results/trials.py",  # a column of ours
    "cli/output.py",  # what is about to be printed
}


def test_json_from_outside_is_decoded_into_types_only() -> None:
    root = Path(mlsd.__file__).parent
    for path in root.rglob("*.py"):
        if str(path.relative_to(root)) in UNTYPED:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("json.loads", "json.load", "msgspec.json.decode", "response.json"):
                assert isinstance(node, ast.Call)
                kinds = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "type"]
                assert kinds and "Any" not in kinds[0], f"{path}: {ast.unparse(node)}"
