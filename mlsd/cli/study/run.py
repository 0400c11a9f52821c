"""``mlsd run``: suites on the models of a profile, into a study database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli.options import make_overrides, plan_options
from mlsd.cli.output import note, print_json
from mlsd.cli.study.watch import make_watcher
from mlsd.errors import InputError, ModelFileError, UnsupportedError
from mlsd.units import GB

if TYPE_CHECKING:
    from mlsd.measure.run.answers import AnswerFile
    from mlsd.measure.run.distances import Drafting
    from mlsd.measure.run.runner import RunOutcome
    from mlsd.measure.store.rows import DraftDistance
    from mlsd.measure.store.study import Store
    from mlsd.models.library import LocalModel
    from mlsd.planning.plan import Overrides, Plan, Refuse
    from mlsd.planning.prompts import LoadPrompt
    from mlsd.planning.suite import Profile
    from mlsd.planning.tasks import Task
    from mlsd.records import DrafterSpec, EngineOptions, Environment

_TASK_TOKENS = 1_024  # Spec-Bench's most new tokens of a turn


@click.command()
@click.argument("suites", nargs=-1, required=True)
@plan_options
@click.option("--db", type=click.Path(path_type=Path), help="Results [default: results/PROFILE.sqlite].")
@click.option("--cool-down", "cool_down_s", type=float, default=0.0, help="Seconds of rest between blocks.")
@click.option("--fresh", is_flag=True, help="Measure again what is done already.")
@click.option("--keep-failed", is_flag=True, help="Leave earlier failures alone instead of trying them again.")
@click.option("--tasks", "task_file", help="Tasks in place of prompts: a file like question.jsonl, or `shipped`.")
@click.option("--per-kind", type=int, help="Only so many tasks of each of the six kinds.")
@click.option("--answers", type=click.Path(path_type=Path, file_okay=False), help="Write answers, a JSONL file an arm.")
@click.option("--distances", is_flag=True, help="Afterwards `mlsd models distance` of each drafting model.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end.")
@click.pass_context
def run(ctx: click.Context, /, suites: tuple[str, ...], as_json: bool, dry_run: bool, **options: Any) -> None:
    """Run SUITES (A to F), each trial committed before the next; run again to resume.

    A trial that fails is a row with its reason. Only one run at a time measures on a machine.
    """
    from mlsd.cli.study.plan import read_suites
    from mlsd.measure.process import run_info
    from mlsd.measure.run.jobs import plan_jobs
    from mlsd.measure.run.runner import default_database, machine_lock, run_jobs
    from mlsd.measure.store.study import Store
    from mlsd.models.library import Library
    from mlsd.planning.plan import expand

    library = Library()
    profile, chosen_by_us = choose_profile(options["profile"], library)
    if chosen_by_us:
        say_default(profile)
    loaded = read_suites(suites)
    tasks, overrides, load = choose_prompts(options)
    known = {entry.id: entry_ref(entry) for entry in library.manifest}
    plan = expand(loaded, profile, known, overrides, load=load)
    if dry_run:
        from mlsd.cli.study.plan import show_plan

        show_plan(plan, as_json=as_json)
        return
    _refuse_empty(plan, profile, suites)
    path = options["db"] or default_database(profile.name)
    with machine_lock():
        check_database(path)
        local = resolve_all(library, list(plan.models()))
        paths = {model_id: model.path for model_id, model in local.items()}
        plan = expand(loaded, profile, {**known, **_refs(local)}, overrides, load=load, refuse=refusals(paths))
        _say_left_out(plan)
        environment = _environment(run_info(overrides.engine))
        check_memory(plan, environment)
        jobs = plan_jobs(plan, paths, cool_down_s=options["cool_down_s"], load=load)
        with Store.open(path) as store:
            with make_watcher() as watcher:
                plan_record, settings = _plan_record(plan, ctx), _settings(options)
                outcome = run_jobs(jobs, store, environment, _facts(local), plan_record, settings, watcher)
            warnings = _warn(store, outcome, environment, overrides.engine.n_threads)
            answers = _write_answers(options["answers"], tasks, plan, store, environment)
            if options["distances"] and not outcome.interrupted:
                _measure_distances(plan, paths, store, overrides.engine)
    if as_json:
        print_json({"database": str(path), "outcome": outcome, "warnings": warnings, "answers": answers})
    else:
        _say_outcome(path, outcome)
    if outcome.interrupted:
        ctx.exit(130)


def choose_prompts(options: dict[str, Any]) -> tuple[tuple[Task, ...], Overrides, LoadPrompt]:
    """The tasks of ``--tasks`` (none without it), what the command line changes of the suites, and the prompts.

    With tasks the protocol is Spec-Bench's: every turn a prompt in the chat template, an answer ends where the model
    ends it or after 1,024 tokens.
    """
    from mlsd.planning.prompts import load_prompt, task_prompts
    from mlsd.planning.tasks import read_tasks, shipped_tasks, stratified

    overrides, file = make_overrides(options), options["task_file"]
    if file is None:
        for name in ("per_kind", "answers"):
            if options[name] is not None:
                raise InputError(f"--{name.replace('_', '-')} is only for tasks.", hint="Add --tasks FILE.")
        return (), overrides, load_prompt
    if options["prompts"] is not None:
        raise InputError("--tasks and --prompts exclude each other.", hint="Give one of them.")
    tasks = shipped_tasks() if file == "shipped" else read_tasks(Path(file))
    if options["per_kind"] is not None:
        tasks = stratified(tasks, options["per_kind"])
    prompts = task_prompts(tasks)
    n_predict = _TASK_TOKENS if overrides.n_predict is None else overrides.n_predict
    changed = msgspec.structs.replace(overrides, prompts=tuple(prompts), n_predict=n_predict, ignore_eog=False)
    return tasks, changed, prompts.__getitem__


def _write_answers(
    folder: Path | None, tasks: tuple[Task, ...], plan: Plan, store: Store, environment: Environment
) -> list[AnswerFile]:
    from mlsd.measure.run.answers import write_answers
    from mlsd.measure.store.rows import environment_key

    if folder is None:
        return []
    written = write_answers(folder, tasks, plan.cases(), store, environment_key(environment))
    for file in written:
        missing = f", {file.n_missing} missing" if file.n_missing else ""
        note(f"{file.n_answered} answers{missing}: {file.path}")
    return list(written)


def _refuse_empty(plan: Plan, profile: Profile, suites: tuple[str, ...]) -> None:
    if not plan.groups:
        _say_left_out(plan)
        raise InputError(
            f"Profile {profile.name} has no models for suite {', '.join(suites)}.", hint="See `mlsd plan`."
        )


def _measure_distances(plan: Plan, paths: dict[str, Path], store: Store, engine: EngineOptions) -> None:
    """Predictors of acceptance for every model that drafts in the plan, into the same database."""
    from mlsd.measure.run.distances import measure_distances, study_draftings

    def keep(drafting: Drafting, distance: DraftDistance) -> None:
        store.add_distance(distance)
        note(
            f"{drafting.draft.ref.id} for {drafting.target.ref.id}: perplexity ratio {distance.ratio:.3f}, "
            f"total variation {distance.total_variation:.3f}"
        )

    measure_distances(study_draftings(plan.cases().values(), paths), engine, keep)


def check_database(path: Path) -> None:
    """See before any work that an existing database can be used. Raises: StoreError, SchemaError."""
    from mlsd.measure.store.study import Store

    if path.exists():
        Store.open(path, create=False).close()


def choose_profile(name: str | None, library: Any) -> tuple[Profile, bool]:
    """The profile of that name, or the default one; the flag says that nobody chose it."""
    from mlsd.planning.suite import default_profile, find_profile, load_profiles

    profiles = load_profiles()
    if name:
        return find_profile(name, profiles), False

    def is_downloaded(model_id: str) -> bool:
        return library.locate(library.manifest.find(model_id)) is not None

    return default_profile(profiles, is_downloaded), True


def say_default(profile: Profile) -> None:
    """The first line of a command for which nobody chose a profile."""
    from mlsd.planning.suite import EMBEDDED_PROFILE

    why = "nothing larger is downloaded" if profile.name == EMBEDDED_PROFILE else "the largest that is downloaded"
    note(f"No profile was chosen: {profile.name}, {why} ({profile.title}).")


def entry_ref(entry: Any) -> Any:
    """What the manifest alone knows of a model's identity."""
    from mlsd.records import ModelRef

    return ModelRef(id=entry.id, sha256=getattr(entry, "sha256", None), n_bytes=entry.n_bytes)


