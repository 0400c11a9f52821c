"""mlsd measures speculative decoding of GGUF models through llama.cpp and reports only numbers that can be true.

What is named in `__all__` is the public library: documented in `mlsd.api`, loaded when it is first used, and held
steady. `draw` draws the frames of a study; a drafting method of one's own derives from `Drafter` and gives `Proposal`s.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from mlsd.analysis.advise.ask import advise
    from mlsd.api import audit, bench, calibrate, dry_run, open_study, run, search, server, write_report
    from mlsd.engine.drafter import Drafter
    from mlsd.engine.verify import Proposal
    from mlsd.records import EngineOptions, Sampling
    from mlsd.report.figures import draw

__all__ = [
    "Drafter", "EngineOptions", "Proposal", "Sampling", "__version__", "advise", "audit", "bench", "calibrate", "draw",
    "dry_run", "open_study", "run", "search", "server", "write_report",
]  # fmt: skip
_ELSEWHERE = {
    "Drafter": "engine.drafter",
    "EngineOptions": "records",
    "Proposal": "engine.verify",
    "Sampling": "records",
    "advise": "analysis.advise.ask",
}


def __getattr__(name: str) -> Any:
    """A public name, loaded now (PEP 562): importing mlsd alone costs nothing and starts nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'mlsd' has no attribute {name!r}")
    if name == "draw":
        return importlib.import_module("mlsd.report.figures.draw")
    return getattr(importlib.import_module(f"mlsd.{_ELSEWHERE.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
