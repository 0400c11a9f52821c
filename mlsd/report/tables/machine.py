"""Tables of the machine: calibrated models, bandwidth, predictions, experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlsd.analysis.experts.amortization import Mixture
from mlsd.analysis.experts.study_mixture import SHAPE, ReadBounds
from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.analysis.predict.prediction_error import Validation
from mlsd.analysis.study.machine_findings import Bandwidth
from mlsd.records import Environment
from mlsd.report.render.table import Cell, Table, Tone, head, interval, name, number, percent, text
from mlsd.stats import Interval
from mlsd.units import format_bytes

_TOLD = 20.0  # an interval of a wider ratio says nothing of a bandwidth
_SHOWN = (2, 5, 9, 17, 33)  # k of the table; the figure has all


def curve_table(curves: Mapping[str, TargetCurve]) -> Table:
    """T(1), target efficiency and kernel steps of every calibrated model."""
    rows = []
    for label, curve in curves.items():
        by_rows = {p.rows: p.ms for p in curve.passes}
        steps = curve.steps
        found = None if steps is None else ", ".join(map(str, steps.edges)) or "none"
        line = None if steps is None else f"{steps.fixed_ms:.3g} + {steps.per_row_ms:.3g} k"
        cells = [text(label), number(curve.depth, 0), interval(by_rows[1], 3, " ms")]
        cells += [number(curve.efficiency.get(k), 2) for k in _SHOWN]
        rows.append((*cells, text(found), text(line)))
    return Table(
        id="pass-curves",
        title="Target passes of calibrated models",
        heads=(
            name("model"),
            head("depth", "positions in the context"),
            head("T(1)", "calibration.target_curve: median over repeats, order statistics around it"),
            *(head(f"T(1)/T({k})", "ratio of the medians; 1 costs nothing more, 1/k saves nothing") for k in _SHOWN),
            name("kernel steps at rows", "curves.find_steps over T(1) to T(33)"),
            name("between them, ms", "curves.find_steps"),
        ),
        rows=tuple(rows),
        trace="table calibration: the newest run of each model on this machine",
    )


def bandwidth_table(found: Bandwidth, environment: Environment) -> Table:
    """What a plain read and single-token passes get out of the memory."""
    peak = environment.peak_bandwidth_gb_s
    rows: list[tuple[Cell, ...]] = [
        (
            text("plain read, numpy"),
            number(n, 0),
            interval(stream, 1),
            percent(None if peak is None else stream.value / peak, 0),
            text(None),
            number(stream.n, 0),
        )
        for n, stream in found.stream.items()
    ]
    rows += [
        (
            text(f"llama.cpp, {line.quant}"),
            number(found.n_threads, 0),
            _fixed(line.bandwidth_gb_s, 1),
            percent(None if peak is None else line.bandwidth_gb_s.value / peak, 0),
            _fixed(line.fixed_ms, 3),
            number(line.n_passes, 0),
        )
        for line in found.lines
    ]
    known = "not known" if peak is None else f"{peak:g} GB/s ({environment.peak_bandwidth_source})"
    return Table(
        id="bandwidth",
        title="Memory bandwidth",
        heads=(
            name("way"),
            head("threads"),
            head("GB/s (10⁹)", "bandwidth.bytes_lines; plain reads: median over repeats"),
            head("of the peak"),
            head("fixed ms a pass", "bandwidth.bytes_lines: T = fixed + bytes / BW"),
            head("timed"),
        ),
        rows=tuple(rows),
        trace="tables stream_read and known_pass: the newest bandwidth run of this machine",
        note=f"Measured {found.measured_at}. Published peak: {known}.",
    )


def validation_table(found: Validation) -> Table:
    """Every gamma predicted without its own trials."""
    rows = tuple(
        (
            text(row.target),
            text(row.draft or row.drafter),
            text(row.prompt),
            number(row.prediction.gamma, 0),
            number(row.prediction.predicted_tok_s, 1),
            number(row.prediction.measured_tok_s, 1),
            percent(row.prediction.error),
            percent(row.prediction.spread),
            number(row.prediction.predicted_mgl, 2),
            number(row.prediction.measured_mgl, 2),
            text("timed passes" if row.calibrated else "rounds of the other gammas"),
        )
        for row in found.checked
    )
    return Table(
        id="validation",
        title="Each gamma predicted without its own trials, on the same text",
        heads=(
            name("target"),
            name("draft or method"),
            name("prompt"),
            head("gamma"),
            head("predicted tok/s", "predict.leave_one_gamma_out"),
            head("measured tok/s", "median over trials"),
            head("error", "predicted / measured - 1"),
            head("spread", "of the measurement: half the range over the median"),
            head("predicted MGL", "replay of the other gammas' rounds"),
            head("measured MGL"),
            name("costs from"),
        ),
        rows=rows,
        trace="prediction_error.check_group over arms.read_groups",
        note=found.words,
        interactive=True,
    )


def share_table(found: Mixture) -> Table:
    """Experts, bytes and time of a token of each pass, beside theory and the study's claim."""
    rows = []
    for share, row in zip(found.shares, found.coverage.rows, strict=True):
        rows.append(
            (
                number(share.k, 0),
                number(row.text, 2),
                number(row.drafted, 2),
                number(row.uniform, 2),
                number(row.correlated, 2),
                percent(share.of_weights, 0),
                number(share.text_bytes, 3),
                number(share.uniform_bytes, 3),
                interval(share.time, 2, tone=_tone(share.time) if share.k > 1 else ""),
                number(share.claimed, 3),
            )
        )
    table = found.coverage
    sizes = ""
    if found.plain_bytes and found.weight_bytes:
        sizes = f" A plain pass reads {format_bytes(found.plain_bytes)} of {format_bytes(found.weight_bytes)}."
    return Table(
        id=f"experts-{_anchor(found.name)}",
        title=f"{found.name}: experts of a layer, and a token of a pass over k against a plain pass",
        heads=(
            head("k"),
            head("experts counted", "experts.coverage_table: mean over windows of real text and layers"),
            head("in drafted tokens", "the same in batches that a draft proposed"),
            head("uniform (MoESD)", "curves.distinct_experts: E (1 - (1 - K/E)^k)"),
            head(f"one correlation, r = {table.correlation:.2f}", "curves.distinct_experts: k^(1 - r) for k"),
            head("of all weights", "bytes of the pass over bytes of all weights"),
            head("bytes a token", "bytes(k) / (k bytes(1)), experts counted"),
            head("uniform (MoESD)", "the same, experts by MoESD"),
            head("time a token", "amortization.time_shares: T(k) / (k T(1)), median over repeats"),
            head("the study: 1/k", "all weights in every pass"),
        ),
        rows=tuple(rows),
        trace="amortization.mixture over tables coverage and calibration",
        note=f"{table.n_used} of {table.n_experts} experts a token, {table.n_layers} layers.{sizes} 1 saves nothing.",
    )


