"""Stored trials that cannot be: what a database says of them breaks an identity, or cannot be read at all.

The store's gate keeps such trials out, but a database may be old, edited, or another's. They stay in the file, and no
reader gives them, so that one of them makes neither an answer wrong nor the other trials unreadable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from mlsd.errors import StoreError
from mlsd.records import Case
from mlsd.store import rowcodec
from mlsd.trials.identities import Broken, broken, no_figure
from mlsd.trials.sums import sums

_TRIALS = (
    f"SELECT trial.n_tokens, trial.verdict, trial.each_round, {rowcodec.SUMS_READ}, {rowcodec.TRIAL_READ} "
    f"FROM {rowcodec.TRIAL_FROM}"
)
_N_SUMS = len(rowcodec.SUMS)


def impossible_trials(db: sqlite3.Connection, runs: Mapping[int, str]) -> dict[int, Broken]:
    """By id the trials that cannot be, superseded ones as well, each with the first thing that is wrong with it.

    `runs` are those that can be read, with the key of their environment.
    """
    cases: dict[str, Case] = {}
    found: dict[int, Broken] = {}
    for n_tokens, verdict, rounds, *row in db.execute(_TRIALS):
        told, row = row[:_N_SUMS], row[_N_SUMS:]
        try:
            if row[2] not in cases:  # the case is asked first: what is joined to it is not there without it
                cases[row[2]] = _case(db, row[2])
            stored = rowcodec.trial(tuple(row), rounds)
            trial = stored.trial
            if runs.get(stored.run_id) != stored.environment_key:
                raise rowcodec.damaged(f"trial {row[0]}", "its run is not there, not readable, or another one's")
            whole = sums(trial.rounds)
            summed = [getattr(whole, name) if trial.rounds else None for name in rowcodec.SUMS]
            judged = None if trial.losslessness is None else trial.losslessness.verdict
            if (n_tokens, verdict) != (trial.n_tokens, judged):
                found[row[0]] = Broken("columns", f"two columns count {n_tokens} and {trial.n_tokens} tokens")
            elif told != summed:
                found[row[0]] = Broken("columns", "its sums are not those of its rounds")
            elif (first := no_figure(broken(cases[trial.case_id], trial))) is not None:
                found[row[0]] = first
        except StoreError as error:
            found[row[0]] = Broken("damaged", error.message)
    return found


def _case(db: sqlite3.Connection, case_id: str) -> Case:
    """The case, whose columns, which views read, say the same as its record."""
    row = db.execute(f'SELECT {rowcodec.CASE_COLUMNS} FROM "case" WHERE id = ?', (case_id,)).fetchone()
    if row is None:
        raise rowcodec.damaged(f"case {case_id}", "it is not there")
    case: Case = rowcodec.decode(row[-1], Case, f"case {case_id}")
    if rowcodec.case_row(case_id, row[1], case)[:-1] != row[:-1]:
        raise rowcodec.damaged(f"case {case_id}", "its columns say something else than its record")
    return case
