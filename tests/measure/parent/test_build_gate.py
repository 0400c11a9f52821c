"""Spoiled builds: each is refused with its reason, by a process of its own; the one that asks goes on."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlsd.engine.llama import native
from mlsd.engine.llama.build import layouts
from mlsd.engine.llama.build.loaded import libraries_in
from mlsd.errors import InputError
from mlsd.measure.parent.builds import THIS, find_build, installed, judge, known_builds, verdict_of
from tests.native_shim import ABORTS, copy_of_installed, copy_of_package, faulty_build, library
from tests.processes import alive

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform != "linux", reason="builds the faults for Linux")]

_PARAMS = """
struct whole {{ unsigned char bytes[4096]; }};
struct own {{ unsigned char bytes[{size}]; }};
struct own llama_{kind}_default_params(void) {{
    struct own all;
    struct whole found = ((struct whole (*)(void)) real("llama_{kind}_default_params"))();
    memcpy(&all, &found, sizeof all);
    {change}
    return all;
}}
"""
_DATA = "llama_state_seq_get_data_ext"


def _params(kind: str, change: str, extra: int = 0) -> str:
    """Default values of this machine's build, changed; `AT(field)` is where a field lies."""
    library = native.library()
    structure = getattr(library, f"llama_{kind}_params")
    n_bytes = layouts._returned(library._lib, f"llama_{kind}_default_params")[1] or 0
    for name in (field[0] for field in structure._fields_):
        change = change.replace(f"AT({name})", f"(all.bytes + {getattr(structure, name).offset})")
    return _PARAMS.format(kind=kind, size=n_bytes + extra, change=change)


def _state(body: str) -> str:
    return (
        "size_t llama_state_seq_get_data_ext(void *c, unsigned char *to, size_t n, int s, unsigned f) {"
        f'size_t got = ((size_t (*)(void *, unsigned char *, size_t, int, unsigned)) real("{_DATA}"))(c, to, n, s, f);'
        f"{body} return got; }}"
    )


