"""``mlsd calibrate``: what passes cost at every width, the experts that they read, their parts, memory itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.database import database_to_fill, db_option
from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Whole
from mlsd.cli.output import note, print_json, print_table, say
from mlsd.hardware import read_conditions
from mlsd.planning.options import CalibrateOptions, SearchOptions, Timed
from mlsd.records import Case
from mlsd.units import as_ranges, format_number, format_percent, quoted

if TYPE_CHECKING:
    from mlsd.analysis.experts.coverage import Mixture
    from mlsd.analysis.fits.curves import Steps
    from mlsd.analysis.results.round_split import RoundSplit
    from mlsd.measure.parent.calibration import CalibrationResult


_WIDEST = 0.25  # half width of the widest interval, relative, up to which kernel steps are looked for
_OWN_LOAD = 1.5  # of a machine on which only this runs, at most


@click.group(cls=CommandGroup)
def calibrate() -> None:
    """Print what a pass of MODEL over k tokens costs for many k, T(k), and store it with a study's trials.

    Passes are timed in random order. For a mixture, the experts are counted as well, which shows whether verification
    amortizes.
    """


# --- passes -------------------------------------------------------------------------------------------------------


@calibrate.command("passes", default=True)
@shared.model_argument("target", metavar="MODEL")
@shared.options_of(CalibrateOptions)
@shared.output_option("Draw experts, or T(k), into this .png or .svg.", required=False)
@shared.json_option
@shared.build_option
def time_passes(target: str, output: Path | None, as_json: bool, **options: Any) -> None:
    """Print what a pass over k tokens costs for many k, T(k), and how many experts it reads."""
    draft = options["draft"]
    shared.check_models(target, draft)
    from mlsd.cli.watch import watching_steps
    from mlsd.measure.parent.calibration import calibrate as run_calibration

    if output is not None:
        from mlsd.report.page import check_figure_path

        check_figure_path(output)
    options["db"], budget_s = database_to_fill(options["db"]), options["budget_s"]
    asked = CalibrateOptions(target, **options)
    with watching_steps(f"Timing passes of {target}, {budget_s:g} s") as watcher:
        result = run_calibration(asked, watcher)
    from mlsd.analysis.study.machine_findings import calibration_findings
    from mlsd.hardware.metal_kernels import metal_steps
    from mlsd.report.tables.machine import costs_table, timed_table, widths_table

    facts, findings = result.models, calibration_findings(result, asked.rows, asked.depths)
    if output is not None:
        from mlsd.report.figures.machine import expert_shares, pass_curves
        from mlsd.report.page import write_figure

        curves = {f"{facts[0].ref.id}, depth {c.depth}": c for c in findings.curves}
        write_figure(lambda: expert_shares([findings.mixture]) if findings.mixture else pass_curves(curves), output)
    if as_json:
        print_json(
            {
                "database": result.database,
                "model": facts[0],
                "draft": facts[1] if draft else None,
                "half_width": result.half_width,
                "not_timed": findings.not_timed,
                "spent": result.spent,
                "exactness": result.exactness,
                "curves": findings.curves,
                "costs": findings.costs,
                "experts": findings.mixture and findings.mixture.coverage,
                "time_a_token": findings.mixture and findings.mixture.time_a_token,
                "figure": output and str(output),
            }
        )
        return
    unreliable = _why_unreliable(result.half_width, read_conditions().load_1min)
    kernels = metal_steps(result.build) if result.backend == "Metal" else None
    for curve in findings.curves:
        print_table(timed_table(facts[0].ref.id, curve))
        if result.exactness and curve is findings.curves[0]:
            print_table(widths_table(facts[0].ref.id, curve, result.exactness, kernels.rows if kernels else ()))
        if curve.steps is not None and not unreliable:
            _say_steps(curve.steps)
    for depth, widths in findings.not_timed.items():
        if widths:
            say(f"Not timed at depth {depth} within {budget_s:g} s: k = {as_ranges(widths)}.")
    print_table(costs_table(findings.costs))
    if findings.mixture is not None:
        _print_experts(findings.mixture)
    say(_summary(result))
    if unreliable:
        note(unreliable)
    note(f"Stored in {result.database}." if output is None else f"Stored in {result.database}, drawn in {output}.")


def _summary(result: CalibrationResult) -> str:
    if result.half_width is None:
        width = "an interval needs three repeats of every pass; a longer --budget-s gives them"
    else:
        width = f"the widest 95 % interval is +-{format_percent(result.half_width)}"
    repeats = "repeat" if result.n_repeats == 1 else "repeats"
    text = f"{result.n_repeats} {repeats}; {width}."
    if result.spent is None:
        return text
    seconds = dict(result.spent.seconds)
    load = seconds.pop("load", 0.0)
    parts = ", ".join(f"{part} {value:.1f} s" for part, value in seconds.items())
    text += f" Measuring took {sum(seconds.values()):.1f} s ({parts}), loading {load:.1f} s."
    return text


def _why_unreliable(half_width: float | None, load: float | None) -> str:
    """Why times with this widest interval are not to be trusted; empty where they are."""
    if half_width is not None and half_width <= _WIDEST:
        return ""
    width = "not known" if half_width is None else f"+-{format_percent(half_width)}"
    busy = f" Other programs use the machine (load {load:.1f})." if (load or 0) > _OWN_LOAD else ""
    return (
        f"Warning: the widest 95 % interval is {width}. Above +-{format_percent(_WIDEST, 0)} kernel steps "
        f"are not searched for, and the figures are unreliable.{busy} Repeat on a quiet machine, or raise --budget-s."
    )


def _say_steps(steps: Steps) -> None:
    jumps = [f"{edge} rows ({jump:+.2f} ms)" for edge, jump in zip(steps.edges, steps.jumps_ms, strict=True)]
    line = f"{steps.fixed_ms:.3f} + {steps.per_row_ms:.3f} k ms"
    say(f"Kernel steps found: {', '.join(jumps) or 'none'}; between them T(k) = {line}.")


def _print_experts(mixture: Mixture) -> None:
    from mlsd.report.tables.machine import share_sentences, share_table

    experts = mixture.coverage
    print_table(share_table(mixture))
    say(
        f"Of {experts.n_experts} experts a token uses {experts.n_used}; neighbours share "
        f"{format_number(experts.overlap)} of them. The busiest expert of a layer is chosen "
        f"{format_number(experts.imbalance, 1)} times as often as the mean."
    )
    for text in share_sentences(mixture):
        say(f"- {text}")


# --- memory itself ------------------------------------------------------------------------------------------------


@calibrate.command("memory")
@click.option(
    "--sizes-mb", type=shared.integers(), default=(100, 200, 400), help="Bytes a token [default: 100,200,400]."
)
@click.option(
    "--quant",
    "quants",
    multiple=True,
    default=("Q8_0", "Q4_0", "F16"),
    help="May be repeated [default: Q8_0, Q4_0, F16].",
)
@click.option("--read-mb", type=Whole(min=64), default=512, show_default=True, help="Array that numpy reads.")
@shared.declared_option(Timed, "repeats", "Turns of each kind of pass.", default=5)
@db_option()
@shared.json_option
@shared.build_option
@shared.engine_options
def measure_memory(db: Path | None, as_json: bool, **options: Any) -> None:
    """Print the memory's bandwidth: of a streaming read, and of single-token passes of models of known bytes.

    In GB/s (10^9). A line through bytes against time separates effective bandwidth from the fixed time of a pass. Sizes
    must be well above the caches.
    """
    from mlsd.analysis.study.machine_findings import bandwidth_findings
    from mlsd.cli.watch import watching_steps
    from mlsd.hardware import largest_cache_bytes
    from mlsd.measure.parent.bandwidth import measure_bandwidth
    from mlsd.report.tables.machine import bandwidth_table

    cache = largest_cache_bytes()
    sizes_mb = options["sizes_mb"]
    if cache is not None and min(sizes_mb) * 1_000_000 < 2 * cache:
        note(
            f"Warning: {min(sizes_mb)} MB may stay in a cache of {cache >> 20} MiB, which is then measured in place of "
            f"memory. Give --sizes-mb from {2 * cache // 1_000_000 + 1} on."
        )
    db = database_to_fill(db)
    with watching_steps("Measuring memory bandwidth") as watcher:
        result = measure_bandwidth(db, watcher, **options)
    findings = bandwidth_findings(result.reads, result.passes, result.n_threads, "just now")
    if as_json:
        print_json(
            {
                "stream_gb_s": findings.stream,
                "n_threads": result.n_threads,
                "lines": findings.lines,
                "passes": result.passes,
                "verdict": findings.verdict,
                "peak_gb_s": result.environment.peak_bandwidth_gb_s,
                "environment": result.environment,
                "database": result.database,
            }
        )
        return
    print_table(bandwidth_table(findings, result.environment))
    note(f"Stored in {result.database}.")


# --- parts of a pass ----------------------------------------------------------------------------------------------


@calibrate.command("parts")
@shared.model_argument("target", metavar="MODEL")
@shared.declared_option(CalibrateOptions, "draft", "Also profile a draft.")
@shared.declared_option(
    SearchOptions, "drafter", "Also a draft step of this method, and the parts of a round.", required=False
)
@click.option("--depth", type=Whole(min=1), default=128, show_default=True, help="Positions in the context.")
@shared.declared_option(CalibrateOptions, "rows", "k: positions of a pass [default: 1,5,9].", default=(1, 5, 9))
@shared.declared_option(Timed, "repeats", "Turns of each kind of pass.", default=5)
@click.option("--gamma", type=Whole(min=1), help="Of the rounds: the draft length [default: the preset's, else 4].")
@click.option("--prompt", default="code", show_default=True, help="Shipped prompt of the rounds.")
@shared.declared_option(Timed, "n_predict", "Output tokens of the rounds.", default=64)
@db_option()
@shared.json_option
@shared.build_option
@shared.engine_options
def profile_parts(target: str, depth: int, db: Path | None, as_json: bool, **options: Any) -> None:
    """Print which part of the network (attention, experts, LM head, ...) takes what share of a pass.

    This is profiling: reading the clock inside a pass slows it down, so its times are not speeds.
    """
    drafts = options["draft"] is not None or options["drafter"] is not None
    of_rounds = ("gamma", "prompt", "n_predict")
    shared.refuse(click.get_current_context(), of_rounds, not drafts, "the rounds of --draft or --drafter")
    shared.check_models(target, options["draft"])
    from mlsd.analysis.results.round_split import round_split
    from mlsd.cli.watch import watching_steps
    from mlsd.measure.parent.calibration import breakdown
    from mlsd.planning.request import bench_request
    from mlsd.report.tables.methods import shares_table
    from mlsd.trials.rates import sums
    from mlsd.trials.results import Measured

    names = {"draft": "drafts", "drafter": "drafters", "gamma": "gammas", "prompt": "prompts"}
    lists: dict[str, Any] = {name: (options[option],) for option, name in names.items() if options[option] is not None}
    request = bench_request(target=target, n_predict=options["n_predict"], engine=options["engine"], repeats=1, **lists)
    db = database_to_fill(db)
    of_passes = {name: options[name] for name in ("rows", "repeats")}
    with watching_steps(f"Profiling passes of {target}") as watcher:
        profile = breakdown(request, **of_passes, depth=depth, db=db, watcher=watcher)
    split = None
    if (case := profile.case) is not None:
        rounds = (sums([round_]) for trial in profile.trials for round_ in trial.rounds)
        split = round_split([Measured(case, trial, sums(trial.rounds), 0) for trial in profile.trials], rounds)
    if as_json:
        derived = ("shares", "inflation", "agreement", "in_doubt", "head_by_difference")
        shares = [
            {"network": profile.network(share), "record": share, **{name: getattr(share, name) for name in derived}}
            for share in profile.shares
        ]
        print_json({"shares": shares, "rounds": split, "profiling": True, "database": profile.database})
        return
    print_table(shares_table([(profile.network(shares), shares) for shares in profile.shares]))
    note(
        "PROFILING  T is the time of a plain pass. Shares come from passes that stop between parts, and are no speeds. "
        "`no outputs` is the share of T that outputs take: a second estimate of LM head and sampling."
    )
    if profile.why_in_doubt is not None:
        note(f"IN DOUBT (?)  {profile.why_in_doubt}")
    if split is not None and profile.case is not None:
        _print_rounds(split, profile.case)
    note(f"Stored in {profile.database}; `mlsd report --db {quoted(profile.database)}` shows it next to the methods.")


def _print_rounds(split: RoundSplit, case: Case) -> None:
    from mlsd.report.tables.methods import round_table

    print_table(round_table(case, split))
    if not split.timed:
        note("NOT TIMED  SD drafts inside the target; its times do not describe the method.")
    for label in split.fallbacks:
        note(f"FELL BACK  The draft uses its own memory: {label}")
    note(f"Means over the {split.rounds} rounds of one plain run on the prompt {case.prompt.key}.")
