"""``mlsd results``: list, filter and show the trials of a study database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.database import db_option, filter_options, make_filter, reading
from mlsd.cli.options import json_option
from mlsd.cli.output import note, print_json, print_table, say, table
from mlsd.errors import InputError, StoreError
from mlsd.units import NOT_MEASURED, NS_PER_MS, format_bytes, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.measure.store.rows import StoredTrial, TrialFilter
    from mlsd.measure.store.study import Store
    from mlsd.records import Case

_MOST_LINES = 200


@click.group(invoke_without_command=True)
@filter_options
@click.option("--imported/--measured", default=None, help="Only imported rows, or only measured trials.")
@click.option("--all", "show_all", is_flag=True, help=f"List more than the last {_MOST_LINES} lines.")
@click.option("--check", is_flag=True, help="Check the file's integrity.")
@json_option
@db_option
@click.pass_context
def results(
    ctx: click.Context,
    suite: str | None,
    arm: str | None,
    failed: bool,
    imported: bool | None,
    show_all: bool,
    check: bool,
    as_json: bool,
    db: Path | None,
) -> None:
    """List the trials of a study database; `mlsd results show ID` shows one.

    A failed trial that was run again is left out.
    """
    ctx.obj = db
    if ctx.invoked_subcommand is not None:
        return
    with reading(db) as store:
        if check:
            _check(store)
            return
        chosen = make_filter(suite, arm, failed)
        trials = [] if imported else _trials(store, chosen)
        others = [] if imported is False else _imported(store, chosen)
        if as_json:
            print_json({"runs": store.runs(), "trials": trials, "imported": others, "warnings": store.warnings()})
            return
        _print_runs(store)
        _print_trials(trials, store.cases(), show_all)
        _print_imported(others, show_all)
        for warning in store.warnings():
            say(f"Warning [{warning.code}] {warning.message} {warning.advice}")
        if not trials and not others:
            note("No trial matches.")


@results.command()
@click.argument("identity", metavar="ID")
@click.option("--rounds", is_flag=True, help="List every round.")
@json_option
@db_option
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
            _print_trial(stored, cases[stored.trial.case_id], rounds)


def _find(store: Store, identity: str) -> list[StoredTrial]:
    from mlsd.measure.store.rows import TrialFilter

    found = []
    if identity.isdecimal():
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


# --- rows for both outputs --------------------------------------------------------------------------------------


def _trials(store: Store, chosen: TrialFilter) -> list[dict[str, Any]]:
    from mlsd.measure.exchange.tables import dict_rows, trial_table

    return list(dict_rows(trial_table(store, chosen)))


def _imported(store: Store, chosen: TrialFilter) -> list[Any]:
    rows = []
    for row in store.imported():
        wrong_arm = chosen.arm is not None and row.arm != chosen.arm
        if not wrong_arm and chosen.suite is None and (chosen.status is None or row.status != "ok"):
            rows.append(row)
    return rows


# --- for people -------------------------------------------------------------------------------------------------


def _print_runs(store: Store) -> None:
    runs = store.runs()
    if not runs:
        return
    made = table("Runs", ["run", "status", "started", "suites", "chip", "backend", "llama.cpp"], left=7)
    for run in runs:
        suites = run.plan.get("suites", ())
        names = " ".join(map(str, suites)) if isinstance(suites, (list, tuple)) else str(suites)
        environment = run.environment
        cells = (
            run.status,
            run.started_at[:19],
            names,
            environment.chip,
            environment.backend,
            environment.llama_cpp_build,
        )
        made.add_row(str(run.id), *(_shown(value) for value in cells))
    print_table(made)


def _print_trials(trials: list[dict[str, Any]], cases: Mapping[str, Case], show_all: bool) -> None:
    from mlsd.analysis.results.names import spec_name
    from mlsd.report.tables.records import trials_table

    if not trials:
        return
    named = [row | {"draft": None, "drafter": spec_name(cases[row["case_id"]].drafter)} for row in trials]
    print_table(trials_table(_last(named, show_all), {}))
    failed = sum(row["status"] == "failed" for row in trials)
    invalid = sum(row["status"] == "ok" and not row["valid"] for row in trials)
    say(f"{len(trials)} trials, {failed} failed, {invalid} not valid.")


def _print_imported(rows: list[Any], show_all: bool) -> None:
    if not rows:
        return
    columns = ["source", "row", "target", "draft", "prompt", "status", "gamma", "tok/s", "accepted", "speedup"]
    made = table("Imported (not measured here)", columns, left=6)
    for row in _last(rows, show_all):
        made.add_row(
            _shown(row.source),
            str(row.row),
            _shown(row.target_model),
            _shown(row.draft_model or "none"),
            _shown(row.prompt_key),
            _shown(row.status),
            NOT_MEASURED if row.gamma is None else str(row.gamma),
            format_number(row.decode_tok_s),
            format_percent(row.acceptance_rate, 2),
            format_number(row.speedup),
        )
    print_table(made)
    say(f"{len(rows)} imported rows.")


def _last(rows: list[Any], show_all: bool) -> list[Any]:
    if show_all or len(rows) <= _MOST_LINES:
        return rows
    note(f"The last {_MOST_LINES} of {len(rows)} lines; --all lists every one.")
    return rows[-_MOST_LINES:]


def _print_trial(stored: StoredTrial, case: Any, rounds: bool) -> None:
    trial = stored.trial
    made = table(f"Trial {stored.id} of case {trial.case_id}, run {stored.run_id}", ["field", "value"], left=2)
    drafter = case.drafter.draft.id if case.drafter.draft else case.drafter.name
    made.add_row("configuration", _shown(f"suite {case.suite}, {case.target.id}, {drafter}, gamma {case.gamma}"))
    made.add_row("prompt", _shown(f"{case.prompt.key}, {case.n_predict} tokens to predict"))
    for name in trial.__struct_fields__:
        value = getattr(trial, name)
        if name in ("case_id", "gamma", "tokens", "rounds", "text", "conditions", "losslessness", "earlier"):
            continue
        if value is None:
            continue
        label = name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
        made.add_row(label, _shown(_value(name, value)))
    for name in ("losslessness", "conditions"):
        record = getattr(trial, name)
        if record is not None:
            known = {field: getattr(record, field) for field in record.__struct_fields__}
            text = ", ".join(f"{key} {_value(key, item)}" for key, item in known.items() if item is not None)
            made.add_row(name, _shown(text))
    for turn, answer in enumerate(trial.earlier, 1):
        made.add_row(f"answer to turn {turn}", _shown(answer[:200]))
    made.add_row("output", _shown(f"{trial.n_tokens} tokens: {(trial.text or '')[:200]}"))
    proposed, accepted = sum(r.proposed for r in trial.rounds), sum(r.accepted for r in trial.rounds)
    made.add_row("rounds", f"{len(trial.rounds)}, {accepted} of {proposed} proposed tokens accepted")
    print_table(made)
    if rounds and trial.rounds:
        fields = trial.rounds[0].__struct_fields__
        listed = table("Rounds", ["round", *(name.replace("_ns", " ms") for name in fields)])
        for number, one in enumerate(trial.rounds):
            listed.add_row(str(number), *(_value(name, getattr(one, name)).removesuffix(" ms") for name in fields))
        print_table(listed)


def _value(name: str, value: Any) -> str:
    if name.endswith("_ns"):
        return f"{value / NS_PER_MS:.3f} ms"
    if name.endswith("_bytes"):
        return format_bytes(value)
    return str(value)


def _shown(value: object) -> str:
    return NOT_MEASURED if value is None else str(value)
