"""mlsd beside llama-bench and llama-speculative-simple, built from the source of the installed llama-cpp-python.

Both are linked against the very libraries that the binding loads, so that kernels are the same and what differs is the
program around them. Needs CMake and a C++ compiler; the first call takes minutes. The source comes from the package
registry, or from the folder of llama.cpp that LLAMA_CPP_SOURCE names.
"""

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path

import msgspec
from scipy.stats import binom

from benchmarks.harness import Result, interleaved, of_samples, ratios, smollm2
from mlsd.clock import MonotonicClock
from mlsd.drafters.chain import Chain
from mlsd.drafters.model_drafter import ChainDrafter, OwnMemory
from mlsd.engine.context import ContextOptions
from mlsd.engine.decode import Generation, GenerationLimits, generate
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.llama.model import LlamaModel
from mlsd.engine.llama.native import backend_info, library
from mlsd.engine.llama.open import open_context
from mlsd.engine.rollback import make_rollback, rollback_options
from mlsd.engine.rollback_choice import Role, first_exact
from mlsd.folders import asset_path, cache_dir
from tools.native_builds import source as fetched

CLOCK = MonotonicClock()
PAIRS = 20
DEPTH, N_PLAIN = 103, 64
GAMMAS, N_PREDICT = (4, 8), 128
PROMPT = "import argparse\n\n\ndef main(arguments: list[str] | None = None) -> int:\n    parser = argparse."

BUILD = """
cmake_minimum_required(VERSION 3.14)
project(peers C CXX)
function(llama_add_compile_flags)
endfunction()
function(license_add_file)
endfunction()
set(LLAMA_BUILD_COMMON ON)
set(LLAMA_BUILD_NUMBER 0)
foreach(name ggml-base ggml-cpu ggml llama)
  add_library(${name} SHARED IMPORTED GLOBAL)
  file(GLOB files ${LIBRARIES}/lib${name}${CMAKE_SHARED_LIBRARY_SUFFIX}*)
  list(GET files 0 file)
  set_target_properties(${name} PROPERTIES IMPORTED_LOCATION ${file})
  target_include_directories(${name} INTERFACE ${SOURCE}/include ${SOURCE}/ggml/include)
endforeach()
target_link_libraries(ggml INTERFACE ggml-base ggml-cpu)
target_link_libraries(llama INTERFACE ggml)
find_package(Threads REQUIRED)
add_subdirectory(${SOURCE}/vendor vendor)
add_subdirectory(${SOURCE}/common common)
add_subdirectory(${SOURCE}/tools/llama-bench bin/bench)
add_subdirectory(${SOURCE}/examples/speculative-simple bin/speculative)
"""


def run() -> Iterator[Result]:
    programs = built()
    for path in (smollm2(), asset_path("tiny/tiny-moe.gguf")):
        yield from plain(programs["llama-bench"], path)
    for gamma in GAMMAS:
        yield from speculative(programs["llama-speculative-simple"], gamma)


def libraries() -> Path:
    """The folder of the libraries that the binding loads."""
    return Path(library()._lib._name).parent


def output_of(arguments: Sequence[object]) -> str:
    """What a program prints. Libraries compiled by others load a processor's kernels only by this variable."""
    kernels = libraries() / "libggml-cpu.so"
    env = os.environ | ({"GGML_BACKEND_PATH": str(kernels)} if kernels.exists() else {})
    done = subprocess.run([*map(str, arguments)], check=True, capture_output=True, text=True, errors="replace", env=env)
    return done.stdout + done.stderr


