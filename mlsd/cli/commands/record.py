"""``mlsd record``: a study as one file that others can check, the check, and others' files into a database."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import note_left_out
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Whole, json_option, output_option
from mlsd.cli.output import note, print_json, say, working
from mlsd.errors import InputError, TableError
from mlsd.units import format_bytes, quoted

if TYPE_CHECKING:
    from mlsd.analysis.audit.record_check import RecordVerification

_MOST_SHOWN = 20
_PATH = click.Path(path_type=Path)


@click.group(cls=CommandGroup)
def record() -> None:
    """Print whether records contradict themselves; write a study as a record, or read records into a database.

    A record is the database itself, compressed, without anybody's names: no host name, user name or path. Nothing is
    sent.
    """


@record.command("write")
@click.argument("db", type=_PATH)
@output_option("The record [default: .record.gz beside the database].", required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def write(db: Path, output: Path | None, force: bool) -> None:
    """Write the study database DB as one file that others can check: what a pull request adds to studies/."""
    from mlsd.formats.record import write_record
    from mlsd.store.store import Store

    output = output or db.with_suffix(".record.gz")
    if output.exists() and not force:
        raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
    with Store.open(db, create=False, read_only=True) as store:
        n_trials = write_record(store, output)
        note_left_out(store)
    note(f"{n_trials} trials in {format_bytes(output.stat().st_size)}: {output}")
    next_step = f"mlsd record check {quoted(output)}"
    note(f"Next: {next_step}. What says that it is consistent can go into studies/ of a pull request.")


@record.command("import")
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--into", type=_PATH, metavar="DB", required=True, help="The study database that takes them in.")
def import_files(files: tuple[Path, ...], into: Path) -> None:
    """Print what of the records FILES is new, and import that into a study database.

    Imported trials keep the key of their machine (`--machine`); importing a file again adds nothing.
    """
    from mlsd.analysis.audit.record_check import problems
    from mlsd.formats.record import import_record, opened_record
    from mlsd.store.store import Store

    for file in files:
        with opened_record(file) as opened:
            if contradictions := problems(opened):
                raise TableError(
                    f"{file} contradicts itself: {contradictions[0].where}: {contradictions[0].sentence}.",
                    hint=f"Nothing was imported; see `mlsd record check {quoted(file)}`.",
                )
            with Store.open(into) as store:
                done = import_record(store, opened)
        already, db = f", {done.n_known} known already" if done.n_known else "", quoted(into)
        note(f"{done.n_new} trials of {file} imported into {into}{already}. `mlsd results --db {db}` shows them.")
        for key in done.machines:
            note(f"Read them: mlsd report --db {db} --machine {quoted(key)}")


@record.command("acceptances")
@click.argument("db", type=_PATH)
@output_option("The file to write, in TOML [default: acceptance.toml].", required=False)
def acceptances(db: Path, output: Path | None) -> None:
    """Write how often the drafts of the study DB were accepted, by position, for `mlsd advise` on another machine.

    Counts do not depend on the machine. There the file belongs into the folder MLSD_HOME, as acceptance.toml.
    """
    from mlsd.analysis.advise.acceptance import entries_of
    from mlsd.store.sessions import latest, sessions
    from mlsd.store.store import Store

    output = output or Path("acceptance.toml")
    if output.exists():
        raise InputError(f"{output} exists.", hint="Give another file with -o.")
    with Store.open(db, create=False, read_only=True) as store:
        arms = latest(arm for session in sessions(store) for arm in session.results())
        last = max((run.started_at[:7] for run in store.runs()), default="")
    text = entries_of(arms, f"measured by mlsd into {db.name}", last)
    output.write_text(text, "utf-8")
    note(f"{text.count('[[measured]]')} acceptances, each of a drafter on a kind of text, in {output}.")


@record.command("check")
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--sample", type=Whole(min=0), help="Decode this many outputs again [default: all].")
@click.option("--model", "models", multiple=True, type=_PATH, help="A GGUF that a record used; may be repeated.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, files: tuple[Path, ...], sample: int | None, models: tuple[Path, ...], as_json: bool
) -> None:
    """Print what in the records FILES contradicts itself: form and hashes, counts and times, the audit of every row.

    Where the model is on this machine, its plain output is decoded again and compared token for token. Exits with 1 if
    something in a record cannot be true.
    """
    from mlsd.analysis.audit.record_check import verify
    from mlsd.formats.decode_again import decode_again

    checked = []
    for number, file in enumerate(files, 1):
        with working(f"Checking {file} ({number} of {len(files)})"):
            checked.append(verify(file, partial(decode_again, sample=sample, models=models)))
    if as_json:
        print_json(checked)
    else:
        for verification in checked:
            _say(verification)
    if any(verification.problems for verification in checked):
        ctx.exit(1)


def _say(checked: RecordVerification) -> None:
    again = f"; {checked.n_superseded} that were measured again count no more" if checked.n_superseded else ""
    say(f"{checked.source}: {checked.n_trials} trials, {format_bytes(checked.n_bytes)}{again}")
    for machine in checked.machines:
        say(f"  measured on {machine}")
    for problem in checked.problems[:_MOST_SHOWN]:
        say((f"  {problem.where}: {problem.sentence} [{problem.rule}]", "bad"))
    if (more := len(checked.problems) - _MOST_SHOWN) > 0:
        say((f"  and {more} more", "bad"))
    if checked.rows:
        say("  audit: " + ", ".join(f"{n} {verdict}" for verdict, n in checked.rows.items()))
    ties = f", {checked.n_ties} of them up to near ties" if checked.n_ties else ""
    say(f"  decoded again: {checked.n_decoded} outputs{ties}")
    for reason, count in checked.not_checked.items():
        say(f"  not decoded again: {count} trials, {reason}")
    say(("  contradicts itself", "bad") if checked.problems else ("  is consistent", "good"))
