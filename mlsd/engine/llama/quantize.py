"""llama.cpp's quantizer, in a child process: it may abort on a bad file, and that must not take the caller along."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from mlsd.children import command, end_with_parent
from mlsd.engine.llama.model import check_gguf
from mlsd.errors import ModelFileError, NativeError

_LOG_LINES = 4


def quantize(source: Path, out: Path, file_type: str, *, n_threads: int | None = None) -> None:
    """Write `source` to `out` with its tensors quantized to `file_type` (``Q4_K_M``, ``Q8_0``, ...).

    A source that is quantized already is expanded and quantized again. `out` appears only when it is whole.

    Raises: ModelFileError for an unreadable source or an unknown type, NativeError when the quantizer fails.
    """
    check_gguf(source)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = command("mlsd.engine.llama.quantize", str(source), str(part), file_type, str(n_threads or 0))
    life, ours = os.pipe()  # closed when this process ends, however it does: the child then ends, too
    try:
        done = subprocess.run(asked, stdin=life, capture_output=True, text=True, errors="replace", check=False)
        log = tuple(line for line in done.stderr.splitlines() if line.strip())
        if done.returncode == 2:
            raise ModelFileError(log[-1] if log else f"{file_type} is not a type of llama.cpp's quantizer.")
        if done.returncode != 0:
            raise NativeError(
                f"llama.cpp cannot quantize {source} to {file_type}.",
                code=done.returncode,
                log=log[-_LOG_LINES:],
                hint="Some types need an importance matrix or rows of 256 weights; Q8_0 and Q4_0 need rows of 32.",
            )
        part.replace(out)
    finally:
        os.close(life)
        os.close(ours)
        part.unlink(missing_ok=True)


def _child(source: str, out: str, file_type: str, n_threads: int) -> int:
    """The exit code: 0 done, 1 refused by the quantizer, 2 unknown type."""
    end_with_parent()
    from llama_cpp import llama_cpp as native

    wanted = getattr(native, f"LLAMA_FTYPE_MOSTLY_{file_type}", None)
    if wanted is None:
        sys.stderr.write(f"{file_type} is not a type of llama.cpp's quantizer.\n")
        return 2
    params = native.llama_model_quantize_default_params()
    params.ftype = wanted
    params.nthread = n_threads
    params.allow_requantize = True
    native.llama_backend_init()
    return 0 if native.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params)) == 0 else 1


if __name__ == "__main__":
    raise SystemExit(_child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
