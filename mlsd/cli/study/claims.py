"""`mlsd claims`: what the published studies claim, decided on one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlsd.cli.database import open_study, study_options
from mlsd.cli.options import json_option
from mlsd.cli.output import print_json, say
from mlsd.units import counted

if TYPE_CHECKING:
    from mlsd.analysis.claims.claims import ClaimVerdict

_COLORS = {
    "holds here": "green",
    "does not hold here": "red",
    "refuted": "red",
    "not decided yet": "yellow",
    "not measured": "bright_black",
}


@click.command()
@study_options
@json_option
def claims(db: Path | None, machine: str | None, settings: str | None, as_json: bool) -> None:
    """Test each published claim on a study's trials, next to the published figures and their audit."""
    verdicts = open_study(db, machine, settings).verdicts
    if as_json:
        print_json(verdicts)
        return
    for verdict in verdicts:
        _print(verdict)


def _print(verdict: ClaimVerdict) -> None:
    claim = verdict.claim
    say((f"{verdict.decision:<18}  ", _COLORS[verdict.decision]), claim.text)
    say(f"    {verdict.sentence}")
    if verdict.decision == "not decided yet" and verdict.visible is not None:
        say(f"    A difference of {verdict.visible.words} would have shown 4 times in 5.")
    printed = f"    Printed ({claim.source}): {claim.printed}"
    if verdict.published_audit is not None:
        counts = ", ".join(f"{counted(n, 'row')} {word}" for word, n in verdict.published_audit.items() if n)
        printed += f"; audit{', which refutes the print' if verdict.print_refuted else ''}: {counts}"
    say((printed, "bright_black"))
