"""Processes that a test must not leave behind."""

import psutil


def alive(word: str) -> list[psutil.Process]:
    """Those with a word on their command line that are still there after a moment."""
    return left([one for one in psutil.process_iter(["cmdline"]) if word in (one.info["cmdline"] or ())])


def left(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of them that are still there after a moment."""
    return [one for one in psutil.wait_procs(processes, timeout=5)[1] if one.status() != psutil.STATUS_ZOMBIE]
