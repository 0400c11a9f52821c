"""Stored trials that cannot be: what a database says of them breaks an identity, or cannot be read at all.

The store's gate keeps such trials out, but a database may be old, edited, or another's. They stay in the file, and no
reader gives them, so that one of them makes neither an answer wrong nor the other trials unreadable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

from mlsd.errors import StoreError
from mlsd.measure.store import rowcodec
from mlsd.records import Case, Round
from mlsd.trials.identities import Broken, broken, no_figure

_TRIALS = f"SELECT n_tokens, verdict, {rowcodec.TRIAL_READ} FROM trial"


def impossible_trials(
    db: sqlite3.Connection, rounds_of: Callable[[int], tuple[Round, ...]], runs: Mapping[int, str]
) -> dict[int, Broken]:
    """By id the trials that cannot be, superseded ones as well, each with the first thing that is wrong with it.

    `runs` are those that can be read, with the key of their environment.
    """
    cases: dict[str, Case] = {}
    found: dict[int, Broken] = {}
    for n_tokens, verdict, *row in db.execute(_TRIALS):
        try:
            stored = rowcodec.trial(tuple(row), rounds_of(row[0]))
            trial = stored.trial
            if runs.get(stored.run_id) != stored.environment_key:
                raise rowcodec.damaged(f"trial {row[0]}", "its run is not there, not readable, or another one's")
            if trial.case_id not in cases:
                cases[trial.case_id] = _case(db, trial.case_id)
            if (n_tokens, verdict) != (trial.n_tokens, rowcodec.verdict_column(trial.losslessness)):
                found[row[0]] = Broken("columns", f"two columns count {n_tokens} and {trial.n_tokens} tokens")
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
