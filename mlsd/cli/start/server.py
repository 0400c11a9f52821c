"""``mlsd server``: whether the speculation of somebody's server is faster, and writes the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from mlsd.cli.database import db_option
from mlsd.cli.options import (
    IntList,
    Real,
    Whole,
    draft_option,
    drafter_option,
    engine_options,
    json_option,
    prompt_option,
    repeats_option,
    seed_option,
)
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.cli.watch import make_watcher, say_warnings
from mlsd.records import Sampling
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.servers.measure import ServerResult
    from mlsd.servers.results import Row


@click.command()
@click.argument("server")
@click.option("--against", metavar="URL", help="The same server without speculation.")
@click.option("--launch", metavar="PROGRAM", help="Start this llama-server; SERVER is then the target.")
@draft_option("Draft model, or drafting head: a path or an id; may be repeated.", dest="drafts", multiple=True)
@drafter_option("Method, or a --spec-type of the server: NAME:option=value,...", dest="drafters", multiple=True)
@click.option("--gamma", type=IntList(), help="Most tokens proposed per round [default: the preset's, else 4].")
@click.option("--flags", default="", help="More flags for the servers that --launch starts, in one string.")
@click.option("--engine", "beside", is_flag=True, help="Measure mlsd's own engine in the same blocks.")
@prompt_option(default=("code",), show_default=True)
@click.option(
    "--tasks", type=click.Path(dir_okay=False, path_type=Path), help="Prompts from a Spec-Bench question.jsonl."
)
@click.option("--n-predict", type=Whole(), default=128, show_default=True, help="Output tokens.")
@repeats_option("Blocks; each holds every arm once.", default=3)
@click.option("--temperature", type=Real(), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--parallel", type=IntList(), default=(1,), help="Concurrent requests, like 1,2,4. [default: 1]")
@click.option("--stop-at-eog", is_flag=True, help="Stop at an end-of-generation token; arms may then differ in length.")
@click.option(
    "--patience",
    type=Real(min=0.1),
    default=120.0,
    show_default=True,
    help="Give up on a server that is silent for so many seconds.",
)
@click.option("--remote", is_flag=True, help="Allow a URL on another machine.")
@seed_option("Seed of sampling and of the order of arms.")
@db_option("results/server.sqlite")
@json_option
@engine_options
@click.pass_context
def server(ctx: click.Context, /, server: str, db: Path | None, as_json: bool, **options: Any) -> None:
    """Measure the server at the URL SERVER with and without speculation, and compare its outputs.

    It takes two servers, one of them without speculation, or one whose requests can switch drafting off (Ollama; LM
    Studio with --draft NAME). With --launch both are started on this machine and stopped afterwards; SERVER is then
    the target's path or id. An API key is read from the variable MLSD_SERVER_KEY and never stored.
    """
    from mlsd.planning.tasks import read_tasks
    from mlsd.servers.open import ServerRequest, serve
    from mlsd.servers.results import beside, recommend, rows

    launch = options["launch"]
    request = ServerRequest(
        url=None if launch else server,
        target=server if launch else None,
        launch=launch,
        gammas=options["gamma"],
        tasks=() if options["tasks"] is None else read_tasks(options["tasks"]),
        sampling=Sampling(temperature=options["temperature"], seed=options["seed"] if options["temperature"] else 0),
        ignore_eog=not options["stop_at_eog"],
        patience_s=options["patience"],
        **{name: options[name] for name in _SAME},
    )
    with make_watcher() as watcher:
        result = serve(request, db, watcher)
    found = rows(result.trials, deterministic=result.deterministic)
    draft = request.drafts[0] if launch and request.drafts else None
    advice, apart = recommend(found, draft), beside(result.trials)
    if as_json:
        print_json({
            "database": result.database, "summary": [{**asdict(row), "effect": row.effect} for row in found],
            "notes": result.notes, "beside": apart, "advice": advice, "deterministic": result.deterministic,
        })  # fmt: skip
    else:
        _print(result, found)
        for line in (*apart, *advice):
            say(line)
        kept = quoted(result.database)
        note(f"Kept in {result.database}: mlsd report --db {kept}, mlsd audit --db {kept}.")
    for line in result.notes:
        note(f"NOTE  {line}")
    say_warnings([warning for warning in result.warnings if warning.code != "server"])
    if result.outcome.interrupted:
        ctx.exit(130)


_SAME = (
    "against", "drafts", "drafters", "flags", "beside", "prompts", "n_predict", "repeats", "parallel", "engine",
    "remote", "seed",
)  # fmt: skip


def _print(result: ServerResult, found: list[Row]) -> None:
    from mlsd.report.tables.arms import server_table

    print_table(server_table(result, found))
    for row in found:
        if row.impossible:
            note(f"IMPOSSIBLE  {row.name}: {row.impossible}; it is not used.")
        if row.margin:
            note(f"{row.verdict.upper()}  {row.name} gamma {row.gamma}: {row.margin}.")
        if row.n_valid < row.n_trials:
            note(f"INVALID  {row.name}: {row.n_trials - row.n_valid} of {row.n_trials}: {row.invalid_reason}")
