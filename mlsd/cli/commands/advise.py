"""``mlsd advise``: whether to speculate with a target, with which draft and gamma, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.answers import answer_object
from mlsd.cli.database import db_option
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.errors import InputError
from mlsd.hardware.chips import MACS_GIB
from mlsd.planning.options import BenchOptions, Overrides
from mlsd.records import DRAFT_MODEL, GAMMAS
from mlsd.report.tables.arms import prospect_table
from mlsd.stats import grouped
from mlsd.store.newest import study_databases
from mlsd.units import GIB, format_bytes, format_number

if TYPE_CHECKING:
    from mlsd.analysis.advise.answer import TargetAdvice
    from mlsd.analysis.advise.prospects import Prospect, Recommendation


def _counts(text: str) -> tuple[int, int]:
    """Accepted of proposed tokens: ``167/264``."""
    accepted, _, proposed = text.partition("/")
    if not (accepted.strip().isdecimal() and proposed.strip().isdecimal()):
        raise ValueError(f"{text[:80]!r} is not accepted/proposed like 167/264")
    return int(accepted), int(proposed)


def _rate(text: str) -> float:
    """Accepted over proposed: ``0.75``, ``75%`` or ``75``, which is no share."""
    try:
        rate = float(text.strip().removesuffix("%"))
    except ValueError:
        rate = -1.0
    rate = rate / 100 if text.strip().endswith("%") or rate >= 2 else rate  # 1.2 is no per cent of anybody
    if not 0 <= rate <= 1:
        raise ValueError(f"{text[:40]!r} is not accepted over proposed like 0.75 or 75%.")
    return rate


_NOT_ASKED = ("measure", "budget_s")  # what the question does not hold as it is
_BUILD = "Model the kernels of this llama.cpp build [default: the loaded one; with --chip, what set-up installs]."


@click.command()
@shared.model_argument("target")
@shared.declared_option(BenchOptions, "drafts", "Only this draft; may be repeated [default: every draft with data].")
@shared.declared_option(BenchOptions, "drafters", "Only this method; may be repeated.")
@click.option("--workload", help="code, factual, ... [default: all that was measured]")
@shared.declared_option(Overrides, "gammas", "Draft lengths to predict [default: 1,2,4,8,16].", default=GAMMAS)
@click.option("--chip", help='Predict for another machine, like "M2 Ultra" or "800 GB/s".')
@click.option(
    "--runtime",
    default="llama.cpp",
    show_default=True,
    help="Which program to model, on --chip or on this Mac: llama.cpp, mlx, or one with public rows, like mlx-vlm.",
)
@click.option("--depth", type=shared.Whole(min=0), default=0, help="Tokens of context before the output, modelled.")
@click.option(
    "--prompt-tokens",
    type=shared.Whole(min=1),
    help="A request's prompt: with --n-predict its whole time is printed, too.",
)
@click.option(
    "--n-predict",
    type=shared.Whole(min=1),
    help="Output tokens of a request, with --prompt-tokens: print its whole time, too.",
)
@click.option("--llama-build", "--build", "build", type=shared.Whole(min=0), default=0, help=_BUILD)
@click.option(
    "--acceptance",
    type=shared.Parsed("rate", _rate),
    help="Accepted over proposed tokens at --gamma, as logs print it, like 0.8 or 80% [default: as measured].",
)
@click.option("--accepted", type=shared.Parsed("counts", _counts), help="The same as counts, like 167/264.")
@click.option(
    "--output-tokens",
    "n_output",
    type=shared.Whole(min=1),
    help="With --accepted: the answer's length, since rounds may propose less (look-ups, p_min).",
)
@click.option("--mgl", type=shared.Real(min=1), help="The same as MGL, tokens per round with the target's own.")
@shared.quant_option("Quantization of a target that is not here [default: as its id says, else Q8_0].")
@click.option("--measure", is_flag=True, help="Measure what is left open, until it is decided, and answer again.")
@click.option(
    "--budget-s",
    type=shared.Real(min=0, min_open=True),
    default=600,
    show_default=True,
    help="With --measure: start no further block after this many seconds.",
)
@db_option("all under results/; may be repeated", "databases", multiple=True)
@shared.json_option
@shared.engine_options
def advise(target: str, databases: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Print the decode tok/s to expect of TARGET with each draft, method and gamma, and what plain decoding gives.

    TARGET is a GGUF path, an id, or a shape that `mlsd models make synth` knows. Costs come from `mlsd calibrate`,
    from trials, or with --chip from a bandwidth; acceptance from trials or a shipped reference. A setting that trials
    on this machine decide shows its measured speedup.
    """
    from mlsd.analysis.advise import ask as asking

    def ask(databases: tuple[Path, ...]) -> TargetAdvice:
        return asking.advise(
            target,
            db=databases,
            **{name: value for name, value in options.items() if name not in _NOT_ASKED},
        )

    ctx = click.get_current_context()
    shared.refuse(ctx, ("budget_s",), not options["measure"], "--measure")
    shared.refuse(ctx, ("build",), options["runtime"] != "llama.cpp", "--runtime llama.cpp")
    if options["measure"] and options["chip"] is not None:
        raise InputError("--measure asks this machine, --chip about another one.", hint="Give one of the two.")
    if options["measure"] and options["runtime"] != "llama.cpp":
        raise InputError(f"--measure times llama.cpp, not {options['runtime']}.", hint="Measure it: mlsd server URL.")
    advice, read = ask(databases), databases or tuple(study_databases())
    if options["measure"] and (open_ := advice.recommendation.to_measure):
        measured = _measure(target, open_, options, read[0] if len(read) == 1 else None)
        read = (*(path for path in read if path != measured), measured)
        advice = ask(read)
    for text in advice.notes:
        note(text)
    if as_json:
        from mlsd.servers.flags import flags_of

        same = (
            "validation",
            "untimed",
            "draft_sources",
            "draft_file",
            "notes",
            "weight_bytes",
            "limit_bytes",
            "widths",
        )
        print_json(
            {
                "answer": _answer(advice.recommendation),
                "flags": _flags(advice, target),
                "advice": advice.recommendation,
                "quant": advice.target.quant,
                "measured": [answer_object(one, flags_of(one)) for one in advice.measured],
                "chip": _checked() if advice.modelled else None,
                **{name: getattr(advice, name) for name in same},
                "databases": [str(path) for path in read],
            }
        )
    else:
        _print(advice, target)


