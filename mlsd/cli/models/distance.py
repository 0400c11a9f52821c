"""``mlsd models distance``: how well a model predicts a text, and how far a draft is from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli import options as shared
from mlsd.cli.database import db_option
from mlsd.cli.options import Whole
from mlsd.cli.output import note, print_json, say, working
from mlsd.drafters.options import parse_drafter
from mlsd.errors import InputError
from mlsd.measure.messages import Perplexities, Perplexity, PerplexityJob
from mlsd.measure.store.store import Store
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import prompt_from_file
from mlsd.records import DRAFT_MODEL, EngineOptions
from mlsd.units import format_percent

if TYPE_CHECKING:
    from mlsd.measure.run.distances import Drafting


@click.command()
@shared.model_argument("model")
@shared.draft_option("A draft to compare with MODEL: a path or an id.")
@shared.drafter_option("Instead of a draft, the part of MODEL that drafts: layer-skip:fraction=0.33.")
@db_option("none, nothing is stored")
@shared.text_option("The text [default: the shipped prompts].")
@click.option("--n-tokens", type=Whole(min=2), help="Read at most this many tokens.")
@click.option("--window", type=Whole(min=2), default=512, show_default=True, help="Tokens of context.")
@shared.json_option
@shared.engine_options
def distance(model: str, as_json: bool, engine: EngineOptions, **options: Any) -> None:
    """Perplexity of MODEL on a text; with --draft also the draft's, their ratio and the distance of both.

    Both predict acceptance: a token drawn from the draft is accepted with a chance of one minus the total-variation
    distance. With --db the result is kept for `mlsd claims`; `mlsd run --distances` does it for every draft of a suite.
    """
    from mlsd.measure.process import ask
    from mlsd.measure.run.distances import as_distance, shipped_text

    text = shipped_text() if options["text"] is None else prompt_from_file(options["text"]).text
    target = shared.model_file(model)
    drafting = _drafting(target, options)
    if options["db"] is not None and options["db"].exists():
        Store.open(options["db"], create=False).close()  # see before any work that it can be written
    job = PerplexityJob(
        target=target,
        draft=None if drafting is None else drafting.draft,
        engine=msgspec.structs.replace(engine, n_ctx=None),
        text=text,
        n_tokens=options["n_tokens"],
        n_window=engine.n_ctx or options["window"],
    )
    with working(f"Reading {job.n_tokens} tokens"):
        result = ask(job, Perplexities)
    if drafting is not None and options["db"] is not None:
        with Store.open(options["db"]) as store:
            store.add_distance(as_distance(drafting, text, result))
        note(f"Kept in {options['db']}.")
    if as_json:
        print_json(result)
    else:
        _print(result)


def _drafting(target: ModelFile, options: dict[str, Any]) -> Drafting | None:
    """The model to compare with, as the options name it."""
    from mlsd.drafters import resolve_spec
    from mlsd.measure.run.distances import find_drafting

    draft_text, method = options["draft"], options["drafter_text"]
    if draft_text and method:
        raise InputError("--draft and --drafter exclude each other.", hint="Give one of them.")
    if not draft_text and not method:
        if options["db"] is not None:
            raise InputError("--db keeps a comparison.", hint="Add --draft DRAFT or --drafter METHOD.")
        return None
    draft = shared.model_file(draft_text) if draft_text else None
    spec = parse_drafter(method or DRAFT_MODEL, None if draft is None else draft.ref)
    drafting = find_drafting(resolve_spec(spec), target, draft)
    if drafting is None:
        raise InputError(f"{spec.name} drafts with no model of its own to compare.", hint="Like layer-skip:exit=4.")
    return drafting


def _print(result: Perplexities) -> None:
    say(f"Perplexity             {_interval(result.target)}, {result.target.n_tokens} tokens")
    if result.draft is None or result.total_variation is None:
        return
    say(f"Perplexity of draft    {_interval(result.draft)}")
    say(f"Ratio draft / model    {result.ratio:.3f} ({result.ratio_low:.3f} .. {result.ratio_high:.3f})")
    say(f"Total variation        {result.total_variation:.4f} +- {result.total_variation_error:.4f}")
    say(f"Same likeliest token   {format_percent(result.agreement)}")


def _interval(value: Perplexity) -> str:
    return f"{value.value:.3f} ({value.low:.3f} .. {value.high:.3f})"
