"""The table of commands; each lives in a file of its own and is imported only when it runs."""

import errno
import importlib
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TextIO

import click

from mlsd import __version__
from mlsd.cli import output
from mlsd.cli.help import CommandGroup, complete, write_examples
from mlsd.errors import MlsdError
from mlsd.names import clean

# section -> command -> one line; each is the command of this name in a module of mlsd.cli.commands.
# A lazy table keeps `mlsd --help` at the cost of click alone.
SECTIONS: dict[str, dict[str, str]] = {
    "Start": {
        "demo": "Show an honest win, an honest loss and an invalid result.",
        "doctor": "Show this machine; check it, its builds, a model's rollbacks.",
        "bench": "Measure plain and speculative decoding side by side.",
        "search": "Search the best gamma and options of a method, or say off.",
        "server": "Check whether your server's speculation is faster and lossless.",
        "advise": "Predict what each draft and gamma gives, and say what decides it.",
    },
    "Study": {
        "run": "Plan suites, and run them on the models of a profile, resumable.",
        "report": "Write a page that says which setting to use, and why.",
        "results": "Show a study's arms, trials, claims and fits; export trials.",
        "record": "Write a study as one file; check or import such files.",
        "lab": "Measure one study on several machines.",
    },
    "Truth": {
        "audit": "Check whether published or measured numbers can be true.",
        "compare": "Tell whether another build or setting is faster or different.",
    },
    "Machine and models": {
        "calibrate": "Time passes at every width, their parts, and memory itself.",
        "models": "List, download, make and compare models; list methods.",
    },
}
COMMANDS = [name for section in SECTIONS.values() for name in section]
_IN = {"search": "bench"}  # the module of a command that shares one


class LazyGroup(CommandGroup):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"mlsd.cli.commands.{_IN.get(cmd_name, cmd_name)}"), cmd_name
        )
        return complete(command, f"mlsd {cmd_name}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples("mlsd", ctx, formatter)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlsd")
def cli() -> None:
    """Measure speculative decoding of GGUF models through llama.cpp, and report only numbers that can be true."""


def main(argv: list[str] | None = None) -> None:
    """Run one command; an error becomes one clear message and its exit code."""
    output.verbosity.set("normal")
    output.every_column.set(False)
    logging.getLogger("mlsd").handlers, logging.getLogger("mlsd").level = [_Notes()], logging.INFO
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character that the terminal's encoding lacks
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    with _stop_signals() as interrupted:
        try:
            code = cli.main(args=argv, prog_name="mlsd", standalone_mode=False)
        except click.ClickException as error:
            shown = io.StringIO()  # it repeats what was typed, which may come from anywhere
            error.show(shown)
            output.complain(shown.getvalue().rstrip("\n"))
            if as_json:
                _print_error(error, error.format_message(), "", error.exit_code)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            output.complain(_KEPT)
            sys.exit(interrupted())
        except (MlsdError, OSError, UnicodeEncodeError) as error:
            _fail(error, *_explain(error), as_json=as_json)
    if isinstance(code, int) and code:  # what `ctx.exit` asked for
        if code == _INTERRUPTED:
            output.complain(_KEPT)
            code = interrupted()
        sys.exit(code)


class _Notes(logging.Handler):
    """What the library says while it waits, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        (output.sign_of_life if record.levelno <= logging.INFO else output.note)(record.getMessage())


_INTERRUPTED = 128 + signal.SIGINT
_KEPT = "Interrupted: what had ended is kept; the same command can be given again."


@contextmanager
def _stop_signals() -> Iterator[Callable[[], int]]:
    """Treat SIGTERM as Ctrl-C; yields what gives the exit code of whichever came."""
    came = [signal.SIGINT]

    def stop(number: int, frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield lambda: _INTERRUPTED
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield lambda: 128 + came[-1]
    finally:
        signal.signal(signal.SIGTERM, before)


def _explain(error: MlsdError | OSError | UnicodeEncodeError) -> tuple[str, str]:
    """What went wrong, and what to do; of files and names what no part of the library explains better."""
    if isinstance(error, MlsdError):
        return error.message, error.hint
    if isinstance(error, UnicodeEncodeError):  # of bytes on the command line or in a path that are no text
        name = clean(error.object[max(0, error.start - 40) : error.end + 40])
        return f"A name holds bytes that are no text: ...{name}.", "Rename the file or folder, in UTF-8."
    where = f"{error.filename}: " if error.filename is not None else ""
    elsewhere = "Write to another folder: give -o, --db, or set MLSD_HOME and MLSD_CACHE."
    hints = {
        errno.ENOSPC: "Free some space, or write to another device.",
        errno.EROFS: elsewhere,
        errno.EACCES: elsewhere,
        errno.ENAMETOOLONG: "Give a shorter name.",
    }
    return f"{where}{error.strerror or error}.", hints.get(error.errno or 0, "")


def _print_error(error: Exception, message: str, hint: str, exit_code: int) -> None:
    """The error for programs, on standard output; people read it on the other."""
    kind, message, hint = type(error).__name__, clean(message), clean(hint)  # a path may hold bytes that are no text
    output.print_json({"error": {"kind": kind, "message": message, "hint": hint, "exit_code": exit_code}})


def _fail(error: Exception, message: str, hint: str, *, as_json: bool) -> NoReturn:
    exit_code = error.exit_code if isinstance(error, MlsdError) else 2
    # One without a file's name may be of the output itself: nothing more is written to it, at exit neither.
    if as_json and not (isinstance(error, OSError) and error.filename is None):
        _print_error(error, message, hint, exit_code)
    if isinstance(error, OSError):
        _silence(sys.stdout)
    if output.verbosity.get() == "verbose":
        output.complain("".join(traceback.format_exception(error)))
    for line in filter(None, (f"Error: {message}", hint)):
        output.complain(line)
    sys.exit(exit_code)


def _silence(stream: TextIO | None) -> None:
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]