def _measure(target: str, open_: Sequence[Prospect], options: Mapping[str, Any], db: Path | None) -> Path:
    """A bench of the settings that are left open, until they are decided; where its trials are."""
    from mlsd.cli.watch import TrialWatcher
    from mlsd.measure.parent.requests import bench
    from mlsd.planning.request import bench_request

    request = bench_request(
        target=target,
        drafts=tuple(dict.fromkeys(p.draft for p in open_ if p.drafter == DRAFT_MODEL and p.draft is not None)),
        drafters=tuple(dict.fromkeys(p.drafter_text for p in open_ if p.drafter != DRAFT_MODEL)),
        gammas=tuple(sorted({p.gamma for p in open_})),
        prompts=(options["workload"] or "code",),
        engine=options["engine"],
        until="decided",
        budget_s=options["budget_s"],
    )
    with TrialWatcher(options["budget_s"]) as watcher:
        result = bench(request, db, watcher=watcher)
    if result.outcome.interrupted:
        raise click.Abort
    for answer in result.answers:
        note(f"Measured on {answer.text}: {answer.sentence}.")
    return Path(result.database)


def _flags(advice: TargetAdvice, target: str) -> Sequence[str]:
    result, best = advice.recommendation, advice.recommendation.best
    if result.verdict == "not decided yet":
        return ()
    from mlsd.models.library import resolve_model
    from mlsd.servers.flags import advice as flags  # which loads every method

    path = resolve_model(target).path if advice.target.here else None
    return flags(best.spec, best.gamma, advice.draft_file or best.draft, path)


