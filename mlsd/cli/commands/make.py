"""``mlsd models make``: models and stores written here, in place of a download."""

from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from mlsd.cli import options as shared
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Name, Real, Whole
from mlsd.cli.output import byte_counter, note, print_json, print_table, say
from mlsd.columns import column
from mlsd.errors import InputError
from mlsd.gguf_tools.read import trunk_layers
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.edit import Edit, write_edit
from mlsd.gguf_tools.synthetic.perturb import perturb
from mlsd.gguf_tools.synthetic.synth import SynthPlan, choose_correlation, plan_synthetic, write_synthetic
from mlsd.gguf_tools.synthetic.tiny import TINY_SET, write_tiny_set
from mlsd.hashes import file_sha256
from mlsd.measure.messages import LayersFound
from mlsd.planning.options import Setting
from mlsd.planning.prompts import prompt_from_file
from mlsd.records import EngineOptions
from mlsd.report.render.table import table
from mlsd.units import as_ranges, format_bytes, format_duration, format_percent, quoted

_COMPONENTS = ("recurrent", "recurrent-blocks", "attention")


@click.group(cls=CommandGroup)
def make() -> None:
    """Write models, drafts and text stores on this machine instead of downloading them."""


# --- random weights -----------------------------------------------------------------------------------------------


