"""No child of ours runs a stranger's code out of the working directory, and none outlives its parent."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from mlsd.children import start_child
from mlsd.engine.llama.quantize import quantize
from mlsd.errors import WorkerError
from mlsd.measure.process import call, run_info
from mlsd.measure.worker.serve import probe_model
from mlsd.planning.job import ModelFile
from mlsd.records import EngineOptions, ModelRef

ENGINE = EngineOptions(n_threads=1)
# Ours, a dependency, and modules of Python itself that a dependency imports late.
TRAPS = ("msgspec", "numpy", "llama_cpp", "calendar", "gguf", "psutil", "filelock", "mlsd")


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory full of modules that say when they are run."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\nprint('hello')\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return tmp_path


def test_a_worker_runs_nothing_that_lies_in_the_working_directory(trapped: Path) -> None:
    assert run_info(ENGINE).build
    assert not (trapped / "sprung").exists()


def test_the_quantizer_runs_nothing_that_lies_in_the_working_directory(trapped: Path, tiny: Path) -> None:
    quantize(tiny / "llama.gguf", trapped / "out.gguf", "Q8_0", n_threads=1)
    assert not (trapped / "sprung").exists()
    assert (trapped / "out.gguf").is_file()


def test_all_that_a_child_imports_comes_from_elsewhere_than_the_working_directory(
    trapped: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path_factory.mktemp("own")  # PYTHONPATH still holds for a child
    (own / "own_module.py").write_text(
        "import sys, pathlib, mlsd.measure.worker.serve, mlsd.engine.llama.quantize\n"
        "here = pathlib.Path.cwd()\n"
        "files = {name: getattr(module, '__file__', None) or '/' for name, module in sys.modules.items()}\n"
        "print([name for name, file in files.items() if here in pathlib.Path(file).parents])"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(own), str(Path(__file__).parents[1]))))
    with start_child("own_module", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.communicate()[0] == b"[]\n"


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules a child finds before all others."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(Path(__file__).parents[1]))))
    return tmp_path


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_module_prints_while_it_is_imported_is_shown_and_blamed(
    unbuffered: str, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first / "calendar.py").write_text("print('\\x1b[31m' + 'hello ' * 1000, flush=True)\nmonth_name = day_abbr = []\n")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    (first / "sitecustomize.py").write_text("import calendar")
    with pytest.raises(WorkerError, match=r"an invalid message: b'\\x1b\[31mhello hello") as caught:
        run_info(ENGINE)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_a_module_leaves_in_pythons_buffer_while_it_is_imported_harms_nothing(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (first / "sitecustomize.py").write_text("print('hello')")
    assert run_info(ENGINE).build


def test_a_corrupt_model_is_not_answered_with_a_smaller_one(first: Path) -> None:
    (first / "sitecustomize.py").write_text("import os, sys\nif '-m' in sys.orig_argv: os.abort()")
    model = ModelFile(ref=ModelRef(id="broken"), path="broken.gguf")
    with pytest.raises(WorkerError, match="killed by SIGABRT") as caught:
        call(partial(probe_model, model, ENGINE, (4,)))
    assert "smaller model" not in caught.value.hint
    assert "models verify" in caught.value.hint


def test_a_quantizer_whose_caller_is_killed_ends_with_it(tiny: Path, first: Path) -> None:
    """The child is held up in its own start, so that it is alive when its caller dies."""
    (first / "sitecustomize.py").write_text("import sys\nif '-m' in sys.orig_argv: import held")
    (first / "held.py").write_text(
        "from mlsd.children import end_with_parent\nend_with_parent()\nimport time\ntime.sleep(60)"
    )
    code = (
        "from pathlib import Path; from mlsd.engine.llama.quantize import quantize\n"
        f"quantize(Path({str(tiny / 'llama.gguf')!r}), Path({str(first / 'out.gguf')!r}), 'Q8_0')"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    children: list[psutil.Process] = []
    while not children and caller.poll() is None:
        children = psutil.Process(caller.pid).children()
        time.sleep(0.02)
    caller.kill()
    caller.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert caller.stdin is not None
    caller.stdin.close()
    for child in alive:
        child.kill()
    assert children
    assert not alive
