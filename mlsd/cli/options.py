"""What several commands parse: options that several have, number lists, models, drafters, engine settings."""

import functools
import math
import os
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mlsd.engine.context import check_threads
from mlsd.errors import InputError, choose
from mlsd.planning.job import ModelFile, file_of
from mlsd.planning.options import Declared, declared, option
from mlsd.records import ADAPTIVE, EngineOptions, Option, Record

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_MOST = 2**31 - 1  # of a whole number: what llama.cpp counts with


class Real(click.ParamType[float]):
    """A number within bounds; neither nan nor infinite."""

    name = "number"
    kind: type[float] | type[int] = float
    noun = "a number"

    def __init__(self, min: float | None = None, max: float | None = None, min_open: bool = False) -> None:
        self._min, self._max, self._min_open = min, max, min_open

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self.kind(value)
        except (ValueError, OverflowError):
            number = math.nan
        if number != number or number in (math.inf, -math.inf):
            self.fail(f"{str(value)[:40]!r} is not {self.noun}.", param, ctx)
        if self._min is not None and (number < self._min or (self._min_open and number == self._min)):
            self.fail(
                f"{str(value)[:40]} is not {'above' if self._min_open else 'at least'} {self._min:,}.", param, ctx
            )
        if self._max is not None and number > self._max:
            self.fail(f"{str(value)[:40]} is not at most {self._max:,}.", param, ctx)
        return number


class Whole(Real):
    """A whole number within bounds and within what 32 bits hold."""

    kind, noun = int, "a whole number"

    def __init__(self, min: int = -_MOST, max: int = _MOST) -> None:
        super().__init__(min, max)


class Parsed(click.ParamType[T]):
    """What a function makes of a text; where it raises ValueError, its words are the message."""

    def __init__(self, name: str, read: Callable[[str], T]) -> None:
        self.name, self._read = name, read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):  # a default
            return value  # type: ignore[no-any-return]
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Name(click.Choice[str]):
    """One of some names; another is answered with those that are similar, and all."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        return f"There is no {str(value)[:40]!r}. {choose(str(value), self.choices)}"


def integers(number: Whole = Whole(), word: str = "") -> Parsed[tuple[Any, ...]]:  # noqa: B008 - it is never changed
    """Integers separated by commas: ``1,2,4``; among them one `word`, if there is one."""

    def read(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        try:
            given = [part if part == word else int(part) for part in parts]
        except ValueError:
            raise ValueError(f"{text[:80]!r} is not a list of integers like 1,2,4") from None
        return tuple(value if value == word else number.convert(value, None, None) for value in given)

    return Parsed("numbers", read)


def read_share(text: str) -> float:
    """A share in per cent: ``2%``. Raises: ValueError."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise ValueError(f"{text!r} is not a share like 2%")
    return share


SHARE = Parsed("percent", read_share)
UNTIL = Parsed("goal", lambda text: text if text == "decided" else read_share(text))


