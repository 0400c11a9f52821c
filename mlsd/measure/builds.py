"""Other builds of llama.cpp: where a build's libraries and bindings lie, and how a worker process is made to load them.

A worker always runs in this interpreter with this mlsd; only the package `llama_cpp` and its shared libraries are
another build's. The two sides of a comparison then differ in nothing else, and the other environment needs no mlsd.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import zipfile
from pathlib import Path

from mlsd.engine.llama.native import BUILD_VARIABLE, LIBRARIES_VARIABLE
from mlsd.errors import InputError
from mlsd.folders import cache_dir
from mlsd.hashes import digest
from mlsd.records import Record

THIS = "."
_LIBRARY = re.compile(r"(lib)?(llama|ggml[\w-]*)\.(so|dylib|dll)")
_FIND = "import importlib.util as u; s = u.find_spec('llama_cpp'); print(s.origin if s else '')"
_PATIENCE_S = 60
_HINT = (
    "A build is `.`, the Python interpreter of another environment, a wheel of llama-cpp-python, or a folder with "
    "libllama of the version that is installed here."
)


class Build(Record, frozen=True, kw_only=True):
    """One build of llama.cpp."""

    name: str  # as it was given
    label: str  # the same where space is short, without the folders that lead there
    package: str | None = None  # the folder `llama_cpp` to import; None: the one installed here
    libraries: str | None = None  # the folder of shared libraries in place of the package's own
    fingerprint: str  # of bindings and libraries: equal for the same files, wherever they lie

    def variables(self) -> dict[str, str]:
        """The environment of a worker process that loads it."""
        variables = {**os.environ, BUILD_VARIABLE: self.fingerprint}
        if self.package is not None:
            variables.pop(LIBRARIES_VARIABLE, None)
            path = (_only(Path(self.package)), os.environ.get("PYTHONPATH"))
            variables["PYTHONPATH"] = os.pathsep.join(str(part) for part in path if part)
        if self.libraries is not None:
            variables[LIBRARIES_VARIABLE] = self.libraries
        return variables


def find_build(name: str) -> Build:
    """The build that a name or path means; runs nothing of it but an interpreter that is asked for its package.

    Raises: InputError for what is no build.
    """
    place = Path(name).expanduser()
    if name == THIS:
        return _build(name, None, None)
    if place.suffix == ".whl" and place.is_file():
        return _build(name, _unpacked(place), None)
    if place.is_dir():
        for inner in (place / "bin" / "python", place / "Scripts" / "python.exe"):
            if inner.is_file():
                return _build(name, _package_of(inner), None)
        if (place / "llama_cpp" / "llama_cpp.py").is_file():
            return _build(name, place / "llama_cpp", None)
        return _build(name, None, place.resolve())
    if place.is_file() and os.access(place, os.X_OK):
        return _build(name, _package_of(place), None)
    problem = "cannot be run" if place.is_file() else "does not exist"
    raise InputError(f"{name} is no build of llama.cpp: it {problem}.", hint=_HINT)


def _build(name: str, package: Path | None, libraries: Path | None) -> Build:
    bindings = package or _installed()
    own = os.environ.get(LIBRARIES_VARIABLE) if package is None else None
    folder = libraries or (Path(own) if own else bindings / "lib")
    files = {path.resolve() for path in folder.glob("*") if _LIBRARY.match(path.name)}
    if not any("llama" in path.name for path in files):
        raise InputError(f"{name} is no build of llama.cpp: {folder} holds no libllama.", hint=_HINT)
    parts = sorted(digest(path) for path in (*files, bindings / "llama_cpp.py"))
    return Build(
        name=name,
        label=_label(name),
        package=None if package is None else str(package),
        libraries=None if libraries is None else str(libraries),
        fingerprint=hashlib.sha256("".join(parts).encode()).hexdigest()[:8],
    )


def _label(name: str) -> str:
    """What tells a build's path from another's: the folder of an environment, not `python`."""
    parts = [part for part in Path(name).parts if part not in ("bin", "Scripts", ".venv", "venv")]
    while len(parts) > 1 and re.fullmatch(r"python[\d.]*(\.exe)?|llama_cpp|lib", parts[-1]):
        parts.pop()
    return parts[-1] if parts else name


def _installed() -> Path:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise InputError("llama-cpp-python is not installed here.", hint="Install it; see the README.")
    return Path(spec.origin).parent


def _package_of(interpreter: Path) -> Path:
    """The package that another interpreter imports, without loading it."""
    command = [str(interpreter.absolute()), "-c", _FIND]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, env=variables, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{interpreter} does not run: {error}.", hint=_HINT) from error
    found = done.stdout.strip()
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["it has no llama-cpp-python"])[-1]
        raise InputError(
            f"{interpreter} is no interpreter with a llama.cpp: {last}.",
            hint=f"Install it there: {interpreter} -m pip install llama-cpp-python.",
        )
    return Path(found).parent


def _unpacked(wheel: Path) -> Path:
    """The package out of a wheel, unpacked once into the cache."""
    folder = cache_dir() / "builds" / digest(wheel)[:16]
    package = folder / "llama_cpp"
    if package.is_dir():
        return package
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("llama_cpp/") and ".." not in name]
            part = folder.with_suffix(f".{os.getpid()}")
            archive.extractall(part, names)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{wheel} is no wheel: {error}.", hint=_HINT) from error
    if not (part / "llama_cpp" / "llama_cpp.py").is_file():
        raise InputError(f"{wheel} is no wheel of llama-cpp-python.", hint=_HINT)
    part.replace(folder)
    return package


def _only(package: Path) -> Path:
    """A folder that holds nothing but this package, so that nothing else of another environment is imported."""
    folder = cache_dir() / "builds" / hashlib.sha256(str(package).encode()).hexdigest()[:16]
    link = folder / "llama_cpp"
    if link.exists() and link.resolve() == package.resolve():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(package, target_is_directory=True)
    return folder
