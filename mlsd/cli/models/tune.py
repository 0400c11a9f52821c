"""``mlsd tune``: the best gamma and options of a drafting method on one target, or "off"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli import options as shared
from mlsd.cli.database import db_option, note_left_out_of
from mlsd.cli.options import Real, Whole
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.cli.watch import make_watcher
from mlsd.drafters.options import parse_drafter
from mlsd.report.tables.arms import setting_options, settings_table

if TYPE_CHECKING:
    from mlsd.measure.run.tune import Setting, TuneRequest, TuneResult


@click.command()
@shared.model_argument("target")
@shared.drafter_option("NAME or NAME:option=value,...; given options are fixed.", dest="drafter", required=True)
@shared.draft_option()
@shared.prompt_option(default=("code",), show_default=True)
@click.option("--n-predict", type=Whole(), default=64, show_default=True, help="Output tokens.")
@shared.repeats_option("Most blocks of a wave; the fastest goes on until it is decided.", default=4)
@click.option("--trials", type=Whole(), default=20, show_default=True, help="Settings to try, including earlier calls.")
@click.option("--budget-s", type=Real(), help="Start no block that would end after this many seconds.")
@shared.seed_option("Seed of the search and of the order of arms.")
@db_option("results/bench.sqlite")
@shared.json_option
@shared.build_option
@shared.engine_options
def tune(target: str, as_json: bool, **options: Any) -> None:
    """Search gamma and the options of a drafting method for the fastest decoding of TARGET.

    Settings race beside plain decoding in the same blocks, so the answer may be "off", and drop out as soon as they
    cannot win; then the neighbours of the fastest race. The trials are kept like those of `mlsd bench`, whose trials
    count as well: run again to go on.
    """
    from mlsd.measure.run.tune import TuneRequest
    from mlsd.measure.run.tune import tune as search
    from mlsd.planning.prepare import BenchRequest

    setting = BenchRequest(
        target=target,
        drafts=(options["draft"],) if options["draft"] else (),
        prompts=options["prompts"],
        n_predict=options["n_predict"],
        repeats=options["repeats"],
        engine=options["engine"],
        seed=options["seed"],
    )
    request = TuneRequest(
        drafter=parse_drafter(options["drafter"]),
        setting=setting,
        trials=options["trials"],
        budget_s=options["budget_s"],
    )
    with make_watcher(options["budget_s"], open_ended=True) as watcher:
        result = search(request, options["db"], watcher, note)
    note_left_out_of(result.database)
    if as_json:
        print_json({"study": result.database, "result": result})
    else:
        _print(request, result)


def _print(request: TuneRequest, result: TuneResult) -> None:
    from mlsd.models.library import resolve_model
    from mlsd.servers.flags import advice

    print_table(settings_table(request, result))
    best, spec = result.best, request.drafter
    options = {} if best is None else {**spec.options, **best.options}
    draft = next(iter(request.setting.drafts), None)
    spec, gamma = msgspec.structs.replace(spec, options=options), 0 if best is None else best.gamma
    for line in advice(spec, gamma, draft, resolve_model(request.setting.target).path):
        say(line)
    note(f"Best: {_best(result)}. Stopped: {result.stopped}. Trials in {result.database}.")


def _best(result: TuneResult) -> str:
    if result.best is not None:
        return f"{_named(result.best)}, {_speedup(result.best)}"
    tried = [setting for setting in result.settings if setting.speedup is not None]
    if not tried:
        return "off; no setting could be measured"
    return f"off; no setting is decided to be faster (the fastest: gamma {tried[0].gamma}, {_speedup(tried[0])})"


def _speedup(setting: Setting) -> str:
    if setting.low is None or setting.high is None:
        return f"{setting.speedup:.2f}x"
    return f"{setting.speedup:.2f}x [{setting.low:.2f}, {setting.high:.2f}]"


def _named(setting: Setting) -> str:
    return f"gamma {setting.gamma}{setting_options(setting)}"
