"""``mlsd models``: the models of the manifest, which of them are on this machine, and the methods that draft."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mlsd.cli import options as shared
from mlsd.cli.commands.make import make, print_store
from mlsd.cli.database import db_option
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Whole
from mlsd.cli.output import byte_counter, note, print_json, print_table, say, working
from mlsd.drafters.method import MethodInfo
from mlsd.errors import HubError, InputError, choose
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.surgery.edit import clear_drafts, draft_folder, drafts_bytes
from mlsd.hardware.awake import awake
from mlsd.models.library import CheckedFile, Library
from mlsd.planning.job import ModelFile
from mlsd.planning.options import CalibrateOptions, SearchOptions
from mlsd.planning.prompts import prompt_from_file
from mlsd.planning.question import parse_drafter
from mlsd.records import DRAFT_MODEL, EngineOptions
from mlsd.report.tables.catalogue import methods_table, model_table, options_table, presets_table
from mlsd.store.store import Store
from mlsd.units import format_bytes, format_percent

if TYPE_CHECKING:
    from mlsd.measure.messages import DistanceJob


@click.group(cls=CommandGroup)
def models() -> None:
    """Print which models there are and which are here; download, make, compare and verify them; list methods."""


models.add_command(make)


@models.command("list")
@click.option("--role", help="Only models of this role: moe-target, dense-target, draft, head.")
@click.option("--here", is_flag=True, help="Only models on this machine.")
@shared.json_option
def list_models(role: str | None, here: bool, as_json: bool) -> None:
    """Print every model that has an id."""
    library = Library()
    roles = {name for entry in library.manifest for name in entry.roles}
    if role is not None and role not in roles:
        raise InputError(f"No model has the role {role!r}.", hint=choose(role, sorted(roles)))
    listed = [library.listing(entry) for entry in library.manifest if role is None or role in entry.roles]
    listed = [model for model in listed if model.here or not here]
    if as_json:
        print_json(listed)
        return
    n_bytes = drafts_bytes()
    print_table(model_table(listed))
    note("`mlsd models pull ID` downloads or makes one; `mlsd models show ID` shows its details.")
    if n_bytes:
        note(f"Cached subset drafts take another {format_bytes(n_bytes)}; `mlsd models clean` removes them.")


@models.command()
@shared.model_argument("model_id", metavar="ID")
@shared.json_option
def show(model_id: str, as_json: bool) -> None:
    """Print everything known about a model (an id or a GGUF), or what a text store holds."""
    from mlsd.drafters.lookup.suffix_store import is_store, read_header

    path = Path(model_id)
    if path.is_file() and is_store(path):
        print_store(path, read_header(path)[0], as_json)
        return
    if path.is_file():
        values = msgspec.to_builtins(model_facts(path))
    else:
        library = Library()
        entry = library.manifest.find(model_id)
        values = {"id": entry.id, **msgspec.to_builtins(entry), **msgspec.to_builtins(library.listing(entry))}
    values = {key: value for key, value in values.items() if value not in (None, [], ())}
    if as_json:
        print_json(values)
        return
    width = max(map(len, values))
    for key, value in values.items():
        say(f"{key:<{width}}  {_plain(key, value)}")


@models.command()
@shared.model_argument("model_ids", metavar="ID...", nargs=-1, required=True)
@shared.json_option
def pull(model_ids: tuple[str, ...], as_json: bool) -> None:
    """Print where models lie, downloaded or made now, their hashes checked; what is whole is not brought again."""
    library = Library()
    entries = [library.manifest.find(model_id) for model_id in model_ids]
    done = []
    for entry in entries:
        with awake(), byte_counter() as begin:
            paths = library.pull(entry, begin)
        for text in library.notes:
            note(text)
        library.notes.clear()
        files = [_file_object(file) for file in library.check(entry)]
        done.append({"id": entry.id, "paths": [str(path) for path in paths], "files": files})
        if not as_json:
            say(f"{entry.id}: {paths[0]}")
    if as_json:
        print_json(done)


@models.command()
@shared.model_argument("model_ids", metavar="[ID]...", nargs=-1)
@shared.json_option
def verify(model_ids: tuple[str, ...], as_json: bool) -> None:
    """Print whether models have their hashes, every byte read again (default: all that are on this machine)."""
    library = Library()
    if model_ids:
        entries = [library.manifest.find(model_id) for model_id in model_ids]
    else:
        entries = [entry for entry in library.manifest if library.locate(entry) is not None]
    results, damaged = [], []
    for entry in entries:
        with byte_counter() as begin:
            files = library.check(entry, fresh=True, watch=begin)
        results.append({"id": entry.id, "files": [_file_object(file) for file in files]})
        damaged += [f"{entry.id}: {file.path}" for file in files if file.right is False]
        if not as_json:
            for file in files:
                say(f"{entry.id}: {_verdict(file)}")
    if as_json:
        print_json(results)
    if damaged:
        raise HubError(
            f"{len(damaged)} file(s) do not have their hash: {'; '.join(damaged)}.",
            hint="Delete them and run `mlsd models pull` again.",
        )


@models.command()
@shared.json_option
def clean(as_json: bool) -> None:
    """Print how much was freed: removes the drafts that were cut out of targets; each is made again when needed."""
    freed = clear_drafts()
    if as_json:
        print_json({"folder": str(draft_folder()), "freed_bytes": freed})
    else:
        say(f"{format_bytes(freed)} freed in {draft_folder()}.")


def _plain(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" + (f" ({format_bytes(value)})" if key.endswith("bytes") else "")
    if isinstance(value, list | tuple):
        return ", ".join(_plain(key, item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(name, item)}" for name, item in value.items() if item is not None)
    return str(value)


def _file_object(file: CheckedFile) -> dict[str, Any]:
    shown = ("sha256", "expected", "stated_by", "right")
    return {"path": str(file.path), "bytes": file.n_bytes, **{name: getattr(file, name) for name in shown}}


def _verdict(file: CheckedFile) -> str:
    if file.right is None:
        return f"{file.path}: no hash is known to compare with; it is {file.sha256}"
    if file.right:
        return f"{file.path}: right (as stated by the {file.stated_by})"
    return f"{file.path}: WRONG, {file.sha256} instead of {file.expected}"


# --- what there is to draft with ----------------------------------------------------------------------------------


@models.command()
@click.argument("name", required=False, shell_complete=shared.offer_methods)
@shared.json_option
def methods(name: str | None, as_json: bool) -> None:
    """Print the drafting methods, or the options and presets of the method NAME.

    What is listed is what `mlsd bench TARGET --drafter NAME:option=value,...` takes; `NAME:preset=PRESET` stands for
    the values that a paper found best.
    """
    from mlsd.drafters import UNAVAILABLE, find_method
    from mlsd.methods import METHODS

    if name is not None:
        method = find_method(name).info()
        if as_json:
            print_json(method)
        else:
            _print_method(method)
        return
    listed, missing = [find_method(each).info() for each in sorted(METHODS)], list(UNAVAILABLE.values())
    if as_json:
        print_json({"methods": listed, "unavailable": missing})
        return
    print_table(methods_table(listed))
    for other in missing:
        note(f"Not available: {other.name}: {other.reason}. {other.instead}")
    note("Options and presets of one: mlsd models methods NAME")


def _print_method(method: MethodInfo) -> None:
    say(f"{method.name}: {method.summary}")
    say(f"Source: {method.source}.")
    if method.options:
        print_table(options_table(method))
    else:
        say("It takes no options.")
    if method.presets:
        print_table(presets_table(method))
    say(f"`mlsd search` searches {', '.join(method.searched)}.")


# --- how far a draft is from its target ---------------------------------------------------------------------------


@models.command()
@shared.model_argument("model")
@shared.declared_option(CalibrateOptions, "draft", "A draft to compare with MODEL: a path or an id.")
@shared.declared_option(
    SearchOptions,
    "drafter",
    "Instead of a draft, the part of MODEL that drafts: layer-skip:fraction=0.33.",
    required=False,
)
@db_option("none, nothing is stored")
@shared.text_option("The text [default: the shipped prompts].")
@click.option("--n-tokens", type=Whole(min=2), help="Read at most this many tokens.")
@shared.json_option
@shared.engine_options
def distance(model: str, as_json: bool, engine: EngineOptions, **options: Any) -> None:
    """Print the perplexity of MODEL and of a draft on a text, their ratio and the distance of both.

    Both predict acceptance: a token drawn from the draft is accepted with a chance of one minus the total-variation
    distance. With --db the result is kept for `mlsd results claims`; `mlsd run --distances` does it for every draft
    of a suite.
    """
    from mlsd.measure.parent.distances import read_distance, shipped_text

    text = shipped_text() if options["text"] is None else prompt_from_file(options["text"]).text
    job = _job(shared.model_file(model), engine, text, options)
    if options["db"] is not None and options["db"].exists():
        Store.open(options["db"], create=False).close()  # see before any work that it can be written
    with working("Reading the text"):
        distance = read_distance(job)
    if options["db"] is not None:
        with Store.open(options["db"]) as store:
            store.add_distance(distance)
        note(f"Kept in {options['db']}.")
    if as_json:
        print_json(distance)
        return
    say(f"Perplexity             {distance.perplexity:.3f}, {distance.n_tokens} tokens")
    say(f"Perplexity of draft    {distance.draft_perplexity:.3f}")
    say(f"Ratio draft / model    {distance.ratio:.3f} ({distance.ratio_low:.3f} .. {distance.ratio_high:.3f})")
    say(f"Total variation        {distance.total_variation:.4f} +- {distance.total_variation_error:.4f}")
    say(f"Same likeliest token   {format_percent(distance.agreement)}")


def _job(target: ModelFile, engine: EngineOptions, text: str, options: dict[str, Any]) -> DistanceJob:
    from mlsd.drafters import resolve_spec
    from mlsd.measure.parent.distances import distance_job

    draft_text, method = options["draft"], options["drafter"]
    if bool(draft_text) == bool(method):
        raise InputError("Give either --draft or --drafter.", hint="Add --draft DRAFT or --drafter METHOD.")
    draft = shared.model_file(draft_text) if draft_text else None
    spec = parse_drafter(method or DRAFT_MODEL, None if draft is None else draft.ref)
    job = distance_job(resolve_spec(spec), target, draft, engine, text, options["n_tokens"])
    if job is None:
        raise InputError(f"{spec.name} drafts with no model of its own to compare.", hint="Like layer-skip:exit=4.")
    return job
