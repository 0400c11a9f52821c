"""``mlsd tiny``: tiny random models of every architecture, and drafts of known closeness for them."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.output import byte_progress, print_json, print_table, table
from mlsd.units import format_bytes


@click.command()
@click.argument("out_dir", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Only this; may be repeated. Also qwen2, qwen3, qwen3moe.")
@click.option("--artefact", is_flag=True, help="Also qwen35moe-large: 0.4 billion weights, 0.4 GB.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Another seed, another set.")
@click.option("--precision", default="Q8_0", show_default=True, help="F32, F16 or Q8_0.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def tiny(out_dir: Path, only: tuple[str, ...], artefact: bool, seed: int, precision: str, as_json: bool) -> None:
    """Write tiny random models to OUT_DIR: qwen35, qwen35moe, llama and falcon-h1.

    Of each also two perturbed copies, which are good drafts for it (NAME-noise003, NAME-noise01: weights that differ by
    0.3 % and 1 %), and an unrelated model (NAME-other), which is a useless one. The same seed gives the same bytes.
    """
    from mlsd.gguf_tools.shapes import ARTEFACT_TARGET, TINY
    from mlsd.gguf_tools.synthetic.tiny import write_tiny_set

    names = [*(only or TINY), *([ARTEFACT_TARGET.name] if artefact else [])]
    with byte_progress("Writing") as progress:
        files = list(write_tiny_set(out_dir, names=names, seed=seed, precision=precision, progress=progress))
    if as_json:
        print_json({"files": files})
        return
    made = table(f"Tiny models in {out_dir}", ["file", "weights", "noise", "size", "sha256"])
    for file in files:
        noise = f"{100 * file.noise:g} %" if file.noise else "-"
        made.add_row(f"{file.name}.gguf", f"{file.n_parameters:,}", noise, format_bytes(file.n_bytes), file.sha256[:12])
    print_table(made)
