"""``mlsd record``: a study as one file that others can check, and the check."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import note_left_out
from mlsd.cli.options import Whole, json_option, output_option
from mlsd.cli.output import note, print_json, say, working
from mlsd.errors import InputError
from mlsd.units import format_bytes, quoted

if TYPE_CHECKING:
    from mlsd.analysis.audit.verification import Verification

_MOST_SHOWN = 20


class _Record(click.Group):
    """A group whose first word may be a database in place of a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``DB -o FILE`` is ``write DB -o FILE``."""
        words = [word for word in args if not word.startswith("-")]
        if words and args[0] not in ("-h", "--help") and not set(words) & set(self.commands):
            args = ["write", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Record)
def record() -> None:
    """Write a study as one file that others can check (DB -o FILE), or check such files (verify FILE...)."""


@record.command()
@click.argument("db", type=click.Path(path_type=Path))
@output_option("The file to write; its name should end in .record.gz.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def write(db: Path, output: Path, force: bool) -> None:
    """Write the study database DB as a record: itself, compressed, without anybody's names.

    It contains no host name, user name or path. `mlsd record DB -o FILE` is the same.
    """
    from mlsd.formats.record import write_record
    from mlsd.store.store import Store

    if output.exists() and not force:
        raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
    with Store.open(db, create=False, read_only=True) as store:
        n_trials = write_record(store, output)
        note_left_out(store)
    note(f"{n_trials} trials in {format_bytes(output.stat().st_size)}: {output}")
    note(f"Next: mlsd record verify {quoted(output)}")


@record.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--sample", type=Whole(min=0), help="Decode this many outputs again [default: all].")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A GGUF that the record used; may be repeated.",
)
@json_option
def verify(files: tuple[Path, ...], sample: int | None, models: tuple[Path, ...], as_json: bool) -> None:
    """Check records: form and hashes, every identity between counts and times, the audit of every row.

    Where the model is on this machine, its plain output is decoded again and compared token for token. Exits with 1
    if something in a record cannot be true.
    """
    from mlsd.analysis.audit.verification import verify as check
    from mlsd.formats.decode_again import decode_again

    checked = []
    for number, file in enumerate(files, 1):
        with working(f"Checking {file} ({number} of {len(files)})"):
            checked.append(check(file, partial(decode_again, sample=sample, models=models)))
    if as_json:
        print_json(checked)
    else:
        for one in checked:
            _say(one)
    if not all(one.sound for one in checked):
        raise click.exceptions.Exit(1)


def _say(found: Verification) -> None:
    again = f"; {found.n_superseded} that were measured again count no more" if found.n_superseded else ""
    say(f"{found.source}: {found.n_trials} trials, {format_bytes(found.n_bytes)}{again}")
    for machine in found.machines:
        say(f"  measured on {machine}")
    for problem in found.problems[:_MOST_SHOWN]:
        say((f"  {problem.where}: {problem.sentence} [{problem.rule}]", "red"))
    if (more := len(found.problems) - _MOST_SHOWN) > 0:
        say((f"  and {more} more", "red"))
    if found.rows:
        say("  audit: " + ", ".join(f"{n} {verdict}" for verdict, n in found.rows.items()))
    ties = f", {found.n_ties} of them up to near ties" if found.n_ties else ""
    say(f"  decoded again: {found.n_decoded} outputs{ties}")
    for reason, count in found.not_checked.items():
        say(f"  not decoded again: {count} trials, {reason}")
    say(("  is consistent" if found.sound else "  contradicts itself", "green" if found.sound else "red"))
