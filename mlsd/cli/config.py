"""``mlsd.toml``: what commands take where neither the command line nor the environment says it.

The nearest file from the working folder upwards is read, or the one that MLSD_CONFIG names (empty: none). A file may
name a llama.cpp to load, so one that belongs to another user is refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from mlsd.cli.output import note
from mlsd.errors import InputError, choose
from mlsd.records import Record

NAME, VARIABLE = "mlsd.toml", "MLSD_CONFIG"
# key of the file -> the parameter that it is the default of, on every command that has it
KEYS = {"target": "target", "threads": "n_threads", "database": "db", "build": "build"}


class Config(Record, frozen=True, kw_only=True):
    """The values of a file; paths in it are relative to it."""

    target: str | None = None
    threads: int | None = None
    database: str | None = None
    build: str | None = None


def find_config() -> Path | None:
    """The file that holds here, if there is one. Raises: InputError when the one named is missing."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    if named is not None:
        path = Path(named).expanduser()
        if not path.is_file():
            raise InputError(f"{path} does not exist.", hint=f"{VARIABLE} names it.")
        return path
    here = Path.cwd()
    return next((folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_file()), None)


def read_config(path: Path) -> Config:
    """The values of a file. Raises: InputError naming the file, the key and what is wrong."""
    import tomllib

    if path.stat().st_uid not in (os.getuid(), 0):
        raise InputError(
            f"{path} belongs to another user and could name a library to load.",
            hint=f"Copy it into a folder of yours, or ignore it: {VARIABLE}= mlsd ...",
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.", hint="Correct the file.") from error
    for key in values:
        if key not in KEYS:
            raise InputError(f"{path} has the unknown key {key!r}.", hint=choose(key, KEYS))
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}.", hint="Correct the file.") from error
    beside = {
        key: str(path.absolute().parent / Path(value).expanduser())
        for key, value in msgspec.structs.asdict(config).items()
        if isinstance(value, str) and (key == "database" or os.sep in value or value.endswith(".gguf"))
    }
    return msgspec.structs.replace(config, **beside)


class _Context(click.Context):
    """A command's context, which says what it took from a file before the command runs."""

    def invoke(self, callback: Any, /, *arguments: Any, **options: Any) -> Any:
        if callback is self.command.callback and (taken := taken_from_file(self)):
            note(f"From {taken}.")
        return super().invoke(callback, *arguments, **options)


def taken_from_file(ctx: click.Context) -> str:
    """What a command took from the file, and which file that is; nothing where it took nothing."""
    taken = [
        f"{key} {(ctx.default_map or {}).get(name)}"
        for key, name in KEYS.items()
        if ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    ]
    return f"{find_config()}: {', '.join(taken)}" if taken else ""


def set_defaults(command: click.Command, ctx: click.Context) -> None:
    """Give a command the defaults of the file that holds here, and their variables: MLSD_TARGET and so on."""
    path = None if ctx.resilient_parsing else find_config()
    values = {} if path is None else msgspec.structs.asdict(read_config(path))
    defaults = {}
    for key, name in KEYS.items():
        for parameter in command.params:
            if parameter.name == name and _takes_default(parameter, command):
                parameter.envvar = f"MLSD_{key.upper()}"
                if values.get(key) is not None:
                    defaults[name] = values[key]
    command.context_settings = {**command.context_settings, "default_map": defaults}
    command.context_class = _Context


def _takes_default(parameter: click.Parameter, command: click.Command) -> bool:
    """Whether it is what the file means: the target to measure, the user's own study, llama.cpp's build."""
    if parameter.name == "target":
        return isinstance(parameter, click.Argument)
    if parameter.name == "db":  # what somebody else measured goes into a database of its own
        return isinstance(parameter, click.Option) and command.name != "import"
    return parameter.name == "n_threads" or parameter.envvar == "MLSD_BUILD"
