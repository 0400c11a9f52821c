"""README and docs tell the truth: every command in them runs, every file they name exists, the pages build."""

import ast
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import nbformat
import pytest
from nbclient import NotebookClient

import mlsd
from mlsd.cli.help import CommandGroup
from mlsd.cli.main import COMMANDS, cli
from mlsd.folders import asset_path
from mlsd.hardware.budget import mac_budget
from mlsd.measure.parent.checks import WARNINGS
from mlsd.measure.parent.doctor import read_self_check
from mlsd.measure.parent.forecast import plan_study
from mlsd.planning.plan import prepare_study
from mlsd.planning.request import study_request
from mlsd.store.rows import OUTPUT
from mlsd.units import GIB
from tests.cli.conftest import parsed
from tests.needs import lack, needed
from tests.servers.fake import FakeServer
from tools import data_reference, llama_server
from tools.command_reference import PAGE, reference
from tools.run_where import with_rows

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
GENERATED = ("commands.md", "data.md")
MOST_WORDS = 16_000  # of the others together
# Servers of the pages at which somebody else's would listen: these answer in their place.
STAND_INS = {
    "http://127.0.0.1:8080": ("llama-server", True),
    "http://127.0.0.1:9090": ("mlx-vlm", True),
    "http://127.0.0.1:8081": ("llama-server", True),
    "http://127.0.0.1:8082": ("llama-server", False),
}  # protocol, and whether it drafts
# The same command, and minutes less of it; a whole line stands between line ends.
QUICKER = {
    "--n-predict 64 --repeats 2": "--n-predict 24 --repeats 1",
    "--repeats 2 --n-predict 64": "--repeats 1 --n-predict 16",
    "--until decided --budget-s 100": "--until decided --budget-s 4",
    "mlsd compare . . tiny-dense --n-predict 32": "mlsd compare . . tiny-dense --n-predict 16 --rows 1,2",
    "--repeats 4": "--repeats 1",
    "--budget-s 20": "--budget-s 4",
    "--budget-s 5": "--budget-s 2",
    "--n-predict 64": "--n-predict 24",
    "--n-predict 48": "--n-predict 24",
    "--n-predict 96": "--n-predict 48",
    "--n-predict 16 --distances": "--n-predict 6 --distances",
    "--n-tokens 128": "--n-tokens 32",
    "\nmlsd bench tiny-moe\n": "\nmlsd bench tiny-moe --gamma 2 --n-predict 24 --until decided --budget-s 4\n",
    "\nmlsd bench model.gguf\n": "\nmlsd bench model.gguf --gamma 2 --n-predict 24 --until decided --budget-s 4\n",
    "\nmlsd run B --profile tiny --repeats 1": "\nmlsd run B --profile tiny --n-predict 16 --repeats 1",
}
# Commands that need a Mac with the study's models, hours, or a network: shown, explained, and only parsed here.
NOT_RUN = ("mlsd models pull", "git clone", "mlsd lab", "mlsd run B D --lab")


# What people type it into: zsh of a Mac, which takes no comment at its prompt.
ZSH = shutil.which("zsh")
SHELL = ["sh"] if ZSH is None else [ZSH, "-f", "-i", "-s"]


