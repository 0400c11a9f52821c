"""The native library behind one door: loading it, its log lines, its devices, its failures.

Only this file may import `llama_cpp`. Nothing native happens when this module is imported: the first call of
`library()` loads the shared library, takes over its log and starts its backends.
"""

import collections
import ctypes
import functools
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlsd.engine.llama.build.layouts import fit
from mlsd.engine.llama.build.loaded import LoadedLibraries, loaded, require, required_identity
from mlsd.engine.llama.build.prebuilt import build_number, libraries_of
from mlsd.errors import NativeError, UnsupportedError
from mlsd.records import BackendInfo, Device

# Private parts of the library (state blobs, extension symbols) are read by mlsd only in this release.
PINNED_VERSION = "0.3.36"
LIBRARIES_VARIABLE = "LLAMA_CPP_LIB_PATH"  # llama-cpp-python's own: shared libraries in place of those that it ships
SERVER_VARIABLE = "MLSD_RPC_SERVER"  # HOST:PORT of an rpc-server of llama.cpp, whose devices are then used
_LOG_LINES_KEPT = 200
_LOG_LEVEL_WARN, _LOG_LEVEL_ERROR, _LOG_LEVEL_CONTINUE = 3, 4, 5
_ACCELERATORS = ("GPU", "iGPU")
_DEVICE_TYPES = {0: "CPU", 1: "GPU", 2: "iGPU", 3: "accelerator"}


class NativeLog:
    """The last warnings and errors that the native library printed."""

    def __init__(self) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES_KEPT)
        self._part = ""
        self._keep_part = False
        self._all: list[str] | None = None
        self.n_errors = 0  # lines of error level since the library was loaded

    @contextmanager
    def everything(self) -> Iterator[list[str]]:
        """All that is printed meanwhile, piece by piece, information included."""
        pieces: list[str] = []
        self._all = pieces
        try:
            yield pieces
        finally:
            self._all = None

    def write(self, level: int, text: bytes) -> None:
        """Take one piece of native output; it may continue the line before."""
        if self._all is not None:
            self._all.append(text.decode("utf-8", "replace"))
        if level != _LOG_LEVEL_CONTINUE:
            self._keep_part = level >= _LOG_LEVEL_WARN
            self.n_errors += level == _LOG_LEVEL_ERROR
            self._part = ""
        self._part += text.decode("utf-8", "replace")
        if self._part.endswith("\n"):
            if self._keep_part and self._part.strip():
                self._lines.append(self._part.strip())
            self._part = ""

    def drain(self) -> tuple[str, ...]:
        lines = tuple(self._lines)
        self._lines.clear()
        return lines


_TEXT, _POINTER, _SIZE, _SIZES = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
_SET_LAYER_INPUT = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"  # of llama-ext.h
_GET_LAYER_INPUT = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
# What is called and the binding does not declare, nearly all of ggml itself: result, then arguments.
_UNDECLARED: dict[str, tuple[Any, ...]] = {
    _SET_LAYER_INPUT: (None, _POINTER, ctypes.c_uint32, ctypes.c_bool),
    _GET_LAYER_INPUT: (ctypes.POINTER(ctypes.c_float), _POINTER, ctypes.c_uint32),
    "ggml_version": (_TEXT,),
    "ggml_commit": (_TEXT,),
    "ggml_get_name": (_TEXT, _POINTER),
    "ggml_op_desc": (_TEXT, _POINTER),
    "ggml_nbytes": (_SIZE, _POINTER),
    "ggml_backend_load": (_POINTER, _TEXT),
    "ggml_backend_dev_count": (_SIZE,),
    "ggml_backend_dev_get": (_POINTER, _SIZE),
    "ggml_backend_dev_name": (_TEXT, _POINTER),
    "ggml_backend_dev_description": (_TEXT, _POINTER),
    "ggml_backend_dev_type": (ctypes.c_int, _POINTER),
    "ggml_backend_dev_memory": (None, _POINTER, _SIZES, _SIZES),
    "ggml_backend_register": (None, _POINTER),
    "ggml_backend_tensor_get": (None, _POINTER, _POINTER, _SIZE, _SIZE),
    "ggml_backend_tensor_set": (None, _POINTER, _POINTER, _SIZE, _SIZE),
}
LOG = NativeLog()
_keep_alive: list[Any] = []  # callbacks that native code holds pointers to


