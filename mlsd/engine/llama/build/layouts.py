"""How the structures lie that pass to llama.cpp by value: seen in a library, and given to the binding in front of it.

ctypes believes whatever a binding declares, and a moved field shifts all behind it. So the library's default values are
read as every known layout (`layouts.toml`) would have them: one fits in size and every field, or the build is refused.
"""

import ctypes
import ctypes.util
import functools
import platform
from pathlib import Path
from typing import Any

import msgspec

from mlsd.records import Record

_FUNCTION: Any = ctypes.CFUNCTYPE(None).__base__  # the class of every function that ctypes gives
_MOST_BYTES = 4096  # of a structure of parameters
_PATTERNS = (b"\xa5", b"\x5a")
_KINDS: dict[str, Any] = {
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "f32": ctypes.c_float,
    "bool": ctypes.c_bool,
    "size": ctypes.c_size_t,
    "ptr": ctypes.c_void_p,
}
STRUCTURES = ("llama_context_params", "llama_model_params")
Field = tuple[str, str, float]  # kind, name, default value
# What mlsd sets; ctypes takes an attribute that a structure does not have without a word.
_NEEDED = {
    "llama_model_params": ("n_gpu_layers", "load_mtp", "vocab_only", "no_alloc", "load_mode"),
    "llama_context_params": (
        *("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq"),
        *("n_threads", "n_threads_batch", "flash_attn_type", "type_k", "type_v", "swa_full", "kv_unified", "no_perf"),
        *("samplers", "n_samplers", "cb_eval"),
    ),
}


class StructureLayout(Record, frozen=True, kw_only=True):
    """The structures of a range of builds."""

    first: int  # build of llama.cpp
    last: int | None = None  # None: up to the newest that is known
    llama_context_params: tuple[Field, ...]
    llama_model_params: tuple[Field, ...]

    @property
    def name(self) -> str:
        return f"b{self.first} on" if self.last is None else f"b{self.first} to b{self.last}"

    def fields(self, structure: str) -> tuple[Field, ...]:
        fields: tuple[Field, ...] = getattr(self, structure)
        return fields


class _Table(Record, frozen=True, kw_only=True):
    layouts: tuple[StructureLayout, ...]


