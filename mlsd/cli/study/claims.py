"""`mlsd claims`: what the published studies claim, decided on one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import db_option, find_database
from mlsd.cli.output import print_json

if TYPE_CHECKING:
    from mlsd.analysis.claims.claims import ClaimVerdict

_COLORS = {"confirmed": "green", "refuted": "red", "undecided": "yellow", "not measured": "dim"}


@click.command()
@db_option
@click.option("--json", "as_json", is_flag=True, help="Print verdicts, effects, intervals and trial ids as JSON.")
def claims(db: Path | None, as_json: bool) -> None:
    """Decide each published claim on the trials of a study, beside what was printed and the audit of that."""
    from mlsd.analysis.claims.claims import decide_all
    from mlsd.cli.study.evidence import read_evidence

    verdicts = decide_all(read_evidence(find_database(db)))
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
    heading = Text(f"{verdict.decision:<12}  ", style=_COLORS[verdict.decision])
    console.print(heading.append(claim.text, style="bold default"))
    console.print(Text(f"    {verdict.sentence}"))
    if verdict.decision == "undecided" and verdict.smallest_visible is not None:
        console.print(Text(f"    The smallest effect this study could have decided is {verdict.smallest_visible:.3f}."))
    printed = f"    Printed ({claim.source}): {claim.printed}"
    if verdict.published_audit is not None:
        printed += "; audit: " + ", ".join(f"{n} rows {word}" for word, n in verdict.published_audit.items() if n)
    console.print(Text(printed), style="dim")