@functools.cache
def library() -> Any:
    """The ctypes module of llama.cpp, loaded and started once; its log goes to `LOG`.

    Raises: NativeError for libraries that do not load, lack a function that their bindings name, lay out a structure
    in a way that is not known, or are not those of the build that this process was told to load.
    """
    os.environ.pop("GGML_BACKEND_PATH", None)  # ggml would load what it names, whichever build that is of
    identity = required_identity()
    named = os.environ.get(LIBRARIES_VARIABLE)
    folder = _choose_libraries()
    try:
        from llama_cpp import llama_cpp
    except Exception as error:  # the code of a package that somebody named, which may raise what it likes
        if needed := re.findall(r"version `((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found", str(error)):
            raise NativeError(
                f"This build of llama.cpp needs {', '.join(dict.fromkeys(needed))}, which this system does not have.",
                hint="It was made for a newer Linux: take another build, or compile one (make setup BUILD=source).",
            ) from error
        raise NativeError(
            f"llama.cpp cannot be loaded: {str(error) or type(error).__name__}.",
            hint="The libraries are damaged, or of another version than the bindings: reinstall llama-cpp-python, or "
            "name the interpreter of the environment that they came from.",
        ) from error
    finally:
        if named is None:  # for this import alone: a child may be given another build
            os.environ.pop(LIBRARIES_VARIABLE, None)

    def on_log(level: int, text: bytes, _: Any) -> None:
        LOG.write(level, text)

    callback = llama_cpp.llama_log_callback(on_log)
    _keep_alive.append(callback)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    for name, (result, *arguments) in _UNDECLARED.items():
        if hasattr(llama_cpp._lib, name):  # not each build has all
            function = getattr(llama_cpp._lib, name)
            function.restype, function.argtypes = result, arguments
    require(loaded_libraries(llama_cpp), folder, identity)
    _require_fit(llama_cpp)
    backends = _backends(Path(llama_cpp._base_path))
    _load_backends(llama_cpp, backends)
    llama_cpp.llama_backend_init()
    if endpoint := os.environ.get(SERVER_VARIABLE):
        _add_server(backends.get("rpc", []), endpoint, llama_cpp._lib)
    return llama_cpp


def loaded_libraries(native: Any) -> LoadedLibraries:
    """Where the libraries lie that this process has loaded."""
    return loaded(str(Path(native.__file__).parent), native._lib)


def _choose_libraries() -> str:
    """The folder of libraries, named here where the environment does not name one."""
    spec = importlib.util.find_spec("llama_cpp")
    if LIBRARIES_VARIABLE not in os.environ and spec is not None and spec.origin is not None:
        os.environ[LIBRARIES_VARIABLE] = str(libraries_of(Path(spec.origin).parent))
    return os.environ.get(LIBRARIES_VARIABLE, "")


def _require_fit(native: Any) -> None:
    """Refuse a library that is not laid out as its binding, or as a build that is known. Raises: NativeError."""
    import llama_cpp

    if misfits := fit(native, native._lib, llama_cpp.__version__):
        raise NativeError(
            f"This build does not fit: {'; '.join(misfits)}.",
            hint="A folder of libraries must be of a layout that is known; for another release give the Python "
            "interpreter of an environment that has its bindings. `mlsd doctor builds` shows which builds fit.",
        )


# As ggml orders them (ggml-backend-reg.cpp, `ggml_backend_load_all_from_path`); what is newer stands before the CPU.
_BACKENDS = (
    *("blas", "zendnn", "cann", "cuda", "hip", "metal", "rpc", "sycl", "vulkan", "virtgpu", "opencl", "hexagon"),
    *("musa", "openvino"),
)
_BACKEND = re.compile(r"(?:lib)?ggml-(?!base[.-])([a-z0-9]+)((?:-[\w-]+)?)\..*")


def _backends(folder: Path) -> dict[str, list[Path]]:
    """What a build keeps in libraries of their own, by name, each with its variants for kinds of processors.

    Only files of the build: ggml's own search takes any of a fitting name, in the working directory, too.
    """
    variants: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*"), key=lambda path: len(path.name)):
        if match := _BACKEND.fullmatch(path.name):
            variants.setdefault(match[1], {}).setdefault(match[2], path)  # of its names the one without a version
    order = (*_BACKENDS, *sorted({*variants} - {*_BACKENDS, "cpu"}), "cpu")
    return {name: [*variants[name].values()] for name in order if name in variants}


