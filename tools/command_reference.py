"""Writes docs/commands.md: every command's help, as click prints it. Run: python -m tools.command_reference."""

from collections.abc import Iterator
from pathlib import Path

import click

from mlsd.cli.help import show_all
from mlsd.cli.main import SECTIONS, cli

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
_WIDTH = 100


def reference() -> str:
    """The page."""
    said = "Written from the program's own help by `make generated`."
    parts = ["# Commands", said, *_help(cli, "mlsd")]
    context = click.Context(cli, info_name="mlsd")
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            parts += _with_heading(command, f"mlsd {name}", 3)
    return "\n\n".join(parts) + "\n"


def _with_heading(command: click.Command, path: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {path}"
    yield from _help(command, path)
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _with_heading(inner, f"{path} {name}", level + 1)


def _help(command: click.Command, path: str) -> Iterator[str]:
    settings = {"help_option_names": ["-h", "--help"]}
    context = click.Context(command, info_name=path, terminal_width=_WIDTH, max_content_width=_WIDTH, **settings)  # type: ignore[arg-type]
    show_all(context)
    yield f"```text\n{command.get_help(context)}\n```"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
