"""Drafting methods, one file a method, behind a written table.

A method's module has `make(bench) -> Drafter`; where it needs a special target context it also has
`target_options(options, spec, gamma) -> SessionOptions`. Modules are imported only when their method is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlsd.clock import Clock
from mlsd.engine.drafter import Drafter, NoDrafter
from mlsd.engine.session import Session, SessionOptions
from mlsd.errors import UnsupportedError
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec, Sampling

# name -> module under mlsd.drafters
METHODS: dict[str, str] = {
    DRAFT_MODEL: "draft_model",
}


@dataclass(frozen=True)
class DrafterBench:
    """What a method may use to build its drafter."""

    spec: DrafterSpec
    gamma: int
    sampling: Sampling
    clock: Clock
    target: Session  # the session whose output is drafted
    target_path: Path
    draft_path: Path | None  # the second model, where the spec names one
    options: SessionOptions  # threads, layers, context and checking shared by all contexts of the arm
    open_model: Callable[[Path], Any]  # loaded models by path, each loaded once; closed by the owner of the bench
    draft_rollback: Callable[[Path], str]  # strategy that the probe found exact for a draft with this file


def method_module(name: str) -> Any:
    """The module of a drafting method.

    Raises: UnsupportedError for an unknown name, with the names that exist.
    """
    if name not in METHODS:
        raise UnsupportedError(
            f"There is no drafting method {name!r}.", hint=f"Known methods: {', '.join(sorted(METHODS))}."
        )
    return importlib.import_module(f"mlsd.drafters.{METHODS[name]}")


def make_drafter(bench: DrafterBench) -> Drafter:
    """The drafter that `bench.spec` asks for."""
    if bench.spec.name == NO_DRAFTER:
        return NoDrafter()
    drafter: Drafter = method_module(bench.spec.name).make(bench)
    return drafter


def target_options(options: SessionOptions, spec: DrafterSpec, gamma: int) -> SessionOptions:
    """The target's session options as the method needs them."""
    if spec.name == NO_DRAFTER:
        return options
    adjust = getattr(method_module(spec.name), "target_options", None)
    adjusted: SessionOptions = adjust(options, spec, gamma) if adjust else options
    return adjusted
