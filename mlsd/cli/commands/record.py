"""``mlsd record``: a study as one file that others can check, the check, and others' files into a database."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import note_left_out
from mlsd.cli.options import Whole, json_option, output_option, refuse
from mlsd.cli.output import note, print_json, say, working
from mlsd.errors import InputError, TableError
from mlsd.units import format_bytes, quoted

if TYPE_CHECKING:
    from mlsd.analysis.audit.record_check import Verification

_MOST_SHOWN = 20
_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("files", nargs=-1, required=True, type=_PATH)
@output_option("Write the database FILES as this record [default: .record.gz beside it].", required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option("--into", type=_PATH, metavar="DB", help="Import the records FILES into this study database.")
@click.option("--sample", type=Whole(min=0), help="Decode this many outputs again [default: all].")
@click.option("--model", "models", multiple=True, type=_PATH, help="A GGUF that a record used; may be repeated.")
@json_option
@click.pass_context
def record(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    output: Path | None,
    force: bool,
    into: Path | None,
    sample: int | None,
    models: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Write the study database FILES as a record; check records; import them into a database with --into.

    The check is of form and hashes, every identity between counts and times, and the audit of every row. Where the
    model is on this machine, its plain output is decoded again and compared token for token. Exits with 1 if
    something in a record cannot be true.

    A record is the database itself, compressed, without anybody's names: no host name, user name or path; it stands
    beside the database unless -o names another file, and is what a pull request adds to studies/. Nothing is sent.
    Imported trials keep the key of their machine (`--machine`); importing a file again adds nothing.
    """
    if output is not None and into is not None:
        raise click.UsageError("Give -o, which writes a record, or --into, which reads some.")
    if output is None and into is None and len(files) == 1:
        from mlsd.formats.record import is_database

        output = files[0].with_suffix(".record.gz") if is_database(files[0]) else None
    refuse(ctx, ("force",), output is None, "-o")
    refuse(ctx, ("sample", "models", "as_json"), output is not None or into is not None, "checking records")
    if output is not None:
        if len(files) != 1:
            raise click.UsageError("-o takes one study database.")
        _write(files[0], output, force)
    elif into is not None:
        for file in files:
            _import(file, into)
    else:
        _verify(ctx, files, sample, models, as_json)


def _write(db: Path, output: Path, force: bool) -> None:
    from mlsd.formats.record import write_record
    from mlsd.store.store import Store

    if output.exists() and not force:
        raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
    with Store.open(db, create=False, read_only=True) as store:
        n_trials = write_record(store, output)
        note_left_out(store)
    note(f"{n_trials} trials in {format_bytes(output.stat().st_size)}: {output}")
    note(f"Next: mlsd record {quoted(output)}. What says that it is consistent can go into studies/ of a pull request.")


def _import(file: Path, db: Path) -> None:
    from mlsd.analysis.audit.record_check import problems
    from mlsd.formats.record import import_record, opened_record
    from mlsd.store.store import Store

    with opened_record(file) as record:
        if found := problems(record):
            raise TableError(
                f"{file} contradicts itself: {found[0].where}: {found[0].sentence}.",
                hint=f"Nothing was imported; see `mlsd record {quoted(file)}`.",
            )
        with Store.open(db) as store:
            done = import_record(store, record)
    known = f", {done.n_known} known already" if done.n_known else ""
    note(f"{done.n_new} trials of {file} imported into {db}{known}. `mlsd results --db {quoted(db)}` shows them.")
    for key in done.machines:
        note(f"Read them: mlsd report --db {quoted(db)} --machine {quoted(key)}")


def _verify(
    ctx: click.Context, files: tuple[Path, ...], sample: int | None, models: tuple[Path, ...], as_json: bool
) -> None:
    from mlsd.analysis.audit.record_check import verify
    from mlsd.formats.decode_again import decode_again

    checked = []
    for number, file in enumerate(files, 1):
        with working(f"Checking {file} ({number} of {len(files)})"):
            checked.append(verify(file, partial(decode_again, sample=sample, models=models)))
    if as_json:
        print_json(checked)
    else:
        for one in checked:
            _say(one)
    if any(one.problems for one in checked):
        ctx.exit(1)


def _say(found: Verification) -> None:
    again = f"; {found.n_superseded} that were measured again count no more" if found.n_superseded else ""
    say(f"{found.source}: {found.n_trials} trials, {format_bytes(found.n_bytes)}{again}")
    for machine in found.machines:
        say(f"  measured on {machine}")
    for problem in found.problems[:_MOST_SHOWN]:
        say((f"  {problem.where}: {problem.sentence} [{problem.rule}]", "bad"))
    if (more := len(found.problems) - _MOST_SHOWN) > 0:
        say((f"  and {more} more", "bad"))
    if found.rows:
        say("  audit: " + ", ".join(f"{n} {verdict}" for verdict, n in found.rows.items()))
    ties = f", {found.n_ties} of them up to near ties" if found.n_ties else ""
    say(f"  decoded again: {found.n_decoded} outputs{ties}")
    for reason, count in found.not_checked.items():
        say(f"  not decoded again: {count} trials, {reason}")
    say(("  contradicts itself", "bad") if found.problems else ("  is consistent", "good"))
