"""The table of commands; each lives in a file of its own and is imported only when it runs."""

from __future__ import annotations

import importlib
import sys

import click

from mlsd import __version__
from mlsd.errors import MlsdError

# section -> command -> (module under mlsd.cli, one line). A lazy table keeps `mlsd --help` at the cost of click alone.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "demo": ("start.demo", "Measure a real model and the embedded tiny family, and write a report."),
        "doctor": ("start.doctor", "Show this machine, the build, and which profiles fit."),
        "bench": ("start.bench", "Measure plain and speculative decoding of one target side by side."),
        "advise": ("start.advise", "Predict what each draft and gamma gives, and say what decides it."),
    },
    "Study": {
        "plan": ("study.plan", "Show what suites would measure, how long it takes and what it needs."),
        "run": ("study.run", "Run suites on the models of a profile, resumable, into a study database."),
        "report": ("study.report", "Write which setting to use, and everything behind it, as a page."),
        "results": ("study.results", "List, filter and show the trials of a study database."),
        "fit": ("study.fit", "Fit cost models and T(k), with intervals and prediction errors."),
        "claims": ("study.claims", "Decide the published claims on the trials of a study."),
        "export": ("study.export", "Write a study as CSV, Parquet, JSON or in another tool's layout."),
        "import": ("study.import_", "Read somebody else's table of results into a study, kept apart."),
    },
    "Truth": {
        "audit": ("truth.audit", "Ask of published or own numbers whether they can be true."),
        "probe": ("truth.probe", "Test which rollback strategies are exact for a model on this backend."),
    },
    "Machine": {
        "calibrate": ("machine.calibrate", "Time a model's passes at every width, and see which experts they read."),
        "bandwidth": ("machine.bandwidth", "Measure what the memory really gives, plainly and through llama.cpp."),
        "breakdown": ("machine.breakdown", "Show where the time of a pass goes: attention, experts, LM head..."),
    },
    "Models": {
        "models": ("models.models", "List, download, make, compare, verify and add models."),
        "methods": ("models.methods", "List the drafting methods with their options and presets."),
        "tune": ("models.tune", 'Search the best gamma and options of a method, "off" included.'),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module_name, _ = COMMANDS[cmd_name]
        module = importlib.import_module(f"mlsd.cli.{module_name}")
        command: click.Command = getattr(
            module, module_name.rpartition(".")[2]
        )  # named as its module: `import` is no Python name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section from the table, without importing them."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlsd")
def cli() -> None:
    """Measure speculative decoding of GGUF models through llama.cpp, and report only numbers that can be true."""


def main(argv: list[str] | None = None) -> None:
    """Run one command; an error of ours becomes one clear message and its exit code."""
    try:
        code = cli.main(args=argv, prog_name="mlsd", standalone_mode=False)
        if isinstance(code, int) and code:  # what `ctx.exit` asked for
            sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except MlsdError as error:
        click.echo(f"Error: {error.message}", err=True)
        if error.hint:
            click.echo(error.hint, err=True)
        sys.exit(error.exit_code)
