"""``mlsd export``: a study database as a table or document for other programs."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from mlsd import formats
from mlsd.cli.database import db_option, filter_options, make_filter, note_left_out, reading
from mlsd.cli.options import output_option
from mlsd.cli.output import note
from mlsd.errors import InputError


@click.command()
@click.option("--format", "kind", type=click.Choice(formats.EXPORTS), default="csv", show_default=True)
@output_option("File [default: standard output].", required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@filter_options
@db_option()
def export(kind: str, output: Path | None, force: bool, db: Path | None, **trials: Any) -> None:
    """Write the trials of a study database for other programs.

    csv has a line for each trial, json also its rounds. llama-bench has that tool's JSON fields and holds plain
    decoding only.
    """
    if output is not None and output.exists() and not force:
        raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
    chosen = make_filter(**trials)
    with reading(db) as store:
        if output is not None and output.exists() and output.samefile(store.path):
            raise InputError(f"{output} is the study database itself.", hint="Give another file with --output.")
        write = partial(formats.export, store, kind, chosen=chosen)
        count = write(sys.stdout.buffer) if output is None else formats.write_file(output, write)
        note_left_out(store)
    note(f"{count} {'tests' if kind == 'llama-bench' else 'trials'} written{f' to {output}' if output else ''}.")
    if count == 0:
        note("Nothing matched: see `mlsd results`.")