def _load_backends(native: Any, backends: Mapping[str, Sequence[Path]]) -> None:
    """Load what a build keeps in libraries of their own: such a build knows no device until it has.

    With one loaded llama.cpp never searches by itself (`llama_supports_gpu_offload` does, without any).
    Raises: NativeError where none can be loaded.
    """
    shared = native._lib
    if shared.ggml_backend_dev_count():
        return
    if hasattr(shared, "ggml_backend_load"):
        for variants in backends.values():
            scores = {path: _score(path) for path in variants}
            best = max(variants, key=lambda path: scores[path])
            if scores[best] >= 0:
                shared.ggml_backend_load(os.fsencode(best))
    if not shared.ggml_backend_dev_count():
        raise fail(
            f"This build of llama.cpp has no backend that works here: none could be loaded from {native._base_path}",
            hint="It may be made for another processor; `mlsd doctor builds` shows which builds fit.",
        )
    LOG.drain()  # a driver that is not there keeps its backend from loading, and others serve


def _score(path: Path) -> int:
    """How well a variant fits this processor, as it says itself, -1 for one that does not; 0: it is no variant."""
    match = _BACKEND.fullmatch(path.name)
    if match is None or not match[2]:
        return 0
    try:
        return int(ctypes.CDLL(str(path)).ggml_backend_score()) or -1
    except (OSError, AttributeError):
        return -1


@functools.cache
def extension() -> Any:
    """Bindings of symbols outside llama.h (embeddings of next-token blocks); guarded by the version pin."""
    _require_pinned()
    library()
    from llama_cpp import llama_cpp_ext

    return llama_cpp_ext


def binding_version() -> str:
    """The release of llama-cpp-python that is loaded, which may be another than the one installed here."""
    library()
    import llama_cpp

    return str(llama_cpp.__version__)


def _require_pinned() -> None:
    """Refuse private symbols of a release that they were not read in. Raises: NativeError."""
    version = binding_version()
    if version != PINNED_VERSION:
        raise NativeError(
            f"llama-cpp-python {version} is installed, but this feature reads private symbols of {PINNED_VERSION}.",
            hint=f"Install llama-cpp-python=={PINNED_VERSION}.",
        )


@functools.cache
def layer_inputs() -> tuple[Any, Any]:
    """The functions that say whether a block's input rows are kept, and give a pointer to those of the last pass, one
    for each position.

    Asking for rows of a block that a graph does not have, or that were not kept, ends the process. Raises: NativeError,
    UnsupportedError where they are missing.
    """
    _require_pinned()
    for name in (_SET_LAYER_INPUT, _GET_LAYER_INPUT):
        if not hasattr(ggml(), name):
            raise UnsupportedError(
                f"This build of llama.cpp does not export {name}, which gives the rows between blocks.",
                hint="eagle3 and dflash need it; install the llama-cpp-python wheel, or build it with GCC or Clang.",
            )
    return getattr(ggml(), _SET_LAYER_INPUT), getattr(ggml(), _GET_LAYER_INPUT)


def sequence_state_version() -> int:
    """Which layout of a sequence's memory this build writes: 4 since ggml 0.26, which numbers it so in llama.h."""
    parts = (_text_function("ggml_version") or "0").split(".")
    return 4 if [int(part) for part in parts[:2] if part.isdigit()] >= [0, 26] else 3


def ggml() -> Any:
    """Ggml as llama.cpp loaded it; by its path a wheel's copy would be loaded again, with devices of its own."""
    return library()._lib


def _add_server(libraries: Sequence[Path], endpoint: str, shared: Any) -> None:
    """Make the devices of an rpc-server of llama.cpp devices of this process. Raises: UnsupportedError."""
    if not libraries:
        raise UnsupportedError(
            f"{SERVER_VARIABLE} names {endpoint}, but this build of llama.cpp cannot reach servers.",
            hint=f"Build it with -DGGML_RPC=ON, and name the folder of its libraries with {LIBRARIES_VARIABLE}.",
        )
    rpc = ctypes.CDLL(str(libraries[0]))
    # Any buffer that is freed makes the server forget the last graph, which a client that reuses it is not told: asked
    # to run it again it hangs up, and llama.cpp aborts (ggml-rpc.cpp, `rpc_server::free_buffer`, `graph_recompute`).
    os.environ["LLAMA_GRAPH_REUSE_DISABLE"] = "1"
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    devices = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    if not devices:
        raise UnsupportedError(f"The rpc-server at {endpoint} has no device.", hint="Start it again.")
    shared.ggml_backend_register(devices)