def resolve_all(library: Any, ids: list[str]) -> dict[str, LocalModel]:
    """The files of all models, those that are made locally made now.

    Raises: ModelFileError that lists every model that is missing, and the one command that brings them.
    """
    local, missing = {}, []
    for model_id in ids:
        try:
            local[model_id] = library.resolve(model_id, make=True)
        except ModelFileError:
            missing.append(model_id)
    if missing:
        raise ModelFileError(
            f"Not on this machine: {', '.join(missing)}.",
            hint=f"Bring them with `mlsd models pull {' '.join(missing)}`.",
        )
    return local


def check_memory(plan: Plan, environment: Environment) -> None:
    """Refuse a load whose weights alone exceed the machine's memory. Raises: InputError that names it."""
    memory = environment.memory_bytes
    for group in plan.groups:
        weights = group.weight_bytes
        if memory is not None and weights is not None and weights > memory:
            draft = f" with {group.draft.id}" if group.draft else ""
            raise InputError(
                f"{group.target.id}{draft} needs {weights / GB:.1f} GB for its weights; "
                f"this machine has {memory / GB:.1f} GB.",
                hint="Choose a smaller profile; `mlsd doctor` shows which fit.",
            )


def refusals(paths: dict[str, Path]) -> Refuse:
    """Asks a method whether it can work on a target, from the target's file."""
    from mlsd.drafters import check_target, resolve_spec

    def refuse(spec: DrafterSpec, target: str) -> str | None:
        resolve_spec(spec)  # options that cannot be are the suite's mistake, not a property of the target
        if target not in paths:  # --limit cuts it off, so its file was not asked for
            return None
        try:
            check_target(spec, paths[target], paths.get(spec.draft.id) if spec.draft else None)
        except (UnsupportedError, InputError) as error:
            return error.message.rstrip(".")
        return None

    return refuse


