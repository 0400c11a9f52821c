"""``mlsd tune``: the best gamma and options of a drafting method on one target, or "off"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlsd.cli import options as shared
from mlsd.cli.answers import Question, answer_objects, head_lines, say_answers
from mlsd.cli.database import db_option, note_left_out
from mlsd.cli.options import Real, Whole
from mlsd.cli.output import note, print_json, print_table, say, verbosity
from mlsd.report.tables.arms import settings_table


@click.command()
@shared.model_argument("target")
@shared.drafter_option("NAME or NAME:option=value,...; given options are fixed.", dest="drafter", required=True)
@shared.draft_option("Draft model of the method: a path or an id.", dest="drafts", multiple=True)
@shared.prompt_option(default=("code",), show_default=True)
@shared.n_predict_option(default=64)
@shared.repeats_option("Most blocks of a wave; the fastest goes on until it is decided.", default=4)
@click.option("--trials", type=Whole(), default=20, show_default=True, help="Settings to try, including earlier calls.")
@click.option("--budget-s", type=Real(), help="Start no block that would end after this many seconds.")
@shared.seed_option("Seed of the search and of the order of arms.")
@db_option("results/bench.sqlite")
@shared.json_option
@shared.build_option
@shared.engine_options
def tune(
    target: str, drafter: str, trials: int, budget_s: float | None, db: Path | None, as_json: bool, **asked: Any
) -> None:
    """Search gamma and the options of a drafting method for the fastest decoding of TARGET.

    Settings race against plain decoding in the same blocks and drop out as soon as they cannot win; then the neighbours
    of the fastest race. The answer may be "off". The same search again continues from earlier trials.
    """
    from mlsd.cli.watch import make_watcher
    from mlsd.measure.run.tune import tune as search
    from mlsd.measure.run.tune import tune_request
    from mlsd.report.objects import arm_object
    from mlsd.store.store import Store

    request = tune_request(target, drafter, trials=trials, budget_s=budget_s, **asked)
    with make_watcher(budget_s, open_ended=True) as watcher:
        result = search(request, db, watcher)
    with Store.open(Path(result.database), create=False, read_only=True) as store:
        note_left_out(store)
    question = Question.of(result.models, request.setting.prompts, db)
    found = [] if result.answer is None else answer_objects([result.answer], result.models, question)
    if as_json:
        settings = [arm_object(one) for one in result.results]
        about = {"stopped": result.stopped, "failed": result.failed}
        print_json({"database": result.database, "settings": settings, "answers": found, **about})
        return
    if verbosity.get() != "quiet":
        print_table(settings_table(request, result, *head_lines(result.database, result.results)))
    say_answers(found)
    if result.answer is None:
        say("Answer: no setting could be measured.")
    note(f"Stopped: {result.stopped}. Trials in {result.database}.")