def fail(what: str, code: int | None = None, *, hint: str = "") -> NativeError:
    """The error for a failed native call, with the native lines that explain it."""
    suffix = "" if code is None else f" (code {code})"
    return NativeError(f"{what}{suffix}.", code=code, log=LOG.drain(), hint=hint)


def device_failed() -> NativeError:
    """The error for a log that holds more errors (`LOG.n_errors`) after `llama_synchronize` than before a pass.

    A device that fails in the middle says so nowhere but in the log: Metal's `ggml_metal_synchronize` writes an error,
    `llama_synchronize` returns nothing, and the next read gives what an earlier pass left (llama.cpp,
    ggml-metal-context.m).
    """
    return NativeError(
        "The device failed, though llama.cpp called it a success.",
        log=LOG.drain(),
        hint="The context is not used again; too little free memory is the usual reason.",
    )


def backend_info(n_gpu_layers: int = -1) -> BackendInfo:
    """Which backend and device the library uses; with `n_gpu_layers` 0 it is the CPU."""
    native = library()
    main, _ = working_device(n_gpu_layers)
    backend = "CPU"
    if main.kind in _ACCELERATORS:
        backend = "".join(c for c in main.name if not c.isdigit()).rstrip("_- ") or main.name
        backend = {"MTL": "Metal"}.get(backend, backend)
    return BackendInfo(
        backend=backend,
        device=main.description,
        devices=tuple(device for device, _ in _devices()),
        binding_version=binding_version(),
        build=_build(),
        system_info=native.llama_print_system_info().decode("utf-8", "replace").strip(),
        memory_bytes=main.memory_bytes,
    )


def _build() -> str:
    """The commit of ggml; of a build that was named, also what tells it from others of that commit."""
    commit = _text_function("ggml_commit") or _text_function("ggml_version") or "unknown"
    number, identity = build_number(commit, os.path.realpath(ggml()._name)), required_identity()
    name = f"b{number} {commit}" if number else commit
    return name if identity is None else f"{name}+{identity.fingerprint}"


def working_device(n_gpu_layers: int = -1) -> tuple[Device, int | None]:
    """The device that layers are offloaded to, else the CPU; and ggml's handle of it, None where it names no CPU.

    Raises: NativeError for a GPU without a description or without memory: where the system gives this process none,
    ggml-metal registers such a one all the same, and the first model seems to need too much memory.
    """
    offloads = n_gpu_layers != 0 and library().llama_supports_gpu_offload()
    devices = _devices()
    candidates = [pair for pair in devices if offloads and pair[0].kind in _ACCELERATORS]
    candidates += [pair for pair in devices if pair[0].kind == "CPU"]
    for device, _ in candidates:
        if device.kind in _ACCELERATORS and not (device.description.strip() and device.memory_bytes):
            what = "Metal" if device.name.startswith(("MTL", "Metal")) else device.name
            raise NativeError(
                f"{what} gives this process no GPU.",
                hint="macOS gives none to some ssh, tmux, CI and sandboxed shells: run this in Terminal, as the user "
                "who is logged in at the screen, or on the CPU with --n-gpu-layers 0.",
            )
    return candidates[0] if candidates else (Device(name="CPU", description="CPU", kind="CPU"), None)


def _devices() -> Sequence[tuple[Device, int]]:
    base, pairs = ggml(), []
    for i in range(base.ggml_backend_dev_count()):
        handle, free, total = base.ggml_backend_dev_get(i), ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(handle, free, total)
        device = Device(
            name=base.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
            description=base.ggml_backend_dev_description(handle).decode("utf-8", "replace"),
            kind=_DEVICE_TYPES.get(base.ggml_backend_dev_type(handle), "other"),
            memory_bytes=total.value or None,
        )
        pairs.append((device, handle))
    return pairs


def _text_function(function: str) -> str | None:
    value: bytes | None = getattr(ggml(), function)() if hasattr(ggml(), function) else None
    return value.decode("utf-8", "replace") if value else None
