"""Stored trials that cannot be: what a database says of them breaks an identity, or cannot be read at all.

The store's gate keeps such trials out, but a database may be old, edited, or another's. They stay in the file, and no
reader gives them, so that one of them makes neither an answer wrong nor the other trials unreadable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from mlsd.errors import StoreError
from mlsd.measure.store import rowcodec
from mlsd.records import Case, Round
from mlsd.trials.identities import Broken, RoundSums, broken, no_figure, plainly_holds

_NUMBERS = Round.__struct_fields__
# Rounds are summed up here, as a study may have millions of them; one by one they are read where something is amiss.
_ODD = " OR ".join((
    *(f"typeof(round.{name}) <> 'integer' OR round.{name} < 0" for name in _NUMBERS),
    "accepted > proposed", "proposed > trial.gamma", "committed <> accepted + 1", "round.rows < 1 + proposed",
))  # fmt: skip
_PARTS = " + ".join(name for name in _NUMBERS if name.endswith("_ns"))
_SUMS = (
    f"SELECT trial_id, total({_ODD}) AS n_odd, sum(committed) AS committed, sum({_PARTS}) AS parts "
    "FROM round JOIN trial ON trial.id = trial_id GROUP BY trial_id"
)
_TRIALS = (
    f"SELECT coalesce(sums.n_odd, 0), coalesce(sums.committed, 0), coalesce(sums.parts, 0), "
    f"trial.n_tokens, trial.verdict, {rowcodec.TRIAL_READ} "
    f"FROM trial LEFT JOIN ({_SUMS}) AS sums ON sums.trial_id = trial.id"
)


def impossible_trials(db: sqlite3.Connection, rounds_of: Callable[[int], tuple[Round, ...]]) -> dict[int, Broken]:
    """By id the trials that cannot be, superseded ones as well, each with the first thing that is wrong with it."""
    cases: dict[str, Case] = {}
    found: dict[int, Broken] = {}
    for n_odd, committed, parts, n_tokens, verdict, *row in db.execute(_TRIALS):
        try:
            trial = rowcodec.trial(tuple(row), ()).trial
            if trial.case_id not in cases:
                cases[trial.case_id] = _case(db, trial.case_id)
            case = cases[trial.case_id]
            said = None if trial.losslessness is None else trial.losslessness.verdict
            if (n_tokens, verdict) != (trial.n_tokens, said):
                found[row[0]] = Broken("columns", f"two columns count {n_tokens} and {trial.n_tokens} tokens")
            elif not plainly_holds(case, trial, RoundSums(int(n_odd), committed, parts)):
                whole = rowcodec.trial(tuple(row), rounds_of(row[0])).trial
                if (first := no_figure(broken(case, whole))) is not None:
                    found[row[0]] = first
        except StoreError as error:
            found[row[0]] = Broken("damaged", error.message)
    return found


def _case(db: sqlite3.Connection, case_id: str) -> Case:
    """The case, whose columns, which views read, say the same as its record."""
    row = db.execute(f'SELECT {rowcodec.CASE_COLUMNS} FROM "case" WHERE id = ?', (case_id,)).fetchone()
    case: Case = rowcodec.decode(row[-1], Case, f"case {case_id}")
    if rowcodec.case_row(case_id, row[1], case)[:-1] != row[:-1]:
        raise rowcodec.damaged(f"case {case_id}", "its columns say something else than its record")
    return case
