"""``mlsd advise``: whether to speculate with a target, with which draft and gamma, and how sure that is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli.options import IntList, NameList, engine_options, make_engine
from mlsd.cli.output import print_json, print_table, table
from mlsd.errors import AnalysisError, InputError, ModelFileError
from mlsd.units import NOT_MEASURED, format_number, format_percent

if TYPE_CHECKING:
    from mlsd.analysis.advise import Advice, CostRange
    from mlsd.analysis.reference import Acceptance
    from mlsd.analysis.stats import Interval
    from mlsd.analysis.stored_arms import Known
    from mlsd.analysis.validation import Validation
    from mlsd.records import ModelFacts

_GAMMAS = (1, 2, 4, 8, 16)
Key = tuple[str, str | None]


@click.command()
@click.argument("target")
@click.option(
    "--drafts", type=NameList(), help="Only these drafts or methods [default: all that something is known of]."
)
@click.option("--workload", help="code, factual, ... [default: all that was measured]")
@click.option("--gamma", "gammas", type=IntList(), default=_GAMMAS, help="[default: 1,2,4,8,16]")
@click.option("--chip", help='Predict for another machine, like "M2 Ultra" or "800 GB/s".')
@click.option(
    "--quant", default="Q8_0", show_default=True, help="Of a target or draft that is only known by its shape."
)
@click.option("--db", "databases", type=click.Path(path_type=Path), multiple=True, help="[default: results/*.sqlite]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@engine_options
def advise(target: str, databases: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Predict decode tok/s of TARGET for each draft, method and gamma, "off" included.

    TARGET is a GGUF path, an id, or a shape that `mlsd synth` knows. Costs come from `mlsd calibrate` on this machine,
    or with --chip from a bandwidth; acceptance from trials, or a shipped reference.
    """
    from mlsd.analysis.advise import advice, prospects
    from mlsd.analysis.stored_arms import read_known
    from mlsd.analysis.validation import validate
    from mlsd.measure.store import Store

    if not options["gammas"] or min(options["gammas"]) < 1:
        raise InputError("--gamma must hold numbers of at least 1.")
    with ExitStack() as stack:
        paths = databases or _default_databases()
        stores = [stack.enter_context(Store.open(path, create=False, read_only=True)) for path in paths]
        known = read_known(stores)
    facts = _facts(target, options["quant"])
    validation = validate(known)
    acceptances, own = _acceptances(facts, known, options["workload"], options["drafts"])
    plain, costs = _costs(facts, acceptances, known, options)
    outcomes = {(a.drafter, a.draft): _outcomes(known, facts, a, options["workload"]) for a in own}
    found = prospects(costs, plain, acceptances, options["gammas"], measured=outcomes, validation=validation)
    result = advice(facts.ref.id, options["workload"], found, plain, bool(own))
    if as_json:
        print_json(
            {"advice": result, "validation": validation, "chip": _chip_note(plain), "databases": map_text(paths)}
        )
    else:
        _print(result, validation, plain)


def map_text(paths: tuple[Path, ...]) -> list[str]:
    """Paths as text."""
    return [str(path) for path in paths]


def _default_databases() -> tuple[Path, ...]:
    return tuple(sorted(Path("results").glob("*.sqlite")))


def _facts(text: str, quant: str) -> ModelFacts:
    """What is known of a model that is here, or that is only a shape."""
    from mlsd.gguf_tools.read import model_facts
    from mlsd.gguf_tools.shapes import FULL
    from mlsd.models import resolve_model

    try:
        model = resolve_model(text, make=True)
    except (ModelFileError, InputError):
        name = max((name for name in FULL if text.lower().startswith(name)), key=len, default=None)
        if name is None:
            raise
        return _shape_facts(text, name, quant)
    return model_facts(model.path, ref=model.ref)


