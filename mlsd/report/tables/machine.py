"""Tables of the machine: calibrated models, bandwidth, predictions, experts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlsd.analysis.experts.coverage import Mixture
from mlsd.analysis.fits.calibration import PassTime, TargetCurve
from mlsd.analysis.frames import EXPERTS, PASSES, Counted, timed_passes
from mlsd.analysis.study.machine_findings import Bandwidth
from mlsd.columns import Column, chosen, column, inside
from mlsd.records import Environment
from mlsd.report.render.prose import prose
from mlsd.report.render.table import Cell, Table, Tone, interval, table
from mlsd.report.tables.columns import bounds
from mlsd.store.rows import WidthExactness
from mlsd.units import format_bytes

_SHOWN = (2, 5, 9, 17, 33)  # k of the table; the figure has all
_SHORT = 5  # a draft of 4, the least of the study, and the target's own token


def curve_table(curves: Mapping[str, TargetCurve]) -> Table:
    """T(1), target efficiency and kernel steps of every calibrated model."""

    def steps(row: tuple[str, TargetCurve]) -> str | None:
        found = row[1].steps
        return None if found is None else ", ".join(map(str, found.edges)) or "none"

    def between(row: tuple[str, TargetCurve]) -> str | None:
        found = row[1].steps
        return None if found is None else f"{found.fixed_ms:.3g} + {found.per_row_ms:.3g} k"

    def efficiency(k: int) -> Column:
        trace = "ratio of the medians; 1 costs nothing more, 1/k saves nothing"
        return column(f"T(1)/T({k})", "2", trace, lambda row: row[1].efficiency.get(k))

    return table(
        "Target passes of calibrated models",
        curves.items(),
        column("model", of="0"),
        column("depth", "n", "positions in the context", "1.depth"),
        column("T(1)", "[3] ms", "median over repeats, order statistics around it", lambda row: _plain(row[1]).ms),
        *map(efficiency, _SHOWN),
        column("kernel steps at rows", of=steps),
        column("between them, ms", of=between),
        id="pass-curves",
    )


def _plain(curve: TargetCurve) -> PassTime:
    return next(one for one in curve.passes if one.rows == 1)


_TIME = (
    column("k", "n", "positions in the pass", "time.rows"),
    column("T(k) ms", "3", "median over repeats", "time.ms.value"),
    column("95 % interval", "3", "order statistics", lambda p: bounds(p.time.ms.low, p.time.ms.high, 3)),
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
        [one for name, times in costs.items() for one in timed_passes(name, filter(shown, times))],
        *chosen(PASSES, "model kind k depth", k="rows"),
        column("ms", "4", "median over repeats", "time.ms.value"),
        column("95 % interval", "3", "order statistics", lambda p: bounds(p.time.ms.low, p.time.ms.high, 3)),
    )


def bandwidth_table(found: Bandwidth, environment: Environment) -> Table:
    """What a plain read and single-token passes get out of the memory."""
    peak = environment.peak_bandwidth_gb_s
    source = "not known" if peak is None else f"{peak:g} GB/s ({environment.peak_bandwidth_source})"

    def rows() -> Iterator[dict[str, Any]]:
        for n, read in found.stream.items():
            yield {"way": "plain read, numpy", "threads": n, "gb_s": read, "shown": interval(read, 1), "n": read.n}
        for line in found.lines:
            speed, fixed = line.bandwidth_gb_s, line.fixed_ms
            ends = ((speed, 1), (fixed, 3))  # whose interval may begin at nothing
            shown = [Cell(text=one.words(digits, ends="[{}, {}]"), sort=one.value) for one, digits in ends]
            way = {"way": f"llama.cpp, {line.quant}", "threads": found.n_threads, "gb_s": speed}
            yield way | {"shown": shown[0], "fixed": shown[1], "n": line.n_passes}

    def of_peak(row: dict[str, Any]) -> float | None:
        return None if peak is None else row["gb_s"].value / peak

    return table(
        "Memory bandwidth",
        rows(),
        column("way"),
        column("threads", "n", detail=True),
        column("GB/s (10⁹)", "1", "of passes: the slope over bytes; plain reads: median over repeats", "shown"),
        column("of the peak", "0%", "", of_peak),
        column("fixed ms a pass", "3", "time that no byte explains", "fixed"),
        column("timed", "n", "", "n", detail=True),
        id="bandwidth",
        note=f"{found.verdict.reason} Measured {found.measured_at}; published peak: {source}.",
    )  # fmt: skip


def share_table(found: Mixture) -> Table:
    """Experts, bytes and time of a token of each pass, beside theory and the study's claim."""
    counted = found.coverage
    sizes = ""
    if found.plain_bytes and found.weight_bytes:
        sizes = f" A plain pass reads {format_bytes(found.plain_bytes)} of {format_bytes(found.weight_bytes)}."

    def time_cell(row: Counted) -> Cell:
        time = found.time_a_token.get(row.row.window)
        tone: Tone = "caution"
        if row.row.window == 1 or time is None or time.low is None or time.high is None:
            tone = ""
        elif not time.low <= 1 <= time.high:
            tone = "good" if time.high < 1 else "bad"
        return interval(time, tone=tone)

    names = "k counted counted_drafted uniform correlated of_all_weights bytes_a_token uniform_bytes_a_token"
    return table(
        f"{found.name}: experts of a layer, and a token of a pass over k against a plain pass",
        [Counted(found, row) for row in counted.rows],
        *chosen(EXPERTS, names, correlated=f"one correlation, r = {counted.correlation:.2f}"),
        column("time a token", "2", "T(k) / (k T(1)), median over repeats", time_cell),
        column("the study: 1/k", "3", "all weights in every pass", "row.claimed"),
        id=f"experts-{''.join(c if c.isalnum() else '-' for c in found.name)}",
        note=f"{counted.n_used} of {counted.n_experts} experts a token, {counted.n_layers} layers.{sizes} "
        "1 saves nothing.",
    )


def share_sentences(found: Mixture) -> tuple[str, ...]:
    """What a pass over a short draft saves in bytes and in time, and what the study and MoESD say of it."""
    many, timed = [row for row in found.coverage.rows if row.window > 1], found.time_a_token
    known = [row for row in many if row.window <= _SHORT]
    near = max(known, key=lambda row: (row.window in timed, row.window), default=next(iter(many), None))
    return prose(
        "experts",
        model=found.name,
        near=near,
        k=near and near.window,
        table=found.coverage,
        of_weights=found.plain_of_weights,
        time=timed.get(near.window) if near else None,
        synthetic=found.synthetic,
    )
