"""Imports go one way, and each heavy library has one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlsd"

# Layer by layer: a part may import from parts above it in this list, and from within itself.
LAYERS: list[set[str]] = [
    {"errors", "units", "clock"},
    {"records"},
    {"resources", "userdir"},
    {"tasks"},
    {"prompts", "manifest", "gguf_tools"},
    {"engine"},
    {"hub", "hardware"},
    {"models"},
    {"suite"},
    {"plan"},
    {"estimate"},
    {"drafters"},
    {"measure"},
    {"analysis"},
    {"report"},
    {"cli"},
]

# Third-party library -> the only parts that may import it, written as path prefixes inside mlsd/.
DOORS: dict[str, tuple[str, ...]] = {
    "llama_cpp": ("engine/_native.py", "engine/llama.py", "engine/quantize.py"),
    "huggingface_hub": ("hub.py",),
    "pandas": ("analysis/",),
    "matplotlib": ("report/",),
    "jinja2": ("report/", "engine/chat.py"),
    "click": ("cli/",),
    "rich": ("cli/",),
    "optuna": ("measure/tune.py",),
    "lmfit": ("analysis/",),
}

FILES = sorted(PACKAGE.rglob("*.py"))


def _imports(path: Path) -> list[str]:
    """Full names of everything a file imports at run time, lazy imports included."""
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
            names.append(node.module)
    return names


def _part(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def _layer(part: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if part in layer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_lower_layers_only(path: Path) -> None:
    part = _part(path)
    if part in ("__init__", "__main__"):
        return
    for name in _imports(path):
        if not name.startswith("mlsd."):
            continue
        other = name.split(".")[1]
        if other != part:
            assert _layer(other) < _layer(part), f"{part} must not import {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_come_in_through_their_one_door(path: Path) -> None:
    place = str(path.relative_to(PACKAGE))
    for name in _imports(path):
        allowed = DOORS.get(name.split(".")[0])
        if allowed is not None:
            assert place.startswith(allowed), f"{place} imports {name}; its door is {', '.join(allowed)}"


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from mlsd.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', sorted(set(m.split('.')[0] for m in sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = out.split("LOADED", 1)[1]
    for library in ("llama_cpp", "numpy", "pandas", "matplotlib", "scipy", "rich", "huggingface_hub", "optuna"):
        assert f"'{library}'" not in loaded


def test_importing_the_engine_starts_nothing_native() -> None:
    code = "import sys, mlsd.engine.llama; print('llama_cpp' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_only_the_command_line_prints_or_exits() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] == "cli" or path.name == "__main__.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit"), f"{path} calls {called}"


def test_no_module_is_longer_than_400_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
