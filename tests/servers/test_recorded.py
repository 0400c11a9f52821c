"""Servers that are not here, from what they sent to others: read as it was written, and said to be untested.

None of them ran beside these tests. Sources: vLLM's metrics as its docs/features/speculative_decoding/
acceptance_metrics.md and per_request_metrics.md print them, in the frame of a captured last event (llama-swap issue
1032); its Prometheus page from vLLM pull request 24049; mlx-vlm's counts from its pull requests 1788 and 2324; MTPLX's
from its `PUBLIC_MTPLX_STATS_KEYS`, with the figures of a run that another benchmark recorded; mlx-dspark's from its
tests and its page on the server; Rapid-MLX's counters as its issue 2175 prints them, its counts of a request from its
pull requests 3158 and 3223; omlx's list of models from its source.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mlsd.analysis.results.server_arms import rival, row_name
from mlsd.cli import main
from mlsd.errors import MlsdError
from mlsd.servers.distrust import impossible
from mlsd.servers.endpoint import Request, Server, ServerAnswer, connect
from mlsd.servers.measure import UNREPORTED, serve
from mlsd.servers.programs import PROGRAMS, Program, counts_between
from mlsd.servers.request import ServerRequest
from tests.servers.fake import FakeServer
from tests.servers.measured import ONE_THREAD

OLLAMA: dict[str, Any] = {
    "/api/version": {"version": "0.31.1"},
    "/api/ps": {"models": [{"name": "qwen3:4b", "model": "qwen3:4b", "size": 2620788260}]},
}
OLLAMA_LINES = [
    {"model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.1Z", "response": "The", "done": False},
    {"model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.2Z", "response": " sky is", "done": False},
    {
        "model": "qwen3:4b", "created_at": "2026-11-02T09:12:31.3Z", "response": "", "done": True,
        "done_reason": "length", "total_duration": 60000, "load_duration": 1000, "prompt_eval_count": 5,
        "prompt_eval_duration": 20000, "eval_count": 3, "eval_duration": 30000,
    },
]  # fmt: skip
LM_STUDIO: dict[str, Any] = {
    "/api/v0/models": {
        "object": "list",
        "data": [
            {"id": "qwen3-0.6b", "object": "model", "type": "llm", "state": "not-loaded"},
            {"id": "qwen3-4b", "object": "model", "type": "llm", "state": "loaded", "quantization": "Q4_K_M"},
        ],
    }
}
CHOICE = {"index": 0, "text": "The sky is", "logprobs": None, "finish_reason": "length"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
LM_STUDIO_STREAM = [
    {"object": "text_completion", "choices": [{"index": 0, "text": "The", "finish_reason": None}]},
    {"object": "text_completion", "choices": [{"index": 0, "text": " sky is", "finish_reason": None}]},
    {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": USAGE},
]
LM_STUDIO_STATS = {"draft_model": "qwen3-0.6b", "total_draft_tokens_count": 4, "accepted_draft_tokens_count": 2}


LM_STUDIO_WHOLE = {"object": "text_completion", "choices": [CHOICE], "usage": USAGE}
VLLM = {
    "/v1/models": {"object": "list", "data": [{"id": "test-model", "object": "model", "owned_by": "vllm"}]},
    "/version": {"version": "0.27.2rc1.dev407"},
}
VLLM_METRICS = {
    "time_to_first_token_ms": 85.2, "generation_time_ms": 1240.5, "queue_time_ms": 12.3, "mean_itl_ms": 9.1,
    "tokens_per_second": 103.2,
    "speculative_decoding": {
        "mean_acceptance_length": 1.2325581395348837, "draft_acceptance_rate": 0.07751937984496124,
        "acceptance_histogram": [39, 1, 0, 3], "num_spec_steps": 43, "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129, "num_spec_tokens": 3,
    },
}  # fmt: skip
VLLM_DRAFTS = (22, 15, 29, 20, 25, 24, 27, 26)  # of eight engines


def vllm_page(times: int) -> str:
    """The counters of eight engines, so many times what they were recorded at, and what is no count among them."""
    labels = 'engine="{}",instance="localhost:8000",job="vllm",model_name="/home/models/Qwen3-0.6B"'
    lines = ["# TYPE vllm:spec_decode_num_drafts_total counter"]
    for engine, drafts in enumerate(VLLM_DRAFTS):
        label = labels.format(engine)
        lines += [f"vllm:spec_decode_num_drafts_total{{{label}}} {times * drafts}.0"]
        lines += [f"vllm:spec_decode_num_drafts_created{{{label}}} 1756736798.733569"]
        lines += [f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {times * 5 * drafts}.0"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {times * 3 * drafts}.0"]
        lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="0"}} {times * drafts}.0']
    return "\n".join(lines)


def openai_events(n: int, last: dict[str, Any], ids: bool = False) -> list[Any]:
    """A stream of so many pieces, and its last event as recorded."""
    choice = {"index": 0, "delta": {"content": "x"}, "text": "x", **({"token_ids": [7]} if ids else {})}
    pieces = [{"choices": [choice]} for _ in range(n)]
    return [*pieces, {"choices": [{"delta": {}, "finish_reason": "length"}]}, {"choices": [], **last}]


class Replay(FakeServer):
    """A server that sends again what was recorded, and keeps what it was asked."""

    def __init__(self, dialect: str, pages: dict[str, Any], events: list[Any], whole: Any = None) -> None:
        super().__init__(dialect)
        self.pages, self.events, self.whole, self.requests = pages, events, whole, list[dict[str, Any]]()

    def _page(self, path: str, wanted: Any) -> Any:
        if wanted is None:
            return self.pages.get(path)
        self.requests.append({"path": path, **wanted})
        return {**self.whole, "stats": LM_STUDIO_STATS if "draft_model" in wanted else {}}

    def _events(self, path: str, wanted: Any) -> Iterator[Any]:
        self.requests.append({"path": path, **wanted})
        yield from self.events

    def _metrics(self) -> str:  # as far as there were answers: one request makes the recorded counts
        return vllm_page(len(self.requests))


def answered(server: Replay, *requests: Request, draft: str | None = None) -> tuple[Server, list[ServerAnswer]]:
    """What the server says of itself, and its answers."""
    with server, closing(connect(server.url, 5.0, draft)) as endpoint:
        return endpoint.server, [endpoint.settle(request, endpoint.complete(request)) for request in requests]


WHY = Request(prompt="Why is the sky", n_predict=3)
PLAIN = msgspec.structs.replace(WHY, draft=False)


def test_ollama_is_read_and_its_drafting_switched_off_by_request_and_templates_left_to_it() -> None:
    server = Replay("ollama", OLLAMA, OLLAMA_LINES)
    chat = Request(messages=("Why?", "Because.", "Really?"), n_predict=3)
    about, (answer, _, _) = answered(server, WHY, PLAIN, chat)
    assert (about.program.name, about.model, about.program.untested) == ("Ollama", "qwen3:4b", True)
    assert (answer.text, answer.n_tokens, answer.n_prompt, answer.decode_ns) == ("The sky is", 3, 5, 30000)
    assert answer.first_ns is not None and answer.proposed is None
    drafting, plain, templated = server.requests
    assert [one["options"].get("draft_num_predict") for one in server.requests] == [None, 0, None]
    assert drafting["raw"] and plain["raw"] and drafting["options"]["temperature"] == 0
    assert templated["path"] == "/api/chat" and "raw" not in templated
    assert [message["role"] for message in templated["messages"]] == ["user", "assistant", "user"]


def test_lm_studio_drafts_with_the_model_that_a_request_names() -> None:
    server = Replay("lm-studio", LM_STUDIO, LM_STUDIO_STREAM, LM_STUDIO_WHOLE)
    about, answers = answered(server, WHY, PLAIN, draft="qwen3-0.6b")
    assert (about.program.name, about.model, about.program.untested) == ("LM Studio", "qwen3-4b", True)
    assert [(a.proposed, a.accepted) for a in answers] == [(4, 2), (None, None)]
    assert ["draft_model" in one for one in server.requests] == [True, True, False]
    assert answers[0].n_tokens == 3


def listing(owner: str) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": "org/Model-4bit", "object": "model", "owned_by": owner}]}}


HEALTHY = {"/health": {"status": "healthy", "loaded_model": "mlx-community/Qwen3.5-4B-MLX-4bit", "apc_enabled": False}}
OK = {"/health": {"status": "ok"}}
COUNTS = {"draft_kind": "mtp", "draft_rounds": 30, "draft_n": 90, "draft_n_accepted": 81}
BEYOND = {**COUNTS, "draft_rounds": 1, "draft_n": 7, "draft_n_accepted": 6}  # matches behind the end of the answer
MTPLX = {"generated_tokens": 164, "verify_calls": 71, "accepted_by_depth": [50, 29, 13], "drafted_by_depth": [71] * 3}
DSPARK = {"mode": "dspark", "cap": 7, "accept_len": 3.4, "target_forwards": 25, "decode_tokens_per_sec": 64.5}
PREDICTED = {"completion_tokens_details": {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 4}}
NONE_PREDICTED = {"completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}}
BY_DEPTH = {"verify_calls": 3, "correction_tokens": 2, "bonus_tokens": 1, "drafted_by_depth": [3, 3, 2]}
RAPID_REQUEST = {"speculative_decoding": {**BY_DEPTH, "accepted_by_depth": {"1": 2, "2": 1, "3": 1}}}
RAPID = """rapid_mlx_spec_decode_attempts_total{{family="qwen3.5",method="mtp"}} {0}
rapid_mlx_spec_decode_accepts_total{{family="qwen3.5",method="mtp"}} {1}
rapid_mlx_spec_decode_accept_ratio{{family="qwen3.5",method="mtp"}} 0.0
"""


@pytest.mark.parametrize(
    ("program", "pages", "n", "last", "counted"),
    [
        ("mlx-vlm", HEALTHY, 111, {"timings": COUNTS}, (90, 81, 30)),
        ("mlx-vlm", HEALTHY, 2, {"timings": BEYOND}, (7, 6, 1)),
        ("MTPLX", listing("mtplx"), 164, {"mtplx_stats": MTPLX}, (213, 92, 71)),
        ("mlx-dspark", {**listing("mlx-dspark"), **OK}, 85, {"x_mlx_dspark": DSPARK}, (None, None, 25)),
        ("Rapid-MLX", {**listing("rapid-mlx"), "/health": {"status": "healthy"}}, 9, {}, (None, None, None)),
        ("Rapid-MLX", listing("rapid-mlx"), 8, {"metrics": RAPID_REQUEST}, (8, 4, 3)),
        ("omlx", listing("omlx"), 9, {}, (None, None, None)),
        ("OpenAI-compatible", listing("system"), 13, {"usage": PREDICTED}, (12, 8, None)),
        # A server of llama.cpp behind a proxy, whose usage has OpenAI's zeros: what counts more is meant.
        ("OpenAI-compatible", listing("llama-swap"), 111, {"usage": NONE_PREDICTED, "timings": COUNTS}, (90, 81, 30)),
    ],
)  # fmt: skip
def test_what_each_tells_of_drafting_is_read(
    program: str, pages: dict[str, Any], n: int, last: dict[str, Any], counted: tuple[int | None, ...]
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": n, **last.get("usage", {})}
    server, request = (
        Replay("openai", pages, openai_events(n, {**last, "usage": usage})),
        Request(prompt="Why", n_predict=n),
    )
    about, (answer,) = answered(server, request)
    assert (about.program.name, about.program.untested) == (program, program != "OpenAI-compatible")
    assert (answer.proposed, answer.accepted, answer.n_rounds) == counted and answer.n_tokens == n
    assert impossible(request, answer, 0) is None
    (sent,) = server.requests
    chats = program in ("mlx-vlm", "MTPLX")  # conversations alone
    assert sent["path"] == ("/v1/chat/completions" if chats else "/v1/completions")
    assert (sent["messages"][0]["content"] if chats else sent["prompt"]) == "Why"


def test_another_program_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Program(name="newcomer", value="somebody new", completions="/v9/complete", always={"options.exact": True})
    monkeypatch.setattr("mlsd.servers.endpoint.PROGRAMS", (row, *PROGRAMS))
    last = {"usage": {"prompt_tokens": 5, "completion_tokens": 3}, "timings": {"draft_n": 4, "draft_n_accepted": 2}}
    server = Replay("openai", listing("somebody new"), openai_events(3, last))
    about, (answer,) = answered(server, WHY)
    assert about.description == "newcomer (untested: from recorded exchanges)"
    assert (answer.text, answer.n_tokens, answer.proposed, answer.accepted) == ("xxx", 3, 4, 2)
    (sent,) = server.requests
    assert sent["path"] == "/v9/complete" and sent["options"] == {"exact": True} and sent["max_tokens"] == 3


def test_rapid_mlx_is_read_by_its_counters() -> None:
    with Replay("vllm", listing("rapid-mlx"), []) as server, closing(connect(server.url, 5.0)) as endpoint:
        server.value = lambda path, value: RAPID.format(1304, 1111) if path == "/metrics" else value
        counters = endpoint.counters()
    assert counters == {"proposed": 1304, "accepted": 1111}


def test_vllm_tells_of_each_request_what_was_accepted_in_how_many_rounds() -> None:
    n = 1 + 43 + 10
    usage = {"prompt_tokens": 3, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": 0}}
    server = Replay("vllm", VLLM, openai_events(n, {"usage": usage, "metrics": VLLM_METRICS}, ids=True))
    request = Request(prompt=(1, 2, 3), n_predict=n)
    about, (answer,) = answered(server, request)
    assert about.description == "vLLM 0.27.2rc1.dev407 (untested: from recorded exchanges)"
    assert (answer.n_rounds, answer.proposed, answer.accepted) == (43, 129, 10)
    assert answer.by_accepted == (39, 1, 0, 3)
    assert (answer.prompt_ns, answer.decode_ns) == (85_200_000, 1_240_500_000)  # to the first token, and from it on
    assert answer.tokens == (7,) * n and answer.n_processed == 3
    assert all(server.requests[0][name] for name in ("ignore_eos", "return_token_ids", "cache_salt"))
    assert impossible(request, msgspec.structs.replace(answer, accepted=11), 3) is not None


def test_vllm_that_tells_nothing_of_a_request_is_read_by_its_counters() -> None:
    n = 1 + 188 + 564
    usage = {"prompt_tokens": 3, "completion_tokens": n}
    recorded = Replay("vllm", VLLM, openai_events(n, {"usage": usage}, ids=True))
    with recorded, closing(connect(recorded.url, 5.0)) as endpoint:
        before = endpoint.counters()
        endpoint.complete(Request(prompt=(1, 2, 3), n_predict=n))
        after = endpoint.counters()
    assert counts_between(before, after) == {"n_rounds": 188, "proposed": 940, "accepted": 564}


def test_one_server_that_switches_is_both_arms(tmp_path: Path) -> None:
    with Replay("ollama", OLLAMA, OLLAMA_LINES) as server:
        request = ServerRequest(url=server.url, n_predict=3, repeats=2, engine=ONE_THREAD)
        result = serve(request, tmp_path / "s.sqlite")
    arms = result.results
    assert [row_name(row) for row in arms] == ["plain", "speculation"]
    notes = "\n".join(result.notes)
    assert "untested" in notes and "compared as text" in notes


@pytest.mark.slow
def test_a_server_that_tells_nothing_of_drafting_is_not_called_plain(tmp_path: Path) -> None:
    with FakeServer("mlx") as plain, FakeServer("mlx") as other:
        given: dict[str, Any] = {"n_predict": 4, "repeats": 1, "engine": ONE_THREAD}
        result = serve(ServerRequest(url=other.url, against=plain.url, **given), tmp_path / "s.sqlite")
        rivals = serve(ServerRequest(rivals=(plain.url, other.url), **given), tmp_path / "r.sqlite")
    assert any("taken on trust" in note for note in result.notes)
    for compared in (result, rivals):
        assert not any("two plain" in note for note in compared.notes)
        assert {arm.case.target.id.partition(" @")[0] for arm in compared.results} == {"unnamed model"}
    assert {arm.case.drafter.name for arm in rivals.results} == {UNREPORTED}
    assert not [line for line in rival(rivals.results) if "plain" in line or "llama-server" in line]
    report = tmp_path / "report"
    main(["report", "--db", str(tmp_path / "r.sqlite"), "-o", str(report)])
    page = next(report.glob("*.md")).read_text(encoding="utf-8")
    assert "+ plain" not in page and "--spec-type" not in page and "best tried" not in page


def test_one_server_that_cannot_switch_is_refused(tmp_path: Path) -> None:
    pages = {"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]}}
    with Replay("openai", pages, []) as server, pytest.raises(MlsdError, match="cannot leave drafting off"):
        serve(ServerRequest(url=server.url), tmp_path / "s.sqlite")


@pytest.mark.parametrize(
    ("pages", "why"),
    [({"/v1/models": {"data": []}}, "no model loaded"), ({}, "no protocol that mlsd knows")],
)
def test_a_server_without_a_model_or_a_protocol_is_one_message(pages: dict[str, Any], why: str) -> None:
    with Replay("openai", pages, []) as server, pytest.raises(MlsdError, match=why):
        connect(server.url, 5.0)