def _print(advice: TargetAdvice, target: str) -> None:
    result = advice.recommendation
    for measured in advice.measured:
        say(f"Measured here by {measured.subject} on {measured.text}: {measured.sentence}.")
    say(_answer(result))
    if result.settles is not None:
        say(f"{result.settles}.")
    say(f"Why: {result.why}. Costs: {result.costs_source}.")
    if advice.widths:
        say(f"Of {advice.target.facts.ref.id}, {advice.widths}.")
    for model in (advice.target, *advice.drafts):
        if model.quant_assumed and not model.here:
            say(f"Assuming {model.quant} for {model.facts.ref.id}: --quant names another.")
        elif model.quant is not None and not model.here:
            say(f"Bytes of {model.facts.ref.id}: {model.quant}.")
    for line in _memory(advice):
        say(line)
    for draft, source in advice.draft_sources.items():
        say(f"Costs of {draft}: {source}.")
    print_table(prospect_table(result.prospects, result.level, modelled=advice.modelled))
    predicted = (p for p in result.prospects if p.gamma and p.effect is None)
    for source, settings in grouped(predicted, lambda p: p.acceptance_source).items():
        say(f"Acceptance of {', '.join(dict.fromkeys(p.name for p in settings))}: {source}.")
    if advice.untimed:
        say(f"Not predicted, as no pass of it was timed: {', '.join(advice.untimed)}.")
    if advice.modelled:
        say(_checked())
    elif advice.validation is None:
        say("Predictions were not checked: no stored study has plain decoding and two gammas of a drafter.")
    else:
        say(advice.validation.sentence)
    for line in _flags(advice, target):
        say(line)
    for step in result.next_steps:
        say(f"Next: {step}")


def _memory(advice: TargetAdvice) -> Iterator[str]:
    """What the weights take, and what that leaves of this machine's limit, or which Macs let models take so much."""
    from mlsd.hardware.budget import mac_budget

    if (n_bytes := advice.weight_bytes) is None:
        return
    drafts = f", {advice.weight_draft}'s included" if advice.weight_draft else ""
    limit, weights = advice.limit_bytes, f"Memory: {format_bytes(n_bytes)} of weights{drafts}"
    if limit is None:
        sizes = ((gib, mac_budget(gib * GIB).limit_bytes) for gib in advice.memories_gib or MACS_GIB)
        gib, limit = next(((gib, limit) for gib, limit in sizes if limit > n_bytes), (None, 0))
        where = f"no Mac{' with that chip' if advice.memories_gib else ''} lets models use so much"
        if gib is not None:
            where = f"such a Mac with {gib} GB lets models use {format_bytes(limit)}"
        elif len(advice.memories_gib) == 1:
            most = format_bytes(mac_budget(advice.memories_gib[0] * GIB).limit_bytes)
            where = f"a Mac with {advice.memories_gib[0]} GB lets models use {most}"
        yield f"{weights}; {where}, contexts and buffers included."
    elif limit < n_bytes:
        yield f"{weights}, and models may use {format_bytes(limit)} here."
    else:
        left = f"{format_bytes(limit - n_bytes)} of {format_bytes(limit)}"
        yield f"{weights}, which leaves {left} for contexts and buffers."


def _answer(result: Recommendation) -> str:
    best, verdict, shown = result.best, "not decided yet", None
    if result.verdict == "on":
        verdict, shown = f"use {best.setting} ({format_number(best.speedup.value)}x)", best
    elif result.verdict == "off":
        verdict = "leave it off: nothing that is known is faster"
    elif result.to_measure:
        shown = result.to_measure[0]
        looks = f"{shown.setting} looks like {format_number(shown.speedup.value)}x"
        verdict += f"; {looks}" if shown.speedup.value >= 1 else f", most likely off; the best, {looks}"
    text = f" on {result.workload}" if result.workload else ""
    return f"{result.target}{text}: {verdict}{_of_request(shown)}."


def _of_request(prospect: Prospect | None) -> str:
    """From which output token on a setting pays, where a request was described; its time is in the table."""
    request = None if prospect is None else prospect.request
    if request is None or prospect is None:
        return ""
    if request.whole_s is None:
        return "; how long a prompt of that length takes is not known here"
    if request.pays_from is None:
        return "; it pays at no length"
    sentence, least = f"; it pays from output token {request.pays_from:,} on", request.pays_from_latest
    if prospect.speedup.low is None or least == request.pays_from:
        return sentence
    return f"{sentence}, at the low end of its speedup {'at no length' if least is None else f'from {least:,} on'}"


def _checked() -> str:
    """How far models of a chip can be trusted."""
    from mlsd.hardware.apple_passes import constants

    fitted = constants()
    return f"Modelled, not measured: from {fitted.fitted}; {fitted.checked}."
