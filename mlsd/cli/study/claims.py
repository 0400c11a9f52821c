"""`mlsd claims`: what the published studies claim, decided on one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import print_json

if TYPE_CHECKING:
    from mlsd.analysis.claims.claims import ClaimVerdict

_COLORS = {
    "holds here": "green",
    "does not hold here": "red",
    "refuted": "bold red",
    "undecided": "yellow",
    "not measured": "dim",
}


@click.command()
@study_options
@json_option
def claims(db: Path | None, machine: str | None, settings: str | None, as_json: bool) -> None:
    """Decide each published claim on the trials of a study, beside what was printed and the audit of that."""
    verdicts = open_study(db, machine, settings).claims
    if as_json:
        print_json(verdicts)
        return
    for verdict in verdicts:
        _print(verdict)


def _print(verdict: ClaimVerdict) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    claim = verdict.claim
    heading = Text(f"{verdict.decision:<18}  ", style=_COLORS[verdict.decision])
    console.print(heading.append(claim.text, style="bold default"))
    console.print(Text(f"    {verdict.sentence}"))
    if verdict.decision == "undecided" and verdict.visible is not None:
        console.print(Text(f"    A difference of {verdict.visible.words} would have shown 4 times in 5."))
    printed = f"    Printed ({claim.source}): {claim.printed}"
    if verdict.published_audit is not None:
        counts = ", ".join(f"{n} rows {word}" for word, n in verdict.published_audit.items() if n)
        printed += f"; audit{', which refutes the print' if verdict.print_refuted else ''}: {counts}"
    console.print(Text(printed), style="dim")
