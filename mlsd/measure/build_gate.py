"""Which builds of llama.cpp there are here, and whether one can be measured: decided in a process of its own, once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mlsd.errors import InputError, MlsdError, WorkerError
from mlsd.folders import cache_dir, read_json, write_atomically
from mlsd.measure.builds import THIS, Build, find_build, installed
from mlsd.measure.messages import BuildFits, BuildJob
from mlsd.measure.process import call, run_info
from mlsd.planning.job import Job
from mlsd.records import BackendInfo, EngineOptions, Record
from mlsd.version import __version__

# A build's first start on a Mac compiles Metal's kernels, which may take minutes; one that hangs is another platform's.
_START_S, _PATIENCE_S = (600.0 if sys.platform == "darwin" else 50.0), 1_200.0
# Loading a build takes about as long as all passes of the embedded model, on an idle processor as on a busy one.
_CHECK_STARTS, _CHECK_S = 20.0, 30.0
_OF_DEVICES = ("GGML_", "VK_", "CUDA_", "HIP_")  # variables that choose a device, its driver or its kernels
_OWN = ("llama_cpp", "lib")  # llama-cpp-python installs its libraries twice
_PREFIXES = ("/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew", "/usr")


class BuildVerdict(Record, frozen=True, kw_only=True):
    """What the gate says of a build."""

    name: str
    fingerprint: str = ""  # empty: no build was found there
    fits: BuildFits | None = None
    problem: str = ""  # why it cannot be measured
    hint: str = ""

    @property
    def backend(self) -> BackendInfo | None:
        return None if self.fits is None else self.fits.backend


def judge(build: Build, *, fresh: bool = False) -> BuildVerdict:
    """The gate's answer about a build, remembered unless `fresh`."""
    # The same files on another device, or with another driver, are to be tried anew.
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_OF_DEVICES))
    device = f"-{hashlib.sha256(str(chosen).encode()).hexdigest()[:8]}" if chosen else ""
    path = cache_dir() / "builds" / f"{build.fingerprint}-{__version__}{device}.json"
    with contextlib.suppress(InputError):  # a damaged answer is asked for again
        known = None if fresh else read_json(path, BuildVerdict)
        if isinstance(known, BuildVerdict) and known.fits is not None:
            return msgspec.structs.replace(known, name=build.name)
    verdict = BuildVerdict(name=build.name, fingerprint=build.fingerprint)
    try:
        verdict = msgspec.structs.replace(verdict, fits=check_build(build))
    except MlsdError as error:
        hint = (
            "The build ends its process or never answers: a damaged file, one made for another processor, or a "
            "GPU's driver. Where that compiles kernels for the first time, ask again: it keeps them."
            if isinstance(error, WorkerError)
            else error.hint
        )
        return msgspec.structs.replace(verdict, problem=error.message, hint=hint)
    with contextlib.suppress(InputError):  # a cache that cannot be written costs seconds the next time
        write_atomically(path, msgspec.json.encode(verdict).decode())
    return verdict


def check_build(build: Build, job: Job | None = None) -> BuildFits:
    """Ask a worker that loads the build. Raises: the worker's own MlsdError, WorkerError when it dies or hangs."""
    variables, patience_s = build.variables(), _PATIENCE_S
    if job is None:
        began_s = time.monotonic()
        backend = run_info(EngineOptions(), variables=variables, patience_s=_START_S)
        if backend.backend == "CPU":  # where no GPU compiles kernels
            patience_s = max(_CHECK_S, _CHECK_STARTS * (time.monotonic() - began_s))
    words = "checking the build"
    return call("build_check:check_build", BuildJob(job=job), BuildFits, variables, doing=words, patience_s=patience_s)


def use_build(name: str) -> Build:
    """Let every worker of this process load a build that passes the gate. Raises: InputError for one that does not."""
    build = find_build(name)
    verdict = judge(build)
    if verdict.fits is None:
        raise InputError(f"Build {name} cannot be measured. {verdict.problem}", hint=verdict.hint)
    os.environ.update(build.variables())
    return build


def verdict_of(name: str) -> BuildVerdict:
    """The gate's answer about what a name means, newly asked; one that is no build is an answer, too."""
    cache_dir()  # where there can be none, that is no fault of the build's
    try:
        return judge(find_build(name), fresh=True)
    except InputError as error:
        return BuildVerdict(name=name, problem=error.message, hint=error.hint)


def known_builds() -> Iterator[str]:
    """Names of the builds that lie where builds usually lie: here, beside other packages, in prefixes."""
    yield THIS
    packages = installed().parent
    for pattern in ("*/lib*/libllama.*", "*/libllama.*", "*/bin/llama.dll"):
        for library in sorted(packages.glob(pattern)):
            package = packages / library.relative_to(packages).parts[0]
            if package.name not in _OWN:
                yield str(package)
    prefixes = [os.environ.get("CONDA_PREFIX"), os.environ.get("HOMEBREW_PREFIX"), *_PREFIXES]
    for prefix in dict.fromkeys(filter(None, prefixes)):
        if prefix != sys.prefix and any((Path(prefix) / "lib").glob("libllama.*")):
            yield prefix
