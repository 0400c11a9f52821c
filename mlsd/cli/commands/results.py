"""``mlsd results``: what a study database holds: arms, trials, published claims decided on them, fits."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.database import note_left_out, open_study, reading, study_options
from mlsd.cli.options import json_option, output_option, refuse
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.errors import AnalysisError, InputError, StoreError
from mlsd.formats.exports import EXPORTS, export, write_file
from mlsd.formats.tables import trial_rows
from mlsd.report.tables.records import rounds_table, runs_table, trial_card, trials_table
from mlsd.store.rows import TrialFilter
from mlsd.store.store import Store
from mlsd.trials.results import Measured
from mlsd.units import counted, quoted

if TYPE_CHECKING:
    from mlsd.analysis.claims.claims import ClaimVerdict
    from mlsd.analysis.study.study import Study

_MOST_LINES = 200
_OF_STUDIES = ("machine", "settings")


@click.command()
@click.argument("identity", metavar="[ID]", required=False)
@click.option("--trials", "view", flag_value="trials", help="List trials.")
@click.option("--claims", "view", flag_value="claims", help="Test the published claims on these trials.")
@click.option(
    "--fits", "view", flag_value="fits", help="The study's equations with measured inputs; cost models, T(k)."
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="One's own earlier study: each arm's new speed and speedup over its old ones.",
)
@click.option("--target", help="Only this target, with --fits.")
@click.option("--format", "kind", type=click.Choice(tuple(EXPORTS)), help="Write trials for other programs.")
@output_option("File of --format [default: standard output].", required=False)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option("--suite", help="Only trials of this suite.")
@click.option("--arm", type=click.Choice(["ar", "sd"]), help="Only plain (ar) or speculative (sd) decoding.")
@click.option("--failed", is_flag=True, help="Only trials that failed.")
@click.option("--all", "show_all", is_flag=True, help=f"List more than the last {_MOST_LINES} trials.")
@click.option("--rounds", is_flag=True, help="List every round of the trial ID.")
@click.option("--check", is_flag=True, help="Check the file's integrity.")
@study_options
@json_option
@click.pass_context
def results(ctx: click.Context, /, identity: str | None, view: str | None, kind: str | None, **options: Any) -> None:
    """Show each arm of a study database: speedup, interval, what is decided; or with ID a trial, by number or case.

    --format csv has a line for each trial, json also its rounds. llama-bench has that tool's JSON fields and holds
    plain decoding only. Failed trials that were retried are left out.
    """
    if sum((identity is not None, view is not None, kind is not None, options["check"])) > 1:
        raise click.UsageError("Give only one of: ID, --trials, --claims, --fits, --format, --check.")
    arms = view is None and identity is None and kind is None and not options["check"]
    if arms and any(options[name] for name in ("arm", "failed", "show_all")):
        arms, view = False, "trials"
    refuse(ctx, ("as_json",), kind is not None or options["check"], "arms, trials, --claims and --fits")
    refuse(ctx, ("suite",), not (arms or view == "trials" or kind is not None), "arms, --trials and --format")
    refuse(ctx, ("arm", "failed"), view != "trials" and kind is None, "--trials and --format")
    refuse(ctx, ("show_all",), view != "trials", "--trials")
    refuse(ctx, ("output", "force"), kind is None, "--format")
    refuse(ctx, ("rounds",), identity is None, "a trial")
    refuse(ctx, ("target",), view != "fits", "--fits")
    refuse(ctx, ("against",), not arms, "arms")
    of_trials = identity is not None or kind is not None or view == "trials" or options["check"]
    refuse(ctx, _OF_STUDIES, of_trials, "arms, --claims and --fits")
    if of_trials:
        _of_trials(identity, kind, options)
        return
    study = open_study(options["db"], options["machine"], options["settings"])
    if options["against"] is not None:
        _against(study, options["against"], options["suite"], options["as_json"])
        return
    if view == "claims":
        if options["as_json"]:
            print_json(study.verdicts)
            return
        for verdict in study.verdicts:
            _say_claim(verdict)
    elif view == "fits":
        _fits(study, options["target"], options["as_json"])
    else:
        _arms(study, options["suite"], options["as_json"])


def _of_trials(identity: str | None, kind: str | None, options: dict[str, Any]) -> None:
    with reading(options["db"]) as store:
        if options["check"]:
            _check(store)
        elif identity is not None:
            _show(store, identity, options["rounds"], options["as_json"])
        elif kind is not None:
            _export(store, kind, options)
        else:
            _trials(store, options)


# --- arms ---------------------------------------------------------------------------------------------------------


def _arms(study: Study, suite: str | None, as_json: bool) -> None:
    from mlsd.cli.watch import say_warnings
    from mlsd.report.tables.results import arms_table
    from mlsd.trials.fields import arm_object

    arms = [one for one in study.results if suite is None or one.question.suite.lower() == suite.lower()]
    if as_json:
        print_json({"runs": study.runs, "arms": [arm_object(one) for one in arms], "warnings": study.warnings})
        return
    if not arms:
        note("No arm matches." if study.results else "Nothing was decoded into this database: see `mlsd report`.")
        return
    print_table(arms_table(arms, f"{study.source}, {study.place}"))
    say_warnings(study.warnings)
    where = f" --db {quoted(study.source)}"
    note(f"Trials: mlsd results --trials{where}. Claims: --claims. Fits: --fits. The page: mlsd report{where}")


def _against(study: Study, path: Path, suite: str | None, as_json: bool) -> None:
    from mlsd.analysis.study.earlier import against_earlier
    from mlsd.report.tables.results import earlier_table

    if path.samefile(study.source):
        raise InputError(f"{path} is the study itself.", hint="Name the database of an earlier one with --against.")
    found = against_earlier(study, open_study(path, None, None), suite)
    if as_json:
        print_json(found)
        return
    print_table(earlier_table(found))
    say(found.sentence)
    if found.other_machine:
        say(("Not the same machine or build: ", "caution"), f"{'; '.join(found.other_machine)}.")
    if found.n_only_here or found.n_only_earlier:
        note(f"Without a counterpart: {counted(found.n_only_here, 'arm')} here, {found.n_only_earlier} of {path}.")


# --- trials -------------------------------------------------------------------------------------------------------


def _chosen(options: dict[str, Any]) -> TrialFilter:
    suite = options["suite"]
    known = suite.upper() if suite is not None and len(suite) == 1 else suite
    return TrialFilter(suite=known, arm=options["arm"], failed=options["failed"] or None)


def _trials(store: Store, options: dict[str, Any]) -> None:
    from mlsd.cli.watch import say_warnings
    from mlsd.trials.arms import options_text

    listed, cases = list(trial_rows(store, _chosen(options))), store.cases()
    runs = [run for run in store.runs() if run.plan.get("suites")]  # others calibrate
    note_left_out(store)
    if options["as_json"]:
        print_json({"runs": runs, "trials": listed, "warnings": store.warnings()})
        return
    if runs:
        print_table(runs_table(runs))
    if listed:
        shown = listed if options["show_all"] else listed[-_MOST_LINES:]
        if len(shown) < len(listed):
            note(f"The last {_MOST_LINES} of {len(listed)} lines; --all lists every one.")
        named = [row | {"options": options_text(cases[row["case_id"]].drafter)} for row in shown]
        print_table(trials_table(named, {}))
        n = Counter(row["status"] for row in listed)
        say(f"{len(listed)} trials, {n['failed']} failed, {n['invalid']} not valid, {n['disturbed']} disturbed.")
    say_warnings(store.warnings())
    if not listed:
        note("No trial matches.")


def _show(store: Store, identity: str, rounds: bool, as_json: bool) -> None:
    found = _find(store, identity)
    if as_json:
        print_json([{"id": f.id, "case": f.case, "trial": f.trial} for f in found])
        return
    for stored in found:
        print_table(trial_card(stored))
        if rounds and stored.trial.rounds:
            print_table(rounds_table(stored.trial))


def _find(store: Store, identity: str) -> list[Measured]:
    found = []
    if identity.isdecimal():
        found = list(store.trials(TrialFilter(trial_id=int(identity), superseded=True)))
        if not found and (broken := store.impossible.get(int(identity))) is not None:
            raise InputError(f"Trial {identity} cannot be: {broken.sentence}.", hint="It is left out of every answer.")
    if not found and len(identity) >= 4:
        found = list(store.trials(TrialFilter(case_id=identity)))
        cases = {stored.trial.case_id for stored in found}
        if len(cases) > 1:
            raise InputError(f"{len(cases)} cases begin with {identity!r}.", hint="Give more of the id.")
    if not found:
        hint = "`mlsd results --trials` lists them."
        raise InputError(f"No trial has the number or case id {identity!r}.", hint=hint)
    return found


def _check(store: Store) -> None:
    problems = store.check()
    if problems:
        raise StoreError(f"{store.path} is damaged: {'; '.join(problems[:5])}", hint="Restore a copy of the file.")
    say(f"{store.path}: no problem found.")


def _export(store: Store, kind: str, options: dict[str, Any]) -> None:
    output: Path | None = options["output"]
    if output is not None and output.exists():
        if not options["force"]:
            raise InputError(f"{output} exists.", hint="Give another file, or replace it with --force.")
        if output.samefile(store.path):
            raise InputError(f"{output} is the study database itself.", hint="Give another file with --output.")
    write = partial(export, store, kind, chosen=_chosen(options))
    count = write(sys.stdout.buffer) if output is None else write_file(output, write)
    note_left_out(store)
    note(f"{count} {'tests' if kind == 'llama-bench' else 'trials'} written{f' to {output}' if output else ''}.")
    if count == 0:
        note("Nothing matched: see `mlsd results --trials`.")


# --- claims -------------------------------------------------------------------------------------------------------


def _say_claim(verdict: ClaimVerdict) -> None:
    from mlsd.report.tables.claims import DECISION_TONES

    claim = verdict.claim
    say((f"{verdict.decision:<18}  ", DECISION_TONES[verdict.decision]), claim.text)
    say(f"    {verdict.sentence}")
    if verdict.decision == "not decided yet" and verdict.visible is not None:
        say(f"    A difference of {verdict.visible.words} would have shown 4 times in 5.")
    printed = f"    Printed ({claim.source}): {claim.printed}"
    if verdict.published_audit is not None:
        counts = ", ".join(f"{counted(n, 'row')} {word}" for word, n in verdict.published_audit.items() if n)
        printed += f"; audit{', which refutes the print' if verdict.print_refuted else ''}: {counts}"
    say((printed, "quiet"))


# --- fits ---------------------------------------------------------------------------------------------------------


def _fits(study: Study, target: str | None, as_json: bool) -> None:
    """The study's equations with measured inputs, then cost models and T(k): which predicts held-out data best."""
    from mlsd.analysis.frames import EQUATIONS
    from mlsd.report.tables.equations import equation_table
    from mlsd.report.tables.results import model_table
    from mlsd.trials.fields import arm_object, row_of

    targets = list(study.paired.pairs["target"].unique())
    if target is not None and target not in targets:
        raise AnalysisError(f"The study has no pairs of {target}.", hint=f"It has: {', '.join(targets) or 'none'}.")
    wanted = [target] if target is not None else targets
    pairs = [found for found in study.pair_fits if found.target in wanted]
    curves = [found for found in study.curve_fits if found.target in wanted]
    predictions = [found for found in study.predictions if found.arm.case.target.id in wanted]
    arms = [one for one in study.pooled if one.case.target.id in wanted and not one.is_plain]
    if as_json:
        equations = [row_of(one, EQUATIONS) for one in predictions]
        shown = [arm_object(one) for one in arms]
        print_json({"pairs": pairs, "arms": shown, "curves": curves, "equations": equations})
        return
    print_table(equation_table(predictions))
    print_table(model_table(pairs, curves))
    fits = [fit for pair in pairs for fit in pair.fits] + [fit for curve in curves for fit in curve.fits]
    for name, formula in {fit.model: fit.formula for fit in fits}.items():
        say(f"{name}: {formula}")
    for curve in curves:
        if curve.bandwidth_gb_s is not None:
            peak = "" if curve.peak_fraction is None else f", {100 * curve.peak_fraction:.0f} % of the peak"
            say(f"Effective bandwidth of {curve.target}: {curve.bandwidth_gb_s:.1f} GB/s{peak}")
