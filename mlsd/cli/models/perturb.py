"""``mlsd perturb``: a draft whose closeness to a model is chosen."""

from __future__ import annotations

from pathlib import Path

import click

from mlsd.cli.options import model_file
from mlsd.cli.output import byte_progress, print_json
from mlsd.units import format_bytes


@click.command()
@click.argument("model")
@click.option("--noise", type=float, required=True, help="Standard deviation, as a fraction of each weight: 0.05.")
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The GGUF to write."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def perturb(model: str, noise: float, output: Path, seed: int, as_json: bool) -> None:
    """Write a copy of MODEL with a little noise on its weights: a draft for MODEL that is right most of the time.

    The more noise, the lower the acceptance rate. The same seed gives the same bytes. MODEL is a GGUF path or an id
    that `mlsd models list` shows; its quantization is kept.
    """
    from mlsd.gguf_tools.synthetic.perturb import perturb as write_perturbed
    from mlsd.hashes import file_sha256

    source = Path(model_file(model).path)
    with byte_progress("Writing", source.stat().st_size) as progress:
        write_perturbed(source, output, noise=noise, seed=seed, progress=progress)
    n_bytes, sha256 = output.stat().st_size, file_sha256(output)
    if as_json:
        print_json({"path": str(output), "n_bytes": n_bytes, "sha256": sha256, "noise": noise, "seed": seed})
    else:
        click.echo(f"{output}: {format_bytes(n_bytes)}, weights changed by {100 * noise:g} %, sha256 {sha256[:12]}")
