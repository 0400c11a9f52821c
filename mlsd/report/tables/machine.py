"""Tables of the machine: calibrated models, bandwidth, predictions, experts."""

from collections.abc import Callable, Mapping, Sequence

from mlsd.analysis.experts.coverage import CoverageRow, Mixture
from mlsd.analysis.fits.calibration import PassTime, TargetCurve
from mlsd.analysis.predict.prediction_error import Validation
from mlsd.analysis.study.machine_findings import Bandwidth
from mlsd.measure.messages import WidthExactness
from mlsd.records import Environment
from mlsd.report.render.prose import prose
from mlsd.report.render.table import Cell, Column, Table, Tone, interval, number, numbers, percent, table, text, words
from mlsd.report.tables.columns import bounds, like
from mlsd.stats import Interval
from mlsd.units import format_bytes

_SHOWN = (2, 5, 9, 17, 33)  # k of the table; the figure has all
_SHORT = 5  # a draft of 4, the least of the study, and the target's own token


def curve_table(curves: Mapping[str, TargetCurve]) -> Table:
    """T(1), target efficiency and kernel steps of every calibrated model."""

    def efficiency(k: int) -> Column[tuple[str, TargetCurve]]:
        trace = "ratio of the medians; 1 costs nothing more, 1/k saves nothing"
        return numbers(f"T(1)/T({k})", lambda row: number(row[1].efficiency.get(k)), trace)

    return table(
        "Target passes of calibrated models",
        curves.items(),
        words("model", lambda row: row[0]),
        numbers("depth", lambda row: row[1].depth, "positions in the context"),
        numbers(
            "T(1)",
            lambda row: interval(next(p.ms for p in row[1].passes if p.rows == 1), 3, " ms"),
            "median over repeats, order statistics around it",
        ),
        *map(efficiency, _SHOWN),
        words("kernel steps at rows", lambda row: row[1].steps and (", ".join(map(str, row[1].steps.edges)) or "none")),
        words(
            "between them, ms",
            lambda row: row[1].steps and f"{row[1].steps.fixed_ms:.3g} + {row[1].steps.per_row_ms:.3g} k",
        ),
        id="pass-curves",
    )


def timed_table(model: str, curve: TargetCurve) -> Table:
    """Every pass of one curve."""
    return table(
        f"T(k) of {model} at depth {curve.depth}",
        curve.passes,
        numbers("k", lambda p: p.rows),
        numbers("T(k), ms", lambda p: number(p.ms.value, 3)),
        numbers("95 % interval", lambda p: bounds(p.ms.low, p.ms.high, 3)),
        numbers("T(1)/T(k)", lambda p: number(curve.efficiency[p.rows], 3)),
        numbers("T(k)/(k T(1))", lambda p: number(curve.per_row[p.rows], 3), detail=True),
    )


def widths_table(model: str, curve: TargetCurve, exactness: Sequence[WidthExactness], steps: Sequence[int]) -> Table:
    """For each width what a pass costs, whether it gives what single passes give, and where kernels change."""
    by_rows, one = {each.rows: each for each in exactness}, next(p.ms.value for p in curve.passes if p.rows == 1)
    n_tokens = max((each.n_tokens for each in exactness), default=0)
    return table(
        f"Widths of {model} at depth {curve.depth}, compared over up to {n_tokens} tokens",
        [p for p in curve.passes if p.rows == 1 or p.rows in by_rows],
        numbers("k", lambda p: p.rows),
        numbers("T(k), ms", lambda p: number(p.ms.value, 3)),
        numbers("95 % interval", lambda p: bounds(p.ms.low, p.ms.high, 3)),
        numbers("plain passes", lambda p: number(p.ms.value / one, 2), "T(k) / T(1)"),
        words("equal", lambda p: _equal(by_rows.get(p.rows)), "every logit bit for bit that of single passes"),
        numbers("tokens", lambda p: _of_width(by_rows.get(p.rows), lambda w: number(w.n_tokens, 0)), "compared"),
        numbers("changed", lambda p: _of_width(by_rows.get(p.rows), lambda w: number(w.n_changed, 0)), "of them"),
        numbers(
            "largest gap", lambda p: _of_width(by_rows.get(p.rows), lambda w: number(w.largest_gap, 4)),
            "between the two best logits where a token changed",
        ),
        numbers(
            "largest difference",
            lambda p: _of_width(by_rows.get(p.rows), lambda w: number(w.largest_difference, 5)), "of a logit",
            detail=True,
        ),
        words("kernel", lambda p: "new" if p.rows in steps else "", "Metal takes another kernel from this width on"),
        note="Equal over so many tokens is no promise of more: a later one may lie nearer to a tie.",
    )  # fmt: skip


def _equal(width: WidthExactness | None) -> str:
    return "" if width is None else "yes" if width.is_equal else "no"


def _of_width(width: WidthExactness | None, show: Callable[[WidthExactness], Cell]) -> Cell:
    return Cell(text="-") if width is None else show(width)