def _shape_facts(text: str, name: str, quant: str) -> ModelFacts:
    from mlsd.gguf_tools.shapes import FULL
    from mlsd.gguf_tools.synth import from_shape
    from mlsd.records import ModelFacts, ModelRef

    plan = from_shape(FULL[name], quant=quant).plan
    weight = plan.weight
    return ModelFacts(
        ref=ModelRef(id=text),
        architecture=plan.architecture,
        n_layers=plan.n_layers,
        n_experts=weight.n_experts or None,
        n_experts_used=weight.n_experts_used or None,
        n_parameters=weight.total.n_parameters,
        n_parameters_active=weight.active.n_parameters,
        weight_bytes=weight.total.n_bytes,
        active_bytes=weight.active.n_bytes,
    )


def _acceptances(
    facts: ModelFacts, known: Known, workload: str | None, drafts: tuple[str, ...] | None
) -> tuple[list[Acceptance], list[Acceptance]]:
    """What is known of drafters: own measurements, then references for the drafts that nobody measured here."""
    from mlsd.analysis.advise import acceptance_of
    from mlsd.analysis.reference import reference_acceptance

    own = acceptance_of(known.groups, facts.ref.sha256 or facts.ref.id, workload)
    have = {(a.drafter, a.draft) for a in own}
    everything = [*own, *(a for a in reference_acceptance(facts.ref.id) if (a.drafter, a.draft) not in have)]
    if drafts is None:
        return everything, own
    chosen = [a for a in everything if a.draft in drafts or a.drafter in drafts]
    if missing := [d for d in drafts if all(d not in (a.draft, a.drafter) for a in everything)]:
        raise AnalysisError(
            f"Nothing is known of {', '.join(missing)} as a draft of {facts.ref.id}.",
            hint=f"Measure it: mlsd bench {facts.ref.id} --draft {missing[0]}.",
        )
    return chosen, [a for a in own if a in chosen]


def _outcomes(known: Known, facts: ModelFacts, a: Acceptance, workload: str | None) -> dict[int, Any]:
    from mlsd.analysis.advise import measured_outcomes

    return measured_outcomes(known.groups, facts.ref.sha256 or facts.ref.id, a.drafter, a.draft, workload)


def _costs(
    facts: ModelFacts, acceptances: list[Acceptance], known: Known, options: dict[str, Any]
) -> tuple[CostRange, dict[Key, CostRange]]:
    """Costs of plain decoding and of each drafter: from calibrations of this machine, else from a bandwidth."""
    keys = list(dict.fromkeys((a.drafter, a.draft) for a in acceptances))
    if options["chip"]:
        return _chip_costs(facts, keys, _peak_of(options["chip"]), options)
    from mlsd.analysis.advise import calibrated
    from mlsd.hardware import read_environment
    from mlsd.measure.process import run_info
    from mlsd.measure.rows import environment_key

    engine = make_engine(options["n_threads"], options["n_gpu_layers"], options["n_ctx"], options["flash_attention"])
    environment = read_environment(run_info(engine))
    machine = environment_key(environment)
    target = facts.ref.sha256 or f"id:{facts.ref.id}"
    points = known.passes.get((machine, target))
    alone = known.costs(machine, facts.ref, None)
    if points and alone:
        mixture = bool(facts.n_experts)
        costs = {}
        for key in keys:
            pair = known.costs(machine, facts.ref, None if key[1] is None else _ref_of(key[1], known))
            if pair is not None:
                costs[key] = calibrated(pair, points, is_mixture=mixture)
        return calibrated(alone, points, is_mixture=mixture), costs
    if environment.peak_bandwidth_gb_s:
        return _chip_costs(facts, keys, environment.peak_bandwidth_gb_s, options)
    raise AnalysisError(
        f"No pass of {facts.ref.id} was timed on this machine, and its memory's peak is not known.",
        hint=f"Run `mlsd calibrate {facts.ref.id}`, or name a machine with --chip.",
    )


def _ref_of(draft: str, known: Known) -> Any:
    """The identity of a draft: as a study recorded it, else as it lies on this machine."""
    recorded = [g.draft for g in known.groups if g.draft is not None and g.draft.id == draft]
    return recorded[-1] if recorded else _facts(draft, "Q8_0").ref


