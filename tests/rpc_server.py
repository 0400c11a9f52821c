"""llama.cpp's rpc-server over the CPU, as a device that is not the CPU: python -m tests.rpc_server FOLDER HOST:PORT."""

import ctypes
import sys
from pathlib import Path


def serve(folder: Path, endpoint: str) -> None:
    """Answer until the process is ended; `folder` holds llama.cpp's shared libraries, that of the RPC backend too."""
    core = ctypes.CDLL(str(folder / "libggml.so.0"), mode=ctypes.RTLD_GLOBAL)
    rpc = ctypes.CDLL(str(folder / "libggml-rpc.so"))
    core.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    devices = (ctypes.c_void_p * 1)(core.ggml_backend_dev_by_type(0))
    n_threads, n_devices = ctypes.c_size_t(1), ctypes.c_size_t(1)
    rpc.ggml_backend_rpc_start_server(endpoint.encode(), None, n_threads, n_devices, devices)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
