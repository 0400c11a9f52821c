"""Processes that a test must not leave behind."""

import psutil


def alive(word: str) -> list[psutil.Process]:
    """Those with a word on their command line that are still there after a moment."""
    found = [process for process in psutil.process_iter(["cmdline"]) if word in (process.info["cmdline"] or ())]
    return [process for process in psutil.wait_procs(found, timeout=5)[1] if process.status() != psutil.STATUS_ZOMBIE]
