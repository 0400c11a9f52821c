"""``mlsd ppl``: how well a model predicts a text, and how far a draft is from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import engine_options, make_engine, model_file
from mlsd.cli.output import print_json
from mlsd.units import format_percent

if TYPE_CHECKING:
    from mlsd.measure.job import Perplexities, Perplexity


@click.command()
@click.argument("model")
@click.option("--against", help="A draft to compare with MODEL: a path or a manifest id.")
@click.option(
    "--text", type=click.Path(dir_okay=False, path_type=Path), help="The text [default: the shipped prompts]."
)
@click.option("--n-tokens", type=click.IntRange(min=2), help="Read at most so many tokens of it.")
@click.option("--window", type=click.IntRange(min=2), default=512, show_default=True, help="Tokens of context.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@engine_options
def ppl(model: str, as_json: bool, **options: Any) -> None:
    """Perplexity of MODEL on a text; with --against also the draft's, their ratio and the distance of both.

    The ratio of perplexities and the total-variation distance are what predicts acceptance before any drafting. With
    a token drawn from the draft, one minus the distance is the chance that it is accepted.
    """
    from mlsd.measure.job import PerplexityJob
    from mlsd.measure.process import run_perplexity

    text = _shipped_text() if options["text"] is None else read_text(options["text"])
    result = run_perplexity(
        PerplexityJob(
            target=model_file(model),
            draft=model_file(options["against"]) if options["against"] else None,
            engine=make_engine(options["n_threads"], options["n_gpu_layers"], None, options["flash_attention"]),
            text=text,
            n_tokens=options["n_tokens"],
            n_window=options["n_ctx"] or options["window"],
        )
    )
    if as_json:
        print_json(result)
    else:
        _print(result)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises: PromptError when it cannot be read.
    """
    from mlsd.prompts import prompt_from_file

    return prompt_from_file(path).text


def _shipped_text() -> str:
    from mlsd.prompts import load_prompt, prompt_names

    return "\n\n".join(load_prompt(name).text for name in prompt_names())


def _print(result: Perplexities) -> None:
    click.echo(f"Perplexity             {_interval(result.target)}, {result.target.n_tokens} tokens")
    if result.draft is None or result.total_variation is None:
        return
    click.echo(f"Perplexity of draft    {_interval(result.draft)}")
    click.echo(f"Ratio draft / model    {result.ratio:.3f} ({result.ratio_low:.3f} .. {result.ratio_high:.3f})")
    click.echo(f"Total variation        {result.total_variation:.4f} +- {result.total_variation_error:.4f}")
    click.echo(f"Same likeliest token   {format_percent(result.agreement)}")


def _interval(value: Perplexity) -> str:
    return f"{value.value:.3f} ({value.low:.3f} .. {value.high:.3f})"
