"""``mlsd draft-from``: a draft cut out of its own target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import model_file
from mlsd.cli.output import byte_progress, note, print_json
from mlsd.errors import InputError
from mlsd.units import format_bytes, format_percent

if TYPE_CHECKING:
    from mlsd.gguf_tools.source import Source
    from mlsd.gguf_tools.surgery import Edit

_COMPONENTS = ("recurrent", "recurrent-blocks", "attention")


@click.command("draft-from")
@click.argument("model")
@click.option("--keep", help="Blocks that stay, numbered from 0: 0-9,20,29.")
@click.option("--skip", help="Blocks left out: 3,5,8-11.")
@click.option("--exit", "exit_after", type=int, help="Keep the first N blocks (early exit).")
@click.option("--fraction", type=float, help="Leave out this share, spread evenly; first and last stay: 0.33.")
@click.option("--component", type=click.Choice(_COMPONENTS), help="Only this part of a hybrid's blocks.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The GGUF to write."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def draft_from(model: str, output: Path, as_json: bool, **options: Any) -> None:
    """Write a draft that is a part of MODEL: some of its blocks, or one half of each; no training, same weights.

    MODEL is a GGUF path or an id that `mlsd models list` shows. Measure the draft with
    `mlsd bench MODEL --draft FILE`; `--drafter layer-skip` drafts the same way with the target's own memory.
    """
    from mlsd.gguf_tools.source import Source
    from mlsd.gguf_tools.surgery import write_edit

    source = Source(Path(model_file(model).path))
    edit = _plan(source, options)
    with byte_progress("Writing", edit.n_bytes) as progress:
        write_edit(source, edit, output, progress=progress)
    _report(source, edit, output, as_json)


def _plan(source: Source, options: dict[str, Any]) -> Edit:
    """The edit that the options describe; refused here, before anything is written."""
    from mlsd.gguf_tools.cut import choose_layers, plan_cut, read_layers
    from mlsd.gguf_tools.read import trunk_layers

    if all(value is None for value in options.values()):
        raise InputError(
            "Nothing says what the draft shall be.", hint="Give --keep, --skip, --exit, --fraction or --component."
        )
    layers = choose_layers(
        trunk_layers(source) or 0,
        keep=read_layers(options["keep"]) if options["keep"] else None,
        skip=read_layers(options["skip"]) if options["skip"] else None,
        exit_after=options["exit_after"],
        fraction=options["fraction"],
    )
    return plan_cut(source, layers, options["component"])


def _report(source: Source, edit: Edit, output: Path, as_json: bool) -> None:
    from mlsd.gguf_tools.cut import write_layers
    from mlsd.gguf_tools.read import trunk_layers
    from mlsd.userdir import file_sha256

    n_parameters = sum(piece.tensor.n_weights for piece in edit.pieces)
    n_of_model = sum(tensor.n_bytes for tensor in source.tensors)
    n_layers = trunk_layers(source)
    if as_json:
        print_json(
            {
                "path": str(output),
                "sha256": file_sha256(output),
                "layers": edit.layers,
                "n_layers_model": n_layers,
                "label": edit.label,
                "n_parameters": n_parameters,
                "weight_bytes": edit.n_bytes,
                "weight_bytes_model": n_of_model,
            }
        )
        return
    click.echo(
        f"{output}: {edit.label}. Blocks {write_layers(edit.layers)} of 0-{(n_layers or 0) - 1}; {n_parameters:,} "
        f"parameters, {format_bytes(edit.n_bytes)} ({format_percent(edit.n_bytes / n_of_model)} of the model)"
    )
    note("The draft is a copy: in a run its weights lie in memory next to the target's.")
