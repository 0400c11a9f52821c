"""What every command shares: the list of commands, -q and -v, and errors that nobody else explains."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from mlsd.cli.help import CommandGroup, examples, is_shown
from mlsd.cli.main import COMMANDS, SECTIONS, cli, main
from mlsd.cli.options import Real, Whole
from tests.cli.conftest import Mlsd, parsed


def process(*arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlsd", *map(str, arguments)]
    return subprocess.run(command, text=True, check=False, timeout=120, **{"stderr": subprocess.PIPE, **settings})  # type: ignore[call-overload, no-any-return]


def test_help_lists_at_most_fifteen_commands_once_in_their_sections(mlsd: Mlsd) -> None:
    lines = mlsd("--help").out.splitlines()
    titles = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert [title for title in titles if title in SECTIONS] == list(SECTIONS)
    assert len(COMMANDS) <= 15
    for name in COMMANDS:
        assert sum(line.split()[:1] == [name] and line.startswith("  ") for line in lines) == 1, name


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    listed = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        listed.append(((*path, name), command))
        if isinstance(command, click.Group):
            listed += commands(command, (*path, name))
    return listed


def test_one_name_means_one_thing_on_every_command() -> None:
    """A word that stands for two things, or two words for one, cannot be learnt."""
    short = {"-o": "--output", "-q": "--quiet", "-v": "--verbose"}
    for path, command in commands(cli):
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}
        for letter, name in short.items():
            assert (letter in flags) == (name in flags), (path, letter)
        assert {"--quiet", "--verbose", "--help-all"} <= flags, path
        assert all(len(flag) > 2 or flag in short for flag in flags), path


def test_every_option_that_is_a_number_is_of_the_shared_types() -> None:
    bare = (click.types.IntParamType, click.types.FloatParamType, click.IntRange, click.FloatRange)
    for _, command in commands(cli):
        for parameter in command.params:
            assert not isinstance(parameter.type, bare) or isinstance(parameter.type, Real | Whole), (
                f"{command.name} {parameter.name}"
            )


def test_quiet_prints_the_result_alone(mlsd: Mlsd) -> None:
    assert mlsd("models", "list").err
    quiet = mlsd("models", "list", "-q")
    assert quiet.err == ""
    assert quiet.out == mlsd("models", "list").out


def test_verbose_says_where_an_error_arose(mlsd: Mlsd, tmp_path: Path) -> None:
    assert "in check_model" not in mlsd("doctor", "model", tmp_path / "gone.gguf").err
    done = process("doctor", "model", tmp_path / "gone.gguf", "-v")
    assert done.returncode == 2
    assert "in check_model" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_device_is_one_message() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("models", "list", stdout=full)
    assert done.returncode == 2
    assert done.stderr.endswith("Error: No space left on device.\nFree some space, or write to another device.\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_output_that_nobody_reads_any_more_ends_the_command_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = process("models", "list", "-q", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")  # as click has it, and `mlsd ... | head` wants


@pytest.mark.parametrize(
    "command", [("results", "export", "csv", "--db", "{}"), ("report", "--db", "{}"), ("audit", "{}")]
)
def test_a_name_that_is_too_long_is_one_message(mlsd: Mlsd, command: tuple[str, ...]) -> None:
    done = mlsd(*(word.format("x" * 5000) for word in command))
    assert done.code == 2
    assert done.err.startswith("Error: ") or "\nError: " in done.err


def test_a_folder_that_cannot_be_written_is_one_message(mlsd: Mlsd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = mlsd("models", "make", "tiny", "--only", "llama", "-o", tmp_path / "file" / "folder")
    assert done.code == 2
    assert "Not a directory" in done.err


def test_what_steers_a_terminal_is_shown_in_errors_not_sent(mlsd: Mlsd) -> None:
    done = mlsd("audit", "\x1b[2J\x07.csv")
    assert done.code == 2
    assert "\x1b" not in done.err
    assert "\N{REPLACEMENT CHARACTER}[2J" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_end_is_heard_as_ctrl_c_is_and_told_apart_by_its_code(number: signal.Signals, code: int) -> None:
    program = (
        "import os, sys, click\n"
        "from mlsd.cli import main as entry\n"
        "from mlsd.cli.main import cli\n"
        "@click.pass_context\n"
        "def wait(ctx):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        while True: pass\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"  # as `mlsd run` does: it marks its run and asks for 130
        "        ctx.exit(130)\n"
        "cli.get_command = lambda ctx, name: click.Command('wait', callback=wait)\n"
        "entry(['wait'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (code, "interrupted\n"), done.stderr


@pytest.mark.slow
def test_a_shell_completes_commands(tmp_path: Path) -> None:
    variables = {"_MLSD_COMPLETE": "bash_complete", "COMP_WORDS": "mlsd models make s", "COMP_CWORD": "3"}
    done = process(stdout=subprocess.PIPE, env={**os.environ, **variables})
    assert [line.split(",")[1] for line in done.stdout.splitlines()] == ["synth", "subset", "store"]
    script = process(stdout=subprocess.PIPE, env={**os.environ, "_MLSD_COMPLETE": "bash_source"}).stdout
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
    assert checked.returncode == 0
    assert "complete" in script


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "no-such-model", "--json"),
        ("results", "--json", "--no-such-option"),
        ("audit", "no-such-name-\udcff.csv", "--json"),
    ],
)
def test_an_error_under_json_is_json_too(mlsd: Mlsd, arguments: tuple[str, ...]) -> None:
    ran = mlsd(*arguments)
    error = json.loads(ran.out)["error"]
    assert ran.code == error["exit_code"] == 2
    assert error["message"].split(".")[0] in ran.err


def test_a_file_that_the_system_refuses_is_an_object_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "page.html")

    monkeypatch.setattr("mlsd.cli.commands.report.show_report", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["report", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (ended.value.code, answer["error"]["message"]) == (2, "page.html: Read-only file system.")


def offered(*typed: str) -> set[str]:
    *before, last = typed
    return {item.value for item in ShellComplete(cli, {}, "mlsd", "_MLSD_COMPLETE").get_completions(before, last)}


def test_tab_offers_ids_methods_profiles_suites_and_prompts() -> None:
    assert {"tiny-dense", "tiny-moe", "tiny-draft"} <= offered("bench", "tiny")
    assert "smollm2-135m" in offered("bench", "tiny-moe", "--draft", "smol")
    assert offered("bench", "tiny-moe", "--drafter", "pl") == {"pld"}
    assert offered("run", "--dry-run", "A", "--profile", "ti") == {"tiny"}
    assert "A" in offered("run", "") and "code" in offered("bench", "tiny-moe", "--prompt", "co")
    assert offered("bench", "./mod") == {"./mod"}  # a path: the shell goes on


ROOT = Path(__file__).parents[2]
EXAMPLES = examples()
# Examples that need a model of the reader's, a server, another machine or minutes; what is fitted runs once.
NOT_RUN = re.compile(
    r"\.gguf\b|://|self-check|\.store|mac-32gb|--builds|^mlsd (demo|lab|compare|report|run A"
    r"|record (write|check) tiny|record import a|results against|calibrate memory|results fits --db"
    r"|models (pull|clean|make (noise|tiny -o)))"
)


METAVARS = r"\[?[A-Z_=-]+\]?(\.\.\.)?|\[[a-z0-9|-]+\]|A B TARGET|\[COMMAND\] .*|COMMAND .*"
MOST_SHOWN = 15  # options of one help


def test_every_help_says_first_what_it_prints_and_ends_with_two_examples_that_parse() -> None:
    listed = {"mlsd": cli, **{" ".join(("mlsd", *words)): command for words, command in commands(cli)}}
    assert listed.keys() == EXAMPLES.keys()
    for path, command in listed.items():
        context = click.Context(command, info_name=path, terminal_width=80)
        help_text = command.get_help(context)
        assert "#" not in help_text, "zsh of a Mac takes no comment at its prompt"
        assert not re.search(r"<=|>=|RANGE", help_text), path
        assert path == "mlsd" or re.match("Print |Write ", command.help or ""), (path, command.help)
        assert help_text.splitlines()[-3:] == ["Examples:", *(f"  {line}" for line in EXAMPLES[path])]
        assert max(map(len, help_text.splitlines())) <= 80, path
        for parameter in command.params:
            metavar = parameter.make_metavar(context)
            assert re.fullmatch(METAVARS, metavar)
        for line in EXAMPLES[path]:
            assert parsed(line).startswith(path), line


@pytest.mark.parametrize(
    ("path", "command"), commands(cli), ids=lambda one: " ".join(one) if type(one) is tuple else ""
)
def test_help_shows_few_options_in_their_sections_and_help_all_every_one(
    mlsd: Mlsd, path: tuple[str, ...], command: click.Command
) -> None:
    few, all_ = (mlsd(*path, flag).out for flag in ("--help", "--help-all"))
    declared = command.default.params if isinstance(command, CommandGroup) and command.default else command.params
    options = [option for option in declared if isinstance(option, click.Option)]
    assert len([option for option in options if is_shown(option)]) <= MOST_SHOWN
    for option in options:
        flag = rf"^  (--?[a-z-]+, )?{option.opts[-1]}\b"
        assert bool(re.search(flag, few, re.MULTILINE)) == is_shown(option), option.opts
        assert re.search(flag, all_, re.MULTILINE), option.opts
    assert {"  --json", "  --db"}.isdisjoint(few.partition("Output:")[0].splitlines())


def test_the_makefile_prints_no_comment_either() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    printed = re.findall(r'echo "([^"]*)"', text) + re.findall(r"^[a-z-]+:.*## (.*)$", text, flags=re.MULTILINE)
    assert len(printed) > 10 and not [line for line in printed if "#" in line]


@pytest.mark.heavy
def test_examples_that_need_neither_model_nor_server_run(mlsd: Mlsd) -> None:
    shutil.copy(next((ROOT / "studies").glob("*.record.gz")), "study.record.gz")
    assert mlsd("record", "import", "study.record.gz", "--into", "results/tiny.sqlite").code == 0
    assert mlsd("results", "export", "csv", "-o", "table.csv").code == 0
    lines = dict.fromkeys(line for pair in EXAMPLES.values() for line in pair if not NOT_RUN.search(line))
    for line in lines:
        ran = mlsd(*shlex.split(line)[1:])
        refuted = line == "mlsd audit published study --strict"
        assert ran.code == (1 if refuted else 0) and (ran.out or ran.err), (line, ran.err)
    assert len(lines) > 15