def _chip_costs(
    facts: ModelFacts, keys: list[Key], peak_gb_s: float, options: dict[str, Any]
) -> tuple[CostRange, dict[Key, CostRange]]:
    from mlsd.analysis.chip_model import chip_costs

    rows = sorted({1, *(gamma + 1 for gamma in options["gammas"])})
    drafts = {key: None if key[1] is None else _facts(key[1], options["quant"]) for key in keys}
    return (
        chip_costs(facts, None, peak_gb_s, rows),
        {key: chip_costs(facts, draft, peak_gb_s, rows) for key, draft in drafts.items()},
    )


def _peak_of(chip: str) -> float:
    """GB/s of a chip by name, or as a number."""
    from mlsd.hardware.chips import peak_bandwidth

    number = chip.lower().removesuffix("gb/s").strip()
    try:
        value = float(number)
    except ValueError:
        peak = peak_bandwidth(chip)
        if peak.gb_s is None:
            raise InputError(f"{chip!r}: {peak.source}.", hint='Give the bandwidth itself, like "400 GB/s".') from None
        return peak.gb_s
    if value <= 0:
        raise InputError(f"A bandwidth of {chip} is impossible.")
    return value


def _print(result: Advice, validation: Validation | None, plain: CostRange) -> None:
    best = result.best
    what = "off" if best.gamma == 0 else f"{best.draft or best.drafter}, gamma {best.gamma}"
    how = "" if result.sure else ", not sure"
    click.echo(f"{result.target}: {what} ({format_number(best.speedup.value)}x{how}). Costs: {result.costs_source}.")
    made = table(
        "Predicted decoding",
        [
            "method",
            "gamma",
            "tok/s",
            "95 % interval",
            "speedup",
            "95 % interval",
            "MGL",
            "needs",
            "decided by",
            "without",
        ],
    )
    for p in result.prospects:
        made.add_row(
            "off" if p.gamma == 0 else p.draft or p.drafter,
            str(p.gamma),
            format_number(p.tok_s.value, 1),
            _bounds(p.tok_s, 1),
            f"{p.speedup.value:.2f}x",
            _bounds(p.speedup, 2),
            format_number(p.mgl),
            format_number(p.break_even_mgl),
            p.decided_by,
            NOT_MEASURED if p.gamma == 0 else f"{p.without_it:.2f}x",
        )
    print_table(made)
    for source in dict.fromkeys(p.acceptance_source for p in result.prospects if p.gamma):
        click.echo(f"Acceptance: {source}.")
    click.echo(_trust(validation))
    if not plain.measured:
        click.echo(_chip_note(plain))
    for step in result.next_steps:
        click.echo(f"Next: {step}")


def _bounds(value: Interval, digits: int) -> str:
    return NOT_MEASURED if value.low is None else f"{value.low:.{digits}f} .. {value.high:.{digits}f}"


def _trust(validation: Validation | None) -> str:
    if validation is None:
        return "Predictions were not checked: no stored study has plain decoding and two gammas of a drafter."
    return (
        f"Checked on {validation.n} stored configurations, each left out: median error "
        f"{format_percent(validation.median_error)}, 95th percentile {format_percent(validation.p95_error)}; the "
        f"measurements themselves spread by {format_percent(validation.median_spread)}."
    )


def _chip_note(plain: CostRange) -> str:
    """How far the bandwidth model was validated."""
    if plain.measured:
        return ""
    from mlsd.analysis.chip_model import chip_model

    model = chip_model()
    return (
        f"From bandwidth alone: fitted to {model.n_figures} figures of {model.source}, each left out predicted within "
        f"{format_percent(model.median_error, 0)} (median; worst {format_percent(model.worst_error, 0)}), one token a "
        f"pass. Passes over more rows, drafts and rollback are not validated on that machine."
    )