def blocks(path: Path, kind: str) -> list[str]:
    """The blocks of a page in one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def shown_files(path: Path) -> list[tuple[str, str]]:
    """Name and text of each file that a page shows and then reads."""
    return re.findall(r"^```\w+ title=(\S+)\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def lines(path: Path) -> list[str]:
    """What a page tells a reader to type."""
    return [line for line, _ in outputs(path)]


def outputs(path: Path) -> list[tuple[str, list[str]]]:
    """What a page tells a reader to type, each with the lines that it shows of what is then printed."""
    typed: list[tuple[str, list[str]]] = []
    for line in (line for block in blocks(path, "console") for line in block.splitlines()):
        if line.startswith("$ "):
            typed.append((line[2:], []))
        elif typed and line and not line.startswith(("# ", "...")):
            typed[-1][1].append(line)
    return typed


def unprinted(printed: str, shown: list[str], *, measured: bool) -> list[str]:
    """What a page shows of an output and is not in it; of a measurement labels, settings and how sentences begin."""
    text = re.sub(r"\n(?=[a-z])", " ", "\n".join(line for line in shown if "─" not in line))  # folded sentences
    if not measured:
        text = " ".join(text.split())
        return [text] if text not in " ".join(printed.split()) else []
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    parts = [[re.split(r"[:\d]", row[0])[0]] if re.search(r"\d", "".join(row)) else row for row in cells]
    return [part for row in parts for part in row if part not in printed]


ALL_LINES = [line for path in PAGES.values() for line in lines(path)]
RUN = {name: [line for line in lines(path) if line.startswith("mlsd ")] for name, path in PAGES.items()}


@pytest.mark.heavy
@pytest.mark.parametrize("page", [name for name, typed in RUN.items() if typed])
def test_every_mlsd_command_of_a_page_runs_in_order(page: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    program = llama_server.built()
    if program is not None:
        environment["PATH"] += f"{os.pathsep}{program.parent}"
    left_out = []
    with ExitStack() as stack:
        urls = {
            url: stack.enter_context(FakeServer(protocol, draft=draft, token_s=0.005)).url
            for url, (protocol, draft) in STAND_INS.items()
        }
        for name, text in shown_files(PAGES[page]):
            (tmp_path / name).write_text(text, encoding="utf-8")
        shutil.copy(asset_path("tiny/tiny-moe.gguf"), tmp_path / "model.gguf")
        for line in RUN[page]:
            if line.startswith(NOT_RUN):
                continue
            if program is None and (line.startswith("mlsd server --launch") or (left_out and "server.sqlite" in line)):
                left_out.append(line)
                continue
            typed = f"\n{line}\n"
            for shown, quicker in (urls | QUICKER).items():
                typed = typed.replace(shown, quicker)
            done = subprocess.run(
                SHELL, input=typed[1:], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            # One quick block decides nothing, which `--fail-on` answers with a code of its own.
            fine = (0, 4) if "--fail-on" in line else (0,)
            assert done.returncode in fine, f"$ {line}\n{done.stdout}\n{done.stderr}"
            measured = not line.startswith("mlsd audit")
            assert not unprinted(done.stdout, dict(outputs(PAGES[page]))[line], measured=measured), done.stdout
    if left_out:
        lack("llama-server", f"these lines of the page were not run: {left_out}")


def test_the_citation_is_of_this_version() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {mlsd.__version__}\n" in cited


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # the kernel's own libraries, not ours
@pytest.mark.parametrize("page", [name for name, path in PAGES.items() if blocks(path, "python")])
def test_the_python_of_a_page_runs_and_every_figure_of_it_is_seen(page: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "notebooks" / "data" / "tiny.sqlite", tmp_path / "results" / "tiny.sqlite")
    cells = []
    for code in blocks(PAGES[page], "python"):
        if "(mlsd.Drafter)" in code:
            (tmp_path / "mine.py").write_text(code, encoding="utf-8")  # as the page calls it
        else:
            cells += [ast.get_source_segment(code, statement) or "" for statement in ast.parse(code).body]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=300, kernel_name="python3", resources=folder).execute()
    drawing = [cell for cell in book.cells if "mlsd.draw." in cell.source]
    assert [
        cell.source for cell in drawing if not any("image/png" in one.get("data", ()) for one in cell.outputs)
    ] == []
    assert drawing or page not in ("python.md", "data.md")


# --- commands that are shown, and not run ---------------------------------------------------------------------------


def texts() -> Iterator[tuple[Path, str]]:
    """Every text in which somebody may read a command and that no other test parses: strings of code, a value in them
    as X; pages; workflows."""
    for path in (path for room in ("mlsd", "tools", "benchmarks") for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = (
                node.values if isinstance(node, ast.JoinedStr) else node.elts if isinstance(node, ast.List) else [node]
            )
            values = [str(part.value) if isinstance(part, ast.Constant) else " X " for part in parts]
            yield path, (" " if isinstance(node, ast.List) else "").join(values)
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            yield path, "".join(cell["source"])
    others = (
        "mlsd/**/*.toml",
        "mlsd/**/*.md",
        "notebooks/data/*.md",
        ".github/**/*.*",
        "suites/*",
        ".ci/run",
        "*.toml",
    )
    pages = [*PAGES.values(), *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "Makefile"))]
    for path in (*pages, *(path for pattern in others for path in ROOT.glob(pattern))):
        if path.name not in ("commands.md", "examples.toml"):
            yield path, path.read_text(encoding="utf-8")


def shown() -> Iterator[tuple[Path, list[str]]]:
    """The words of each command in these texts, without `mlsd`; in a page also of those in marks without it."""
    names = "|".join(COMMANDS)
    for path, text in texts():
        commands = re.findall(r"`mlsd\s+([^`]+)`", text) + re.findall(rf"(?<!`)\bmlsd +((?:{names})\b[^`;&|\n]*)", text)
        if path in PAGES.values():
            commands += re.findall(rf"`((?:{names})(?: [^`]*)?)`", text)
        for command in commands:
            yield path, [word.strip("\"'()") for word in re.split(r"[,.:](?=\s|$)", command)[0].split()]


def unknown(arguments: list[str]) -> str | None:
    """What click does not know of a command, which it neither completes nor runs."""
    command: click.Command = cli
    while arguments and not re.fullmatch("[A-Z]+", arguments[0]):
        context = click.Context(command, **cli.context_settings)
        arguments = command.named(arguments) if isinstance(command, CommandGroup) else arguments
        try:
            _, arguments, _ = command.make_parser(context).parse_args(arguments)
        except click.BadOptionUsage:  # the value of its last option is left out
            return None
        except click.NoSuchOption as error:
            return error.option_name
        if not isinstance(command, click.Group) or not arguments:
            return None
        inner = command.get_command(context, arguments[0])
        if inner is None:
            return arguments[0]
        command, arguments = inner, arguments[1:]
    return None


def test_every_command_and_option_that_is_shown_exists() -> None:
    commands = list(shown())
    assert len(commands) > 400
    assert not [(path.name, words) for path, words in commands if unknown(words)]
    assert unknown(["tune"]) == "tune" and unknown(["models", "methods", "--no"]) == "--no"


def test_every_command_that_a_page_has_typed_parses() -> None:
    for line in ALL_LINES:
        if line.startswith("mlsd "):
            assert parsed(line).startswith("mlsd "), line


def test_what_is_typed_carries_no_comment() -> None:
    typed = [line for path in PAGES.values() for block in blocks(path, "sh") for line in block.splitlines()]
    assert not [line for line in (*typed, *ALL_LINES) if re.search(r"(^|\s)#", line)]


def test_zsh_reads_what_is_typed_as_it_stands() -> None:
    """Each line as words, at a prompt: a quote left open, a pattern that matches nothing, or a `#` would show."""
    needed("zsh")  # the shell of macOS
    typed = [line for line in ALL_LINES if line.startswith(("mlsd ", "make "))]
    code = "mlsd() { print -lr -- mlsd $@ --- }\nmake() { print -lr -- make $@ --- }\n" + "\n".join(typed)
    done = subprocess.run(SHELL, input=code + "\n", capture_output=True, text=True, check=False)
    read = [text.strip("\n").split("\n") for text in done.stdout.split("---\n")[:-1]]
    assert read == [shlex.split(line) for line in typed]


def test_every_make_target_that_is_shown_exists() -> None:
    targets = [line.split() for line in ALL_LINES if line.startswith("make ")]
    assert targets
    for arguments in targets:
        dry = subprocess.run(
            ["make", "--dry-run", *arguments[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert dry.returncode == 0, dry.stderr


def test_every_command_but_the_demo_is_shown_and_run() -> None:
    shown = {shlex.split(line)[1] for line in ALL_LINES if line.startswith("mlsd ")}
    assert shown == set(COMMANDS) - {"demo"}  # `make demo` runs it


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_points_to_exists(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (PAGES[page].parent / target).exists(), target
    if page != "commands.md":
        for named in re.findall(r"`(mlsd/[\w/]+(?:\.py)?|tests/[\w/]+\.py)`", text):
            assert (ROOT / named).exists(), named


def test_the_pages_that_are_written_by_hand_stay_short() -> None:
    count = sum(len(path.read_text("utf-8").split()) for name, path in PAGES.items() if name not in GENERATED)
    assert count <= MOST_WORDS, "shorten a page before another grows: `wc -w README.md docs/*.md`"


def test_every_file_that_ci_names_exists() -> None:
    """A path that is gone ends `.ci/run` after half an hour, where no test of the first half looks."""
    scripts = [ROOT / ".ci" / "run", ROOT / "Makefile", *(ROOT / ".github").rglob("*.yml")]
    named = {
        path for script in scripts for path in re.findall(r"\b(?:tests|tools)/[\w/]+\.py", script.read_text("utf-8"))
    }
    assert len(named) > 5 and not [path for path in named if not (ROOT / path).exists()]


def test_every_room_that_the_architecture_names_exists() -> None:
    named = re.findall(
        r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|toml))?)`", PAGES["architecture.md"].read_text(encoding="utf-8")
    )
    assert len(named) > 20
    written = ("results/",)
    assert not [
        one for one in named if one not in written and not any((at / one).exists() for at in (ROOT, ROOT / "mlsd"))
    ]


def test_the_reference_is_what_the_program_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "make generated"


def test_the_tables_of_columns_warnings_and_statuses_are_those_of_the_code() -> None:
    text = PAGES["data.md"].read_text(encoding="utf-8")
    assert data_reference.filled(text) == text, "make generated"


def test_every_warning_has_a_meaning() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "mlsd").rglob("*.py"))
    raised = set(re.findall(r"(?:_warning\(|QualityWarning\(\s*code=)\s*\"(\w+)\"", code))
    assert raised | {f"{OUTPUT}near_tie", f"{OUTPUT}diverged"} == set(WARNINGS)


def test_the_install_page_says_of_machines_what_their_self_checks_say() -> None:
    text = PAGES["install.md"].read_text(encoding="utf-8")
    assert with_rows(text) == text, "make generated"


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("self-check-*.json")), ids=lambda path: path.name)
def test_a_kept_self_check_names_no_person_machine_or_folder(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert read_self_check(path).environment.host == ""
    assert not re.search(r"/(home|Users|root|work|tmp)/", text) and platform.node() not in text


@pytest.mark.slow
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.html"))) >= len(PAGES) - 1


@pytest.mark.skipif(sys.platform == "darwin", reason="there the program goes by its own chip")
@pytest.mark.heavy
@pytest.mark.parametrize("profile", ["mac-16gb", "mac-64gb", "mac-128gb"])
def test_the_page_for_macs_promises_what_the_program_says(profile: str) -> None:
    row = next(
        line for line in PAGES["reproduce.md"].read_text(encoding="utf-8").splitlines() if f"| {profile}" in line
    )
    planned, forecast = plan_study(study_request(tuple("ABCDF"), profile=profile))
    assert forecast.budget is not None and forecast.download_bytes is not None
    for promised in (str(forecast.time.n_trials), forecast.time.text, f"{forecast.budget.limit_bytes / 1e9:.1f} GB"):
        assert f"| {promised} |" in row, "the estimate changed: write into the page what `mlsd run --dry-run` says now"
    assert f"{sum(forecast.sizes[id_] or 0 for id_ in planned.models()) / 1e9:.3g} GB" in row


def test_the_page_for_macs_names_what_has_no_trial_and_what_is_needed() -> None:
    page = " ".join(PAGES["reproduce.md"].read_text(encoding="utf-8").split())
    assert "macOS 14 or later" in page and "$ make setup" not in page
    without = [s for s in "ABCDF" if not list(prepare_study(study_request((s,), profile="mac-16gb")).slots())]
    assert f"With 16 GB suites {', '.join(without[:-1])} and {without[-1]} have no trial" in page
    assert f"up to {mac_budget(8 * GIB).limit_bytes / 1e9:.1f} GB with all" in page
