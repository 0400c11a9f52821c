"""A process that runs a server and ends it when its own parent is gone, however that ended.

Run as ``python -m mlsd.servers.guardian PROGRAM ARGUMENT...`` with a pipe as standard input: the pipe closes with the
parent, also when that was killed. On Linux the kernel ends the server when this process is killed, too.
"""

import ctypes
import signal
import subprocess
import sys

from mlsd.children import on_end_of_input
from mlsd.folders import empty_dir

DIED = 128  # exit code of a process that a signal ended, less the signal's number
_PR_SET_PDEATHSIG = 1


def _end_with_guardian() -> None:
    """In the server, before it becomes one: where the kernel can, let it die with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Run the server until it ends or standard input closes; its exit code, 128 and the signal's number after one."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=_end_with_guardian, cwd=empty_dir())
    signal.signal(signal.SIGTERM, lambda *_: server.kill())
    on_end_of_input(server.kill)
    code = server.wait()
    return code if code >= 0 else DIED - code


if __name__ == "__main__":
    raise SystemExit(main())
