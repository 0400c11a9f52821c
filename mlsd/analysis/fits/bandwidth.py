"""Effective bandwidth and fixed time of a pass from passes of known bytes; whether a plain read agrees, and why not."""

from __future__ import annotations

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
        own = [p for p in passes if p.quant == quant]
        if len({p.n_bytes for p in own}) < 2:
            raise AnalysisError(
                f"{quant} was timed at one size: bandwidth and fixed time cannot be separated.", hint="Give more sizes."
            )
        data = observations([p.ms for p in own], [p.block for p in own], pass_bytes=[p.n_bytes for p in own])
        found = fit(bytes_line(), data)
        lines.append(
            BytesLine(
                quant=quant,
                fixed_ms=found.estimates["fixed_ms"],
                bandwidth_gb_s=found.estimates["bandwidth_gb_s"],
                relative_error=found.relative_error,
                n_passes=len(own),
            )
        )
    return sorted(lines, key=lambda line: -line.bandwidth_gb_s.value)


def compare(lines: Sequence[BytesLine], stream_gb_s: Sequence[float]) -> BandwidthVerdict:
    """Hold the fastest quantization against a streaming read, and say what the figures point to where they differ."""
    best, worst = lines[0], lines[-1]
    stream = median_interval(stream_gb_s).value
    ratio = best.bandwidth_gb_s.value / stream
    uneven = best.bandwidth_gb_s.value / worst.bandwidth_gb_s.value - 1
    rates = ", ".join(f"{line.quant} {line.bandwidth_gb_s.value:.1f}" for line in lines)
    if abs(ratio - 1) <= AGREE:
        reason = f"Both ways agree: {best.quant} reads {best.bandwidth_gb_s.value:.1f} GB/s, numpy {stream:.1f}."
        if uneven > _SAME_RATE:
            reason += f" Slower quantizations are bound by their arithmetic, not by memory ({rates} GB/s)."
    elif ratio < 1 and uneven > _SAME_RATE:
        reason = (
            f"llama.cpp is bound by arithmetic here, not by memory: GB/s depend on the quantization ({rates}), and a "
            f"plain read gives {stream:.1f}. More threads, or wider vector units, would bring them together."
        )
    elif ratio < 1 and len(lines) == 1:
        reason = (
            f"{best.quant} reads {best.bandwidth_gb_s.value:.1f} GB/s, numpy {stream:.1f}. One quantization does not "
            "tell whether memory or arithmetic is the limit: time a second one (--quant Q4_0 --quant F16)."
        )
    elif ratio < 1:
        reason = (
            f"All quantizations read {rates} GB/s, a plain read gives {stream:.1f}: what they share, access pattern or "
            f"threads, holds llama.cpp back, not the arithmetic of one format."
        )
    else:
        reason = (
            f"llama.cpp reads faster ({rates} GB/s) than numpy's {stream:.1f}: weights stay in a cache between passes, "
            f"or numpy's read is bound by its own arithmetic. Larger --sizes-mb decide it."
        )
    return BandwidthVerdict(ratio=ratio, agrees=abs(ratio - 1) <= AGREE, reason=reason)
