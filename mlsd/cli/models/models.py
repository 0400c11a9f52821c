"""``mlsd models``: the models of the manifest, which of them are on this machine, and the methods that draft."""

from pathlib import Path
from typing import Any

import click
import msgspec

from mlsd.cli.models.distance import distance
from mlsd.cli.models.make import make, print_store
from mlsd.cli.models.methods import methods
from mlsd.cli.options import json_option, model_argument
from mlsd.cli.output import byte_bars, note, print_json, print_table, say
from mlsd.errors import HubError, InputError
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.surgery.edit import clear_drafts, draft_folder, drafts_bytes
from mlsd.hardware.awake import awake
from mlsd.models.library import CheckedFile, Library
from mlsd.report.tables.catalogue import model_table
from mlsd.units import format_bytes


@click.group()
def models() -> None:
    """List, download, make, compare and verify models; list drafting methods."""


for command in (make, distance, methods):
    models.add_command(command)


@models.command("list")
@click.option("--role", help="Only models of this role: moe-target, dense-target, draft, head.")
@click.option("--here", is_flag=True, help="Only models on this machine.")
@json_option
def list_models(role: str | None, here: bool, as_json: bool) -> None:
    """List every model that has an id."""
    library = Library()
    known = {name for entry in library.manifest for name in entry.roles}
    if role is not None and role not in known:
        raise InputError(f"No model has the role {role!r}.", hint=f"Roles: {', '.join(sorted(known))}.")
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
@model_argument("model_id", metavar="ID")
@json_option
def show(model_id: str, as_json: bool) -> None:
    """Show everything known about a model (an id or a GGUF), or what a text store holds."""
    from mlsd.drafters.lookup.suffix_store import read_header

    path = Path(model_id)
    if path.is_file() and path.suffix != ".gguf":
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
    for key, value in values.items():
        say(f"{key:<18} {_plain(key, value)}")


@models.command()
@model_argument("model_ids", metavar="ID...", nargs=-1, required=True)
@json_option
def pull(model_ids: tuple[str, ...], as_json: bool) -> None:
    """Download or make models, and check their hashes; what is whole is not brought again."""
    library = Library()
    entries = [library.manifest.find(model_id) for model_id in model_ids]
    done = []
    for entry in entries:
        with awake(), byte_bars() as begin:
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
@model_argument("model_ids", metavar="[ID]...", nargs=-1)
@json_option
def verify(model_ids: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of models again and compare their hashes (default: all that are on this machine)."""
    library = Library()
    if model_ids:
        entries = [library.manifest.find(model_id) for model_id in model_ids]
    else:
        entries = [entry for entry in library.manifest if library.locate(entry) is not None]
    results, wrong = [], []
    for entry in entries:
        with byte_bars() as begin:
            files = library.check(entry, fresh=True, watch=begin)
        results.append({"id": entry.id, "files": [_file_object(file) for file in files]})
        wrong += [f"{entry.id}: {file.path}" for file in files if file.right is False]
        if not as_json:
            for file in files:
                say(f"{entry.id}: {_verdict(file)}")
    if as_json:
        print_json(results)
    if wrong:
        raise HubError(
            f"{len(wrong)} file(s) do not have their hash: {'; '.join(wrong)}.",
            hint="Delete them and run `mlsd models pull` again.",
        )


@models.command()
@json_option
def clean(as_json: bool) -> None:
    """Remove the drafts that were cut out of targets and kept; each is made again when it is needed."""
    freed = clear_drafts()
    if as_json:
        print_json({"folder": str(draft_folder()), "freed_bytes": freed})
    else:
        say(f"{format_bytes(freed)} freed in {draft_folder()}.")


def _plain(key: str, value: Any) -> str:
    if key == "bytes":
        return f"{value} ({format_bytes(value)})"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(key, item) for item in value)
    if isinstance(value, dict):
        return ", ".join(str(item) for item in value.values() if item is not None)
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
