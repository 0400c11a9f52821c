"""Tables of the machine: calibrated models, bandwidth, predictions, experts."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlsd.analysis.experts.coverage import Mixture
from mlsd.analysis.fits.calibration import PassTime, TargetCurve
from mlsd.analysis.frames import EXPERTS, PASSES, Counted, timed_passes
from mlsd.analysis.study.machine_findings import Bandwidth
from mlsd.columns import chosen, column, columns, inside
from mlsd.records import Environment
from mlsd.report.render.prose import prose
from mlsd.report.render.table import Table, table
from mlsd.store.rows import WidthExactness
from mlsd.units import format_bytes

_SHOWN = (2, 5, 9, 17, 33)  # k of the table; the figure has all
_SHORT = 5  # a draft of 4, the least of the study, and the target's own token


def curve_table(curves: Mapping[str, TargetCurve]) -> Table:
    """T(1), target efficiency and kernel steps of every calibrated model."""
    saved = "ratio of the medians; 1 costs nothing more, 1/k saves nothing"
    of_steps = (
        column("kernel steps at rows", of=lambda steps: ", ".join(map(str, steps.edges)) or "none"),
        column("between them, ms", of=lambda steps: f"{steps.fixed_ms:.3g} + {steps.per_row_ms:.3g} k"),
    )
    return table(
        "Target passes of calibrated models",
        curves.items(),
        *columns("model=0; depth:n=1.depth"),
        column("T(1)", "[3] ms", "median over repeats, order statistics around it", lambda row: _plain(row[1]).ms),
        *(column(f"T(1)/T({k})", "2", saved, lambda row, k=k: row[1].efficiency.get(k)) for k in _SHOWN),  # type: ignore[misc]
        *inside("1.steps", of_steps),
        id="pass-curves",
    )


def _plain(curve: TargetCurve) -> PassTime:
    return next(time for time in curve.passes if time.rows == 1)


_TIME = (
    column("k", "n", "positions in the pass", "time.rows"),
    column("T(k) ms", "3", "median over repeats", "time.ms.value"),
    column("95 % interval", "3..", "order statistics", "time.ms"),
)  # of a `PassRow`


def timed_table(model: str, curve: TargetCurve) -> Table:
    """Every pass of one curve."""
    passes, ratios = timed_passes(model, curve.passes), chosen(PASSES, "efficiency time_a_token")
    return table(f"T(k) of {model} at depth {curve.depth}", passes, *_TIME, *ratios)


def widths_table(model: str, curve: TargetCurve, exactness: Sequence[WidthExactness], steps: Sequence[int]) -> Table:
    """For each width what a pass costs, whether it gives what single passes give, and where kernels change."""
    by_rows, plain_ms = {each.rows: each for each in exactness}, _plain(curve).ms.value
    passes = [p for p in timed_passes(model, curve.passes) if p.time.rows == 1 or p.time.rows in by_rows]
    return table(
        f"Widths of {model} at depth {curve.depth}, compared over up to "
        f"{max((each.n_tokens for each in exactness), default=0)} tokens",
        passes,
        *_TIME,
        column("plain passes", "2", "T(k) / T(1)", lambda p: p.time.ms.value / plain_ms),
        *inside(lambda p: by_rows.get(p.time.rows), _EXACTNESS),
        column("kernel", "", "Metal takes another kernel from this width on",
               lambda p: "new" if p.time.rows in steps else ""),
        note="Equal over so many tokens is no promise of more: a later one may lie nearer to a tie.",
    )  # fmt: skip


_EXACTNESS = (  # of a `WidthExactness`
    column("equal", "flag", "every logit bit for bit that of single passes", "is_equal"),
    column("tokens", "n", "compared", "n_tokens"),
    column("changed", "n", "of them", "n_changed"),
    column("largest gap", "4", "between the two best logits where a token changed", "largest_gap"),
    column("largest difference", "5", "of a logit", "largest_difference", detail=True),
)


def costs_table(costs: Mapping[str, Sequence[PassTime]]) -> Table:
    """What else was timed, by model; of what is timed at every width a few tell the story."""

    def shown(time: PassTime) -> bool:
        return time.kind not in ("sample", "rollback") or time.rows in (1, *_SHOWN)

    return table(
        "Other costs",
        [row for name, times in costs.items() for row in timed_passes(name, filter(shown, times))],
        *chosen(PASSES, "model kind k depth", k="rows"),
        column("ms", "4", "median over repeats", "time.ms.value"),
        column("95 % interval", "3..", "order statistics", "time.ms"),
    )


def bandwidth_table(bandwidth: Bandwidth, environment: Environment) -> Table:
    """What a plain read and single-token passes get out of the memory."""
    peak = environment.peak_bandwidth_gb_s
    source = "not known" if peak is None else f"{peak:g} GB/s ({environment.peak_bandwidth_source})"
    rows: list[dict[str, Any]] = [
        {"way": "plain read, numpy", "threads": n, "gb_s": speed, "timed": speed.n}
        for n, speed in bandwidth.stream.items()
    ]
    for line in bandwidth.lines:
        row = {"way": f"llama.cpp, {line.quant}", "threads": bandwidth.n_threads, "gb_s": line.bandwidth_gb_s}
        rows.append(row | {"fixed": line.fixed_ms, "timed": line.n_passes})
    return table(
        "Memory bandwidth",
        rows,
        *columns("way; threads:n*"),
        column("GB/s (10⁹)", "[1]", "of passes: the slope over bytes; plain reads: median over repeats", "gb_s"),
        column("of the peak", "0%", "", lambda row: None if peak is None else row["gb_s"].value / peak),
        column("fixed ms a pass", "[3]", "time that no byte explains", "fixed"),
        *columns("timed:n*"),
        id="bandwidth",
        note=f"{bandwidth.verdict.reason} Measured {bandwidth.measured_at}; published peak: {source}.",
    )


def share_table(mixture: Mixture) -> Table:
    """Experts, bytes and time of a token of each pass, beside theory and the study's claim."""
    coverage = mixture.coverage
    sizes = ""
    if mixture.plain_bytes and mixture.weight_bytes:
        sizes = f" A plain pass reads {format_bytes(mixture.plain_bytes)} of {format_bytes(mixture.weight_bytes)}."

    names = (
        "k counted counted_drafted uniform correlated of_all_weights bytes_a_token uniform_bytes_a_token time_a_token"
    )
    return table(
        f"{mixture.name}: experts of a layer, and a token of a pass over k against a plain pass",
        [Counted(mixture, row) for row in coverage.rows],
        *chosen(EXPERTS, names, correlated=f"one correlation, r = {coverage.correlation:.2f}"),
        column("the study: 1/k", "3", "all weights in every pass", "row.claimed"),
        id=f"experts-{''.join(c if c.isalnum() else '-' for c in mixture.name)}",
        note=f"{coverage.n_used} of {coverage.n_experts} experts a token, {coverage.n_layers} layers.{sizes} "
        "1 saves nothing.",
    )


def share_sentences(mixture: Mixture) -> tuple[str, ...]:
    """What a pass over a short draft saves in bytes and in time, and what the study and MoESD say of it."""
    several, timed = [row for row in mixture.coverage.rows if row.window > 1], mixture.time_a_token
    short = [row for row in several if row.window <= _SHORT]
    near = max(short, key=lambda row: (row.window in timed, row.window), default=next(iter(several), None))
    return prose(
        "experts",
        model=mixture.name,
        near=near,
        k=near and near.window,
        table=mixture.coverage,
        of_weights=mixture.plain_of_weights,
        time=timed.get(near.window) if near else None,
        synthetic=mixture.synthetic,
    )
