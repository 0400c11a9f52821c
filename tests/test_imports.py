"""Imports go one way, no file stands in a circle, rooms stay rooms, and each heavy library has one door."""

from __future__ import annotations

import ast
import functools
import graphlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlsd"

# Room by room: a room may import from rooms above it in this list, and from within itself. `mlsd` is the top level.
ROOMS = (
    "mlsd", "trials",
    "gguf_tools", "gguf_tools.surgery", "gguf_tools.synthetic", "hardware",
    "engine", "engine.llama.build", "engine.llama", "models",
    "drafters", "drafters.lookup", "drafters.layer_skip", "drafters.heads",
    "planning", "store", "measure", "measure.worker", "measure.parent", "lab", "formats", "servers",
    "analysis", "analysis.results", "analysis.compare", "analysis.fits", "analysis.predict", "analysis.experts",
    "audits", "analysis.audit", "analysis.claims", "analysis.advise", "analysis.study",
    "report.render", "report.tables", "report.figures", "report",
    "cli", "cli.commands",
)  # fmt: skip
# The public library and the program's entry stand above every room.
ROOF = ("mlsd", "mlsd.api", "mlsd.__main__")
MOST_MODULES = 15  # of a folder: beyond it nobody finds the room

# Third-party library -> the only parts that may import it, written as path prefixes inside mlsd/.
DOORS: dict[str, tuple[str, ...]] = {
    "llama_cpp": ("engine/llama/native.py",),
    "huggingface_hub": ("models/hub.py",),
    "pandas": ("analysis/", "audits/"),
    "matplotlib": ("report/",),
    "jinja2": ("report/", "engine/llama/chat.py"),
    "click": ("cli/",),
    "rich": ("cli/", "report/render/terminal.py"),
    "scipy": ("analysis/", "stats.py", "trials/proportions.py", "gguf_tools/synthetic/router.py"),
    "distributed": ("lab/cluster.py",),
    "dask": ("lab/cluster.py",),
    "platformdirs": ("folders.py",),
    "httpx2": ("servers/connection.py",),
}

_FOR_NUMBERS = {"pandas", "scipy", "matplotlib"}
_FOR_NETWORKS = {"huggingface_hub", "httpx2"}

FILES = {
    ".".join(p.with_suffix("").relative_to(ROOT).parts).removesuffix(".__init__"): p for p in PACKAGE.rglob("*.py")
}


@functools.cache
def _imports(path: Path) -> list[str]:
    """Full names of everything a file imports at run time, lazy imports included; modules by their own names."""
    names = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            inner_names = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [inner if inner in FILES else node.module for inner in inner_names]
    return names


def _room(module: str) -> str:
    is_folder = FILES[module].name == "__init__.py"
    return (module if is_folder else module.rpartition(".")[0]).removeprefix("mlsd.")


@pytest.mark.parametrize("module", sorted(FILES))
def test_imports_point_to_rooms_above_only(module: str) -> None:
    if module in ROOF:
        return
    room = _room(module)
    for name in _imports(FILES[module]):
        if name not in FILES or name in ROOF:
            continue
        other = _room(name)
        assert other == room or ROOMS.index(other) < ROOMS.index(room), f"{module} must not import {name}"


def test_no_file_stands_in_a_circle() -> None:
    graph = {module: {name for name in _imports(path) if name in FILES} for module, path in FILES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises for a circle, with its files


def test_the_architecture_draws_the_rooms_in_their_order() -> None:
    picture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    drawn = [word for line in picture.splitlines() for word in re.findall(r"^ ([a-z_]+(?: \.\.\. [a-z_]+)*) ", line)]
    rooms = [name for line in drawn for name in re.findall(r"[a-z_]+", line) if name in ROOMS]
    assert rooms == [room for room in ROOMS if "." not in room and room != "mlsd"], "docs/architecture.md, the picture"


def test_no_folder_is_a_list() -> None:
    count = Counter(path.parent for path in FILES.values() if path.name not in ("__init__.py", "__main__.py"))
    assert not {str(folder.relative_to(ROOT)): n for folder, n in count.items() if n > MOST_MODULES}


@pytest.mark.slow
def test_every_room_says_what_it_owns() -> None:
    for module, path in FILES.items():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{module} has no docstring"


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(FILES))
def test_heavy_libraries_come_in_through_their_one_door(module: str) -> None:
    place = str(FILES[module].relative_to(PACKAGE))
    for name in _imports(FILES[module]):
        allowed = DOORS.get(name.split(".")[0])
        if allowed is not None:
            assert place.startswith(allowed), f"{place} imports {name}; its door is {', '.join(allowed)}"


