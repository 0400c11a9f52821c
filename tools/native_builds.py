"""llama.cpp built for other processors than this one, and of other releases, for tests and for comparing builds.

`python -m tools.native_builds --out DIR` fetches the source of the llama-cpp-python that is installed, builds its
shared libraries once for each kind of processor (some minutes the first time; only the CPU kernels are compiled again
for the next), and prints for each the variable under which any mlsd command or test runs with it. What follows `--` is
given to pytest, under each build in turn: `python -m tools.native_builds --out DIR -- tests/engine -m "not smollm2"`.

`--metal-order` takes the libraries that were compiled for this environment, and has the CPU compute every graph in the
order that Metal would (some seconds): the cheapest guard without a Mac. What follows `--` is given to pytest.

`--release 0.3.35` builds another release of llama-cpp-python instead, and puts it into an environment of its own; the
variable that it prints is what the tests marked `builds` look for. Stopped, it goes on where it was.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

VECTORS = ("GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2")
BUILDS = {
    "no-avx": ["-DGGML_NATIVE=OFF", *(f"-D{name}=OFF" for name in VECTORS)],
    "avx2": ["-DGGML_NATIVE=OFF", *(f"-D{name}=ON" for name in VECTORS)],
    "native": ["-DGGML_NATIVE=ON"],
}
# Only what Python loads; the libraries of a folder find each other.
COMMON = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER")),
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
]


# Decodes with a model of mlsd's own, and fails where the library put no node of a graph in another place.
MOVED = """
import ctypes, sys
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.open import open_context
from mlsd.engine.context import ContextOptions
from mlsd.folders import asset_path

with LlamaModel(asset_path("tiny/tiny-moe.gguf")) as model, open_context(model, ContextOptions(n_ctx=256)) as session:
    session.decode((1, 2, 3))
n_moved = ctypes.CDLL(sys.argv[1]).metal_order_moved()
print(f"{n_moved} nodes were computed in another place.")
sys.exit(not n_moved)
"""


def installed() -> str:
    return importlib.metadata.version("llama-cpp-python")


def source(out: Path, version: str) -> Path:
    """llama.cpp's source out of the archive of a version."""
    folder = out / f"llama_cpp_python-{version}"
    if not folder.is_dir():
        fetch = ["download", "--quiet", "--no-binary", "llama-cpp-python", "--no-deps", "--dest", str(out)]
        subprocess.run([sys.executable, "-m", "pip", *fetch, f"llama-cpp-python=={version}"], check=True)
        with tarfile.open(f"{folder}.tar.gz") as archive:
            archive.extractall(out, filter="data")
    return folder / "vendor" / "llama.cpp"


def build(name: str, source: Path, tree: Path, libraries: Path, jobs: int) -> Path:
    """The folder with the shared libraries of one build."""
    subprocess.run(["cmake", "-S", source, "-B", tree, *COMMON, *BUILDS[name]], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", tree, "--target", "llama", f"-j{jobs}"], check=True, stdout=sys.stderr)
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir()
    for path in (tree / "bin").glob("lib*.so*"):
        shutil.copy2(path, libraries, follow_symlinks=False)
    return libraries


def other_release(version: str, out: Path, jobs: int) -> Path:
    """The interpreter of an environment that holds nothing but one release of llama-cpp-python."""
    tree, place = source(out, version), out / version
    interpreter = place / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    shutil.rmtree(packages / "llama_cpp", ignore_errors=True)
    shutil.copytree(tree.parent.parent / "llama_cpp", packages / "llama_cpp")
    build("native", tree, out / f"build-{version}", packages / "llama_cpp" / "lib", jobs)
    return interpreter


def beside(out: Path, name: str, folder: str, sources: Sequence[str | Path]) -> Path:
    """The libraries that are installed, and beside them one of `sources` out of a folder of ggml's: its path."""
    shipped, libraries = Path(importlib.util.find_spec("llama_cpp").origin).parent / "lib", out / name
    if not shipped.is_dir():
        raise SystemExit("This environment's libraries were compiled by others: make setup BUILD=source first.")
    shutil.copytree(shipped, libraries, symlinks=True, dirs_exist_ok=True)
    ggml, made = source(out, installed()) / "ggml", libraries / f"libggml-{name}.so"
    place = ggml / "src" / folder
    defined = [f"-D{flag}" for flag in ("GGML_SHARED", "GGML_BACKEND_SHARED", "GGML_BACKEND_BUILD", "NDEBUG")]
    folders = [f"-I{path}" for path in (ggml / "include", ggml / "src", place)]
    linked = [f"-L{libraries}", "-lggml-base", "-lggml", "-lpthread", "-Wl,-rpath,$ORIGIN"]
    command = ["c++", "-O2", "-std=c++17", "-shared", "-fPIC", *defined, *folders]
    subprocess.run([*command, *(place / file for file in sources), "-o", made, *linked], check=True, stdout=sys.stderr)
    return made


def remote(out: Path) -> Path:
    """The folder of libraries with llama.cpp's backend for a server: half a minute."""
    return beside(out, "rpc", "ggml-rpc", ("ggml-rpc.cpp", "transport.cpp")).parent


def metal_order(out: Path, pytest: Sequence[str]) -> int:
    """Exactness with graphs in Metal's order; refused where the order is not another. Returns pytest's exit code."""
    own = Path(__file__).with_name("metal_order.cpp")
    made = beside(out, "order", "ggml-metal", (own, "ggml-metal-common.cpp", "ggml-metal-fusion.cpp"))
    variables = {"LLAMA_CPP_LIB_PATH": str(made.parent), "LD_PRELOAD": str(made)}
    print(*(f"{name}={value}" for name, value in variables.items()), flush=True)
    environment = {**os.environ, **variables}
    subprocess.run([sys.executable, "-c", MOVED, made], env=environment, check=True)
    return subprocess.run([sys.executable, "-m", "pytest", *pytest], env=environment).returncode if pytest else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for source, build tree and libraries")
    parser.add_argument("--build", choices=BUILDS, action="append", help="only this one (repeatable); default: all")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    parser.add_argument("--release", help="another release of llama-cpp-python, into an environment of its own")
    parser.add_argument("--rpc", action="store_true", help="only what reaches an rpc-server: for tests marked `device`")
    parser.add_argument("--metal-order", action="store_true", help="graphs in the order that Metal gives them")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    given = parser.parse_args()
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        parser.error("these builds differ on Linux with an x86-64 processor only")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if given.release:
        print(f"MLSD_OTHER_BUILD={other_release(given.release, out, given.jobs)}", flush=True)
        return 0
    if given.rpc:
        print(f"MLSD_DEVICE_LIBRARIES={remote(out)}", flush=True)
        return 0
    if given.metal_order:
        return metal_order(out, given.pytest)
    failed = 0
    for name in given.build or BUILDS:
        libraries = build(name, source(out, installed()), out / "build", out / name, given.jobs)
        print(f"LLAMA_CPP_LIB_PATH={libraries}", flush=True)
        if given.pytest:
            environment = {**os.environ, "LLAMA_CPP_LIB_PATH": str(libraries)}
            failed |= subprocess.run([sys.executable, "-m", "pytest", *given.pytest], env=environment).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
