"""``mlsd demo``: the shortest way to see what mlsd does, as a few commands that a user can repeat."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from mlsd.cli.main import cli
from mlsd.cli.options import output_option
from mlsd.cli.output import note
from mlsd.errors import MlsdError

_FOLDER = click.Path(file_okay=False, path_type=Path)
_REAL_MODEL = "smollm2-135m"
_REAL_DRAFT = "smollm2-135m-noise05"


@click.command()
@output_option("The folder of the report.", type=_FOLDER, required=False, default="results/demo", show_default=True)
@click.option("--quick", is_flag=True, help="Fewer tokens and repeats: a look, not a measurement.")
@click.option("--n-threads", type=click.IntRange(min=1), help="CPU threads [default: fast cores; one less of up to 4].")
@click.pass_context
def demo(ctx: click.Context, /, output: Path, quick: bool, n_threads: int | None) -> None:
    """Measure a real model and the embedded tiny family, and write a report of it."""
    database = output / "demo.sqlite"
    for old in output.glob("demo.sqlite*"):  # this command's own file; a demo starts from nothing
        old.unlink()
    threads = ["--n-threads", str(n_threads)] if n_threads else []
    small = ["--n-predict", "24", "--repeats", "2"] if quick else []
    size = small or ["--n-predict", "64"]
    bench = [_REAL_MODEL, "--draft", _REAL_DRAFT, "--gamma", "2,4", *size, *threads]
    study = ["--profile", "tiny", "--prompt", "code", "--prompt", "factual", "--db", str(database), *small, *threads]
    steps = [
        ("A real model (SmolLM2-135M) and a copy of it with 5 % noise as its draft:", ["bench", *bench]),
        ("Suites B and D on the embedded tiny Qwen3.5 family (mixture of experts, dense):", ["run", "B", "D", *study]),
        ("What it means:", ["report", "--db", str(database), "-o", str(output)]),
    ]
    for title, command in steps:
        note(f"\n{title}\n$ mlsd {shlex.join(command)}")
        try:
            code = cli.main(args=command, prog_name="mlsd", standalone_mode=False)
        except MlsdError as error:
            raise MlsdError(f"The demo stopped in `mlsd {command[0]}`: {error.message}", hint=error.hint) from error
        if code:
            ctx.exit(code)