def _refs(local: dict[str, LocalModel]) -> dict[str, Any]:
    return {model_id: model.ref for model_id, model in local.items()}


def _settings(options: dict[str, Any]) -> Any:
    from mlsd.measure.run.runner import RunSettings

    return RunSettings(fresh=options["fresh"], keep_failed=options["keep_failed"], seed=options["seed"])


def _environment(backend: Any) -> Environment:
    from mlsd.hardware import read_environment

    return read_environment(backend)


def _facts(local: dict[str, LocalModel]) -> list[Any]:
    from mlsd.gguf_tools.read import model_facts

    return [model_facts(model.path, ref=model.ref) for model in local.values()]


def _plan_record(plan: Plan, ctx: click.Context) -> dict[str, Any]:
    """What a run keeps of its plan: names and counts; the cases stand in their own table."""
    given = {key: str(value) for key, value in ctx.params.items() if value not in (None, (), False)}
    return {
        "profile": plan.profile,
        "suites": plan.suites,
        "study_trials": plan.study_trials,
        "paired_baselines": plan.paired_baselines,
        "options": given,
    }


def _warn(store: Any, outcome: RunOutcome, environment: Environment, n_threads: int | None) -> list[Any]:
    from mlsd.engine.threads import default_threads
    from mlsd.measure.run.checks import check_run
    from mlsd.measure.store.rows import TrialFilter

    own = [stored.trial for stored in store.trials(TrialFilter(run_id=outcome.run_id), rounds=False)]
    own_threads = (n_threads or default_threads()) if environment.backend == "CPU" else 1
    warnings = check_run(own, environment, own_threads=own_threads)
    store.add_warnings(outcome.run_id, warnings)
    for code in dict.fromkeys(warning.code for warning in warnings):
        alike = [warning for warning in warnings if warning.code == code]
        more = f" (and {len(alike) - 1} more of this kind)" if len(alike) > 1 else ""
        note(f"Warning [{code}] {alike[0].message}{more} {alike[0].advice}")
    return list(warnings)


def _say_left_out(plan: Plan) -> None:
    from mlsd.cli.study.plan import left_out_line

    for left in plan.left_out:
        note(left_out_line(left))


def _say_outcome(path: Path, outcome: RunOutcome) -> None:
    note(
        f"{outcome.n_ok} trials measured, {outcome.n_failed} failed, {outcome.n_skipped} done before, "
        f"{outcome.n_left} left; in {path}."
    )
    if outcome.interrupted:
        note("Interrupted; the same command goes on where it stopped.")
    else:
        note(f"Next: mlsd results --db {path}, mlsd report --db {path}")
