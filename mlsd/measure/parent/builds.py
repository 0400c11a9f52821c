"""Builds of llama.cpp: where a build's libraries and bindings lie, and how a process is made to load them.

A worker runs in this interpreter with this mlsd; only `llama_cpp` and its shared libraries are another build's, so the
sides of a comparison differ in nothing else.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from mlsd import __version__
from mlsd.engine.llama.build.loaded import (
    IDENTITY_VARIABLE,
    LIBRARY,
    Identity,
    libraries_in,
    linked,
    made_for_this_process,
    name_plainly,
    plain_name,
    side_by_side,
)
from mlsd.engine.llama.build.prebuilt import libraries_of, pins, this_system
from mlsd.engine.llama.native import LIBRARIES_VARIABLE
from mlsd.errors import InputError, MlsdError, WorkerError
from mlsd.folders import cache_dir, empty_dir, read_json, write_atomically
from mlsd.hashes import digest
from mlsd.measure.messages import BuildFits
from mlsd.measure.process import call, run_info
from mlsd.measure.worker import build_check as worker
from mlsd.outside import check_regular, output_of
from mlsd.planning.job import Job
from mlsd.records import BackendInfo, EngineOptions, Record

THIS = "."
_ORIGIN = "mlsd-found:"
# Asked of an interpreter: the package, or failing that a package that ships libllama.
_FIND = f"import importlib.util as u; s = u.find_spec('llama_cpp'); print({_ORIGIN!r}, s.origin if s else '', sep='')"
_ANSWER_S = 30
_PLACES = ("", "lib", "bin", "lib64", "libexec", "lib/*", "*", "*/lib", "*/bin")  # of libraries below a folder
_MOST_BYTES = 4 << 30  # of libraries, or of a wheel unpacked
_HINT = (
    "A build is `.`, the Python interpreter of another environment, a wheel, or a folder or prefix with libllama; "
    "`mlsd doctor builds` shows those that are here."
)


class Build(Record, frozen=True, kw_only=True):
    """One build of llama.cpp."""

    name: str  # as it was given
    label: str  # the same where space is short, without the folders that lead there
    package: str | None = None  # the folder `llama_cpp` to import; None: the one installed here
    libraries: str | None = None  # the folder of shared libraries in place of the package's own
    identity: Identity

    @property
    def fingerprint(self) -> str:
        """Of bindings and libraries: equal for the same files, wherever they lie."""
        return self.identity.fingerprint

    def variables(self) -> dict[str, str]:
        """The environment of a worker process that loads it."""
        variables = {**os.environ, IDENTITY_VARIABLE: msgspec.json.encode(self.identity).decode()}
        if self.package is not None:
            variables.pop(LIBRARIES_VARIABLE, None)
            path = (_only(Path(self.package)), os.environ.get("PYTHONPATH"))
            variables["PYTHONPATH"] = os.pathsep.join(str(part) for part in path if part)
        if self.libraries is not None:
            variables[LIBRARIES_VARIABLE] = self.libraries
        return variables


def find_build(name: str) -> Build:
    """The build that a name or path means; runs nothing of it but an interpreter that is asked for its package."""
    if name == THIS:
        return _build(name, None, None)
    try:
        path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 - a link of an environment stays one
        return _build(name, *_package_and_libraries(name, path))
    except (OSError, RuntimeError, ValueError) as error:  # loops of links, names that no file can have
        raise _no_build(name, str(error)) from error


def _no_build(name: str, why: str) -> InputError:
    return InputError(f"{name} is not a build of llama.cpp: {why}.", hint=_HINT)


# --- what a name means --------------------------------------------------------------------------------------------


def _package_and_libraries(name: str, path: Path) -> tuple[Path | None, Path | None]:
    """The package of a build and the folder of its libraries, where they are not those installed here."""
    if path.suffix == ".whl" and path.is_file():
        sha256, here = digest(path), this_system()
        for pin in pins():
            made_for = [system for system, wheel in pin.wheels.items() if wheel == sha256]
            if made_for and here not in made_for:
                raise InputError(
                    f"{name} is {pin.package} {pin.version} (b{pin.build}), unchanged, and made for {made_for[0]}; "
                    f"this machine is {here}.",
                    hint="Try it on such a machine.",
                )
        unpacked = _unpacked(path, sha256)
        package = unpacked / "llama_cpp"
        return (package, None) if package.is_dir() else (None, unpacked)
    if path.is_dir():
        if (path / "llama_cpp" / "llama_cpp.py").is_file():
            return path / "llama_cpp", None
        interpreters = (path / "bin" / "python", path / "Scripts" / "python.exe")
        inner = next((path for path in interpreters if path.is_file()), None)
        if inner is None or _libraries(path / "lib", "llama"):  # a prefix, of conda with an interpreter of its own
            return None, _folder_of(name, path)
        if (bindings := _package_of(inner)) is not None:
            return bindings, None
        packages = sorted(inner.parent.parent.glob("lib/python*/site-packages"))
        return None, _folder_of(name, packages[0] if packages else path)
    if path.is_file() and os.access(path, os.X_OK):
        if (bindings := _package_of(path)) is not None:
            return bindings, None
        raise InputError(
            f"{path} is not a Python interpreter with llama.cpp: it has no llama-cpp-python.",
            hint=f"Install it there: {path} -m pip install llama-cpp-python.",
        )
    problem = "cannot be run" if path.is_file() else "does not exist"
    raise _no_build(name, f"it {problem}")


def _build(name: str, package: Path | None, libraries: Path | None) -> Build:
    bindings = (package or installed()).resolve()
    for needed in ("__init__.py", "llama_cpp.py"):
        if not (bindings / needed).is_file():  # without it Python would import the package that is installed here
            raise _no_build(name, f"{bindings} has no {needed}")
    named = libraries or (os.environ.get(LIBRARIES_VARIABLE) if package is None else None)
    folder = libraries_of(bindings) if named is None else Path(named).resolve()
    files = libraries_in(folder)
    if not any("llama" in Path(path).name for path in files):
        raise _no_build(name, f"{folder} holds no libllama")
    if sum(check_regular(Path(path)) for path in files) > _MOST_BYTES:  # before any is read
        raise _no_build(name, f"it holds more than {_MOST_BYTES >> 30} GiB")
    # A wheel holds copies of a library, not links: what counts is its name without versions and its content.
    contents = {Path(path).name.split(".")[0] + digest(Path(path)) for path in files}
    contents.add("llama_cpp" + digest(bindings / "llama_cpp.py"))
    fingerprint = hashlib.sha256("".join(sorted(contents)).encode()).hexdigest()[:8]
    identity = Identity(name=name, fingerprint=fingerprint, package=str(bindings), libraries=str(folder))
    return Build(
        name=name,
        label=_label(name),
        package=None if package is None else str(bindings),
        libraries=None if libraries is None else str(libraries),
        identity=identity,
    )


def _label(name: str) -> str:
    """What tells a build's path from another's: the folder of an environment, not `python`."""
    parts = [part for part in Path(name).parts if part not in ("bin", "Scripts", ".venv", "venv")]
    while len(parts) > 1 and re.fullmatch(r"python[\d.]*(\.exe)?|llama_cpp|lib", parts[-1]):
        parts.pop()
    return parts[-1] if parts else name


def installed() -> Path:
    """The package that is installed here. Raises: InputError."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise InputError("llama-cpp-python is not installed here.", hint="Install it; see the README.")
    return Path(spec.origin).parent


