"""Two servers with models of their own: which is faster, whether they write the same, and what may be why."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlsd.analysis.results.server_arms import by_category, first_token_ms, rival, row_name, token_ms
from mlsd.cli import main
from mlsd.errors import MlsdError
from mlsd.servers.measure import ServerResult, serve
from mlsd.servers.request import ServerRequest
from tests.servers.fake import FakeServer, whole
from tests.servers.measured import ONE_THREAD

TIMED = {"until": "decided", "budget_s": 20.0}

pytestmark = pytest.mark.heavy  # servers that are waited for

TOKEN_S = 0.006


def compared(first: FakeServer, second: FakeServer, db: Path, **more: Any) -> ServerResult:
    settings = {"n_predict": 24, "repeats": 3, "engine": ONE_THREAD, **more}
    return serve(ServerRequest(rivals=(first.url, second.url), **settings), db)


def test_the_slower_of_two_servers_is_told_with_what_each_accepts(tmp_path: Path) -> None:
    with (
        FakeServer("openai", token_s=TOKEN_S) as server,
        FakeServer("mlx-vlm", draft=True, token_s=3 * TOKEN_S) as other,
    ):
        result = compared(server, other, tmp_path / "s.sqlite", **TIMED)
    first, second = result.results
    assert (row_name(first), row_name(second)) == ("m-none @ OpenAI-compatible", "m-none @ mlx-vlm")
    assert first.ratio is None and second.effect == "slower", second
    lines = "\n".join(rival([first, second]))
    assert "m-none @ mlx-vlm is slower: 0." in lines
    assert "OpenAI-compatible does not report drafted tokens" in lines
    assert "mlx-vlm accepts 92 % of proposed tokens and 48 % of its output, 1.92 tokens a round" in lines
    assert result.stopped == "decided"
    assert not any("plain" in note for note in result.notes)
    assert first_token_ms(second) is not None and (spans := token_ms(second)) is not None
    assert spans.p50 <= spans.p90 <= spans.p99


@pytest.mark.parametrize("goal", [{}, TIMED])
@pytest.mark.parametrize("fails", [False, True])
def test_which_server_is_named_first_changes_no_answer(tmp_path: Path, goal: dict[str, Any], fails: bool) -> None:
    """Of a server that drafts and holds half of each answer back, beside a plain one that may break down midway."""
    effects = []
    for order in (1, -1):
        n_before = itertools.count()

        def breaks(path: str, send: Callable[[bytes], None], n_before: Iterator[int] = n_before) -> bool:
            broken = fails and path.endswith("completions") and next(n_before) > 10
            if broken:
                whole(send, b"", {}, 500)
            return broken

        with FakeServer("openai", token_s=TOKEN_S) as plain, FakeServer("mlx-vlm", draft=True) as drafting:
            drafting.token_s, drafting.held, plain.raw = TOKEN_S / 3, 0.5, breaks
            result = compared(*(plain, drafting)[::order], tmp_path / f"{order}.sqlite", **goal)
        arms = result.results
        (other,) = [arm for arm in arms if not arm.is_plain]
        clocks = [arm.client_tok_s / arm.tok_s for arm in arms if arm.client_tok_s and arm.tok_s]
        assert all(0.9 < clock < 1.1 for clock in clocks), clocks
        lines = rival(arms)[0]
        assert str(other.effect) in lines and "plain" not in str(other.decision)
        # Starved of their processor answers may take no longer than those of one token, and nothing is compared.
        assert fails or str(other.decision).startswith((other.effect, "not compared"))
        effects.append((other.effect, result.stopped))
    for (effect, stopped), sure in zip(effects, ("faster", "slower"), strict=True):
        # A busy machine may leave it open, not turn it.
        assert effect == "not decided yet" or (effect == sure and not fails)
        assert stopped is None if not goal else stopped == "spoilt" if fails else stopped in ("decided", "budget")


def test_two_servers_that_write_the_same_are_said_to_and_others_where_they_part(tmp_path: Path) -> None:
    with FakeServer(token_s=TOKEN_S) as first, FakeServer(token_s=TOKEN_S) as other:
        result = compared(first, other, tmp_path / "same.sqlite", n_predict=8, repeats=1, prompts=("code", "factual"))
        assert result.agreement == ("m @ llama-server 2 writes what m @ llama-server 1 does on 2 of 2 prompts.",)
        assert not any(map(by_category, result.results)), "what drafts nothing accepts no share of anything"

        def altered(path: str, value: Any) -> Any:
            if path == "/completion" and value.get("content"):
                return {**value, "content": value["content"].replace("blue", "grey")}
            return {"data": [{"meta": {"n_vocab": 99}}]} if path == "/v1/models" else value

        other.value = altered
        result = compared(first, other, tmp_path / "other.sqlite", n_predict=8, repeats=1)
    lines = "\n".join(result.agreement)
    assert "on 0 of 1 prompts" in lines
    assert "code: the texts part after 11 characters, at 'blue, and soThe' and 'grey, and soThe'" in lines
    assert "vocabulary (512 and 99)" in lines
    assert all(first.trial.valid and first.trial.losslessness is None for first in result.trials)


def test_of_two_servers_programs_get_the_comparison_and_neither_answer_nor_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(token_s=TOKEN_S) as first, FakeServer(token_s=TOKEN_S) as other:
        options = ["--n-predict", "8", "--repeats", "1", "--db", str(tmp_path / "s.sqlite")]
        main(["server", first.url, other.url, *options, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert "answers" not in printed and [arm["output"] for arm in printed["summary"]] == [None, None]
    assert printed["summary"][1]["effect"] == "not decided yet"
    assert any("What decides it: mlsd server" in line and "--until decided" in line for line in printed["advice"])
    assert [line for line in printed["advice"] if "not decided yet" in line] and "on 1 of 1 prompts" in str(
        printed["advice"]
    )


def test_a_server_that_takes_conversations_alone_makes_the_other_take_them_too(tmp_path: Path) -> None:
    paths: list[str] = []
    with FakeServer("mlx") as server, FakeServer("mlx-vlm") as other:
        server.value = lambda path, value: paths.append(path) or value
        compared(server, other, tmp_path / "s.sqlite", n_predict=4, repeats=1)
    assert "/v1/chat/completions" in paths


def test_more_than_two_servers_and_one_twice_are_refused(tmp_path: Path) -> None:
    with FakeServer() as first:
        for urls in ((first.url, first.url), (first.url, "http://127.0.0.1:1", "http://127.0.0.1:2")):
            with pytest.raises(MlsdError, match=r"same server|Two servers"):
                serve(ServerRequest(rivals=urls), tmp_path / "s.sqlite")
