"""What several commands parse: options that several have, number lists, models, drafters, engine settings."""

import functools
import math
import os
import shlex
from collections.abc import Callable, Container, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mlsd.engine.context import check_threads
from mlsd.errors import InputError, choose
from mlsd.planning.job import ModelFile, file_of
from mlsd.records import EngineOptions, Sampling

BUDGET_S = 600.0  # of a session that measures until it knows enough

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


def integers(word: str = "") -> Parsed[tuple[Any, ...]]:
    """Integers separated by commas: ``1,2,4``; among them one `word`, if there is one."""

    def read(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        try:
            given = [part if part == word else int(part) for part in parts]
        except ValueError:
            raise ValueError(f"{text[:80]!r} is not a list of integers like 1,2,4") from None
        return tuple(one if one == word else Whole().convert(one, None, None) for one in given)

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
# What to measure until: ``decided``, which is 0, or ``3%``.
UNTIL = Parsed("goal", lambda text: 0.0 if text == "decided" else read_share(text))


def _offer(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What the Tab key offers: those of `names` that begin with the word; files where none does."""

    def complete(ctx: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(word)]
        return found or [CompletionItem(word, type="file")]

    return complete


offer_models = _offer(lambda: import_module("mlsd.models.manifest").load_manifest().models)
offer_methods = _offer(lambda: import_module("mlsd.methods").METHODS)
offer_profiles = _offer(lambda: import_module("mlsd.planning.suite").load_profiles())
offer_suites = _offer(lambda: import_module("mlsd.planning.suite").suite_names())
offer_prompts = _offer(lambda: import_module("mlsd.planning.prompts").prompt_names())


class _Option:
    """One option that several commands have, under one name with one meaning; each may add to its help."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self._names, self._settings = names, settings

    def __call__(self, help: str = "", *, dest: str = "", **changes: Any) -> Callable[[F], F]:
        flags = [name for name in self._names if name.startswith("-")]
        own = {"help": help} if help else {}
        return click.option(*((*flags, dest) if dest else self._names), **{**self._settings, **own, **changes})


def check_models(*named: str | None) -> None:
    """See at once, before anything heavy is imported, whether these name models. Raises: what `check_model` raises."""
    from mlsd.models.library import check_model

    for text in named:
        if text is not None:
            check_model(text)


_FILE = click.Path(dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
model_argument = functools.partial(click.argument, shell_complete=offer_models)
draft_option = _Option("--draft", shell_complete=offer_models, help="Draft model, or drafting head: a path or an id.")
drafts_option = draft_option(
    "Draft model, or drafting head: a path or an id; may be repeated.", dest="drafts", multiple=True
)
drafter_option = _Option(
    "--drafter",
    "drafter_text",
    shell_complete=offer_methods,
    help="Drafting method: NAME or NAME:option=value,..., or a class in a file: ./mine.py:Freq.",
)
drafters_option = drafter_option(
    "Method: NAME or NAME:option=value,..., or a class in a file: ./mine.py:Freq; may be repeated.",
    dest="drafters",
    multiple=True,
)
gammas_option = _Option(
    "--gamma",
    "gammas",
    type=integers(),
    help="Draft length: most tokens proposed per round [default: the preset's, else 4].",
)
prompt_option = _Option(
    "--prompt",
    "prompts",
    multiple=True,
    shell_complete=offer_prompts,
    help="A shipped prompt, a text file, or a chat as JSON of role and content; may be repeated.",
)
n_predict_option = _Option("--n-predict", type=Whole(), show_default=True, help="Output tokens.")
temperature_option = click.option("--temperature", type=Real(), default=0.0, show_default=True, help="0 is greedy.")
stop_at_eog_option = click.option(
    "--stop-at-eog", is_flag=True, help="Stop at an end-of-generation token; arms may then differ in length."
)
n_threads_option = click.option(
    "--n-threads", type=Whole(min=1), help="CPU threads [default: fast cores; one less of up to 4]."
)
repeats_option = _Option("--repeats", type=Whole(1, 10_000), show_default=True)
until_option = _Option("--until", type=UNTIL)
budget_option = _Option("--budget-s", type=Real(min=0, min_open=True), help="Begin no block after it.")
depths_option = _Option("--depth", "depths", type=integers())
rows_option = _Option("--rows", type=integers(), help="k: positions of a pass.")
quant_option = _Option("--quant", help="Q8_0, Q4_K, Q4_K_M, Q4_0, F16, ...")
seed_option = _Option("--seed", type=Whole(min=0), default=0, show_default=True)
output_option = _Option("-o", "--output", type=_FILE, required=True, help="The file to write.")
certificate_option = click.option(
    "--certificate", type=_FILE, help="The lab's certificate file [default: the one that `mlsd lab start` made here]."
)
text_option = _Option("--text", type=_FILE, help="A text file.")


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


def engine_options(command: F) -> F:
    """Add the options of the native contexts; the command receives `engine`."""

    @functools.wraps(command)
    def with_engine(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in ("n_threads", "n_gpu_layers", "n_ctx", "flash_attention")}
        if given["n_threads"] is not None:
            check_threads(given["n_threads"])
        return command(*arguments, engine=EngineOptions(**given), **options)

    wrapped: F = with_engine  # type: ignore[assignment]
    for option in (
        click.option(
            "--flash-attention",
            type=click.Choice(["auto", "on", "off"]),
            default="auto",
            show_default=True,
            help="llama.cpp's setting of this name.",
        ),
        click.option("--n-ctx", type=Whole(min=1), help="Tokens of context [default: what the run needs]."),
        click.option("--n-gpu-layers", type=Whole(), default=-1, help="Layers on the GPU [default: all]."),
        n_threads_option,
    ):
        wrapped = option(wrapped)
    return wrapped


def request_options(command: F) -> F:
    """Make of a command's options what a request holds: `goal`, `sampling` and `ignore_eog`."""

    @functools.wraps(command)
    def with_request(*arguments: Any, until: float | None, budget_s: float | None, **options: Any) -> Any:
        from mlsd.planning.request import Goal

        if "n_settings" in options:
            options["budget_s"] = budget_s
        elif until is None and budget_s is not None:
            raise click.UsageError("--budget-s needs --until.")
        goal = None if until is None else Goal(within=until or None, budget_s=budget_s or BUDGET_S)
        of_sampling = {name: options.pop(name) for name in ("temperature", "top_k", "top_p") if name in options}
        sampling = Sampling(**of_sampling, seed=options["seed"])
        ignore_eog = not options.pop("stop_at_eog")
        return command(*arguments, goal=goal, sampling=sampling, ignore_eog=ignore_eog, **options)

    return with_request  # type: ignore[return-value]


def same_command(ctx: click.Context, without: Container[str] = (), **changes: Any) -> str:
    """The command that runs, as it was typed: all that it was asked, some parameters left out or changed."""
    words, last = ctx.command_path.split(), []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in without or not (was_given(ctx, name) or name in changes):
            continue
        value: Any = changes.get(name, ctx.params.get(name))
        if isinstance(parameter, click.Argument):
            last += [str(one) for one in (value if parameter.nargs != 1 else (value,))]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += [parameter.opts[-1]] if value else []
        else:
            for one in value if parameter.multiple else (value,):
                words += [max(parameter.opts, key=len), _typed(parameter.type, one)]
    return shlex.join([*words, *last])


def given_options(ctx: click.Context, names: Container[str]) -> dict[str, tuple[str, ...]]:
    """Those of these parameters that somebody typed or named in the environment, as options of the command."""
    sources = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    given = (p for p in ctx.command.params if p.name in names and ctx.get_parameter_source(p.name) in sources)
    found = dict[str, tuple[str, ...]]()
    for parameter in given:
        value = ctx.params[parameter.name] if parameter.expose_value else ctx.meta[parameter.name]
        found[max(parameter.opts, key=len)] = (_typed(parameter.type, value),)
    return found


def _typed(kind: click.ParamType[Any], value: Any) -> str:
    """A value as somebody types it."""
    if kind is UNTIL and value == 0.0:
        return "decided"
    if kind in (SHARE, UNTIL):
        return f"{100 * value:g}%"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def refuse(ctx: click.Context, names: Iterable[str], when: bool, of: str) -> None:
    """Refuse parameters that were given though they would be ignored. Raises: UsageError that names them."""
    given = [p for p in ctx.command.params if p.name in names and was_given(ctx, p.name)] if when else []
    if given:
        raise click.UsageError(f"{', '.join(max(one.opts, key=len) for one in given)}: only for {of}.")


def known_name(what: str, name: str | None, known: Iterable[str]) -> str | None:
    """A name as it is known, in whichever case it was given. Raises: InputError with similar names and the list."""
    names = {each.lower(): each for each in sorted(known)}
    if name is None or name.lower() in names:
        return name and names[name.lower()]
    hint = choose(name, names.values()) if names else ""
    raise InputError(f"There is no {what} called {name!r} here.", hint=hint)


def was_given(ctx: click.Context, name: str) -> bool:
    """Whether somebody typed this parameter."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def model_file(text: str) -> ModelFile:
    """A model given as a path or a manifest id. Raises: ModelFileError, ManifestError or HubError with what to do."""
    from mlsd.models.library import resolve_model

    return file_of(resolve_model(text, make=True))
