"""``mlsd rest``: stores for the drafting method of that name."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.options import model_file
from mlsd.cli.output import byte_progress, print_json


@click.group()
def rest() -> None:
    """Build and show REST stores: text that `--drafter rest:store=FILE` looks continuations up in."""


@rest.command()
@click.argument("texts", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", required=True, help="The target whose tokenizer to use: a path or a manifest id.")
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The store to write.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def build(texts: tuple[Path, ...], model: str, out: Path, as_json: bool) -> None:
    """Tokenize TEXTS (UTF-8, each one document), sort every place in them and write a store.

    A store takes 8 bytes a token on disk and about 50 while it is built. It serves every model with the same tokenizer.
    """
    from mlsd.drafters.lookup.suffix_store import build_store

    file = model_file(model)
    total = sum(path.stat().st_size for path in texts if path.is_file())
    with byte_progress("Reading", total) as progress:
        header = build_store(texts, Path(file.path), file.ref, out, progress)
    _print(out, header, as_json)


@rest.command()
@click.argument("store", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(store: Path, as_json: bool) -> None:
    """Print what a store holds and which tokenizer it is for."""
    from mlsd.drafters.lookup.suffix_store import read_header

    _print(store, read_header(store)[0], as_json)


def _print(path: Path, header: object, as_json: bool) -> None:
    import msgspec

    values = msgspec.to_builtins(header)
    if as_json:
        print_json({"path": str(path), **values})
        return
    click.echo(f"{path}: {values['n_tokens']:,} tokens of {values['n_documents']:,} documents, {values['content']}")
    click.echo(
        f"tokenizer of {values['model']['id']}, {values['n_vocab']:,} tokens: {values['vocabulary_sha256'][:16]}"
    )
