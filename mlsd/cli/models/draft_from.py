"""``mlsd draft-from``: a draft cut out of its own target, or its first blocks with a trained adapter behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import engine_options, make_engine, model_file
from mlsd.cli.output import byte_progress, note, print_json
from mlsd.errors import InputError
from mlsd.units import format_bytes, format_duration, format_percent

if TYPE_CHECKING:
    from mlsd.gguf_tools.source import Source
    from mlsd.gguf_tools.surgery.edit import Edit
    from mlsd.measure.messages import LayersFound, ModelFile

_CHOICES = ("keep", "skip", "exit_after", "fraction", "component")
_COMPONENTS = ("recurrent", "recurrent-blocks", "attention")


@click.command("draft-from")
@click.argument("model")
@click.option("--keep", help="Blocks that stay, numbered from 0: 0-9,20,29.")
@click.option("--skip", help="Blocks left out: 3,5,8-11.")
@click.option("--exit", "exit_after", type=int, help="Keep the first N blocks (early exit).")
@click.option("--fraction", type=float, help="Leave out this share, spread evenly; first and last stay: 0.33.")
@click.option("--component", type=click.Choice(_COMPONENTS), help="Only this part of a hybrid's blocks.")
@click.option(
    "--kangaroo", type=click.Path(path_type=Path), help="A Kangaroo adapter, to put behind the first --exit blocks."
)
@click.option(
    "--calibrate",
    type=click.Choice(["greedy", "conflayers"]),
    help="Search on --text which --fraction of blocks to skip.",
)
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), help="The text that --calibrate searches on.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The GGUF to write."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@engine_options
def draft_from(model: str, output: Path, as_json: bool, **options: Any) -> None:
    """Write a draft that is a part of MODEL: some of its blocks, or one half of each; no training, same weights.

    MODEL is a GGUF path or an id that `mlsd models list` shows. Measure the draft with
    `mlsd bench MODEL --draft FILE`; `--drafter layer-skip` drafts the same way with the target's own memory.

    --calibrate searches which blocks to leave out, on MODEL's own continuation of the first half of --text (of which it
    reads 1,024 tokens): `greedy`
    takes one block after another, `conflayers` those whose output is less confident than their neighbours'. What the
    set gets accepted is measured on the second half, beside as many blocks spread evenly. In hybrids one block with
    attention always stays.

    --kangaroo takes an adapter that somebody trained for MODEL: a folder with config.json and model.safetensors.
    """
    from mlsd.gguf_tools.source import Source
    from mlsd.gguf_tools.surgery.edit import write_edit

    file = model_file(model)
    source = Source(Path(file.path))
    found = _search(file, options) if options["calibrate"] else None
    if found is not None:
        options |= {"fraction": None, "skip": ",".join(map(str, found.skipped))}
    choices = {name: options[name] for name in _CHOICES}
    edit = _compose(source, options["kangaroo"], choices) if options["kangaroo"] else _plan(source, choices)
    with byte_progress("Writing", edit.n_bytes) as progress:
        write_edit(source, edit, output, progress=progress)
    _report(source, edit, output, found, as_json)
    if not as_json:
        if found is not None:
            note(f"Next: mlsd bench {model} --drafter {_drafter(found)} --gamma 2 (timed, with the model's own memory)")
        if options["kangaroo"]:
            _note_adapter(model, edit, options["kangaroo"])
        note("The draft is a copy: in a run its weights lie in memory next to the target's.")


def _search(file: ModelFile, options: dict[str, Any]) -> LayersFound:
    """The blocks that a search on a text would leave out."""
    from mlsd.cli.models.ppl import read_text
    from mlsd.measure.messages import LayerSearchJob
    from mlsd.measure.process import run_layer_search

    others = [name for name in (*_CHOICES, "kangaroo") if name != "fraction" and options[name] is not None]
    if others or options["fraction"] is None or options["text"] is None:
        raise InputError(
            "--calibrate needs --fraction and --text, and no other choice of blocks.",
            hint="Like --calibrate greedy --fraction 0.33 --text FILE.",
        )
    engine = make_engine(options["n_threads"], options["n_gpu_layers"], options["n_ctx"], options["flash_attention"])
    text, method = read_text(options["text"]), options["calibrate"]
    return run_layer_search(
        LayerSearchJob(model=file, engine=engine, text=text, method=method, fraction=options["fraction"])
    )


def _plan(source: Source, options: dict[str, Any]) -> Edit:
    """The edit that the options describe; refused here, before anything is written."""
    from mlsd.gguf_tools.read import trunk_layers
    from mlsd.gguf_tools.surgery.cut import choose_layers, plan_cut, read_layers

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


def _compose(source: Source, adapter: Path, options: dict[str, Any]) -> Edit:
    """The first blocks of the model and the adapter; refused here, before anything is written."""
    from mlsd.gguf_tools.surgery.adapter import Adapter
    from mlsd.gguf_tools.surgery.kangaroo import compose

    others = [name for name in _CHOICES if name != "exit_after" and options[name] is not None]
    if others or options["exit_after"] is None:
        raise InputError(
            "--kangaroo needs --exit, the block that the adapter was trained behind, and no other choice of blocks.",
            hint="Like --kangaroo FOLDER --exit 2.",
        )
    return compose(source, Adapter(adapter), options["exit_after"])


def _report(source: Source, edit: Edit, output: Path, found: LayersFound | None, as_json: bool) -> None:
    from mlsd.gguf_tools.read import trunk_layers
    from mlsd.gguf_tools.surgery.cut import write_layers
    from mlsd.hashes import file_sha256

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
                "calibration": found,
                "drafter": None if found is None else _drafter(found),
            }
        )
        return
    click.echo(
        f"{output}: {edit.label}. Blocks {write_layers(edit.layers)} of 0-{(n_layers or 0) - 1}; {n_parameters:,} "
        f"parameters, {format_bytes(edit.n_bytes)} ({format_percent(edit.n_bytes / n_of_model)} of the model)"
    )
    if found is not None:
        click.echo(
            f"Accepted on text not searched on, with the model's own memory: {format_percent(found.acceptance_rate)}; "
            f"as many blocks spread evenly: {format_percent(found.uniform_acceptance_rate)} "
            f"({found.n_candidates} sets tried in {format_duration(found.search_ns / 1e9)})"
        )


def _note_adapter(model: str, edit: Edit, adapter: Path) -> None:
    n_zeros = sum(piece.tensor.n_bytes for piece in edit.pieces if piece.source is None and piece.made is None)
    note(
        f"llama.cpp wants a feed-forward half in the adapter's block: {format_bytes(n_zeros)} of zeros that each draft "
        "pass reads and the method does not have."
    )
    note(
        f"Next: mlsd bench {model} --drafter kangaroo:adapter={adapter},exit={len(edit.layers)} "
        "(drafts the same, and stops where the draft is in doubt)"
    )


def _drafter(found: LayersFound) -> str:
    """The method that drafts with the searched blocks left out and is timed."""
    return "layer-skip:mode=sync,skip=" + "+".join(map(str, found.skipped))
