"""``mlsd tune``: the best gamma and options of a drafting method on one target, or "off"."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import NameList, engine_options, make_engine, model_file, parse_drafter
from mlsd.cli.output import note, print_json, print_table, table
from mlsd.errors import InputError
from mlsd.units import NOT_MEASURED, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.measure.run.tune import Setting, TuneRequest, TuneResult

_STOPPED = {
    "separated": "the best is told apart from the others",
    "trials": "as many settings as asked for were tried; --trials N goes on from here",
    "budget": "the time is used up; the same command goes on from here",
}


@click.command()
@click.argument("target")
@click.option(
    "--drafter", "drafter_text", required=True, help="NAME or NAME:option=value,...; given options are fixed."
)
@click.option("--draft", help="Draft model, or drafting head: a path or a manifest id.")
@click.option(
    "--prompt", "prompts", type=NameList(), default="code", show_default=True, help="Prompts, all in a block."
)
@click.option("--prompt-file", type=click.Path(dir_okay=False), help="Take the prompt from a text file.")
@click.option("--n-predict", type=int, default=64, show_default=True, help="Output tokens.")
@click.option("--blocks", type=int, default=4, show_default=True, help="Blocks of a setting that is not dropped.")
@click.option("--trials", type=int, default=20, show_default=True, help="Settings to try, earlier calls included.")
@click.option("--budget-s", type=float, help="Start no further setting after so many seconds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the search and the order of arms.")
@click.option(
    "--study", type=click.Path(path_type=Path, dir_okay=False), help="Study file [default: results/tune.sqlite]."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@engine_options
def tune(target: str, as_json: bool, **options: Any) -> None:
    """Search gamma and the options of a drafting method for the fastest decoding of TARGET.

    Every setting is measured beside plain decoding in the same blocks, so the answer may be "off". Run again to resume.
    """
    from mlsd.measure.run.runner import machine_lock
    from mlsd.measure.run.tune import tune as search

    request = _request(target, options)
    path = options["study"] or Path("results") / "tune.sqlite"
    with machine_lock():
        result = search(request, path, _say)
    if as_json:
        print_json({"study": str(path), "result": result})
    else:
        _print(request, result, path)


def _request(target: str, options: dict[str, Any]) -> TuneRequest:
    from mlsd.drafters import resolve_spec
    from mlsd.hardware import read_environment
    from mlsd.measure.process import run_info
    from mlsd.measure.run.tune import TuneRequest
    from mlsd.measure.store.rows import environment_key
    from mlsd.planning.prompts import load_prompt, prompt_from_file
    from mlsd.records import DRAFT_MODEL, NO_DRAFTER

    names = options["prompts"]
    if not names or len(set(names)) != len(names):
        raise InputError(f"--prompt is {','.join(names)!r}, but must name at least one prompt, each once.")
    file = options["prompt_file"]
    prompts = (prompt_from_file(file),) if file else tuple(load_prompt(name) for name in names)
    target_file = model_file(target)
    draft_file = model_file(options["draft"]) if options["draft"] else None
    spec = resolve_spec(parse_drafter(options["drafter_text"], None if draft_file is None else draft_file.ref))
    if spec.name == NO_DRAFTER:
        raise InputError("There is nothing to tune about plain decoding.", hint="Name a method with --drafter.")
    if spec.name == DRAFT_MODEL and draft_file is None:
        raise InputError("The draft-model method needs a draft.", hint="Name one with --draft.")
    engine = make_engine(options["n_threads"], options["n_gpu_layers"], options["n_ctx"], options["flash_attention"])
    return TuneRequest(
        target=target_file,
        drafter=spec,
        draft=draft_file,
        prompts=prompts,
        n_predict=options["n_predict"],
        blocks=options["blocks"],
        trials=options["trials"],
        budget_s=options["budget_s"],
        engine=engine,
        seed=options["seed"],
        environment_key=environment_key(read_environment(run_info(engine))),
    )


def _say(setting: Setting, number: int) -> None:
    outcome = setting.reason if setting.state == "failed" else f"{_speedup(setting)}, {setting.state}"
    note(f"[{number}] gamma {setting.gamma}{_options(setting)}: {outcome}")


def _print(request: TuneRequest, result: TuneResult, path: Path) -> None:
    title = f"{request.drafter.name} on {request.target.ref.id}, {', '.join(p.key for p in request.prompts)}"
    made = table(title, ["gamma", "options", "speedup", "95 % CI", "blocks", "acceptance", "MGL", "state"])
    for setting in result.settings:
        interval = NOT_MEASURED
        if setting.low is not None and setting.high is not None:
            interval = f"{setting.low:.2f} .. {setting.high:.2f}"
        made.add_row(
            str(setting.gamma),
            _options(setting).strip() or NOT_MEASURED,
            NOT_MEASURED if setting.speedup is None else f"{setting.speedup:.2f}x",
            interval,
            str(setting.n_blocks),
            format_percent(setting.acceptance_rate),
            format_number(setting.mgl),
            setting.state if setting.reason is None else f"failed: {setting.reason}",
        )
    print_table(made)
    note(f"Best: {_best(result)}. Stopped: {_STOPPED[result.stopped]}. Study {result.study} in {path}.")


def _best(result: TuneResult) -> str:
    if result.best is not None:
        return f"gamma {result.best.gamma}{_options(result.best)}, {_speedup(result.best)}"
    tried = [setting for setting in result.settings if setting.speedup is not None]
    if not tried:
        return "off; no setting could be measured"
    return f"off; no setting is decided to be faster (the fastest: gamma {tried[0].gamma}, {_speedup(tried[0])})"


def _speedup(setting: Setting) -> str:
    if setting.low is None or setting.high is None:
        return f"{setting.speedup:.2f}x"
    return f"{setting.speedup:.2f}x [{setting.low:.2f}, {setting.high:.2f}]"


def _options(setting: Setting) -> str:
    return "".join(f" {name}={value}" for name, value in setting.options.items())