@functools.cache
def layouts() -> tuple[StructureLayout, ...]:
    """Every layout that is known, oldest first."""
    text = Path(__file__).with_suffix(".toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table, strict=False).layouts


def fit(binding: Any, shared: Any, version: str) -> tuple[str, ...]:
    """Give the binding the layouts of the library behind it unless its own fit; what does not fit, in words."""
    return tuple(filter(None, (_fit(structure, binding, shared, version) for structure in STRUCTURES)))


def layout_of(binding: Any) -> str:
    """The range of builds whose layout a binding has by now; `its own` where none has it."""
    names = [tuple(field[0] for field in getattr(binding, structure)._fields_) for structure in STRUCTURES]
    for layout in layouts():
        if names == [tuple(field[1] for field in layout.fields(structure)) for structure in STRUCTURES]:
            return layout.name
    return "its own"


# --- inside -------------------------------------------------------------------------------------------------------


def _fit(structure: str, binding: Any, shared: Any, version: str) -> str | None:
    declared, name = getattr(binding, structure), f"{structure.removesuffix('params')}default_params"
    if not hasattr(shared, name):
        return f"the library has no {name}"
    names = [field[0] for field in declared._fields_]
    if missing := [field for field in _NEEDED[structure] if field not in names]:
        return f"llama-cpp-python {version} has no {', '.join(missing)} in {structure}"
    returned, n_bytes = _returned(shared, name)
    candidates = [(layout.name, layout.fields(structure)) for layout in layouts()]
    values = {field[1]: field for _, fields in candidates for field in fields}
    if not (misfits := _differences(declared, values, returned, n_bytes)):
        return None
    for _, fields in candidates:
        candidate = _structure(fields, declared)
        if not (other := _differences(candidate, values, returned, n_bytes)):
            _give(binding, declared, candidate)
            return None
        if ctypes.sizeof(candidate) == n_bytes:  # its fields say more than a size that is another
            misfits = other
    size = f"has {n_bytes} bytes in the library" if n_bytes is not None else "has another layout in the library"
    ranges = ", ".join(name for name, _ in candidates)
    return (
        f"{structure} {size} and {ctypes.sizeof(declared)} bytes in llama-cpp-python {version}; "
        f"{'; '.join(misfits[:3])}; no layout that is known ({ranges}) fits"
    )


def _structure(fields: tuple[Field, ...], declared: Any) -> Any:
    """A structure of these fields; a field that the binding declares keeps the type that it has there."""
    types = {field[0]: field[1] for field in declared._fields_}
    members = [(field, types.get(field, _KINDS[kind])) for kind, field, _ in fields]
    return type(declared.__name__, (ctypes.Structure,), {"_fields_": members})


def _differences(structure: Any, values: dict[str, Field], returned: bytes, n_bytes: int | None) -> tuple[str, ...]:
    """Where a library's default values are not those that are known, read as this structure lies."""
    size = ctypes.sizeof(structure)
    if n_bytes not in (None, size):
        return (f"{n_bytes} bytes are not {size}",)
    differences = []
    for name in (field[0] for field in structure._fields_ if field[0] in values):
        kind, _, default = values[name]
        value = _KINDS[kind].from_buffer_copy(returned, getattr(structure, name).offset).value or 0
        if value != default:
            differences.append(f"its default {name} reads as {value:g}, not {default:g}")
    return tuple(differences)


def _give(binding: Any, old: Any, new: Any) -> None:
    setattr(binding, old.__name__, new)
    swap = {old: new, ctypes.POINTER(old): ctypes.POINTER(new)}
    for function in vars(binding).values():
        if isinstance(function, _FUNCTION):
            if function.argtypes is not None:
                function.argtypes = [swap.get(kind, kind) for kind in function.argtypes]
            if isinstance(function.restype, type) and function.restype in swap:
                function.restype = swap[function.restype]


def _returned(shared: Any, function: str) -> tuple[bytes, int | None]:
    """What a function returns by value, and how many bytes of it; None where the size cannot be seen.

    A structure of more than 16 bytes is written to where the caller says (System V ABI for x86-64, 3.2.3; AAPCS64,
    6.9): into two patterns, so that bytes equal after both calls are the function's own. Rounded up to words.
    """
    texts = [text for pattern in _PATTERNS if (text := _into(shared, function, pattern)) is not None]
    if len(texts) < len(_PATTERNS):
        call = shared[function]
        call.argtypes, call.restype = [], _Large
        return bytes(call().bytes), None
    written = [i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a == b]
    return texts[0], -(-(written[-1] + 1) // 8) * 8 if written else 0


class _Large(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * _MOST_BYTES)]


class _FfiType(ctypes.Structure):
    pass


_FfiType._fields_ = [
    ("size", ctypes.c_size_t),
    ("alignment", ctypes.c_ushort),
    ("type", ctypes.c_ushort),
    ("elements", ctypes.POINTER(ctypes.POINTER(_FfiType))),
]
_FFI_STRUCTURE = 13
_FFI_DEFAULT_ABI = {"x86_64": 2, "AMD64": 2, "arm64": 1, "aarch64": 1}


def _into(shared: Any, function: str, pattern: bytes) -> bytes | None:
    """A buffer full of a pattern that a function has returned its structure into; None where none can be named."""
    buffer = ctypes.create_string_buffer(pattern * _MOST_BYTES, _MOST_BYTES)
    call = shared[function]  # a new object: the binding's own keeps its types
    if platform.machine() in ("x86_64", "AMD64"):  # a hidden first argument
        call.argtypes, call.restype = [ctypes.c_void_p], None
        call(ctypes.addressof(buffer))
        return buffer.raw
    return buffer.raw if _by_libffi(call, buffer) else None


def _by_libffi(call: Any, buffer: Any) -> bool:
    """Call it by libffi, which passes the buffer's address as the processor wants it; False where there is none."""
    name, abi = ctypes.util.find_library("ffi"), _FFI_DEFAULT_ABI.get(platform.machine())
    if name is None or abi is None:
        return False
    try:
        ffi = ctypes.CDLL(name)
        word = _FfiType.in_dll(ffi, "ffi_type_uint64")
    except (OSError, ValueError):
        return False
    elements = (ctypes.POINTER(_FfiType) * (_MOST_BYTES // 8 + 1))(*[ctypes.pointer(word)] * (_MOST_BYTES // 8))
    large = _FfiType(0, 0, _FFI_STRUCTURE, elements)
    plan = ctypes.create_string_buffer(256)  # an ffi_cif, larger than any
    if ffi.ffi_prep_cif(plan, abi, 0, ctypes.byref(large), None) != 0:
        return False
    ffi.ffi_call(plan, ctypes.cast(call, ctypes.c_void_p), buffer, None)
    return True