FAULTS: dict[str, tuple[str | Callable[[], str], str]] = {
    "a longer context structure": (lambda: _params("context", "", 8), "no layout that is known"),
    "a first field that moved": (
        lambda: _params("context", "memmove(AT(n_batch), AT(n_ctx), 4); memset(AT(n_ctx), 0, 4);"),
        "its default n_ctx reads as 0, not 512",
    ),
    "memory saved as another version": (
        "#include <stdio.h>\nsize_t llama_state_seq_save_file(void *c, const char *p, int s, void *t, size_t n) {"
        'FILE *f = fopen(p, "wb"); fwrite("qsgg\\5\\0\\0\\0", 1, 8, f); fclose(f); return 8; }',
        "writes version 5 of a sequence's memory",
    ),
    "memory with another magic number": (_state("to[0] ^= 1;"), "as its magic number, not"),
    "memory that is saved wrongly": (
        _state("for (size_t i = got / 2; i < got; i++) to[i] ^= 1;"),
        "does not keep memory as mlsd reads it",
    ),
    "memory that is never loaded": (
        "size_t llama_state_seq_set_data_ext(void *c, void *d, size_t n, int s, unsigned f) { return n; }",
        "does not keep memory as mlsd reads it|cannot|failed",
    ),
    "logits of another model": (
        "float *llama_get_logits_ith(void *c, int i) { float *own = ((float *(*)(void *, int)) "
        'real("llama_get_logits_ith"))(c, i); for (int k = 0; k < 1536; k++) own[k] = -own[k]; return own; }',
        "computes something else",
    ),
    "a decode that aborts": (ABORTS, "worker process died"),
    "a wide pass that crashes, as in a driver": (
        "int32_t llama_decode(void *c, struct batch b) { if (b.n > 4) *(volatile int *) 0 = 1; return decode(c, b); }",
        "worker process died while checking the build: killed by SIGSEGV",
    ),
    "a removal that removes nothing": (
        "_Bool llama_memory_seq_rm(void *m, int s, int a, int b) { return 1; }",
        "cannot go back|does not keep memory|cannot|failed",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_build_with_a_fault_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    code, reason = FAULTS[name]
    verdict = judge(find_build(str(faulty_build(tmp_path / "lib", code if isinstance(code, str) else code()))))
    assert verdict.fits is None
    assert re.search(reason, verdict.problem), verdict.problem


def test_a_build_that_hangs_in_a_pass_is_ended_after_some_times_its_own_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.measure.parent.builds._CHECK_S", 0.0)
    monkeypatch.setattr("mlsd.measure.parent.builds._CHECK_STARTS", 3.0)
    hangs = "#include <unistd.h>\nint32_t llama_decode(void *c, struct batch b) { for (;;) pause(); }"
    started = time.monotonic()
    verdict = judge(find_build(str(faulty_build(tmp_path / "lib", hangs))))
    assert "it hung and was killed" in verdict.problem
    assert time.monotonic() - started < 600


def _other_processor(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[18:20] = (183 if data[18] == 62 else 62).to_bytes(2, "little")  # e_machine: AArch64, x86-64
    path.write_bytes(data)


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a text file": (lambda path: path.write_text("libllama"), "invalid ELF header|file too short"),
    "another processor's": (_other_processor, "cannot be loaded"),
    "another library": (
        lambda path: shutil.copyfile(library(path.parent, "ggml-base"), path),
        "undefined symbol: llama_",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_library_that_is_none_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    spoil, reason = FILES[name]
    folder = copy_of_installed(tmp_path / "lib")
    for path in folder.glob("libllama.so*"):
        if not path.is_symlink():
            spoil(path)
    verdict = verdict_of(str(folder))
    assert verdict.fits is None
    assert re.search(reason, verdict.problem), verdict.problem


def test_what_fits_is_remembered_and_what_is_here_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))
    build = find_build(".")
    first = judge(build)
    assert first.fits is not None and first.fits.rollback == "snapshots"
    assert first.fits.loaded.package == build.identity.package
    assert set(first.fits.loaded.libraries) <= set(libraries_in(Path(build.identity.libraries)))
    with monkeypatch.context() as patch:
        patch.setattr("mlsd.measure.parent.builds.run_info", None)
        assert judge(build) == first
        patch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
        with pytest.raises(TypeError):  # asked anew: the same files on another device
            judge(build)
    here, *others = known_builds()
    assert here == "."
    assert str(installed().parent / "lib") not in others  # the second copy of this very build


LONG = f"7777{os.getpid()}"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            f"import subprocess, time\nsubprocess.Popen(['sleep', '{LONG}'])\ntime.sleep({LONG})",
            "it hung and was killed",
        ),
        ("import os\nwhile True: os.write(2, b'y' * 65536)", "it hung and was killed"),
        ("def f(): f()\nf()", "cannot be loaded: maximum recursion depth"),
        ("raise KeyError", "cannot be loaded: KeyError"),
        ('raise OSError("libc.so.6: version `GLIBC_2.38\' not found")', "needs GLIBC_2.38, which this system"),
    ],
    # Two processes of pytest must collect the same names.
    ids=("sleeps", "prints", "recurses", "raises", "of a newer Linux"),
)
def test_a_package_without_end_is_ended_with_its_children(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlsd.measure.parent.builds._START_S", 2.0 if "hung" in reason else 10.0)
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path / "cache"))
    (copy_of_package(tmp_path / "llama_cpp") / "__init__.py").write_text(code)
    started, memory = time.monotonic(), psutil.Process().memory_info().rss
    verdict = verdict_of(str(tmp_path))
    assert verdict.fits is None and re.search(reason, verdict.problem), verdict.problem
    assert time.monotonic() - started < 60
    assert psutil.Process().memory_info().rss - memory < 50_000_000
    assert not alive(LONG)


def test_an_answer_that_cannot_be_kept_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSD_CACHE", str(tmp_path))

    def is_full(path: Path, text: str) -> None:
        raise InputError(f"{path} cannot be written: No space left on device.")

    monkeypatch.setattr("mlsd.measure.parent.builds.write_atomically", is_full)
    assert verdict_of(THIS).problem == ""
