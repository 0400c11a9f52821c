"""``mlsd.toml``: what commands take where neither the command line nor the environment says it.

The nearest file from the working folder upwards is read, or the one that MLSD_CONFIG names (empty: none). Only a file
that was named may name a llama.cpp to load: a folder that was cloned or unpacked is not trusted with running code.
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
from mlsd.outside import parse_toml, read_file
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
        try:
            path = Path(named).expanduser()
        except RuntimeError as error:
            raise InputError(f"{VARIABLE} is {named!r}: {error}.") from error
        if not os.path.isfile(path):  # noqa: PTH113 - False also for a name that no file can have
            raise InputError(f"{path} does not exist.", hint=f"{VARIABLE} names it.")
        return path
    here = Path.cwd()
    return next((folder / NAME for folder in (here, *here.parents) if (folder / NAME).is_file()), None)


def read_config(path: Path) -> Config:
    """The values of a file. Raises: InputError naming the file, the key and what is wrong."""
    import tomllib

    try:
        values = parse_toml(read_file(path))
        if unknown := next((key for key in values if key not in KEYS), None):
            raise InputError(f"{path} has the unknown key {unknown!r}.", hint=choose(unknown, KEYS))
        config = msgspec.convert(values, Config)
        beside = {
            key: _beside(path, value)
            for key, value in msgspec.structs.asdict(config).items()
            if isinstance(value, str) and (key == "database" or os.sep in value or value.endswith(".gguf"))
        }
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}.", hint=f"Ignore it: {VARIABLE}= mlsd ..."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.", hint="Correct the file.") from error
    except (msgspec.ValidationError, RuntimeError, ValueError) as error:  # of values; of paths that none can be
        raise InputError(f"{path}: {error}.", hint="Correct the file.") from error
    if config.build is not None and not os.environ.get(VARIABLE):
        raise InputError(
            f"{path} names a llama.cpp to load. A file that was only found may not: its author would run code as you.",
            hint=f"Use --build or MLSD_BUILD, name the file with {VARIABLE}, or ignore it: {VARIABLE}= mlsd ...",
        )
    return msgspec.structs.replace(config, **beside)


def _beside(path: Path, value: str) -> str:
    """A path of the file as it is meant. Raises: RuntimeError, ValueError for what can be none."""
    if "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return str(path.absolute().parent / Path(value).expanduser())


class _ConfiguredContext(click.Context):
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
    command.context_class = _ConfiguredContext


def _takes_default(parameter: click.Parameter, command: click.Command) -> bool:
    """Whether it is what the file means: the target to measure, the user's own study, llama.cpp's build."""
    if parameter.name == "target":
        return isinstance(parameter, click.Argument)
    if parameter.name == "db":  # what somebody else measured goes into a database of its own
        return isinstance(parameter, click.Option) and command.name != "import"
    return parameter.name == "n_threads" or parameter.envvar == "MLSD_BUILD"