def _folder_of(name: str, path: Path) -> Path:
    """A folder with all libraries of a place side by side, under the names that the bindings look for."""
    folders = [folder for pattern in _PLACES for folder in sorted(path.glob(pattern) if pattern else (path,))]
    for folder in (folder for folder in folders if folder.is_dir() and _libraries(folder, "llama")):
        libraries = _libraries(folder)
        # Homebrew links the `lib` of its formulas into one, and leaves backends in the `libexec` of ggml's own folder.
        homes = dict.fromkeys((folder, *(path.resolve().parent for path in libraries)))
        near = (home.parent / part for home in homes for part in ("lib", "bin", "libexec"))
        every = libraries + [path for place in dict.fromkeys(near) if place.is_dir() for path in _libraries(place)]
        if (folder / plain_name("llama")).exists() and {p.resolve() for p in every} == {p.resolve() for p in libraries}:
            return folder.resolve()
        return side_by_side(every, folder)
    raise _no_build(name, f"{path} holds no libllama")


def _libraries(folder: Path, stem: str = "") -> list[Path]:
    return [path for path in sorted(folder.glob("*")) if stem in path.name and LIBRARY.fullmatch(path.name)]


# --- environments and wheels --------------------------------------------------------------------------------------


def _package_of(interpreter: Path) -> Path | None:
    """The package that another interpreter imports, without loading it; None: it has none."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command = [str(interpreter), "-c", _FIND]
    try:
        done = output_of(command, timeout_s=_ANSWER_S, variables=variables, cwd=empty_dir())
    except OSError as error:
        raise InputError(f"{interpreter} does not run: {error}.", hint=_HINT) from error
    origin = next((line.removeprefix(_ORIGIN) for line in done.stdout.splitlines() if line.startswith(_ORIGIN)), None)
    if done.returncode or origin is None:
        complaint = done.stderr.strip().splitlines() or ["it answered nothing"]
        raise InputError(
            f"{interpreter} is not a Python interpreter with llama.cpp: {complaint[-1][:200]}.", hint=_HINT
        )
    return Path(origin).resolve().parent if origin and Path(origin).is_file() else None


@functools.cache
def _unpacked(wheel: Path, sha256: str) -> Path:
    """What of a wheel is a build: the package `llama_cpp`, or libraries side by side; gone when this process ends."""
    try:
        with zipfile.ZipFile(wheel) as archive, made_for_this_process(f"wheel-{sha256[:16]}") as folder:
            _unpack(archive, folder)
    except InputError as error:
        raise InputError(f"{wheel} is not a wheel of llama.cpp: {error.message}", hint=_HINT) from error
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise InputError(f"{wheel} cannot be unpacked as a wheel: {error}.", hint=_HINT) from error
    return folder


def _unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    files = archive.infolist()
    for info in files:  # without it a build would be tried that lacks it, or with the libraries that are installed here
        is_link = stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR)
        if is_link or ".." in Path(info.filename).parts or info.filename.startswith("/"):
            raise InputError(f"it holds {info.filename[:200]!a}, a link or a path that leads out of it.")
    package = [info for info in files if info.filename.startswith("llama_cpp/")]
    loose = [info for info in files if LIBRARY.fullmatch(Path(info.filename).name) or "libgomp" in info.filename]
    wanted = package or loose
    if sum(info.file_size for info in wanted) > _MOST_BYTES:
        raise InputError(f"it holds more than {_MOST_BYTES >> 30} GiB.")
    if not package and not any(re.match(r"(lib)?llama\.", Path(info.filename).name) for info in loose):
        raise InputError("it holds neither the package llama_cpp nor a libllama.")
    for info in wanted:
        path = folder / (info.filename if package else Path(info.filename).name)
        if not info.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, path.open("xb") as file:
                shutil.copyfileobj(source, file)
    if not package:
        name_plainly(folder)
    elif missing := [name for name in ("__init__.py", "llama_cpp.py") if not (folder / "llama_cpp" / name).is_file()]:
        raise InputError(f"its package llama_cpp has no {', '.join(missing)}.")


def _only(package: Path) -> Path:
    """A folder that holds nothing but this package, so that nothing else of another environment is imported."""
    return linked(str(package), {"llama_cpp": package})


# A build's first start on a Mac compiles Metal's kernels, which may take minutes; one that hangs is another platform's.
_START_S, _PATIENCE_S = (600.0 if sys.platform == "darwin" else 50.0), 1_200.0
# Loading a build takes about as long as all passes of the embedded model, on an idle processor as on a busy one.
_CHECK_STARTS, _CHECK_S = 20.0, 30.0
_OF_DEVICES = ("GGML_", "VK_", "CUDA_", "HIP_")  # variables that choose a device, its driver or its kernels
_TWICE = ("llama_cpp", "lib")  # llama-cpp-python installs its libraries twice
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
        remembered = None if fresh else read_json(path, BuildVerdict)
        if isinstance(remembered, BuildVerdict) and remembered.fits is not None:
            return msgspec.structs.replace(remembered, name=build.name)
    try:
        verdict = BuildVerdict(name=build.name, fingerprint=build.fingerprint, fits=check_build(build))
    except MlsdError as error:
        hint = (
            "The build ends its process or never answers: a damaged file, one made for another processor, or a "
            "GPU's driver. Where that compiles kernels for the first time, ask again: it keeps them."
            if isinstance(error, WorkerError)
            else error.hint
        )
        return BuildVerdict(name=build.name, fingerprint=build.fingerprint, problem=error.message, hint=hint)
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
    work = partial(worker.check_build, job)
    return call(work, variables, doing="checking the build", patience_s=patience_s)


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
            if package.name not in _TWICE:
                yield str(package)
    prefixes = [os.environ.get("CONDA_PREFIX"), os.environ.get("HOMEBREW_PREFIX"), *_PREFIXES]
    for prefix in dict.fromkeys(filter(None, prefixes)):
        if prefix != sys.prefix and any((Path(prefix) / "lib").glob("libllama.*")):
            yield prefix
