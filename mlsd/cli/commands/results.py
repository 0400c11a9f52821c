"""``mlsd results``: what a study database holds: arms, trials, published claims decided on them, fits."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec.structs import replace

from mlsd.cli.database import db_option, note_left_out, open_study, reading, study_options
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Name, json_option, known_name, output_option
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.errors import InputError, StoreError
from mlsd.formats.exports import EXPORTS, export, write_file
from mlsd.formats.tables import trial_rows
from mlsd.report.render.table import TONES
from mlsd.report.tables.records import rounds_table, runs_table, trial_card, trials_table
from mlsd.store.rows import TrialFilter
from mlsd.trials.results import Measured
from mlsd.units import counted, quoted

if TYPE_CHECKING:
    from mlsd.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])
_MOST_LINES = 200
_suite_option = click.option("--suite", help="Only trials of this suite.")


def _trial_options(command: F) -> F:
    """Which trials: those of a suite, of an arm, or those that failed; the command receives `chosen`."""

    @functools.wraps(command)
    def with_filter(*arguments: Any, suite: str | None, arm: Any, failed: bool, **options: Any) -> Any:
        return command(*arguments, chosen=TrialFilter(suite=suite, arm=arm, failed=failed or None), **options)

    wrapped = click.option("--failed", is_flag=True, help="Only trials that failed.")(with_filter)
    arms = Name(("ar", "sd"))
    wrapped = click.option("--arm", type=arms, help="Only plain (ar) or speculative (sd) decoding.")(wrapped)
    return _suite_option(wrapped)  # type: ignore[return-value]


@click.group(cls=CommandGroup)
def results() -> None:
    """Print what a study database holds: each arm with its speedup, interval and what is decided; or the parts below.

    Without a command the arms are printed.
    """


# --- arms ---------------------------------------------------------------------------------------------------------


@results.command("arms", default=True)
@_suite_option
@study_options
@json_option
def list_arms(suite: str | None, db: Path | None, machine: str | None, settings: str | None, as_json: bool) -> None:
    """Print each arm of a study: its speedup, the interval of that, and what is decided."""
    study = open_study(db, machine, settings)  # a wrong file is answered before anything heavy is loaded
    from mlsd.cli.watch import say_warnings
    from mlsd.report.tables.results import arms_table
    from mlsd.trials.fields import arm_object

    suite = known_name("suite", suite, {arm.question.suite for arm in study.results})
    arms = [arm for arm in study.results if suite in (None, arm.question.suite)]
    if as_json:
        arm_objects, widths = [arm_object(arm) for arm in arms], study.machine.width_sentences
        print_json({"runs": study.runs, "arms": arm_objects, "widths": widths, "warnings": study.warnings})
        return
    if not arms:
        note("Nothing was decoded into this database: see `mlsd report`.")
        return
    print_table(arms_table(arms, f"{study.source}, {study.machine_name}"))
    for sentence in study.machine.width_sentences:
        say(sentence)
    say_warnings(study.warnings)
    where = f" --db {quoted(study.source)}"
    for what, command in (("Trials", "results trials"), ("Claims", "results claims"), ("The page", "report")):
        note(f"{what}: mlsd {command}{where}")


@results.command()
@click.argument("earlier", type=click.Path(path_type=Path))
@_suite_option
@study_options
@json_option
def against(
    earlier: Path, suite: str | None, db: Path | None, machine: str | None, settings: str | None, as_json: bool
) -> None:
    """Print each arm's new speed and speedup over its old ones, of the study database EARLIER."""
    study, before = open_study(db, machine, settings), open_study(earlier, None, None)
    from mlsd.analysis.study.earlier import against_earlier
    from mlsd.report.tables.results import earlier_table

    if earlier.samefile(study.source):
        raise InputError(f"{earlier} is the study itself.", hint="Name the database of an earlier one.")
    suite = known_name("suite", suite, {arm.question.suite for arm in study.results})
    comparison = against_earlier(study, before, suite)
    if as_json:
        print_json(comparison)
        return
    print_table(earlier_table(comparison))
    say(comparison.sentence)
    if comparison.other_machine:
        say(("Not the same machine or build: ", "caution"), f"{'; '.join(comparison.other_machine)}.")
    n_here, n_earlier = comparison.n_only_here, comparison.n_only_earlier
    if n_here or n_earlier:
        note(f"Without a counterpart: {counted(n_here, 'arm')} here, {n_earlier} of {earlier}.")