def test_what_calls_itself_the_one_door_to_a_library_is_its_only_one() -> None:
    claims = [module for module, path in FILES.items() if "The one door to" in path.read_text(encoding="utf-8")]
    assert len(claims) >= 4
    for module in claims:
        door = str(FILES[module].relative_to(PACKAGE)).removesuffix("__init__.py")
        assert any(all(part.startswith(door) for part in parts) for parts in DOORS.values()), (
            f"{door} is one of several"
        )


def _loaded(tmp_path: Path, *words: str) -> set[str]:
    """The libraries that a command loads, in a process of its own with an empty cache and no databases."""
    code = (
        "import sys; from mlsd.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted(set(m.split('.')[0] for m in sys.modules)))"
    )
    command = [sys.executable, "-c", code, *words]
    place = {**os.environ, "MLSD_CACHE": str(tmp_path / "cache")}
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=place).stdout
    return set(out.rpartition("LOADED")[2].split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *("--help", "results --db none.sqlite", "report --db none.sqlite", "audit none.csv"),
        *("calibrate none", "doctor model none"),
    ],
)
def test_help_and_missing_files_load_no_heavy_library(tmp_path: Path, words: str) -> None:
    heavy = {"llama_cpp", "numpy", "gguf", "rich", "distributed"} | _FOR_NUMBERS | _FOR_NETWORKS
    assert not heavy & _loaded(tmp_path, *words.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "bench tiny-dense --drafter nosuch", "bench none", "bench none --drafter pld", "bench tiny-dense --draft none",
        "search none --drafter pld", "search tiny-dense --drafter nosuch",
        "run Q", "run A --profile none", "compare . . none", "calibrate none",
        "results claims", "results fits --db none.sqlite",
        "advise tiny-moe --chip M9", "advise none", "advise tiny-dense --draft none", "advise qwen3-8b --chip M4",
    ],
)  # fmt: skip
def test_a_wrong_name_is_answered_and_a_chip_advised_before_heavy_imports_and_locks(tmp_path: Path, words: str) -> None:
    assert not ({"llama_cpp"} | _FOR_NUMBERS | _FOR_NETWORKS) & _loaded(tmp_path, *words.split())
    assert not list(tmp_path.glob("cache/*.lock"))


def test_advice_for_a_chip_loads_no_numbers(tmp_path: Path) -> None:
    words = ("advise", "qwen3-8b-q4_k_m", "--chip", "M4", "--drafter", "mtp", "--gamma", "2", "--accepted", "6/10")
    assert not {"numpy", "llama_cpp", "httpx2"} & _loaded(tmp_path, *words), "gguf's constants alone bring none"


def test_importing_the_engine_starts_nothing_native() -> None:
    code = "import sys, mlsd.engine.llama.context; print('llama_cpp' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_a_worker_that_reads_a_header_loads_not_all_of_gguf() -> None:
    code = "import sys, mlsd.measure.worker.serve, mlsd.gguf_tools.header; print('gguf' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_only_the_command_line_prints_or_exits() -> None:
    for module, path in FILES.items():
        if module.startswith("mlsd.cli") or path.name == "__main__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                called = ast.unparse(node.func) if name in ("print", "exit") else name
                assert called not in ("print", "sys.exit", "exit"), f"{path} calls {called}"


def test_only_the_clock_measures_time() -> None:
    for path in FILES.values():
        if path.name != "clock.py":
            assert "perf_counter" not in path.read_text(encoding="utf-8"), f"{path}: ask a clock of mlsd.clock"
