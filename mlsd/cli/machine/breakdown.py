"""``mlsd breakdown``: where the time of a pass and of a round goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.database import database_to_fill, db_option
from mlsd.cli.options import Whole
from mlsd.cli.output import note, print_json, print_table, working
from mlsd.records import Case
from mlsd.units import quoted

if TYPE_CHECKING:
    from mlsd.analysis.results.round_split import RoundSplit
    from mlsd.measure.run.breakdown import Breakdown
    from mlsd.store.pass_shares import PassShares


@click.command()
@shared.model_argument("target")
@shared.draft_option()
@shared.drafter_option()
@click.option("--gamma", type=Whole(min=1), help="Most tokens proposed per round [default: the preset's, else 4].")
@shared.rows_option("k of the target's passes [default: 1,5,9].", default=(1, 5, 9))
@click.option("--depth", type=Whole(min=1), default=128, show_default=True, help="Positions before a pass.")
@shared.repeats_option("Turns of each kind of pass.", default=5)
@shared.prompt_option("Shipped prompt of the rounds.", multiple=False, default="code", show_default=True)
@shared.n_predict_option("Output tokens of the rounds.", default=64)
@db_option()
@shared.json_option
@shared.build_option
@shared.engine_options
def breakdown(target: str, db: Path | None, as_json: bool, **options: Any) -> None:
    """Show which part of the network takes what share of a pass of TARGET: attention, experts, LM head, and so on.

    With a draft or a drafting method also of a draft step, and the parts of a round. This is profiling: reading the
    clock inside a pass slows it down, so its times are not speeds.
    """
    shared.check_models(target, options["draft"])
    from mlsd.analysis.results.round_split import round_split
    from mlsd.measure.run.breakdown import breakdown as profile
    from mlsd.planning.request import bench_request
    from mlsd.trials.results import Measured
    from mlsd.trials.sums import sums

    names = {"draft": "drafts", "drafter_text": "drafters", "gamma": "gammas", "prompts": "prompts"}
    lists: dict[str, Any] = {name: (options[own],) for own, name in names.items() if options[own] is not None}
    request = bench_request(target=target, n_predict=options["n_predict"], engine=options["engine"], repeats=1, **lists)
    db = database_to_fill(db)
    with working(f"Profiling passes of {target}"):
        found = profile(request, rows=options["rows"], depth=options["depth"], repeats=options["repeats"], db=db)
    split = None
    if (case := found.case) is not None:
        rounds = (sums([one]) for trial in found.trials for one in trial.rounds)
        split = round_split([Measured(case, one, sums(one.rounds), 0) for one in found.trials], rounds)
    if as_json:
        shares = [_share_object(one, found) for one in found.shares]
        print_json({"shares": shares, "rounds": split, "profiling": True, "database": found.database})
        return
    _print_shares(found)
    if split is not None and found.case is not None:
        _print_rounds(split, found.case)
    note(f"Stored in {found.database}; `mlsd report --db {quoted(found.database)}` shows it next to the methods.")


def _share_object(shares: PassShares, found: Breakdown) -> dict[str, Any]:
    derived = ("shares", "inflation", "agreement", "in_doubt", "head_by_difference")
    return {"network": found.network(shares), "record": shares, **{name: getattr(shares, name) for name in derived}}


def _print_shares(found: Breakdown) -> None:
    from mlsd.report.tables.passes import shares_table

    print_table(shares_table([(found.network(shares), shares) for shares in found.shares]))
    note(
        "PROFILING  T is the time of a plain pass. Shares come from passes that stop between parts, and are no speeds. "
        "`no outputs` is the share of T that outputs take: a second estimate of LM head and sampling."
    )
    if any(shares.in_doubt for shares in found.shares):
        note(
            "IN DOUBT (?)  Profiling or other programs changed these passes too much: their parts differ from T by a "
            "quarter, or the profiled pass took twice as long as T, as with tiny models."
        )


def _print_rounds(split: RoundSplit, case: Case) -> None:
    from mlsd.report.tables.passes import kinds_table, round_table

    print_table(round_table(case, split))
    if split.found is not None or split.not_found is not None:
        print_table(kinds_table(split))
    if not split.timed:
        note("NOT TIMED  SD drafts inside the target; its times do not describe the method.")
    for label in split.fallbacks:
        note(f"FELL BACK  The draft uses its own memory: {label}")
    note(f"Means over the {split.rounds} rounds of one plain run on the prompt {case.prompt.key}.")
