"""Memory in the passes of a study: bytes a second of plain decoding, and what a faster memory could give."""

from __future__ import annotations

from mlsd.analysis.results import metrics
from mlsd.analysis.results.pairs import over_groups
from mlsd.analysis.study.study import Study
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import Interval


class MemoryUse(Record, frozen=True, kw_only=True):
    """Plain decoding of one target as reads of its weights."""

    target: str
    pass_bytes: int  # weights read for one token
    t_one_ms: Interval  # T(1), over repeats
    bandwidth_gb_s: float  # bytes / T(1): below what the memory gives, as T(1) holds more than reading
    peak_fraction: float | None  # of the memory's peak, where that is known


class FasterMemory(Record, frozen=True, kw_only=True):
    """Plain decoding of one target if its memory were faster and nothing else."""

    target: str
    factor: float
    now_tok_s: float  # 1 / T(1), which is also the answer if no part of a pass waits for memory
    most_tok_s: float  # if all of T(1) is reading
    fitted_tok_s: float | None  # by the fitted curve, where the chosen one has a bandwidth


def memory_use(study: Study) -> list[MemoryUse]:
    """Bytes and time of a single-token pass of each target. Raises AnalysisError when no size or time is known.

    ``bandwidth = bytes read for one token / T(1)``; T(1) is the verification time of the AR arm's rounds.
    """
    times = metrics.pass_times(study.outcomes, study.trials)
    found = []
    for target in dict.fromkeys(study.trials["target"]):
        facts = study.facts.get(target)
        single = times[(times["target"] == target) & (times["k"] == 1)]
        if facts is None or not facts.active_bytes or single.empty:
            continue
        t_one = over_groups(list(single["ms"]), list(single["repeat"]), ratio=True)
        bandwidth = facts.active_bytes / t_one.value / 1e6
        peak = study.environment.peak_bandwidth_gb_s
        found.append(
            MemoryUse(
                target=target,
                pass_bytes=facts.active_bytes,
                t_one_ms=t_one,
                bandwidth_gb_s=bandwidth,
                peak_fraction=bandwidth / peak if peak else None,
            )
        )
    if not found:
        raise AnalysisError("No target has both a known size and a timed single-token pass.", hint="Run suite A or C.")
    return found


def faster_memory(study: Study, factor: float) -> list[FasterMemory]:
    """What `factor` times the bandwidth could give each target: between nothing and all of it.

    ``T'(1) = T(1) - (bytes / BW) (1 - 1 / factor)`` with BW of the fitted curve; at least T(1) / factor.
    """
    bandwidths = {curve.target: curve.bandwidth_gb_s for curve in study.curve_fits}
    found = []
    for use in memory_use(study):
        t_one, bandwidth = use.t_one_ms.value, bandwidths.get(use.target)
        fitted = None
        if bandwidth:
            reading = min(use.pass_bytes / bandwidth / 1e6, t_one)
            fitted = 1e3 / (t_one - reading * (1 - 1 / factor))
        found.append(
            FasterMemory(
                target=use.target,
                factor=factor,
                now_tok_s=1e3 / t_one,
                most_tok_s=1e3 * factor / t_one,
                fitted_tok_s=fitted,
            )
        )
    return found
