"""``mlsd breakdown``: where the time of a pass and of a round goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli.options import (
    draft_option,
    drafter_option,
    engine_options,
    json_option,
    model_file,
    parse_drafter,
    prompt_option,
    repeats_option,
    rows_option,
)
from mlsd.cli.output import note, print_json, print_table, table
from mlsd.errors import InputError, WorkerError
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec
from mlsd.units import format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.results.round_split import RoundSplit
    from mlsd.measure.messages import BreakdownJob, ModelFile
    from mlsd.measure.store.pass_shares import PassShares
    from mlsd.planning.prepare import Prepared

_GAMMA = 4


@click.command()
@click.argument("target")
@draft_option()
@drafter_option()
@click.option(
    "--gamma", type=click.IntRange(min=1), help="Most tokens proposed a round [default: the preset's, else 4]."
)
@rows_option("k of the target's passes [default: 1,5,9].", default=(1, 5, 9))
@click.option("--depth", type=click.IntRange(min=1), default=128, show_default=True, help="Positions before a pass.")
@repeats_option("Turns of each kind of pass.", default=5)
@prompt_option("Shipped prompt of the rounds.", multiple=False, default="code", show_default=True)
@click.option("--n-predict", type=int, default=64, show_default=True, help="Output tokens of the rounds.")
@click.option("--db", type=click.Path(path_type=Path), help="Store the shares in this study database, for its report.")
@json_option
@engine_options
def breakdown(target: str, db: Path | None, as_json: bool, **options: Any) -> None:
    """Show which part of the network takes what share of a pass of TARGET: attention, experts, LM head, and so on.

    With a draft or a drafting method also of a draft step, and the parts of a round. TARGET and the draft are GGUF
    paths or ids that `mlsd models list` shows. This is profiling: the clock is read inside the pass, which slows it
    down, so its times are no speeds. Rounds are plain ones.
    """
    from mlsd.gguf_tools.read import model_facts
    from mlsd.measure.run.calibration import profile_and_store
    from mlsd.measure.run.runner import machine_lock

    job, plan = _requests(target, options)
    files = [file for file in (job.target, job.draft) if file is not None]
    facts = [model_facts(Path(file.path), ref=file.ref) for file in files]
    with machine_lock():
        shares = profile_and_store(job, db, facts)
        split = None if plan is None else _rounds(plan)
    if as_json:
        print_json({"shares": [_share_object(s, job) for s in shares], "rounds": split, "profiling": True})
        return
    _print_shares(shares, job)
    if split is not None and plan is not None:
        _print_rounds(split, plan)
    if db is not None:
        note(f"Stored in {db}; `mlsd report --db {db}` shows it beside the methods.")


def _requests(target: str, options: dict[str, Any]) -> tuple[BreakdownJob, Prepared | None]:
    from mlsd.drafters import check_target, preset_gamma, resolve_spec
    from mlsd.measure.messages import BreakdownJob
    from mlsd.planning.prompts import load_prompt

    if not options["rows"] or min(options["rows"]) < 1:
        raise InputError("--rows must be positive numbers of positions.", hint="Like --rows 1,5,9.")
    target_file = model_file(target)
    draft_file = model_file(options["draft"]) if options["draft"] else None
    text = options["drafter_text"] or (DRAFT_MODEL if draft_file else NO_DRAFTER)
    spec, gamma = DrafterSpec(), options["gamma"]
    if text != NO_DRAFTER:
        asked = parse_drafter(text, None if draft_file is None else draft_file.ref)
        spec, gamma = resolve_spec(asked), gamma or preset_gamma(asked) or _GAMMA
        check_target(spec, Path(target_file.path), None if draft_file is None else Path(draft_file.path))
    job = BreakdownJob(
        target=target_file,
        draft=draft_file,
        drafter=spec,
        engine=options["engine"],
        text=load_prompt("length-1024").text,
        rows=tuple(dict.fromkeys(options["rows"])),
        depth=options["depth"],
        repeats=options["repeats"],
    )
    return job, None if text == NO_DRAFTER else _round_plan(target, job, gamma, options)


def _round_plan(target: str, job: BreakdownJob, gamma: int, options: dict[str, Any]) -> Prepared:
    """A plain run of the method, whose rounds show its parts."""
    from mlsd.planning.prepare import BenchRequest, prepare_bench

    request = BenchRequest(
        target=target,
        drafts=(options["draft"],) if options["draft"] else (),
        drafters=(msgspec.structs.replace(job.drafter, draft=None),),
        gamma=(gamma,),
        prompts=(options["prompts"],),
        n_predict=options["n_predict"],
        repeats=1,
        engine=job.engine,
    )
    return prepare_bench(request)


def _rounds(plan: Prepared) -> RoundSplit:
    from mlsd.analysis.results.round_split import round_split
    from mlsd.measure.messages import Done
    from mlsd.measure.process import run_job
    from mlsd.measure.run.runner import plan_jobs

    (job,) = plan_jobs(plan, strict=True)
    trials = [event.trial for event in run_job(job) if isinstance(event, Done) and event.trial.arm == "sd"]
    if not trials or trials[0].status == "failed":
        raise WorkerError(f"The rounds could not be run: {trials[0].error if trials else 'no trial came back'}")
    return round_split(trials)


# --- printing -----------------------------------------------------------------------------------------------------


def _name(shares: PassShares, job: BreakdownJob) -> str:
    if shares.drafting_key is not None:
        return f"draft of {job.drafter.name}"
    return job.target.ref.id if job.draft is None or not _is(shares, job.draft) else job.draft.ref.id


def _is(shares: PassShares, file: ModelFile) -> bool:
    from mlsd.measure.store.rows import model_key

    return shares.model_key == model_key(file.ref.sha256, file.ref.id)


def _share_object(shares: PassShares, job: BreakdownJob) -> dict[str, Any]:
    return {
        "network": _name(shares, job),
        "record": shares,
        "shares": shares.shares,
        "inflation": shares.inflation,
        "agreement": shares.agreement,
        "in_doubt": shares.in_doubt,
        "head_by_difference": shares.head_by_difference,
    }


def _print_shares(all_shares: Sequence[PassShares], job: BreakdownJob) -> None:
    from mlsd.report.tables.passes import shares_table

    print_table(shares_table([(_name(shares, job), shares) for shares in all_shares]))
    note(
        "PROFILING  T is a plain pass. Shares are of passes that stop between parts, and no speeds. `no outputs` is "
        "what T loses without outputs: LM head and sampling a second way."
    )
    if any(shares.in_doubt for shares in all_shares):
        note(
            "IN DOUBT (?)  Looking, or other programs, changed those passes too much: the parts miss T by a quarter, "
            "or the profiled pass took twice T, as with tiny models."
        )


def _print_rounds(split: RoundSplit, plan: Prepared) -> None:
    case = next(trial.case for trial in plan.plan.trials() if trial.case.arm == "sd")
    made = table(f"{case.drafter.name}, gamma {case.gamma}", ["part of a round", "ms a round", "share"])
    total = sum(split.ms_per_round.values())
    for part, ms in split.ms_per_round.items():
        made.add_row(part, format_number(ms, 3), format_percent(ms / total if total else None))
        for inside, own_ms in split.inside_ms.get(part, {}).items():
            made.add_row(f"  {inside}", format_number(own_ms, 3), format_percent(own_ms / total if total else None))
    print_table(made)
    if split.found is not None or split.not_found is not None:
        _print_kinds(split)
    if not split.timed:
        note("NOT TIMED  SD drafts inside the target; its times say nothing of the method.")
    for label in split.fallbacks:
        note(f"FELL BACK  The draft works on its own memory: {label}")
    note(f"Means over the {split.rounds} rounds of one plain run on the prompt {case.prompt.key}.")


def _print_kinds(split: RoundSplit) -> None:
    kinds = (split.found, split.not_found)
    made = table("Rounds, ms", ["", "with a proposal", "without"])
    made.add_row("rounds", *(str(kind.rounds if kind else 0) for kind in kinds))
    for name in dict.fromkeys(name for kind in kinds if kind for name in kind.ms):
        made.add_row(name, *(format_number(kind.ms.get(name) if kind else None, 3) for kind in kinds))
    print_table(made)
