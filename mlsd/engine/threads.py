"""How many threads a session takes when nobody says."""

from __future__ import annotations

import subprocess
import sys

import psutil


def default_threads() -> int:
    """Physical cores (performance cores where the machine tells them apart), at least one."""
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0 and asked.stdout.strip().isdigit():
            return max(1, int(asked.stdout))
    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
