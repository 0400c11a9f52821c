"""``mlsd advise``: whether to speculate with a target, with which draft and gamma, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import IntList, draft_option, drafter_option, engine_options, json_option, quant_option
from mlsd.cli.output import print_json, print_table, say, table
from mlsd.records import DrafterSpec
from mlsd.units import NOT_MEASURED, format_bytes, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.advise.answer import Answer
    from mlsd.analysis.advise.prospects import Recommendation
    from mlsd.analysis.predict.prediction_error import Validation
    from mlsd.stats import Interval

_GAMMAS = (1, 2, 4, 8, 16)


@click.command()
@click.argument("target")
@draft_option("Only this draft; may be repeated [default: all that something is known of].", multiple=True)
@drafter_option("Only this method; may be repeated.", multiple=True)
@click.option("--workload", help="code, factual, ... [default: all that was measured]")
@click.option("--gamma", "gammas", type=IntList(), default=_GAMMAS, help="[default: 1,2,4,8,16]")
@click.option("--chip", help='Predict for another machine, like "M2 Ultra" or "800 GB/s".')
@quant_option("Of a target that is only known by its shape [default: as its id says, else Q8_0].")
@click.option(
    "--db",
    "databases",
    type=click.Path(path_type=Path),
    multiple=True,
    help="May be repeated [default: every study database under results/].",
)
@json_option
@engine_options
def advise(target: str, databases: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Predict decode tok/s of TARGET for each draft, method and gamma, "off" included.

    TARGET is a GGUF path, an id, or a shape that `mlsd models make synth` knows. Costs come from `mlsd calibrate` and
    trials on this machine, from calibrated synthetic models of the target's shape (whole or cut in depth), or with
    --chip from a bandwidth; acceptance from trials, or a shipped reference.
    """
    from mlsd import api
    from mlsd.analysis.advise.chip_check import sentence
    from mlsd.measure.store.newest import study_databases

    databases = databases or tuple(study_databases())
    found = api.advise(
        target,
        drafts=(*options["draft"], *options["drafter_text"]) or None,
        databases=databases,
        **{name: options[name] for name in ("workload", "gammas", "quant", "chip", "engine")},
    )
    if as_json:
        about_chip = None if found.chip is None else sentence(found.chip)
        print_json(
            {
                "advice": found.recommendation,
                "validation": found.validation,
                "chip": about_chip,
                "chip_check": found.chip,
                "quants": found.quants,
                "untimed": found.untimed,
                "draft_sources": found.draft_sources,
                "databases": [str(path) for path in databases],
            }
        )
    else:
        _print(found)


# --- printing -----------------------------------------------------------------------------------------------------


def _print(found: Answer) -> None:
    from mlsd.analysis.advise.chip_check import sentence
    from mlsd.servers.flags import advice as settings

    result = found.recommendation
    best = result.best
    what = "off" if best.gamma == 0 else f"{best.draft or best.drafter}, gamma {best.gamma}"
    how = "" if result.sure else ", not sure"
    say(f"{result.target}: {what} ({format_number(best.speedup.value)}x{how}). Costs: {result.costs_source}.")
    for draft, source in found.draft_sources.items():
        say(f"Costs of {draft}: {source}.")
    _print_prospects(result)
    for source in dict.fromkeys(p.acceptance_source for p in result.prospects if p.gamma):
        drafts = dict.fromkeys(p.draft or p.drafter for p in result.prospects if p.acceptance_source == source)
        say(f"Acceptance of {', '.join(drafts)}: {source}.")
    if found.untimed:
        say(f"Not predicted, as no pass of it was timed: {', '.join(found.untimed)}.")
    if found.quants:
        _print_quants(found)
    if found.chip is not None:
        say(sentence(found.chip))
    say(_trust(found.validation))
    for line in settings(DrafterSpec(name=best.drafter), best.gamma, best.draft):
        say(line)
    for step in result.next_steps:
        say(f"Next: {step}")


def _print_prospects(result: Recommendation) -> None:
    columns = ["method", "gamma", "tok/s", "95 % interval", "speedup", "95 % interval", "MGL", "needs", "or accept"]
    made = table("Predicted decoding", [*columns, "decided by", "without"])
    for p in result.prospects:
        made.add_row(
            "off" if p.gamma == 0 else p.draft or p.drafter,
            str(p.gamma),
            format_number(p.tok_s.value, 1),
            _bounds(p.tok_s, 1),
            f"{p.speedup.value:.2f}x",
            _bounds(p.speedup, 2),
            "?" if p.acceptance_assumed else format_number(p.mgl),
            format_number(p.break_even_mgl),
            _needed(p.gamma, p.break_even_alpha),
            p.decided_by,
            NOT_MEASURED if p.gamma == 0 else f"{p.without_it:.2f}x",
        )
    print_table(made)
    say("needs: the MGL at which it is as fast as off; or accept: the acceptance of each token that gives it.")


def _needed(gamma: int, alpha: float | None) -> str:
    if gamma == 0:
        return NOT_MEASURED
    return "never" if alpha is None else format_percent(alpha, 0)


def _print_quants(found: Answer) -> None:
    made = table("Files to fetch", ["id", "size", "fits here", "off, tok/s", "best, tok/s", "with"])
    for q in found.quants:
        best = q.best
        made.add_row(
            q.id,
            format_bytes(q.file_bytes),
            NOT_MEASURED if q.fits is None else "yes" if q.fits else "no",
            NOT_MEASURED if q.off_tok_s is None else format_number(q.off_tok_s.value, 1),
            NOT_MEASURED if best is None else format_number(best.tok_s.value, 1),
            NOT_MEASURED if best is None else f"{best.draft}, gamma {best.gamma}",
        )
    print_table(made)


def _bounds(value: Interval, digits: int) -> str:
    return NOT_MEASURED if value.low is None else f"{value.low:.{digits}f} .. {value.high:.{digits}f}"


def _trust(validation: Validation | None) -> str:
    if validation is None:
        return "Predictions were not checked: no stored study has plain decoding and two gammas of a drafter."
    return validation.words
