"""``mlsd server``: whether a server's speculation is faster and lossless; or which of two servers is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.answers import answer_object, say_stages
from mlsd.cli.options import same_command
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.cli.watch import TrialWatcher, say_warnings
from mlsd.records import EngineOptions
from mlsd.servers.request import ServerRequest
from mlsd.stats import grouped
from mlsd.trials.decisions import SHORT_DECODE_NS
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.servers.measure import ServerResult
    from mlsd.trials.results import Measured


_LONGER = 1.5  # than the shortest trial that can be decided


@click.command()
@click.argument("servers", nargs=-1, required=True)
@shared.options_of(ServerRequest)
@click.option(
    "--tasks", type=click.Path(dir_okay=False, path_type=Path), help="Prompts from a Spec-Bench question.jsonl."
)
@shared.json_option
@click.pass_context
def server(ctx: click.Context, /, servers: tuple[str, ...], tasks: Path | None, as_json: bool, **options: Any) -> None:
    """Print whether a server's speculation is faster and its output the same; or which of two servers is faster.

    Give the server without speculation with --against; Ollama, and LM Studio with --draft NAME, switch it off by
    request. With --launch, SERVERS is a target's path or id: servers are started here, one for each turn. Two URLs
    are compared as they are. An API key is read from MLSD_SERVER_KEY and never stored.
    """
    from mlsd.analysis.results.server_arms import recommend, rival, server_answers, server_costs
    from mlsd.measure.parent.race import STOPPED
    from mlsd.planning.prompts import read_tasks
    from mlsd.servers.launch import by_hand, find_program
    from mlsd.servers.measure import serve

    alone, launch, db = len(servers) == 1, options["launch"], options["db"]
    shared.refuse(ctx, EngineOptions.__struct_fields__, not launch, "servers that --launch starts")
    shared.refuse(ctx, ("rollback",), not options["with_engine"], "mlsd's --engine")
    if launch and not alone:
        raise click.UsageError("--launch takes one target.")
    request = ServerRequest(
        url=servers[0] if alone and not launch else None,
        rivals=() if alone else servers,
        target=servers[0] if launch else None,
        tasks=() if tasks is None else read_tasks(tasks),
        **options,
    )
    with TrialWatcher(None if request.goal is None else request.goal.budget_s) as watcher:
        result = serve(request, db, watcher)
    files = {model.ref.id: str(model.path) for model in result.models}
    advice = (*rival(result.results), *result.agreement) if request.rivals else recommend(result.results, files)
    uses = {answer.use for answer in server_answers(result.results)}
    unusable = any(not arm.n_valid for arm in result.results) if request.rivals else uses == {"no usable measurement"}
    effects = {arm.effect for arm in result.results if request.rivals and not (unusable or arm.is_plain)}
    if "not decided yet" in uses | effects:
        again = same_command(
            ctx, without=("repeats",), until="decided", n_predict=_long_enough(result.trials, request.n_predict)
        )
        advice = (*advice, f"What decides it: {again}")
    if "no usable measurement" in uses:
        advice = (
            *advice,
            "Measuring again as it is decides nothing: mend what is named, then give this command again.",
        )
    if launch and (start := by_hand(find_program(launch))):
        advice = (*advice, start)
    engine = server_costs(result.trials)
    if as_json:
        print_json(_object(result, engine, advice))
    else:
        _print(result)
        for line in (*engine, *advice):
            say(line)
        say_stages(result.outcome.stages)
        if result.stopped is not None:
            note(
                f"Stopped: {STOPPED[result.stopped]}. Intervals are corrected for several arms and for early stopping."
            )
        path = quoted(result.database)
        note(f"Kept in {result.database}: mlsd report --db {path}, mlsd audit study --db {path}.")
    for line in result.notes:
        note(f"NOTE  {line}")
    say_warnings([warning for warning in result.warnings if warning.code != "server"])
    if result.outcome.interrupted:
        ctx.exit(130)
    if unusable:
        ctx.exit(2)


def _long_enough(trials: Sequence[Measured], n_predict: int) -> int:
    """So many tokens that the trials of every arm last long enough to be decided; the same where they did."""
    spans = grouped(trials, lambda measured: measured.trial.case_id).values()
    medians = [
        median(ns) for arm in spans if (ns := [m.trial.decode_ns for m in arm if m.trial.valid and m.trial.decode_ns])
    ]
    shortest = min(medians, default=SHORT_DECODE_NS)
    return n_predict if shortest >= SHORT_DECODE_NS else math.ceil(_LONGER * n_predict * SHORT_DECODE_NS / shortest)


def _object(result: ServerResult, engine: list[str], advice: tuple[str, ...]) -> dict[str, Any]:
    from mlsd.analysis.results import server_arms
    from mlsd.servers.judge import margin
    from mlsd.trials.fields import arm_object

    return {
        "database": result.database,
        "stages": result.outcome.stages,
        "summary": [
            {
                **arm_object(arm),
                "name": server_arms.row_name(arm),
                "client_tok_s": arm.client_tok_s,
                "first_token_ms": server_arms.first_token_ms(arm),
                "token_ms": server_arms.token_ms(arm),
                "by_category": server_arms.by_category(arm),
                "impossible": arm.impossible,
                "output": None if result.base else server_arms.verdict_words(arm, deterministic=result.deterministic),
                "margin": margin(arm.losslessness),
            }
            for arm in result.results
        ],
        "notes": result.notes,
        "engine": engine,
        "advice": advice,
        "deterministic": result.deterministic,
        **(
            {}
            if result.base
            else {"answers": [answer_object(answer) for answer in server_arms.server_answers(result.results)]}
        ),
        **({} if result.stopped is None else {"stopped": result.stopped}),
    }


def _print(result: ServerResult) -> None:
    from mlsd.analysis.results import server_arms
    from mlsd.report.tables.arms import category_table, server_table
    from mlsd.servers.judge import margin

    print_table(server_table(result))
    if any(server_arms.by_category(arm) for arm in result.results):
        print_table(category_table(result.results))
    for arm in result.results:
        name = server_arms.row_name(arm)
        if arm.impossible:
            note(f"IMPOSSIBLE  {name}: {arm.impossible}; it is not used.")
        if reason := margin(arm.losslessness):
            verdict = server_arms.verdict_words(arm, deterministic=result.deterministic)
            note(f"{verdict.upper()}  {name} gamma {arm.case.gamma}: {reason}.")
        if arm.n_valid < arm.n_trials:
            note(f"INVALID  {name}: {arm.n_trials - arm.n_valid} of {arm.n_trials}: {arm.why_not}")