def _offer(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What the Tab key offers: those of `names` that begin with the word; files where none does."""

    def complete(ctx: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
        offers = [CompletionItem(name) for name in names() if name.startswith(word)]
        return offers or [CompletionItem(word, type="file")]

    return complete


offer_models = _offer(lambda: import_module("mlsd.models.manifest").load_manifest().models)
offer_methods = _offer(lambda: import_module("mlsd.methods").METHODS)
offer_profiles = _offer(lambda: import_module("mlsd.planning.suite").load_profiles())
offer_suites = _offer(lambda: import_module("mlsd.planning.suite").suite_names())
offer_prompts = _offer(lambda: import_module("mlsd.planning.prompts").prompt_names())


def _role(text: str) -> tuple[str, str]:
    role, equals, model = text.partition("=")
    if not (role and equals and model):
        raise ValueError(f"{text!r} is not ROLE=MODEL, MODEL an id or a path.")
    return role, model


_FILE = click.Path(dir_okay=False, path_type=Path)
_OFFERS = {"models": offer_models, "methods": offer_methods, "profiles": offer_profiles, "prompts": offer_prompts}
_FORMS = {"file": _FILE, "goal": UNTIL}
_ON_OFF = Name(("on", "off"))


def _whole(option: Option) -> Whole:
    return Whole(-_MOST if option.least is None else int(option.least), int(option.most or _MOST))


def click_type(declaration: Declared) -> dict[str, Any]:
    """How Click reads an option, by the type that it is declared with."""
    option, kind = declaration.option, declaration.kind
    numbers = [part for part in get_args(declaration.several) or (declaration.several,) if part is int]
    if option.form:
        return {"type": _FORMS[option.form]}
    if numbers:
        return {"type": integers(_whole(option), "" if declaration.several is int else ADAPTIVE)}
    if get_origin(kind) is Mapping:
        return {"type": Parsed("text", _role), "multiple": True, "callback": lambda ctx, parameter, pairs: dict(pairs)}
    if declaration.several is not None:
        none = declaration.default is None  # what was not given stays None
        return {
            "multiple": True,
            "default": declaration.default or (),
            "callback": (lambda c, p, v: v or None) if none else None,
        }
    if get_origin(kind) is Literal:
        return {"type": Name(get_args(kind))}
    if kind is bool:
        return {"is_flag": True}
    if kind == bool | None:
        return {"type": _ON_OFF, "callback": lambda ctx, parameter, text: text and text == "on"}
    if kind is int:
        return {"type": _whole(option)}
    low = option.least if option.above is None else option.above
    return {"type": Real(low, option.most, option.above is not None)} if kind is float else {}


def option_of(declaration: Declared, **changes: Any) -> Callable[[F], F]:
    """A declared option as Click has it."""
    default = declaration.default
    settings = {
        "default": default,
        **click_type(declaration),
        "help": declaration.option.meaning,
        "metavar": declaration.option.metavar,
    }
    if default not in (None, (), "", False) and "[default" not in declaration.option.meaning:
        if isinstance(default, tuple):
            settings["help"] = f"{declaration.option.meaning.rstrip('.')} [default: {','.join(map(str, default))}]."
        else:
            settings["show_default"] = True
    settings["shell_complete"] = _OFFERS.get(declaration.option.offer)
    if default is msgspec.NODEFAULT:
        settings |= {"default": None, "show_default": False, "required": True}
    return click.option(declaration.flag, declaration.name, **{**settings, **changes})


def options_of(kind: Any, *only: str, **defaults: Any) -> Callable[[F], F]:
    """Add the options that a record declares, all or `only` these; the command receives them, inner records whole."""

    def decorate(command: F) -> F:
        options = [
            declaration if declaration.name not in defaults else declaration.with_default(defaults[declaration.name])
            for declaration in declared(kind)
            if not only or declaration.name in only
        ]

        @functools.wraps(command)
        def with_records(*arguments: Any, **given: Any) -> Any:
            ctx = click.get_current_context()
            refuse(ctx, ("repeats",), ctx.params.get("until") is not None, "a session without --until")
            return command(*arguments, **_nested(kind, options, given))

        wrapped: F = with_records  # type: ignore[assignment]
        for declaration in reversed(options):
            wrapped = option_of(declaration)(wrapped)
        return wrapped

    return decorate


def _nested(kind: Any, options: Sequence[Declared], given: dict[str, Any]) -> dict[str, Any]:
    """What was given, with `engine` and `sampling` made of their parts; a seed is of both."""
    parts: dict[str, dict[str, Any]] = {}
    for declaration in options:
        if declaration.owner:
            parts.setdefault(declaration.owner, {})[declaration.name] = given.pop(declaration.name)
    if "sampling" in parts and "seed" in given:
        parts["sampling"]["seed"] = given["seed"]
    if (n_threads := parts.get("engine", {}).get("n_threads")) is not None:
        check_threads(n_threads)
    kinds = {field.name: type(field.default) for field in msgspec.structs.fields(kind)}
    return {**given, **{name: kinds[name](**values) for name, values in parts.items()}}


def check_models(*named: str | None) -> None:
    """See at once, before anything heavy is imported, whether these name models. Raises: what `check_model` raises."""
    from mlsd.models.library import check_model

    for text in named:
        if text is not None:
            check_model(text)


def declared_option(kind: Any, name: str, help: str, **changes: Any) -> Callable[[F], F]:
    """One option that a record declares, said in other words, for a command that is asked by no record."""
    return option_of(option(kind, name), help=help, **changes)


def _option(*names: str, **settings: Any) -> Callable[..., Callable[[F], F]]:
    """An option that several commands have, under one name with one meaning; each may say it in other words."""

    def worded(help: str, **changes: Any) -> Callable[[F], F]:
        return click.option(*names, **{**settings, "help": help, **changes})

    return worded


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
model_argument = functools.partial(click.argument, shell_complete=offer_models)
quant_option = _option("--quant")
output_option = _option("-o", "--output", type=_FILE, required=True)
certificate_option = click.option(
    "--certificate", type=_FILE, help="The lab's certificate file [default: the one that `mlsd lab start` made here]."
)
text_option = _option("--text", type=_FILE)


def _use_build(ctx: click.Context, parameter: click.Parameter, name: str | None) -> None:
    if name is None or ctx.resilient_parsing:
        return
    from mlsd.measure.parent.builds import use_build

    ctx.meta["build"] = name
    before = dict(os.environ)

    def leave() -> None:
        os.environ.clear()
        os.environ.update(before)

    use_build(name)
    ctx.call_on_close(leave)


build_option = click.option(
    "--build",
    envvar="MLSD_BUILD",
    metavar="BUILD",
    expose_value=False,
    callback=_use_build,
    help="llama.cpp to use: a wheel, a folder or an environment [default: $MLSD_BUILD, else the installed one].",
)


class _Engine(Record, frozen=True, kw_only=True):
    engine: EngineOptions = EngineOptions()


engine_options: Callable[[F], F] = options_of(_Engine)  # of the native contexts; the command receives `engine`


def same_command(ctx: click.Context, without: Container[str] = (), **changes: Any) -> str:
    """The command that runs, as it was typed: all that it was asked, some parameters left out or changed."""
    parts, last = ctx.command_path.split(), []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in without or not (was_given(ctx, name) or name in changes):
            continue
        value: Any = changes.get(name, ctx.params.get(name))
        if isinstance(parameter, click.Argument):
            last += [str(item) for item in (value if parameter.nargs != 1 else (value,))]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            parts += [parameter.opts[-1]] if value else []
        else:
            for item in value if parameter.multiple else (value,):
                parts += [max(parameter.opts, key=len), _typed(parameter.type, item)]
    return shlex.join([*parts, *last])


def given_options(ctx: click.Context, names: Container[str]) -> dict[str, tuple[str, ...]]:
    """Those of these parameters that were typed or set in the environment, as options of the command."""
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = (p for p in ctx.command.params if p.name in names and ctx.get_parameter_source(p.name) in sources)
    texts = dict[str, tuple[str, ...]]()
    for parameter in given:
        value = ctx.params[parameter.name] if parameter.expose_value else ctx.meta[parameter.name]
        texts[max(parameter.opts, key=len)] = (_typed(parameter.type, value),)
    return texts


def _typed(kind: click.ParamType[Any], value: Any) -> str:
    """A value as it is typed."""
    if kind in (SHARE, UNTIL) and isinstance(value, float):
        return f"{100 * value:g}%"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def refuse(ctx: click.Context, names: Iterable[str], when: bool, of: str) -> None:
    """Refuse parameters that were given though they would be ignored. Raises: UsageError that names them."""
    given = [p for p in ctx.command.params if p.name in names and was_given(ctx, p.name)] if when else []
    if given:
        raise click.UsageError(f"{', '.join(max(parameter.opts, key=len) for parameter in given)}: only for {of}.")


def known_name(what: str, name: str | None, names_here: Iterable[str]) -> str | None:
    """A name as it is known, in whichever case it was given. Raises: InputError with similar names and the list."""
    names = {known.lower(): known for known in sorted(names_here)}
    if name is None or name.lower() in names:
        return name and names[name.lower()]
    hint = choose(name, names.values()) if names else ""
    raise InputError(f"There is no {what} called {name!r} here.", hint=hint)


def was_given(ctx: click.Context, name: str) -> bool:
    """Whether this parameter was typed."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def model_file(text: str) -> ModelFile:
    """A model given as a path or a manifest id. Raises: ModelFileError, ManifestError or HubError with what to do."""
    from mlsd.models.library import resolve_model

    return file_of(resolve_model(text, make=True))