@make.command()
@click.argument("shape")
@shared.quant_option("Q8_0, Q4_K, Q4_K_M, Q4_0, F16, ... [default: Q8_0; a GGUF's own types]")
@click.option("--layers", type=Whole(), help="Only this many layers, for a machine that cannot hold all.")
@click.option("--router-shared", type=Real(), help="The fraction of its experts that a token shares with another.")
@shared.declared_option(Setting, "seed", "Seed of what is random.")
@shared.output_option("The GGUF to write.", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what would be written.")
@shared.json_option
def synth(shape: str, output: Path | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Write a model with the tensors of SHAPE and random weights, to measure a machine without a download.

    SHAPE is qwen3.5-0.8b, -2b, -4b, -9b, -27b or -35b-a3b, smollm2-135m, a name of `mlsd models make tiny`, or the path
    of a GGUF. The file is marked as synthetic in its metadata, and its text has no meaning.
    """
    if output is None and not dry_run:
        raise click.UsageError("Give --output FILE, or --dry-run to see what would be written.")
    plan = plan_synthetic(shape, options["quant"], options["layers"])
    correlation = choose_correlation(plan, options["router_shared"])
    written: dict[str, Any] = {}
    if output is not None and not dry_run:
        with byte_counter() as begin:
            write_synthetic(
                output, plan, seed=options["seed"], router_correlation=correlation, on_bytes=begin("Writing")
            )
        written = {"path": str(output), "file_bytes": output.stat().st_size}
    if as_json:
        print_json({**_figures(plan), **written})
        return
    _print_plan(plan)
    if written:
        say(f"Wrote {output} ({format_bytes(written['file_bytes'])}).")


def _figures(plan: SynthPlan) -> dict[str, Any]:
    weight = plan.weight
    parts = {"n": weight.total, "always_read": weight.always, "active": weight.active, "expert": weight.expert}
    return {
        "shape": plan.name,
        **{name: getattr(plan, name) for name in ("architecture", "quant", "n_layers", "n_layers_full")},
        **{f"{name}_parameters": part.n_parameters for name, part in parts.items()},
        **{f"{name}_bytes": part.n_bytes for name, part in parts.items()},
        **{name: getattr(weight, name) for name in ("n_experts", "n_experts_used", "n_expert_layers")},
        "tensor_types": plan.tensor_types,
        "excluded": ["vision tower", "multi-token-prediction blocks"],
    }


def _print_plan(plan: SynthPlan) -> None:
    weight = plan.weight
    parts = [("all", weight.total), ("read for every token", weight.always)]
    if weight.n_experts:
        used = f"{weight.n_experts_used} of {weight.n_experts} experts"
        parts += [(f"read for one token ({used})", weight.active), ("one expert of one layer", weight.expert)]
    depth = "" if plan.n_layers == plan.n_layers_full else f" of {plan.n_layers_full}"
    print_table(
        table(
            f"{plan.name} ({plan.architecture}), {plan.n_layers}{depth} layers, {plan.quant}",
            parts,
            column("part", of="0", label=""),
            column("parameters", "n", "", "1.n_parameters"),
            column("bytes", "bytes", "", "1.n_bytes"),
            note="Random weights; without vision tower and multi-token-prediction blocks.",
        )
    )


@make.command()
@click.option("--only", multiple=True, metavar="NAME", help="Only this; may be repeated. Also qwen2, qwen3, qwen3moe.")
@shared.declared_option(Setting, "seed", "Another seed, another set.")
@shared.output_option("The folder to write to.", type=click.Path(file_okay=False, path_type=Path))
@shared.json_option
def tiny(output: Path, only: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Write tiny random models of sixteen architectures.

    With each come two good drafts (NAME-noise003 and NAME-noise01: weights changed by 0.3 % and 1 %) and a useless one
    (NAME-other). The same seed gives the same bytes.
    """
    with byte_counter() as begin:
        files = list(write_tiny_set(output, names=only or TINY_SET, seed=seed, on_bytes=begin("Writing")))
    if as_json:
        print_json({"files": files})
        return
    shown = table(
        f"Tiny models in {output}",
        files,
        column("file", of=lambda file: f"{file.name}.gguf"),
        column("weights", "n", "", "n_parameters"),
        column("noise", "n", "", lambda file: f"{100 * file.noise:g} %" if file.noise else None),
        column("size", "bytes", "", "n_bytes"),
        column("sha256", of=lambda file: file.sha256[:12]),
    )
    print_table(shown)


@make.command()
@shared.model_argument("model")
@click.option(
    "--noise", "std", type=Real(), required=True, help="Standard deviation, as a fraction of each weight: 0.05."
)
@shared.declared_option(Setting, "seed", "Seed of what is random.")
@shared.output_option("The GGUF to write.")
@shared.json_option
def noise(model: str, std: float, output: Path, seed: int, as_json: bool) -> None:
    """Write a copy of MODEL with a little noise on its weights: a draft for MODEL that is right most of the time.

    The more noise, the lower the acceptance rate. The same seed gives the same bytes. MODEL is a GGUF path or an id
    that `mlsd models list` shows; its quantization is kept.
    """
    source = Path(shared.model_file(model).path)
    with byte_counter() as begin:
        perturb(source, output, noise=std, seed=seed, on_bytes=begin("Writing"))
    n_bytes, sha256 = output.stat().st_size, file_sha256(output)
    if as_json:
        print_json({"path": str(output), "n_bytes": n_bytes, "sha256": sha256, "noise": std, "seed": seed})
    else:
        say(f"{output}: {format_bytes(n_bytes)}, weights changed by {100 * std:g} %, sha256 {sha256[:12]}")


# --- drafts cut out of a model ------------------------------------------------------------------------------------


@make.command()
@shared.model_argument("model")
@click.option("--keep", help="Blocks that stay, numbered from 0: 0-9,20,29.")
@click.option("--skip", help="Blocks left out: 3,5,8-11.")
@click.option("--exit", type=Whole(), help="Keep the first N blocks (early exit).")
@click.option("--fraction", type=Real(), help="Leave out this share, spread evenly; first and last stay: 0.33.")
@click.option("--component", type=Name(_COMPONENTS), help="Only this part of a hybrid's blocks.")
@click.option(
    "--search", type=Name(["greedy", "conflayers"]), help="Search on --text which --fraction of blocks to skip."
)
@shared.text_option("The text that --search searches on.")
@shared.output_option("The GGUF to write.")
@shared.json_option
@shared.engine_options
def subset(
    model: str, output: Path, search: Any, text: Path | None, as_json: bool, engine: EngineOptions, **options: Any
) -> None:
    """Write a draft that is a part of MODEL: some of its blocks, or one half of each; no training, same weights.

    MODEL is a GGUF path or an id that `mlsd models list` shows. Measure the draft with
    `mlsd bench MODEL --draft FILE`; `--drafter layer-skip` drafts the same way with the target's own memory.

    --search finds which blocks to leave out, on MODEL's continuation of the first half of --text: `greedy` takes one
    block after another, `conflayers` those whose output is less confident than their neighbours'. Acceptance is then
    measured on the second half. In hybrids one block with attention always stays.
    """
    from mlsd.drafters.layer_skip.subset import LayerSkipOptions, plan
    from mlsd.measure.process import call
    from mlsd.measure.worker.layer_search import search_layers

    file, layers = shared.model_file(model), None
    choices = {name: options[name] for name in ("keep", "skip", "exit", "fraction", "component")}
    if search is not None:
        fraction = choices.pop("fraction")
        if fraction is None or text is None or any(value is not None for value in choices.values()):
            raise InputError(
                "--search needs --fraction and --text, and no other choice of blocks.",
                hint="Like --search greedy --fraction 0.33 --text FILE.",
            )
        work = partial(search_layers, file, engine, prompt_from_file(text).text, search, fraction)
        layers = call(work, doing="looking for blocks to leave out")
        choices["skip"] = ",".join(map(str, layers.skipped))
    source = Source(Path(file.path))
    if all(choice is None for choice in choices.values()):
        raise InputError(
            "The blocks of the draft are not given.", hint="Give --keep, --skip, --exit, --fraction or --component."
        )
    _write_draft(source, plan(source, LayerSkipOptions(**choices)).edit, output, as_json, layers)
    if layers is not None and not as_json:
        command = f"mlsd bench {quoted(model)} --drafter {layers.drafter} --gamma 2"
        note(f"Next: {command} (timed, with the model's own memory)")


def _write_draft(source: Source, edit: Edit, output: Path, as_json: bool, search: LayersFound | None = None) -> None:
    with byte_counter() as begin:
        write_edit(source, edit, output, on_bytes=begin("Writing"))
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
                "calibration": search,
                "drafter": search and search.drafter,
            }
        )
        return
    say(
        f"{output}: {edit.label}. Blocks {as_ranges(edit.layers)} of 0-{(n_layers or 0) - 1}; {n_parameters:,} "
        f"parameters, {format_bytes(edit.n_bytes)} ({format_percent(edit.n_bytes / n_of_model)} of the model)"
    )
    if search is not None:
        say(
            f"Accepted on text not searched on, with the model's own memory: {format_percent(search.acceptance_rate)}; "
            f"as many blocks spread evenly: {format_percent(search.uniform_acceptance_rate)} "
            f"({search.n_candidates} sets tried in {format_duration(search.search_ns / 1e9)})"
        )
    note("The draft is a copy: in a run its weights lie in memory next to the target's.")


# --- stores of text -----------------------------------------------------------------------------------------------


@make.command()
@click.argument("texts", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--target", required=True, help="The model whose tokenizer to use: a path or an id.")
@shared.output_option("The store to write.")
@shared.json_option
def store(texts: tuple[Path, ...], target: str, output: Path, as_json: bool) -> None:
    """Write TEXTS (UTF-8, each one document) as a store that `--drafter rest:store=FILE` looks text up in (REST).

    A store takes 8 bytes a token on disk and about 50 while it is built. It serves every model with the same tokenizer.
    """
    from mlsd.drafters.lookup.suffix_store import build_store

    file = shared.model_file(target)
    with byte_counter() as begin:
        header = build_store(texts, Path(file.path), file.ref, output, begin("Reading"))
    print_store(output, header, as_json)


def print_store(path: Path, header: Any, as_json: bool) -> None:
    """What a store holds and which tokenizer it is for."""
    if as_json:
        print_json({"path": str(path), **msgspec.to_builtins(header)})
        return
    say(f"{path}: {header.n_tokens:,} tokens of {header.n_documents:,} documents, {header.content}")
    say(f"tokenizer of {header.model.id}, {header.n_vocab:,} tokens: {header.vocabulary_sha256[:16]}")
