"""What a person reads about a server is true of that server, and leads to what helps."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mlsd.analysis.results.server_arms import by_category, recommend, rival, row_name
from mlsd.cli import main
from mlsd.errors import InputError, ServerError
from mlsd.records import DRAFT_MODEL, DrafterSpec, ModelRef
from mlsd.report.tables.arms import category_table
from mlsd.servers.distrust import impossible
from mlsd.servers.endpoint import Request, ServerAnswer, connect
from mlsd.servers.flags import Binary, advice
from mlsd.servers.launch import by_hand, find_program
from mlsd.servers.measure import serve
from mlsd.servers.request import ServerRequest
from tests.servers.fake import FakeServer
from tests.servers.measured import ONE_THREAD, reasons
from tests.servers.test_results import arms, case, rows, trial

SHORT: dict[str, Any] = {"n_predict": 8, "repeats": 1, "engine": ONE_THREAD}


def run(*options: str, db: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of ``mlsd server``, and all that it prints."""
    code = 0
    try:
        main(["server", *options, "--n-predict", "8", "--repeats", "1", "--db", str(db)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    return code, out + err


def reworded(path: str, value: Any) -> Any:
    """Another text, whichever protocol tells it."""
    return json.loads(json.dumps(value).replace(" blue", " grey"))


def test_lm_studio_without_a_draft_is_asked_for_one_and_not_for_a_second_server(tmp_path: Path) -> None:
    with FakeServer("lm-studio") as server, pytest.raises(InputError, match="--draft NAME") as refused:
        serve(ServerRequest(url=server.url, **SHORT), tmp_path / "s.sqlite")
    assert "second" not in str(refused.value)


def test_lm_studios_clock_is_read_where_a_stream_has_it() -> None:
    stats = {"tokens_per_second": 57.7, "time_to_first_token": 0.299, "generation_time": 0.156}
    with FakeServer("lm-studio") as server:
        server.value = lambda path, value: {**value, "stats": stats} if "usage" in value else value
        endpoint = connect(server.url, 5.0, "draft")
        answer = endpoint.complete(Request(prompt="Why", n_predict=9))
    assert (answer.prompt_ns, answer.decode_ns) == (299_000_000, 156_000_000)
    # Whole milliseconds come again without any cache.
    again = ServerAnswer(n_tokens=9, total_ns=10**9, prompt_ns=299_000_000, decode_ns=156_000_000)
    assert impossible(Request(prompt="Why", n_predict=9), again, 0, earlier=[again]) is None


def test_lm_studio_is_told_a_model_by_its_name(tmp_path: Path) -> None:
    draft = tmp_path / "small.gguf"
    draft.write_bytes(b"")
    named = advice(DrafterSpec(name=DRAFT_MODEL, draft=ModelRef(id="small-q4")), 3, str(draft))
    assert f"--spec-draft-model {draft} " in named[0]
    assert named[1] == "LM Studio: Speculative Decoding > Draft Model small-q4, Drafting Max Size 3."


@pytest.mark.slow
def test_whether_a_text_differs_and_whether_it_is_faster_are_two_answers(tmp_path: Path) -> None:
    trials = [trial(case("ar", gamma=0), n, 100) for n in range(5)]
    trials += [trial(case("sd", gamma=4), n, 167 + 0.1 * n, "not_judged") for n in range(5)]
    assert "its text differs from plain decoding's, not judged" in recommend(rows(trials))[0]
    assert recommend(rows(trials))[0].startswith("Use d, gamma 4: 1.67x")
    with FakeServer("openai", token_s=0.005) as plain, FakeServer("openai", token_s=0.005) as other:
        other.value = reworded
        result = serve(ServerRequest(url=other.url, against=plain.url, **SHORT), tmp_path / "s.sqlite")
    assert not reasons(result)
    assert [arm.verdict for arm in result.results if not arm.is_plain] == ["not_judged"]
    assert all(arm.ratio is not None or arm.impossible for arm in result.results if not arm.is_plain)


@pytest.mark.slow
def test_of_two_servers_a_plain_one_drafts_nothing(tmp_path: Path) -> None:
    with FakeServer() as first, FakeServer(draft=True) as other:
        result = serve(ServerRequest(rivals=(first.url, other.url), **SHORT), tmp_path / "s.sqlite")
    lines = "\n".join(rival(result.results))
    assert "m @ llama-server 1 drafts nothing." in lines and "does not report" not in lines


def test_only_llama_cpp_python_is_said_to_break_off_where_its_speculation_fails() -> None:
    said = {}
    for owner in ("somebody", "me"):
        with FakeServer("openai") as server:
            models = {"data": [{"id": "m", "owned_by": owner}]}
            server.value = lambda path, value, models=models: models if path == "/v1/models" else value
            server.raw = lambda path, send: path.endswith("completions") and not send(_HALF)
            with pytest.raises(ServerError) as broken:
                connect(server.url, 5.0).complete(Request(prompt="Why", n_predict=4))
        said[owner] = str(broken.value)
    assert "its speculation fails" in said["me"] and "speculation" not in said["somebody"]


_HALF = b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"choices": [{"text": "The"}]}\n\n'


@pytest.mark.slow
def test_a_server_with_fewer_slots_than_requests_is_named_and_their_rows_are_told_apart(tmp_path: Path) -> None:
    given = {**SHORT, "prompts": ("code", "factual"), "parallel": (1, 2)}
    with FakeServer() as plain, FakeServer(draft=True) as other:
        result = serve(ServerRequest(url=other.url, against=plain.url, **given), tmp_path / "s.sqlite")
    assert any(
        "llama-server answers 1 of 2 requests at once" in note and "--parallel 2" in note for note in result.notes
    )
    names = [row_name(arm) for arm in result.results]
    assert len(set(names)) == len(names) and "speculation, 2 at once" in names
    drafting = [arm for arm in result.results if by_category(arm)]
    assert len({row[0].text for row in category_table(drafting).rows}) == len(drafting) == 2


def test_the_flags_name_the_draft_that_won() -> None:
    second = recommend(rows(arms(1.5, 0.01, 1)), {"a": "/models/a.gguf", "d": "/models/d.gguf"})
    assert "--spec-draft-model /models/d.gguf" in " ".join(second) or "DRAFT.gguf: the file of /models/d.gguf" in (
        " ".join(second)
    )
    assert "a.gguf" not in " ".join(second)


@pytest.mark.slow
def test_where_nothing_could_be_measured_a_repeat_is_not_advised_and_the_exit_code_is_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(path: str, value: Any) -> Any:
        return {**value, "tokens_predicted": -5} if path == "/completion" and value["stop"] else value

    with FakeServer() as plain, FakeServer(draft=True) as broken:
        broken.value = breaks
        code, said = run(broken.url, "--against", plain.url, db=tmp_path / "s.sqlite", capsys=capsys)
    assert code == 2 and "What decides it" not in said and "Measuring again as it is decides nothing" in said


@pytest.mark.slow
def test_what_would_decide_it_is_told_of_requests_alone_though_several_at_once_are_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--parallel", "1,2", "--prompt", "code", "--prompt", "factual")
    with FakeServer(token_s=0.004) as plain, FakeServer(draft=True, token_s=0.004) as other:
        code, said = run(other.url, "--against", plain.url, *options, db=tmp_path / "s.sqlite", capsys=capsys)
    assert code == 0 or "No usable measurement" in said  # of a starved server
    assert ("Not decided yet" in said) == ("What decides it" in said), said


@pytest.mark.slow
def test_trials_too_short_to_decide_are_repeated_with_more_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(token_s=0.004) as plain, FakeServer(draft=True, token_s=0.006) as other:
        _, said = run(other.url, "--against", plain.url, db=tmp_path / "s.sqlite", capsys=capsys)
    (line,) = (line for line in said.splitlines() if line.startswith("What decides it"))
    assert int(line.partition("--n-predict ")[2].split()[0]) > 8


def test_models_that_write_no_text_are_passed_over() -> None:
    deciding = {"id": "judge", "owned_by": "llamacpp", "architecture": {"output_modalities": ["decisions"]}}
    with FakeServer("openai") as server:
        server.value = lambda path, value: {"data": [deciding, *value["data"]]} if path == "/v1/models" else value
        assert connect(server.url, 5.0).server.model == "m-none"
        server.value = lambda path, value: {"data": [deciding]} if path == "/v1/models" else value
        with pytest.raises(ServerError, match="that writes text"):
            connect(server.url, 5.0)


def test_the_server_that_mlsd_brings_is_said_to_need_its_libllama_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    assert by_hand(str(folder / "llama-server")) == ""
    for path in ("bin/llama-server", "lib/libllama.so.0", "lib/libllama-server-impl.so"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.platform", "linux")
        assert f"LD_PRELOAD={tmp_path}/lib/libllama.so.0 {folder}/llama-server ..." in by_hand(
            str(folder / "llama-server")
        )
    with pytest.raises(InputError, match="no program"):
        find_program("no-such-server")


class Confused(FakeServer):
    """Writes another text for a prompt that it has answered before."""

    def _events(self, path: str, sent: Any) -> Iterator[Any]:
        new = sent["prompt"] not in self.prompts
        self.prompts.add(sent["prompt"])
        yield from (event if new else reworded(path, event) for event in super()._events(path, sent))

    prompts: ClassVar[set[str]] = set()


def test_a_draft_that_remembers_another_text_is_named(tmp_path: Path) -> None:
    with FakeServer("openai") as plain, Confused("openai") as other:
        result = serve(ServerRequest(url=other.url, against=plain.url, **SHORT), tmp_path / "s.sqlite")
    assert any("speculation does not repeat itself" in note for note in result.notes), result.notes


def test_a_draft_of_another_vocabulary_is_refused_in_the_servers_words(llama_server: Binary, tmp_path: Path) -> None:
    from mlsd.models.library import resolve_model
    from tests.servers.conftest import TARGET

    request = ServerRequest(
        launch=llama_server.path, target=str(TARGET), drafts=(str(resolve_model("smollm2-135m").path),), **SHORT
    )
    result = serve(request, tmp_path / "s.sqlite")
    assert all("draft model vocab type must match" in reason for reason in reasons(result)), reasons(result)
