"""``python -m benchmarks [NAME ...]``: run benchmarks and print every figure with its spread; ``--help`` lists them."""

import argparse
import ast
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Result

# truth_*.py are parts of truth; the others here are shared.
_SHARED = ("__init__", "__main__", "harness")
_BOUNDED = ("hostile", "kill_study")  # hours; a budget ends them
_ON_REQUEST = ("peers", *_BOUNDED)  # the first builds C++ programs


def benchmarks() -> dict[str, str]:
    """Names and the first line each says of itself, without importing them."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _SHARED and not path.stem.startswith("truth_"):
            found[path.stem] = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmarks named, or all."""
    known = benchmarks()
    listing = "\n".join(f"  {name:17} {line}" for name, line in known.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Run benchmarks and print every figure with its spread and its bar.",
        epilog=f"benchmarks:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run [all but {', '.join(_ON_REQUEST)}]")
    parser.add_argument(
        "--budget-s", type=float, default=math.inf, metavar="S", help=f"end {' and '.join(_BOUNDED)} after so long"
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON at the end")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.names) - set(known)):
        parser.error(f"there is no benchmark {', '.join(unknown)}; known: {', '.join(known)}")
    results = []
    for name in chosen.names or (name for name in known if name not in _ON_REQUEST):
        started = time.perf_counter()
        for result in _run(name, chosen.budget_s):
            results.append({"benchmark": name, **asdict(result)})
            mark = {True: "ok", False: "MISSED", None: ""}[result.passed]
            figure = f"{result.value:.4g} ({result.low:.4g} .. {result.high:.4g}) {result.unit}"
            print(f"{name:18} {result.name:58} {figure:44} {result.bar:10} {mark}", flush=True)
        print(f"{name:18} took {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if chosen.json:
        print(json.dumps(results, indent=2))


def _run(name: str, budget_s: float) -> Iterator[Result]:
    module = importlib.import_module(f"benchmarks.{name}")
    yield from module.run(budget_s) if name in _BOUNDED else module.run()


if __name__ == "__main__":
    main()