def costs_table(costs: Mapping[str, Sequence[PassTime]]) -> Table:
    """What else was timed, by model; of what is timed at every width a few tell the story."""
    return table(
        "Other costs",
        [
            (name, row)
            for name, rows in costs.items()
            for row in rows
            if row.kind not in ("sample", "rollback") or row.rows in (1, *_SHOWN)
        ],
        words("model", lambda row: row[0]),
        words("kind", lambda row: row[1].kind),
        numbers("rows", lambda row: row[1].rows),
        numbers("depth", lambda row: row[1].depth),
        numbers("ms", lambda row: number(row[1].ms.value, 3 if row[1].ms.value > 0.1 else 4)),
        numbers("95 % interval", lambda row: bounds(row[1].ms.low, row[1].ms.high, 3)),
    )


def bandwidth_table(found: Bandwidth, environment: Environment) -> Table:
    """What a plain read and single-token passes get out of the memory."""
    peak = environment.peak_bandwidth_gb_s
    known = "not known" if peak is None else f"{peak:g} GB/s ({environment.peak_bandwidth_source})"
    # way, threads, GB/s, its cell, fixed ms, times measured
    rows: list[tuple[str, int, Interval, Cell, Cell, int]] = [
        ("plain read, numpy", n, stream, interval(stream, 1), text(None), stream.n)
        for n, stream in found.stream.items()
    ]
    for line in found.lines:
        shown = ((line.bandwidth_gb_s, 1), (line.fixed_ms, 3))  # whose interval may begin at nothing
        speed, fixed = (Cell(text=one.words(digits, ends="[{}, {}]"), sort=one.value) for one, digits in shown)
        rows.append((f"llama.cpp, {line.quant}", found.n_threads, line.bandwidth_gb_s, speed, fixed, line.n_passes))
    return table(
        "Memory bandwidth",
        rows,
        words("way", lambda row: row[0]),
        numbers("threads", lambda row: row[1], detail=True),
        numbers("GB/s (10⁹)", lambda row: row[3], "of passes: the slope over bytes; plain reads: median over repeats"),
        numbers("of the peak", lambda row: percent(None if peak is None else row[2].value / peak, 0)),
        numbers("fixed ms a pass", lambda row: row[4], "time that no byte explains"),
        numbers("timed", lambda row: row[5], detail=True),
        id="bandwidth",
        note=f"{found.verdict.reason} Measured {found.measured_at}; published peak: {known}.",
    )


def validation_table(found: Validation) -> Table:
    """Every gamma predicted without its own times."""
    return table(
        "Each gamma predicted from the times of the others, its rounds as they were",
        found.checked,
        words("target", lambda row: row.target),
        words("draft or method", lambda row: row.setting),
        words("prompt", lambda row: row.prompt),
        numbers("gamma", lambda row: row.gamma),
        numbers("predicted tok/s", lambda row: number(row.predicted_tok_s, 1)),
        numbers("measured tok/s", lambda row: number(row.measured_tok_s, 1), "as of the arm"),
        numbers("error", lambda row: percent(row.error), "predicted / measured - 1"),
        like("spread", lambda row: percent(row.spread)),
        numbers("MGL", lambda row: number(row.mgl)),
        words("costs from", lambda row: "timed passes" if row.calibrated else "rounds of the other gammas"),
        id="validation",
        note=found.words,
        interactive=True,
    )


def share_table(found: Mixture) -> Table:
    """Experts, bytes and time of a token of each pass, beside theory and the study's claim."""
    counted = found.coverage
    sizes = ""
    if found.plain_bytes and found.weight_bytes:
        sizes = f" A plain pass reads {format_bytes(found.plain_bytes)} of {format_bytes(found.weight_bytes)}."

    def time_cell(row: CoverageRow) -> Cell:
        time = found.time_a_token.get(row.window)
        tone: Tone = "caution"
        if row.window == 1 or time is None or time.low is None or time.high is None:
            tone = ""
        elif not time.low <= 1 <= time.high:
            tone = "good" if time.high < 1 else "bad"
        return interval(time, tone=tone)

    return table(
        f"{found.name}: experts of a layer, and a token of a pass over k against a plain pass",
        counted.rows,
        numbers("k", lambda row: row.window),
        numbers("experts counted", lambda row: number(row.text), "mean over windows of real text and layers"),
        numbers("in drafted tokens", lambda row: number(row.drafted), "the same in batches that a draft proposed"),
        numbers("uniform (MoESD)", lambda row: number(row.uniform), "E (1 - (1 - K/E)^k)"),
        numbers(
            f"one correlation, r = {counted.correlation:.2f}", lambda row: number(row.correlated), "k^(1 - r) for k"
        ),
        numbers("of all weights", lambda row: percent(row.against_all, 0), "bytes of the pass over all"),
        numbers("bytes a token", lambda row: number(row.amortization, 3), "bytes(k) / (k bytes(1)), experts counted"),
        numbers("uniform (MoESD)", lambda row: number(row.uniform_amortization, 3), "the same, experts by MoESD"),
        numbers("time a token", time_cell, "T(k) / (k T(1)), median over repeats"),
        numbers("the study: 1/k", lambda row: number(row.claimed, 3), "all weights in every pass"),
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
