"""How help is laid out: options by what they decide, the usual ones first, all with ``--help-all``; then examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import click

from mlsd.cli import output
from mlsd.errors import choose
from mlsd.folders import asset_path
from mlsd.outside import parse_toml

_WHAT, _OTHERS = "What to measure", "Options"  # title of what stands nowhere below, with and without a measurement
_SECTIONS: dict[str, tuple[str, ...]] = {  # parameters by what they decide
    "How long": (
        *("n_predict", "n_tokens", "repeats", "until", "budget_s", "limit", "precision", "quick", "n_settings"),
        *("dry_run", "cool_down_s", "costs_s", "per_kind", "sample"),
    ),
    "How it runs": (
        *("temperature", "top_k", "top_p", "seed", "rollback", "stop_at_eog", "n_threads", "n_gpu_layers", "n_ctx"),
        *("flash_attention", "kv_type", "build", "patience_s", "remote", "certificate", "no_control"),
    ),
    "Output": (
        *("db", "databases", "into", "output", "folder", "force", "fresh", "fail_on", "markdown", "strict", "show_all"),
        *("as_json", "quiet", "verbose", "wide", "help_all"),
    ),
}
_RARE = {  # only in --help-all
    *_SECTIONS["How it runs"],
    *("accepted", "address", "component", "costs_s", "cool_down_s", "distances", "fresh", "mgl", "n_output"),
    *("per_kind", "prompt_tokens", "quiet", "remote_python", "replay", "router_shared", "target_b", "tasks", "think"),
    *("verbose", "wide", "with_engine", "yes"),
}
_ALL = "mlsd.help_all"  # of `ctx.meta`: whether every option is shown


def is_shown(parameter: click.Parameter) -> bool:
    """Whether ``--help`` shows an option."""
    return parameter.name not in _RARE


class CommandGroup(click.Group):
    """A group whose `default` is the command that is meant where no other is named: `mlsd results --db FILE`."""

    default: click.Command | None = None

    def command(  # type: ignore[override]  # click's takes a function, too, of which nothing here makes use
        self, *arguments: Any, default: bool = False, **settings: Any
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """`click.Group.command`; the one with `default` is meant where no command is named."""
        declare = super().command(*arguments, **settings)

        def register(function: Callable[..., Any]) -> click.Command:
            command: click.Command = declare(function)
            if default:
                self.default = command
            return command

        return register

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        offers = not args and ctx.resilient_parsing  # the Tab key offers the commands
        return super().parse_args(ctx, args if offers else self.named(args))

    def named(self, args: list[str]) -> list[str]:
        """The words with the name of the default command before them, where they name no command."""
        first = args[0] if args else "-"
        if self.default is None or first in self.commands or first in ("-h", "--help", "--help-all"):
            return args
        takes_words = any(isinstance(parameter, click.Argument) for parameter in self.default.params)
        return [str(self.default.name), *args] if first.startswith("-") or takes_words else args

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word; an unknown one is answered with similar names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            hint = choose(args[0], self.list_commands(ctx))
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, inner.get_short_help_str(limit=200)) for name, inner in self.commands.items()])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return pieces if self.default is None else [*self.default.collect_usage_pieces(ctx), "|", *pieces[-1:]]


def complete(command: click.Command, path: str) -> click.Command:
    """Give a command, or every command of a group, the options that all have, its layout of help and its examples."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            complete(inner, f"{path} {name}")
    if "quiet" in {parameter.name for parameter in command.params}:
        return command  # it was completed before
    command.format_options = partial(_write_options, command)  # type: ignore[method-assign]
    command.format_epilog = partial(write_examples, path)  # type: ignore[method-assign]
    for names, callback, meaning in (
        (("-q", "--quiet"), output.choose_verbosity, "Print the result and nothing else."),
        (("-v", "--verbose"), output.choose_verbosity, "Print more; on an error, the traceback."),
        (("--wide",), output.choose_columns, "Show every column of a table, however narrow the terminal."),
        (("--help-all",), _print_all, "Show every option."),
    ):
        eager = callback is _print_all
        settings: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": callback, "is_eager": eager}
        command.params.append(click.Option(names, help=meaning, **settings))
    return command


def show_all(ctx: click.Context) -> None:
    """Let the help of this context hold every option."""
    ctx.meta[_ALL] = True


def _print_all(ctx: click.Context, parameter: click.Parameter, chosen: bool) -> None:
    if chosen and not ctx.resilient_parsing:
        show_all(ctx)
        output.print_help(ctx)
        ctx.exit()


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    default = command.default if isinstance(command, CommandGroup) else None
    options = [option for option in (default or command).params if isinstance(option, click.Option)]
    for title, members in _grouped(options):
        shown = [option.get_help_record(ctx) for option in members if ctx.meta.get(_ALL) or is_shown(option)]
        if rows := [row for row in shown if row is not None]:
            with formatter.section(title):
                formatter.write_dl(rows)
    if isinstance(command, click.Group):
        command.format_commands(ctx, formatter)


def _grouped(options: list[click.Option]) -> Iterator[tuple[str, list[click.Option]]]:
    """Options by section, each section in the order of the table above, and what it does not hold as declared."""
    titles = {name: title for title, names in _SECTIONS.items() for name in names}
    measures = any(titles.get(option.name or "") == "How long" for option in options)
    yield _WHAT if measures else _OTHERS, [option for option in options if option.name not in titles]
    for title, names in _SECTIONS.items():
        yield title, sorted((o for o in options if o.name in names), key=lambda o: names.index(o.name or ""))


def examples() -> dict[str, list[str]]:
    """Two commands for the help of each command, by its path."""
    return {path: str(text).splitlines() for path, text in parse_toml(asset_path("examples.toml").read_bytes()).items()}


def write_examples(path: str, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Print the examples of the command of that path."""
    with formatter.section("Examples"):
        for line in examples()[path]:
            formatter.write(f"  {line}\n")  # one line each: it can be copied
