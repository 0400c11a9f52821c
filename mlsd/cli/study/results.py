"""``mlsd results``: list, filter and show the trials of a study database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mlsd.cli.database import db_option, filter_options, make_filter, note_left_out, reading
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.errors import InputError, StoreError
from mlsd.formats.tables import dict_rows, trial_table
from mlsd.records import Case
from mlsd.report.tables.records import rounds_table, runs_table, trial_card, trials_table
from mlsd.store.rows import StoredTrial, TrialFilter
from mlsd.store.store import Store

_MOST_LINES = 200


@click.group(invoke_without_command=True)
@filter_options
@click.option("--all", "show_all", is_flag=True, help=f"List more than the last {_MOST_LINES} lines.")
@click.option("--check", is_flag=True, help="Check the file's integrity.")
@json_option
@db_option()
@click.pass_context
def results(
    ctx: click.Context,
    /,
    show_all: bool,
    check: bool,
    as_json: bool,
    db: Path | None,
    **trials: Any,
) -> None:
    """List the trials of a study database; `mlsd results show ID` shows one.

    Failed trials that were retried are left out.
    """
    ctx.obj = db
    if ctx.invoked_subcommand is not None:
        return
    with reading(db) as store:
        if check:
            _check(store)
            return
        chosen = make_filter(**trials)
        listed = list(dict_rows(trial_table(store, chosen)))
        runs = store.runs()
        note_left_out(store)
        if as_json:
            print_json({"runs": runs, "trials": listed, "warnings": store.warnings()})
            return
        if runs:
            print_table(runs_table(runs))
        _print_trials(listed, store.cases(), show_all)
        from mlsd.cli.watch import say_warnings

        say_warnings(store.warnings())
        if not listed:
            note("No trial matches.")


@results.command()
@click.argument("identity", metavar="ID")
@click.option("--rounds", is_flag=True, help="List every round.")
@json_option
@db_option()
@click.pass_obj
def show(group_db: Path | None, identity: str, rounds: bool, as_json: bool, db: Path | None) -> None:
    """Show the trial with the number ID, or every trial of the case whose id begins with ID."""
    with reading(db or group_db) as store:
        found = _find(store, identity)
        cases = store.cases()
        if as_json:
            print_json([{"id": f.id, "case": cases[f.trial.case_id], "trial": f.trial} for f in found])
            return
        for stored in found:
            print_table(trial_card(stored, cases[stored.trial.case_id]))
            if rounds and stored.trial.rounds:
                print_table(rounds_table(stored.trial))


def _find(store: Store, identity: str) -> list[StoredTrial]:
    found = []
    if identity.isdecimal():
        if (broken := store.impossible.get(int(identity))) is not None:
            raise InputError(f"Trial {identity} cannot be: {broken.sentence}.", hint="It is left out of every answer.")
        found = list(store.trials(TrialFilter(trial_id=int(identity), superseded=True)))
    if not found and len(identity) >= 4:
        found = list(store.trials(TrialFilter(case_id=identity)))
        cases = {stored.trial.case_id for stored in found}
        if len(cases) > 1:
            raise InputError(f"{len(cases)} cases begin with {identity!r}.", hint="Give more of the id.")
    if not found:
        raise InputError(f"No trial has the number or case id {identity!r}.", hint="`mlsd results` lists them.")
    return found


def _check(store: Store) -> None:
    problems = store.check()
    if problems:
        raise StoreError(f"{store.path} is damaged: {'; '.join(problems[:5])}", hint="Restore a copy of the file.")
    say(f"{store.path}: no problem found.")


def _print_trials(trials: list[dict[str, Any]], cases: Mapping[str, Case], show_all: bool) -> None:
    from mlsd.trials.arms import options_text

    if not trials:
        return
    named = [row | {"options": options_text(cases[row["case_id"]].drafter)} for row in trials]
    print_table(trials_table(_last(named, show_all), {}))
    n = Counter(row["status"] for row in trials)
    say(f"{len(trials)} trials, {n['failed']} failed, {n['invalid']} not valid, {n['disturbed']} disturbed.")


def _last(rows: list[Any], show_all: bool) -> list[Any]:
    if show_all or len(rows) <= _MOST_LINES:
        return rows
    note(f"The last {_MOST_LINES} of {len(rows)} lines; --all lists every one.")
    return rows[-_MOST_LINES:]
