"""``mlsd models distance``: how far the predictions of a draft are from those of its target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.database import db_option
from mlsd.cli.options import Whole
from mlsd.cli.output import note, print_json, say, working
from mlsd.drafters.options import parse_drafter
from mlsd.errors import InputError
from mlsd.planning.job import ModelFile
from mlsd.planning.prompts import prompt_from_file
from mlsd.records import DRAFT_MODEL, EngineOptions
from mlsd.store.store import Store
from mlsd.units import format_percent

if TYPE_CHECKING:
    from mlsd.measure.messages import DistanceJob


@click.command()
@shared.model_argument("model")
@shared.draft_option("A draft to compare with MODEL: a path or an id.")
@shared.drafter_option("Instead of a draft, the part of MODEL that drafts: layer-skip:fraction=0.33.")
@db_option("none, nothing is stored")
@shared.text_option("The text [default: the shipped prompts].")
@click.option("--n-tokens", type=Whole(min=2), help="Read at most this many tokens.")
@shared.json_option
@shared.engine_options
def distance(model: str, as_json: bool, engine: EngineOptions, **options: Any) -> None:
    """Perplexity of MODEL and of a draft on a text, their ratio and the distance of both.

    Both predict acceptance: a token drawn from the draft is accepted with a chance of one minus the total-variation
    distance. With --db the result is kept for `mlsd results --claims`; `mlsd run --distances` does it for every draft
    of a suite.
    """
    from mlsd.measure.parent.distances import read_distance, shipped_text

    text = shipped_text() if options["text"] is None else prompt_from_file(options["text"]).text
    job = _job(shared.model_file(model), engine, text, options)
    if options["db"] is not None and options["db"].exists():
        Store.open(options["db"], create=False).close()  # see before any work that it can be written
    with working("Reading the text"):
        found = read_distance(job)
    if options["db"] is not None:
        with Store.open(options["db"]) as store:
            store.add_distance(found)
        note(f"Kept in {options['db']}.")
    if as_json:
        print_json(found)
        return
    say(f"Perplexity             {found.perplexity:.3f}, {found.n_tokens} tokens")
    say(f"Perplexity of draft    {found.draft_perplexity:.3f}")
    say(f"Ratio draft / model    {found.ratio:.3f} ({found.ratio_low:.3f} .. {found.ratio_high:.3f})")
    say(f"Total variation        {found.total_variation:.4f} +- {found.total_variation_error:.4f}")
    say(f"Same likeliest token   {format_percent(found.agreement)}")


def _job(target: ModelFile, engine: EngineOptions, text: str, options: dict[str, Any]) -> DistanceJob:
    from mlsd.drafters import resolve_spec
    from mlsd.measure.parent.distances import distance_job

    draft_text, method = options["draft"], options["drafter_text"]
    if bool(draft_text) == bool(method):
        raise InputError("Give either --draft or --drafter.", hint="Add --draft DRAFT or --drafter METHOD.")
    draft = shared.model_file(draft_text) if draft_text else None
    spec = parse_drafter(method or DRAFT_MODEL, None if draft is None else draft.ref)
    job = distance_job(resolve_spec(spec), target, draft, engine, text, options["n_tokens"])
    if job is None:
        raise InputError(f"{spec.name} drafts with no model of its own to compare.", hint="Like layer-skip:exit=4.")
    return job