def _tone(share: Interval | None) -> Tone:
    if share is None or share.low is None or share.high is None:
        return ""
    return "good" if share.high < 1 else "bad" if share.low > 1 else "doubt"


def theory_table(found: Mixture) -> Table:
    """Forms of T(k) and how they predict k that they were not fitted to."""
    rows = []
    for theory in found.theories:
        estimates = theory.fitted.estimates
        rows.append(
            (
                text(theory.says, note=theory.fitted.formula),
                percent(theory.held_out.median_error),
                percent(theory.held_out.p95_error),
                _fixed(estimates["fixed_ms"], 3),
                _fixed(estimates["per_row_ms"], 3),
                _told(estimates.get("bandwidth_gb_s")),
                text("simplest that predicts as well" if theory.name == found.chosen else ""),
            )
        )
    return Table(
        id=f"theories-{_anchor(found.name)}",
        title=f"{found.name}: forms of T(k), by which experts a pass reads",
        heads=(
            name("a pass reads"),
            head("median error", "fit.held_out: each k predicted without its own times"),
            head("95th percentile"),
            head("fixed, ms"),
            head("a row, ms"),
            head("GB/s (10⁹)", "of the bytes that the form reads"),
            name(""),
        ),
        rows=tuple(rows),
        trace="amortization.theories: fit.fit and fit.select over the timed passes",
    )


def _fixed(estimate: Interval, digits: int) -> Cell:
    """An estimate whose interval may begin at nothing."""
    if estimate.low is None or estimate.high is None:
        return number(estimate.value, digits)
    span = f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
    return Cell(text=f"{estimate.value:.{digits}f} {span}", sort=estimate.value)


def _told(estimate: Interval | None) -> Cell:
    """A bandwidth, or that these times do not tell any."""
    if estimate is None:
        return text(None)
    if estimate.low is None or estimate.high is None or estimate.high > _TOLD * max(estimate.low, 1e-9):
        return text("not told by these times", "quiet")
    return interval(estimate, 1)


def bounds_table(bounds: Sequence[ReadBounds]) -> Table:
    """What the study's own mixture can read in a pass, from its shape."""
    rows = tuple(
        (
            number(b.k, 0),
            number(b.least_parameters / 1e9, 2),
            number(b.most_parameters / 1e9, 2),
            number(b.experts, 1),
            number(b.all_parameters / 1e9, 2),
            number(1 / b.k, 3),
            number(b.most_a_token, 3),
        )
        for b in bounds
    )
    return Table(
        id="study-mixture",
        title=f"The study's own mixture, {SHAPE}: parameters read by a pass, from its shape",
        heads=(
            head("k"),
            head("all tokens share experts, 10⁹", "the least: what a plain pass reads"),
            head("independent routing (MoESD), 10⁹", "study_mixture.read_bounds"),
            head("experts then", "of 256 a layer"),
            head("the study says, 10⁹", "all parameters, in every pass"),
            head("a token, sharing all or by the study", "1/k of a plain pass, whatever that reads"),
            head("a token, independent routing"),
        ),
        rows=rows,
        trace="study_mixture.read_bounds: exact counts of the published shape, nothing measured",
    )


def _anchor(label: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in label)