# --- trials -------------------------------------------------------------------------------------------------------


@results.command("trials")
@_trial_options
@click.option("--all", "show_all", is_flag=True, help=f"List more than the last {_MOST_LINES} trials.")
@db_option()
@json_option
def list_trials(db: Path | None, chosen: TrialFilter, show_all: bool, as_json: bool) -> None:
    """Print a line for each trial; those that failed and were retried are left out."""
    from mlsd.cli.watch import say_warnings

    with reading(db) as store:
        chosen = _in_store(store, chosen)
        listed, warnings = list(trial_rows(store, chosen)), store.warnings()
        runs = [run for run in store.runs() if run.plan.get("suites")]  # others calibrate
        note_left_out(store)
    if as_json:
        print_json({"runs": runs, "trials": listed, "warnings": warnings})
        return
    if runs:
        print_table(runs_table(runs))
    if listed:
        shown = listed if show_all else listed[-_MOST_LINES:]
        if len(shown) < len(listed):
            note(f"The last {_MOST_LINES} of {len(listed)} lines; --all lists every one.")
        print_table(trials_table(shown, {}))
        n = Counter(row["status"] for row in listed)
        say(f"{len(listed)} trials, {n['failed']} failed, {n['invalid']} not valid, {n['disturbed']} disturbed.")
    say_warnings(warnings)
    if not listed:
        note("No trial matches.")


def _in_store(store: Store, chosen: TrialFilter) -> TrialFilter:
    suites = {case.suite for case in store.cases().values()}
    return replace(chosen, suite=known_name("suite", chosen.suite, suites))


@results.command("trial")
@click.argument("identity", metavar="ID")
@click.option("--rounds", is_flag=True, help="List every round, too.")
@db_option()
@json_option
def show_trial(identity: str, rounds: bool, db: Path | None, as_json: bool) -> None:
    """Print all that is stored of the trial ID, a number, or of the trials of a case, by the start of its id."""
    with reading(db) as store:
        measured = _find(store, identity)
    if as_json:
        print_json([{"id": stored.id, "case": stored.case, "trial": stored.trial} for stored in measured])
        return
    for stored in measured:
        print_table(trial_card(stored))
        if rounds and stored.trial.rounds:
            print_table(rounds_table(stored.trial))


def _find(store: Store, identity: str) -> list[Measured]:
    trials = []
    if identity.isdecimal():
        trials = list(store.trials(TrialFilter(trial_id=int(identity), superseded=True)))
        if not trials and (broken := store.impossible.get(int(identity))) is not None:
            raise InputError(f"Trial {identity} cannot be: {broken.sentence}.", hint="It is left out of every answer.")
    if not trials and len(identity) >= 4:
        trials = list(store.trials(TrialFilter(case_id=identity)))
        cases = {stored.trial.case_id for stored in trials}
        if len(cases) > 1:
            raise InputError(f"{len(cases)} cases begin with {identity!r}.", hint="Give more of the id.")
    if not trials:
        hint = "`mlsd results trials` lists them."
        raise InputError(f"No trial has the number or case id {identity!r}.", hint=hint)
    return trials


@results.command("check")
@db_option()
def check_file(db: Path | None) -> None:
    """Print whether a study database is whole, as far as the file itself tells."""
    with reading(db) as store:
        problems = store.check()
        if problems:
            raise StoreError(f"{store.path} is damaged: {'; '.join(problems[:5])}", hint="Restore a copy of the file.")
        say(f"{store.path}: no problem found.")


