"""``mlsd synth``: a model of any size with random weights, to measure a machine without a download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.output import byte_progress, print_json, print_table, table
from mlsd.errors import InputError
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.gguf_tools.synthetic.synth import Recipe, SynthPlan


@click.command()
@click.argument("shape")
@click.option("--quant", help="Q8_0, Q4_K, Q4_K_M, Q4_0, F16, ... [default: Q8_0; a GGUF's own types]")
@click.option("--layers", type=int, help="Only so many layers, for a machine that cannot hold all.")
@click.option("--router-correlation", type=float, help="Correlation of the router's logits between tokens, 0 to 1.")
@click.option("--router-shared", type=float, help="The same as the fraction of experts that two tokens share.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="The GGUF to write.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def synth(
    shape: str,
    quant: str | None,
    layers: int | None,
    router_correlation: float | None,
    router_shared: float | None,
    seed: int,
    output: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write a model with the tensors of SHAPE and random weights.

    SHAPE is qwen3.5-0.8b, -2b, -4b, -9b, -27b or -35b-a3b, smollm2-135m, a tiny model's name, the path of a GGUF, or of
    a model's config.json. The file is marked as synthetic in its metadata, and its text has no meaning.
    """
    from mlsd.gguf_tools.synthetic.synth import write_synthetic

    if output is None and not dry_run:
        raise click.UsageError("Give --output FILE, or --dry-run to see what would be written.")
    recipe = _recipe(shape, quant, layers)
    router_correlation = _correlation(recipe.plan, router_correlation, router_shared)
    if output is not None and not dry_run:
        with byte_progress("Writing", recipe.plan.weight.total.n_bytes) as progress:
            write_synthetic(output, recipe, seed=seed, router_correlation=router_correlation, progress=progress)
    written = {"path": str(output), "file_bytes": output.stat().st_size} if output and not dry_run else {}
    if as_json:
        print_json({**_figures(recipe.plan), **written})
    else:
        _print(recipe.plan, output if written else None)


def _recipe(shape: str, quant: str | None, layers: int | None) -> Recipe:
    from mlsd.gguf_tools.config import shape_from_config
    from mlsd.gguf_tools.shapes import FULL, TINY
    from mlsd.gguf_tools.source import Source
    from mlsd.gguf_tools.synthetic.synth import from_gguf, from_shape

    known = {**FULL, **TINY}
    path = Path(shape)
    if shape.lower() in known:
        return from_shape(known[shape.lower()], quant=quant or "Q8_0", n_layers=layers)
    if path.suffix == ".json":
        return from_shape(shape_from_config(path), quant=quant or "Q8_0", n_layers=layers)
    if path.suffix == ".gguf" or path.exists():
        return from_gguf(Source(path), quant=quant or "same", n_layers=layers)
    raise InputError(
        f"There is no shape {shape!r}.", hint=f"Known: {', '.join(known)}; or give the path of a GGUF or config.json."
    )


def _correlation(plan: SynthPlan, correlation: float | None, shared: float | None) -> float | None:
    """The correlation asked for, however it was asked for."""
    if shared is None:
        return correlation
    from mlsd.gguf_tools.synthetic.router import correlation_for

    if correlation is not None:
        raise click.UsageError("Give --router-correlation or --router-shared, not both.")
    if not plan.weight.n_experts:
        raise InputError("--router-shared needs a mixture of experts.", hint="Leave the option out.")
    return correlation_for(shared, plan.weight.n_experts, plan.weight.n_experts_used)


def _figures(plan: SynthPlan) -> dict[str, Any]:
    weight = plan.weight
    return {
        "shape": plan.name,
        "architecture": plan.architecture,
        "quant": plan.quant,
        "n_layers": plan.n_layers,
        "n_layers_full": plan.n_layers_full,
        "n_parameters": weight.total.n_parameters,
        "n_bytes": weight.total.n_bytes,
        "always_read_parameters": weight.always.n_parameters,
        "always_read_bytes": weight.always.n_bytes,
        "active_parameters": weight.active.n_parameters,
        "active_bytes": weight.active.n_bytes,
        "n_experts": weight.n_experts,
        "n_experts_used": weight.n_experts_used,
        "n_expert_layers": weight.n_expert_layers,
        "expert_parameters": weight.expert.n_parameters,
        "expert_bytes": weight.expert.n_bytes,
        "tensor_types": plan.tensor_types,
        "excluded": ["vision tower", "multi-token-prediction blocks"],
    }


def _print(plan: SynthPlan, output: Path | None) -> None:
    weight = plan.weight
    depth = (
        f"{plan.n_layers} layers"
        if plan.n_layers == plan.n_layers_full
        else (f"{plan.n_layers} of {plan.n_layers_full} layers")
    )
    made = table(f"{plan.name} ({plan.architecture}), {depth}, {plan.quant}", ["", "parameters", "bytes"])
    rows = [("all", weight.total), ("read for every token", weight.always)]
    if weight.n_experts:
        rows += [
            (f"read for one token ({weight.n_experts_used} of {weight.n_experts} experts)", weight.active),
            ("one expert of one layer", weight.expert),
        ]
    for label, part in rows:
        made.add_row(label, f"{part.n_parameters:,}", format_bytes(part.n_bytes))
    print_table(made)
    click.echo("Random weights; without vision tower and multi-token-prediction blocks.")
    if output is not None:
        click.echo(f"Wrote {output} ({format_bytes(output.stat().st_size)}).")
