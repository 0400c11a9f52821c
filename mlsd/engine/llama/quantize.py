"""llama.cpp's quantizer, in a child process: it may abort on a bad file, and that must not take the caller along."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from mlsd.children import end_with_parent, start_child
from mlsd.engine.llama.model import check_gguf
from mlsd.engine.llama.native import LOG, library
from mlsd.errors import MlsdError, ModelFileError, NativeError
from mlsd.folders import replacing

_LOG_LINES = 4


def quantize(source: Path, out: Path, file_type: str, *, n_threads: int | None = None) -> None:
    """Write `source` to `out` with tensors of `file_type` (``Q4_K_M``, ...); an already quantized one is expanded
    first.

    Raises: ModelFileError for an unreadable source or an unknown type, NativeError when the quantizer fails.
    """
    check_gguf(source)
    life, ours = os.pipe()  # closed when this process ends, however it does: the child then ends, too
    try:
        with replacing(out, "Check the folder, its permissions and space.", make_folder=True) as part:
            command = ("mlsd.engine.llama.quantize", str(source), str(part), file_type, str(n_threads or 0))
            with start_child(*command, stdin=life, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
                complaint = child.communicate()[1].decode("utf-8", "replace")
            log = tuple(line for line in complaint.splitlines() if line.strip())
            if child.returncode == 2:
                raise ModelFileError(log[-1] if log else f"{file_type} is not a type of llama.cpp's quantizer.")
            if child.returncode != 0:
                raise NativeError(
                    f"llama.cpp cannot quantize {source} to {file_type}.",
                    code=child.returncode,
                    log=log[-_LOG_LINES:],
                    hint="Some types need an importance matrix or rows of 256 weights; Q8_0 and Q4_0 need rows of 32.",
                )
    finally:
        os.close(life)
        os.close(ours)


def _child(source: str, out: str, file_type: str, n_threads: int) -> int:
    """The exit code: 0 done, 1 refused by the quantizer, 2 unknown type."""
    end_with_parent()
    try:
        native = library()
    except MlsdError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    wanted = getattr(native, f"LLAMA_FTYPE_MOSTLY_{file_type}", None)
    if wanted is None:
        sys.stderr.write(f"{file_type} is not a type of llama.cpp's quantizer.\n")
        return 2
    params = native.llama_model_quantize_default_params()
    params.ftype = wanted
    params.nthread = n_threads
    params.allow_requantize = True
    code = native.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(params))
    sys.stderr.write("\n".join(LOG.drain()))
    return 0 if code == 0 else 1


if __name__ == "__main__":
    raise SystemExit(_child(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