@results.command("export")
@click.argument("kind", metavar="FORMAT", type=Name(tuple(EXPORTS)))
@_trial_options
@output_option("The file to write [default: standard output].", required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@db_option()
def export_trials(kind: str, chosen: TrialFilter, output: Path | None, force: bool, db: Path | None) -> None:
    """Print trials for other programs, or write them into a file: as csv, json or llama-bench.

    csv has a line for each trial, json also its rounds. llama-bench has that tool's JSON fields and holds plain
    decoding only. Failed trials that were retried are left out.
    """
    with reading(db) as store:
        chosen = _in_store(store, chosen)
        if output is not None and output.exists():
            if not force:
                raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
            if output.samefile(store.path):
                raise InputError(f"{output} is the study database itself.", hint="Give another file with --output.")
        write = functools.partial(export, store, kind, chosen=chosen)
        count = write(sys.stdout.buffer) if output is None else write_file(output, write)
        note_left_out(store)
    note(f"{count} {'tests' if kind == 'llama-bench' else 'trials'} written{f' to {output}' if output else ''}.")
    if count == 0:
        note("Nothing matched: see `mlsd results trials`.")


# --- claims -------------------------------------------------------------------------------------------------------


@results.command()
@study_options
@json_option
def claims(db: Path | None, machine: str | None, settings: str | None, as_json: bool) -> None:
    """Print what the trials say of each published claim, and what an audit says of the printed rows."""
    verdicts = open_study(db, machine, settings).verdicts
    if as_json:
        print_json(verdicts)
        return
    for verdict in verdicts:
        claim = verdict.claim
        say((f"{verdict.decision:<18}  ", TONES[verdict.decision]), claim.text)
        say(f"    {verdict.sentence}")
        if verdict.decision == "not decided yet" and verdict.visible is not None:
            say(f"    A difference of {verdict.visible.text} would have shown 4 times in 5.")
        printed = f"    Printed ({claim.source}): {claim.printed}"
        if verdict.published_audit is not None:
            counts = ", ".join(f"{counted(n, 'row')} {word}" for word, n in verdict.published_audit.items() if n)
            printed += f"; audit{', which refutes the print' if verdict.print_refuted else ''}: {counts}"
        say((printed, "quiet"))


# --- fits ---------------------------------------------------------------------------------------------------------


@results.command()
@click.option("--target", help="Only this target.")
@study_options
@json_option
def fits(target: str | None, db: Path | None, machine: str | None, settings: str | None, as_json: bool) -> None:
    """Print the study's equations with measured inputs, then cost models and T(k): which predicts held-out data best.

    Which is best is decided on rows that the fit has not seen.
    """
    study = open_study(db, machine, settings)
    from mlsd.analysis.frames import EQUATIONS
    from mlsd.columns import row_of
    from mlsd.report.tables.equations import equation_table
    from mlsd.report.tables.results import model_table
    from mlsd.trials.fields import arm_object

    targets = list(study.paired.pairs["target"].unique())
    target = known_name("target", target, targets)
    wanted = [name for name in targets if target in (None, name)]
    pairs = [fit for fit in study.pair_fits if fit.target in wanted]
    curves = [fit for fit in study.curve_fits if fit.target in wanted]
    predictions = [prediction for prediction in study.predictions if prediction.arm.case.target.id in wanted]
    arms = [arm for arm in study.pooled if arm.case.target.id in wanted and not arm.is_plain]
    if as_json:
        equations = [row_of(prediction, EQUATIONS) for prediction in predictions]
        shown = [arm_object(arm) for arm in arms]
        print_json({"pairs": pairs, "arms": shown, "curves": curves, "equations": equations})
        return
    print_table(equation_table(predictions))
    print_table(model_table(pairs, curves))
    fitted = [fit for pair in pairs for fit in pair.fits] + [fit for curve in curves for fit in curve.fits]
    for name, formula in {fit.model: fit.formula for fit in fitted}.items():
        say(f"{name}: {formula}")
    for curve in curves:
        if curve.bandwidth_gb_s is not None:
            peak = "" if curve.peak_fraction is None else f", {100 * curve.peak_fraction:.0f} % of the peak"
            say(f"Effective bandwidth of {curve.target}: {curve.bandwidth_gb_s:.1f} GB/s{peak}")
