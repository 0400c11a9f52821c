"""llama-cpp-python's server and mlx_lm.server, the latter beside llama-server on the very same weights."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mlsd.analysis.results.server_arms import verdict_words
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.servers.endpoint import Endpoint, Request, ServerAnswer, wait_for
from mlsd.servers.judge import judge
from mlsd.servers.measure import serve
from mlsd.servers.request import ServerRequest
from tests.lab.processes import ROOT, free_port
from tests.needs import needed
from tests.servers.conftest import TARGET, Start
from tests.servers.measured import ONE_THREAD, pair, prompt_of, reasons, verdicts
from tests.servers.mlx_model import write_both

Run = Callable[..., Endpoint]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Starts Python modules that serve HTTP, ended after the module's tests."""
    hub = tmp_path_factory.mktemp("hub")  # mlx_lm.server lists nothing where there is none
    with ExitStack() as stack:

        def start(module: str, *arguments: object) -> Endpoint:
            port, nothing = free_port(), subprocess.DEVNULL
            command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port), *map(str, arguments)]
            variables = {
                "HF_HUB_OFFLINE": "1",
                "HF_HUB_CACHE": str(hub),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
            }
            process = subprocess.Popen(
                command, stdout=nothing, stderr=nothing, env={**os.environ, **variables}, cwd="/"
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            endpoint = wait_for(f"http://127.0.0.1:{port}", 120.0, lambda: process.poll() is None)
            stack.callback(endpoint.close)
            return endpoint

        yield start


# --- llama-cpp-python ---------------------------------------------------------------------------------------------


COUNTING = "One, two, three, four, five, one, two, three, four, five, one, two,"
PYTHON_SERVER = "tests.servers.python_server"
LOOKUP = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", 4)


@pytest.fixture(scope="module")
def python_server(run: Run, tiny: Path) -> tuple[Endpoint, Endpoint]:
    """llama-cpp-python's own server, plain and with prompt lookup."""
    needed("llama-cpp-python[server]")
    return run(PYTHON_SERVER, *_python(tiny / "llama.gguf")), run(PYTHON_SERVER, *_python(tiny / "llama.gguf"), *LOOKUP)


def _python(model: Path) -> tuple[object, ...]:
    return ("--model", model, "--n_ctx", 1024, "--n_threads", 1, "--n_threads_batch", 1)


def test_llama_cpp_python_is_timed_by_our_clock_and_compared_as_text(
    python_server: tuple[Endpoint, Endpoint], tmp_path: Path
) -> None:
    plain, lookup = python_server
    assert plain.server.program.name == "llama-cpp-python"
    result = pair(plain, lookup, tmp_path / "s.sqlite", prompt_of(COUNTING), n_predict=24, repeats=1, stop_at_eog=True)
    assert not reasons(result, "ar")
    # Its prompt lookup writes another text once a prompt comes again: seen as such, or as a difference, never as equal.
    (plain_text,) = {trial.trial.text for trial in result.trials if trial.trial.arm == "ar"}
    for trial in (trial.trial for trial in result.trials if trial.trial.arm == "sd"):
        assert trial.valid == (trial.text == plain_text and trial.status != "failed")
    assert all("differs" in reason or "wrote something else" in reason for reason in reasons(result))
    notes = "\n".join(result.notes)
    assert "compared as text" in notes and "of whole answers, by our clock" in notes
    for trial in (trial.trial for trial in result.trials if trial.trial.status != "failed"):
        assert trial.tokens == () and 1 < trial.n_tokens <= 24 and trial.decode_ns
    # Another text is no near tie, as nobody gives its probabilities.
    assert {verdict_words(row) for row in result.results if row.tok_s} <= {"lossless", "different"}


def test_a_server_that_fails_in_the_middle_costs_its_trials_and_no_other(
    python_server: tuple[Endpoint, Endpoint], run: Run, tmp_path: Path
) -> None:
    # llama-cpp-python cuts rejected tokens off a recurrent memory, which cannot be done, and its stream then breaks.
    ends = run(PYTHON_SERVER, *_python(TARGET)), run(PYTHON_SERVER, *_python(TARGET), *LOOKUP)
    result = pair(*ends, tmp_path / "s.sqlite", "code", n_predict=32, stop_at_eog=True)
    assert reasons(result)
    assert all(f"llama-cpp-python at {ends[1].url} ended" in reason for reason in reasons(result))
    assert not reasons(result, "ar")
    # Whichever of the two is named with --against.
    for url, against in (ends, ends[::-1]):
        request = ServerRequest(url=url.url, against=against.url, n_predict=32, repeats=1, engine=ONE_THREAD)
        failed = reasons(serve(request, tmp_path / "s.sqlite"))
        assert len(failed) == 1 and ends[1].url in failed[0]


def test_pieces_of_a_stream_are_not_counted_as_tokens(python_server: tuple[Endpoint, Endpoint]) -> None:
    request = Request(prompt="One, two, three: ", n_predict=24)
    answer = python_server[0].complete(request)
    assert answer.n_tokens == 0  # the stream says nothing of tokens
    assert python_server[0].settle(request, answer).n_tokens == 24


# --- mlx_lm.server ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama model and a draft near it, each as a GGUF and as a folder for mlx."""
    needed("mlx-lm")
    folder = tmp_path_factory.mktemp("mlx")
    shape = {**TINY_SET, **TINY_ATTENTION}["llama"]
    write_random(folder / "raw.gguf", shape, seed=1)
    perturb(folder / "raw.gguf", folder / "raw-draft.gguf", noise=0.003)
    for name, raw in (("target", "raw.gguf"), ("draft", "raw-draft.gguf")):
        write_both(folder / raw, folder / name, folder / f"{name}.gguf")
    return folder


@pytest.fixture(scope="module")
def mlx_server(run: Run, weights: Path) -> tuple[Endpoint, Endpoint]:
    """mlx_lm.server, plain and with a draft model."""
    target = ("--model", weights / "target")
    drafting = ("--draft-model", weights / "draft", "--num-draft-tokens", 4)
    return run("mlx_lm.server", *target), run("mlx_lm.server", *target, *drafting)


def test_mlx_gives_token_ids_and_is_judged_by_them(mlx_server: tuple[Endpoint, Endpoint], tmp_path: Path) -> None:
    plain, drafting = mlx_server
    assert plain.server.program.name == "mlx_lm.server" and plain.program.gives_tokens
    result = pair(plain, drafting, tmp_path / "s.sqlite", "code", n_predict=32, stop_at_eog=True)
    assert not reasons(result, "ar")
    for measured in result.trials:
        assert measured.trial.tokens and measured.trial.decode_ns
    assert set(verdicts(result)) <= {"lossless", "not_judged"}  # no probabilities tell of a tie
    assert plain.server.model == "target"  # not default_model
    assert {verdict_words(row) for row in result.results} <= {"lossless", "different"}


def test_mlx_and_llama_server_write_the_same_from_the_same_weights(
    mlx_server: tuple[Endpoint, Endpoint], start: Start, weights: Path
) -> None:
    text = "The quick brown fox jumps over the lazy dog, and then"
    llama = start(target=weights / "target.gguf")
    prompt = llama.tokenize(text)
    request = Request(prompt=prompt, n_predict=48, ignore_eog=False)
    reference = llama.settle(request, llama.complete(request))
    for mlx in mlx_server:
        as_text = Request(prompt=text, n_predict=48, ignore_eog=False)
        answer = mlx.settle(as_text, mlx.complete(as_text))
        assert answer.n_prompt == len(prompt)
        losslessness = judge(llama, prompt, ServerAnswer(tokens=answer.tokens, n_tokens=answer.n_tokens), reference)
        # Other kernels round otherwise: where they part it is over a hair's breadth.
        assert losslessness.verdict == "lossless" or (
            losslessness.worst_gap is not None and losslessness.worst_gap < 0.05
        ), losslessness
