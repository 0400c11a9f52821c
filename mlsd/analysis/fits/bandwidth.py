"""Effective bandwidth and fixed time of a pass from passes of known bytes; whether a plain read agrees, and why not."""

from collections.abc import Sequence

from mlsd.analysis.fits.calibration import median_interval
from mlsd.analysis.fits.fit import fit, observations
from mlsd.analysis.fits.fit_models import bytes_line
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import Interval
from mlsd.store.rows import TimedPass

AGREE = 0.2  # two ways may differ by so much
_SAME_RATE = 0.15  # quantizations whose GB/s differ by less are bound by the same thing


class BytesLine(Record, frozen=True, kw_only=True):
    """``T = fixed + bytes / BW`` of one quantization."""

    quant: str
    fixed_ms: Interval
    bandwidth_gb_s: Interval  # 10^9 bytes a second
    relative_error: float  # root mean square of the log residuals
    n_passes: int


class BandwidthVerdict(Record, frozen=True, kw_only=True):
    """How llama.cpp's fastest quantization compares with a plain read on as many threads."""

    ratio: float  # llama.cpp / numpy
    agrees: bool
    reason: str


def bytes_lines(passes: Sequence[TimedPass]) -> list[BytesLine]:
    """One line a quantization, fastest first. Raises AnalysisError below three passes of a quantization."""
    lines = []
    for quant in dict.fromkeys(p.quant for p in passes):
        of_quant = [p for p in passes if p.quant == quant]
        if len({p.n_bytes for p in of_quant}) < 2:
            raise AnalysisError(
                f"{quant} was timed at one size: bandwidth and fixed time cannot be separated.", hint="Give more sizes."
            )
        data = observations(
            [p.ms for p in of_quant], [p.block for p in of_quant], pass_bytes=[p.n_bytes for p in of_quant]
        )
        fitted = fit(bytes_line(), data)
        lines.append(
            BytesLine(
                quant=quant,
                fixed_ms=fitted.estimates["fixed_ms"],
                bandwidth_gb_s=fitted.estimates["bandwidth_gb_s"],
                relative_error=fitted.relative_error,
                n_passes=len(of_quant),
            )
        )
    return sorted(lines, key=lambda line: -line.bandwidth_gb_s.value)


def compare(lines: Sequence[BytesLine], stream_gb_s: Sequence[float]) -> BandwidthVerdict:
    """Hold the fastest quantization against a streaming read, and say what the figures point to where they differ."""
    best, worst = lines[0].bandwidth_gb_s.value, lines[-1].bandwidth_gb_s.value
    stream = median_interval(stream_gb_s).value
    rates = ", ".join(f"{line.quant} {line.bandwidth_gb_s.value:.1f}" for line in lines)
    uneven = best / worst - 1 > _SAME_RATE
    agrees = abs(best / stream - 1) <= AGREE
    if agrees:
        why = "both ways agree" + "; slower quantizations are bound by their arithmetic" * uneven
    elif best > stream:
        why = "weights stay in a cache between passes, or numpy is bound by its arithmetic: larger --sizes-mb decide it"
    elif uneven:
        why = "GB/s depend on the quantization, so llama.cpp is bound by arithmetic, not by memory"
    elif len(lines) == 1:
        why = "one quantization does not tell memory from arithmetic: time a second one"
    else:
        why = "what they share, access pattern or threads, holds llama.cpp back"
    return BandwidthVerdict(
        ratio=best / stream, agrees=agrees, reason=f"llama.cpp reads {rates} GB/s, numpy {stream:.1f}: {why}."
    )
