"""llama-cpp-python's own server on the libraries that are installed, for which its bindings are fitted first."""

import runpy

from mlsd.engine.llama.native import library

if __name__ == "__main__":
    library()
    runpy.run_module("llama_cpp.server", run_name="__main__", alter_sys=True)
