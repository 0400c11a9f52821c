"""llama-server of the llama.cpp that is installed, for the tests of `mlsd server`; libraries of others bring their own.

`python -m tools.llama_server` prints the path of the binary. The first time it fetches the source of the installed
llama-cpp-python and compiles the server alone, against that package's own shared libraries (some minutes on two
cores): what differs between such a server and our engine is then the loop, never a kernel. The result lies in the
user's cache folder, by version; an interrupted build goes on where it stopped.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from mlsd.engine.llama.build.prebuilt import installed_program
from tools.native_builds import source

# The libraries that exist stand in for the targets that would compile them; the rest is the source's own.
PROJECT = """\
cmake_minimum_required(VERSION 3.21)
project(llama_server C CXX)
foreach(lib ggml-base ggml-cpu ggml llama mtmd)
    add_library(${lib} SHARED IMPORTED GLOBAL)
    set_target_properties(${lib} PROPERTIES IMPORTED_LOCATION ${LIBRARIES}/lib${lib}${CMAKE_SHARED_LIBRARY_SUFFIX})
    target_include_directories(${lib} INTERFACE ${LLAMA_CPP}/include ${LLAMA_CPP}/ggml/include ${LLAMA_CPP}/tools/mtmd)
    target_compile_definitions(${lib} INTERFACE GGML_SHARED LLAMA_SHARED)
endforeach()
target_link_libraries(ggml INTERFACE ggml-base ggml-cpu)
target_link_libraries(llama INTERFACE ggml)
target_link_libraries(mtmd INTERFACE llama)
set(PROJECT_SOURCE_DIR ${LLAMA_CPP})
set(LLAMA_SUBPROCESS ON)
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT ${VERSION})
set(BUILD_COMPILER "${CMAKE_CXX_COMPILER_ID}")
set(BUILD_TARGET "${CMAKE_SYSTEM_NAME}")
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH $<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>)
function(license_add_file)
endfunction()
function(llama_add_compile_flags)
endfunction()
foreach(part vendor/hash vendor/miniaudio vendor/nlohmann vendor/sheredom vendor/stb vendor/cpp-httplib
             common tools/ui tools/server)
    add_subdirectory(${LLAMA_CPP}/${part} ${CMAKE_BINARY_DIR}/${part})
endforeach()
"""


def cache() -> Path:
    """The folder of everything built for the installed llama-cpp-python."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "mlsd-llama-server" / importlib.metadata.version("llama-cpp-python")


def built() -> Path | None:
    """The one that libraries compiled by others brought, or the finished binary, if there is one."""
    package = importlib.util.find_spec("llama_cpp")
    own = package is not None and package.origin is not None and (Path(package.origin).parent / "lib").is_dir()
    if not own and (program := installed_program("llama-server")) is not None:
        return Path(program)
    path = cache() / "bin" / "llama-server"
    return path if path.is_file() else None


def build(jobs: int) -> Path:
    """The binary, built if need be."""
    if (path := built()) is not None:
        return path
    out, package = cache(), importlib.util.find_spec("llama_cpp")
    if package is None or package.origin is None:
        sys.exit("llama-cpp-python is not installed here: `make setup`.")
    libraries, project, tree = Path(package.origin).parent / "lib", out / "project", out / "build"
    project.mkdir(parents=True, exist_ok=True)
    (project / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    settings = {"CMAKE_BUILD_TYPE": "Release", "LLAMA_CPP": source(out, out.name), "LIBRARIES": libraries}
    settings |= {"BUILD_SHARED_LIBS": "OFF", "VERSION": out.name, "LLAMA_OPENSSL": "OFF"}
    options = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(["cmake", "-S", project, "-B", tree, *options], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", tree, "--target", "llama-server", f"-j{jobs}"], check=True, stdout=sys.stderr)
    # The binary moves in last and whole: what is there runs, whatever interrupted us.
    staged = out / "bin.part"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for library in libraries.glob("lib*"):
        shutil.copy2(library, staged, follow_symlinks=False)
    (binary,) = (path for path in tree.rglob("llama-server") if path.is_file() and os.access(path, os.X_OK))
    shutil.copy2(binary, staged)
    staged.rename(out / "bin")
    return out / "bin" / "llama-server"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    print(build(parser.parse_args().jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
