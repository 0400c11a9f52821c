"""REST: built by its command, exact on every architecture, refused where it does not fit."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlsd.api import bench
from mlsd.cli.main import cli
from mlsd.drafters import resolve_spec
from mlsd.drafters.lookup.suffix_store import SEPARATOR, read_header, write_store
from mlsd.engine.vocabulary import vocabulary_sha256
from mlsd.errors import EngineError, InputError
from mlsd.folders import asset_path
from mlsd.planning.question import parse_drafter
from mlsd.records import EngineOptions, ModelRef, Sampling
from mlsd.store.store import Store
from tests.conftest import ARCHITECTURES
from tests.drafters.arena import Arena, Run, first, prompt_of

N_PREDICT = 48


def store_of(path: Path, arena: Arena, name: str, outputs: list[tuple[int, ...]]) -> Path:
    """A store of token sequences for a target."""
    model = arena.model(name)
    ids = np.array([token for output in outputs for token in (*output, SEPARATOR)], dtype=np.int32)
    sha256, n_vocab = vocabulary_sha256(model), model.vocabulary.n_tokens
    write_store(path, ids, n_vocab=n_vocab, vocabulary_sha256=sha256, model=ModelRef(id=name))
    return path


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_store_of_the_output_is_accepted(arena: Arena, tmp_path: Path, architecture: str) -> None:
    prompt = arena.clear_prompt(architecture, 2, N_PREDICT)
    rng = np.random.default_rng(1)
    noise = [tuple(rng.integers(0, 256, 300).tolist())]
    known = [(*prompt, *arena.plain(architecture, prompt, N_PREDICT))]
    rates = []
    for texts in (noise, known + noise):
        store = store_of(tmp_path / f"{len(texts)}", arena, architecture, texts)
        method = f"rest:store={store},min_span=1,commit=redecode"
        run = arena.run(architecture, method, 12, prompt, N_PREDICT)
        arena.assert_exact(architecture, prompt, run)
        rates.append(run.accepted / len(run.generation.rounds))
    assert rates[0] < rates[1]  # 300 tokens out of 256 hold no text of any length


@pytest.mark.parametrize("architecture", ["qwen35", "falcon-h1"])
def test_a_target_with_recurrent_memory_gets_chains(arena: Arena, tmp_path: Path, architecture: str) -> None:
    prompt = prompt_of(2)
    texts = [(*prompt, 7, 8), (*prompt, 9, 9), (*prompt, 7, 3)]
    store = store_of(tmp_path / "s", arena, architecture, texts)
    run = arena.run(architecture, f"rest:store={store},length=2", 64, prompt, 8)
    assert max(r.proposed for r in run.generation.rounds) <= 2


def test_sampled_output_follows_the_seed_and_uses_the_store(arena: Arena, tmp_path: Path) -> None:
    prompt = prompt_of(2)
    sampling = Sampling(temperature=0.2)
    text = (*prompt, *arena.plain("llama", prompt, N_PREDICT))
    method = f"rest:store={store_of(tmp_path / 's', arena, 'llama', [text])},min_span=1"

    def run(seed: int) -> Run:
        rng = np.random.default_rng(seed)
        return arena.run("llama", method, 12, prompt, N_PREDICT, sampling=sampling, rng=rng)

    once = run(1)
    assert run(1).tokens == once.tokens
    first((run(seed) for seed in range(2, 26)), lambda other: other.tokens != once.tokens)
    first((run(seed) for seed in range(1, 26)), lambda other: other.accepted > 0)


def test_another_text_under_the_same_name_is_another_case_and_is_noticed(arena: Arena, tmp_path: Path) -> None:
    prompt, path = prompt_of(2), tmp_path / "s"
    contents = []
    for text in (prompt, prompt[1:]):
        store_of(path, arena, "llama", [text])
        contents.append(resolve_spec(parse_drafter(f"rest:store={path}", None)).options["content"])
    assert contents[0] != contents[1]
    with pytest.raises(InputError, match="it was rebuilt"):
        arena.run("llama", f"rest:store={path},content={contents[0]}", 4, prompt, 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rest", "rest needs the option store"),
        ("rest:store=/no/such/file", "cannot be read"),
        ("rest:preset=smollm2-small", "rest needs the option store"),
    ],
)
def test_a_bad_store_is_refused_before_any_model_is_loaded(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        resolve_spec(parse_drafter(text, None))


def test_the_command_builds_a_store_that_its_model_accepts_and_another_does_not(arena: Arena, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The red house stands by the old river. The green house stands by the new road.\n", "utf-8")
    store = tmp_path / "store.rest"
    target = asset_path("tiny/tiny-dense.gguf")
    arguments = ["models", "make", "store", str(text), "--target", str(target), "-o", str(store)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "1 documents" in result.output
    header = read_header(store)[0]
    with closing(Arena({"dense": target}, n_ctx=512)) as family:
        model = family.model("dense")
        assert header.n_tokens == len(model.tokenize(text.read_text(), add_special=False)) + 1
        prompt = model.tokenize("The red house stands by the")
        assert family.run("dense", f"rest:store={store},min_span=1", 4, prompt, 16).proposed > 0
    with pytest.raises(EngineError, match="built with the tokenizer of tiny-dense"):
        arena.run("llama", f"rest:store={store}", 4, prompt_of(1), 4)


@pytest.mark.slow
def test_a_relative_path_in_an_option_reaches_the_worker_which_runs_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The red house stands by the old river.\n" * 9, "utf-8")
    target = str(asset_path("tiny/tiny-dense.gguf"))
    answer = CliRunner().invoke(cli, ["models", "make", "store", "text.txt", "--target", target, "-o", "here.store"])
    assert answer.exit_code == 0, answer.output
    done = bench(
        target, db=tmp_path / "s.sqlite", drafters=("rest:store=here.store",), gammas=(2,), prompts=("factual",),
        n_predict=8, repeats=1, engine=EngineOptions(n_threads=1),
    )  # fmt: skip
    with Store.open(tmp_path / "s.sqlite", read_only=True) as store:
        trials = [(row.case.drafter.name, row.trial.reason) for row in store.trials(rounds=False)]
    assert {name for name, _ in trials} == {"none", "rest"} and done is not None
    assert not [reason for _, reason in trials if reason and "cannot be read" in reason], trials


@pytest.mark.parametrize(("make", "complaint"), [("missing", "There is no text file"), ("latin", "is not UTF-8")])
def test_texts_that_cannot_be_read_leave_no_store(arena: Arena, tmp_path: Path, make: str, complaint: str) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    if make == "latin":
        text.write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=complaint):
        CliRunner().invoke(
            cli,
            ["models", "make", "store", str(text), "--target", str(arena.path("llama")), "-o", str(out)],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert not out.exists()