def built() -> dict[str, Path]:
    """The two programs, from a folder that keeps what was built before."""
    version = metadata.version("llama-cpp-python")
    folder = cache_dir() / "peers" / version
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(os.environ["LLAMA_CPP_SOURCE"]) if "LLAMA_CPP_SOURCE" in os.environ else fetched(folder, version)
    (folder / "CMakeLists.txt").write_text(BUILD, encoding="utf-8")
    targets = ("llama-bench", "llama-speculative-simple")
    configure: list[str | Path] = ["cmake", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DSOURCE={source}", f"-DLIBRARIES={libraries()}", f"-DCMAKE_BUILD_RPATH={libraries()}"]
    build: list[str | Path] = ["cmake", "--build", folder / "build", "-j", "2", "--target", *targets]
    for command in (configure, build):
        subprocess.run(command, check=True, stdout=sys.stderr)
    return {name: next(path for path in (folder / "build").rglob(name) if path.is_file()) for name in targets}


def compared(
    name: str, ours: Callable[[], float], theirs: Callable[[], float], at_least: float | None
) -> Iterator[Result]:
    """Both speeds, and the median of the pairs' ratios with its 95 % interval by order statistics."""
    ours(), theirs()  # warm
    figures = interleaved({"ours": ours, "theirs": theirs}, PAIRS)
    for who, speeds in figures.items():
        yield of_samples(f"{name}, {who}", speeds, "tok/s")
    pairs = sorted(ratios(figures["ours"], figures["theirs"]))
    cut = int(binom.ppf(0.025, PAIRS, 0.5))
    value, bar = statistics.median(pairs), "" if at_least is None else f">= {at_least:g}"
    passed = None if at_least is None else value >= at_least
    yield Result(f"{name}, ours over theirs", value, pairs[cut - 1], pairs[-cut], "ratio", bar, passed)


def exact_strategy(model: LlamaModel, options: ContextOptions, role: Role, gamma: int) -> str:
    """What an arm of mlsd takes."""
    found = first_exact(partial(open_context, model), options, role, gamma, recurrent=model.is_recurrent)
    assert found is not None, f"nothing is exact for {model.path.name} as a {role}"
    return found


def plain(program: Path, path: Path) -> Iterator[Result]:
    """Plain decoding at a depth, over llama-bench, which reads no token from what it computes."""
    arguments: list[str | Path] = [program, "-m", path, "-p", "0", "-n", str(N_PLAIN), "-d", str(DEPTH)]
    arguments += ["-r", "1", "-t", "1"]

    def theirs() -> float:
        return float(re.findall(r'"avg_ts": ([\d.]+)', output_of([*arguments, "-o", "json"]))[0])

    with LlamaModel(path) as model:
        base = ContextOptions(n_ctx=-(-(DEPTH + N_PLAIN + 1) // 256) * 256, n_threads=1)
        on_device = backend_info().backend != "CPU"
        text = asset_path("prompts/long.txt").read_text(encoding="utf-8")
        prompt = model.tokenize(text)[:DEPTH]
        with open_context(model, msgspec.structs.replace(base, device_sampling=on_device)) as context:
            rollback, limits = make_rollback("trim", context), GenerationLimits(n_predict=N_PLAIN + 1)

            def ours() -> float:
                return N_PLAIN * 1e9 / generate(context, NoDrafter(), rollback, prompt, limits, CLOCK).decode_ns

            # A bare loop over the binding reaches 0.98 to 0.99 here, and 0.92 to 0.96 on the tiny one, where a pass of
            # 0.35 ms shows what a call of Python costs: llama-bench gives llama.cpp a pool of threads to keep.
            bar = 0.98 if path == smollm2() else None
            yield from compared(f"plain decoding at {DEPTH}, {path.stem}", ours, theirs, bar)


class Counts(msgspec.Struct):
    """What llama-speculative-simple did. Its own "accept" is 100 % where it goes back to checkpoints."""

    tok_s: float
    drafts: int
    proposed: int
    accepted: int


def counts(log: str) -> Counts:
    """Read its log; proposals and acceptances from the statistics of the drafter, which counts every draft."""

    def number(pattern: str) -> float:
        found = re.search(pattern, log)
        if found is None:
            raise SystemExit(f"llama-speculative-simple does not say {pattern!r}:\n{log[-2000:]}")
        return float(found[1])

    return Counts(
        tok_s=number(r"decoded +\d+ tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s"),
        drafts=int(number(r"#gen drafts = +(\d+)")),
        proposed=int(number(r"#gen tokens = +(\d+)")),
        accepted=int(number(r"#acc tokens = +(\d+)")),
    )


def speculative(program: Path, gamma: int) -> Iterator[Result]:
    """The tiny hybrid pair with drafts of `gamma` tokens, over llama-speculative-simple."""
    target_path, draft_path = asset_path("tiny/tiny-moe.gguf"), asset_path("tiny/tiny-draft.gguf")
    arguments = [program, "-m", target_path, "-md", draft_path, "-p", PROMPT, "-n", N_PREDICT, "-c", 1024]
    arguments += ["-t", 1, "-td", 1, "--temp", 0, "--samplers", "top_k", "--top-k", 1, "--ignore-eos", "-lv", 4]
    arguments += ["--spec-type", "draft-simple", "--spec-draft-n-max", gamma, "--no-escape"]
    heard: list[Counts] = []

    def theirs() -> float:
        heard.append(counts(output_of(arguments)))
        return heard[-1].tok_s

    with ExitStack() as stack:
        target, draft = (stack.enter_context(LlamaModel(path)) for path in (target_path, draft_path))
        base = ContextOptions(n_ctx=1024, n_threads=1)
        of_target = exact_strategy(target, base, "target", gamma)
        of_draft = exact_strategy(draft, base, "draft", gamma)
        plain_options = msgspec.structs.replace(base, device_sampling=backend_info().backend != "CPU")
        wide = rollback_options(of_target, msgspec.structs.replace(plain_options, max_outputs=gamma + 1), gamma)
        context = stack.enter_context(open_context(target, wide))
        second = stack.enter_context(open_context(draft, rollback_options(of_draft, plain_options, gamma - 1)))
        rollback, drafter = (
            make_rollback(of_target, context),
            ChainDrafter(OwnMemory(second, make_rollback(of_draft, second), CLOCK), Chain(CLOCK)),
        )
        prompt = target.tokenize(PROMPT)

        def generated(drafter: Drafter, gamma: int) -> Generation:
            limits = GenerationLimits(n_predict=N_PREDICT, gamma=gamma)
            return generate(context, drafter, rollback, prompt, limits, CLOCK)

        reference = generated(NoDrafter(), 0).tokens
        lossless = []

        def ours() -> float:
            made.append(generated(drafter, gamma))
            lossless.append(made[-1].tokens == reference)
            return (len(reference) - 1) * 1e9 / made[-1].decode_ns

        made: list[Generation] = []
        yield from compared(f"tiny pair at gamma {gamma} ({of_target} and {of_draft})", ours, theirs, 1.0)
    rounds = made[-1].rounds
    yield of_samples("... ours that equal plain decoding", [sum(lossless) / len(lossless)], "share", at_least=1)
    yield of_samples("... our acceptance", [sum(r.accepted for r in rounds) / sum(r.proposed for r in rounds)], "share")
    yield of_samples("... their acceptance", [heard[-1].accepted / heard[-1].proposed], "share")
