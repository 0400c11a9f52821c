"""``python -m benchmarks [NAME ...]``: run the benchmarks and print every figure with its spread."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import time
from dataclasses import asdict

import benchmarks

NOT_BENCHMARKS = {"__main__", "harness", "models"}


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name not in NOT_BENCHMARKS]
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")] or names
    if unknown := set(wanted) - set(names):
        sys.exit(f"There is no benchmark {', '.join(sorted(unknown))}. Known: {', '.join(names)}.")
    results = []
    for name in wanted:
        started = time.perf_counter()
        for result in importlib.import_module(f"benchmarks.{name}").run():
            results.append({"benchmark": name, **asdict(result)})
            mark = {True: "ok", False: "MISSED", None: ""}[result.passed]
            figure = f"{result.value:.4g} ({result.low:.4g} .. {result.high:.4g}) {result.unit}"
            print(f"{name:18} {result.name:58} {figure:44} {result.bar:10} {mark}", flush=True)
        print(f"{name:18} took {time.perf_counter() - started:.0f} s", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
