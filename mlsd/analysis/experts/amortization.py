"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, times from the passes that were timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mlsd.analysis.experts.coverage import CoverageRow, CoverageTable
from mlsd.analysis.fits.calibration import median_interval
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint
from mlsd.units import format_percent, quoted

_K = 5  # a draft of 4, the least of the study, and the target's own token
_ALL, _NOTHING = 0.9, 0.1  # of what a dense model saves


class Mixture(Record, frozen=True, kw_only=True):
    """What was measured of one mixture of experts."""

    name: str
    coverage: CoverageTable
    time_a_token: dict[int, Interval]  # T(k) / (k T(1)) of each k timed: 1 saves nothing, 1/k is free verification
    plain_bytes: int | None  # of a plain pass
    weight_bytes: int | None
    synthetic: bool  # random weights: bytes and times are real, the routing is a random router's

    @property
    def plain_of_weights(self) -> float | None:
        """Bytes of a plain pass over all weights."""
        return self.plain_bytes / self.weight_bytes if self.plain_bytes and self.weight_bytes else None


def mixture(name: str, table: CoverageTable, facts: ModelFacts, points: Sequence[CalibrationPoint] = ()) -> Mixture:
    """Bytes and times of a token of each pass whose experts were counted; times at the smallest depth timed."""
    passes = [p for p in points if p.kind == "target_pass"]
    depth = min((p.depth for p in passes), default=None)
    return Mixture(
        name=name,
        coverage=table,
        time_a_token=time_shares([p for p in passes if p.depth == depth]),
        plain_bytes=facts.active_bytes,
        weight_bytes=facts.weight_bytes,
        synthetic=facts.synthetic,
    )


def time_shares(passes: Sequence[CalibrationPoint]) -> dict[int, Interval]:
    """T(k) / (k T(1)) by k: the median over repeats of ratios within a repeat, where what slows the machine cancels."""
    plain = {p.repeat: p.span_ns for p in passes if p.rows == 1}
    paired = sorted(grouped((p for p in passes if p.repeat in plain), lambda p: p.rows).items())
    return {k: median_interval([p.span_ns / (k * plain[p.repeat]) for p in own]) for k, own in paired}


# --- the answer in sentences --------------------------------------------------------------------------------------


def sentences(found: Mixture) -> tuple[str, ...]:
    """What a pass over a short draft saves in bytes and in time, and what the study and MoESD say of it."""
    many = [row for row in found.coverage.rows if row.window > 1]
    if not many:
        return (f"{found.name}: experts were counted for single tokens only, which cannot amortize.",)
    timed = found.time_a_token
    near = max((r for r in many if r.window <= _K), key=lambda r: (r.window in timed, r.window), default=many[0])
    return _bytes(found, near), _time(found, near), _routing(found, near)


def _bytes(found: Mixture, near: CoverageRow) -> str:
    k = near.window
    if near.amortization is None or near.against_all is None or found.plain_of_weights is None:
        return (
            f"{found.name}: {k} tokens choose {near.text:.1f} experts of a layer, where as many plain passes read "
            f"{k * found.coverage.n_used}; how many bytes they have is not known of this file."
        )
    of_dense = (1 - near.amortization) / (1 - near.claimed)
    verdict = "amortizes as on a dense model" if of_dense >= _ALL else "amortizes in part"
    verdict = "hardly amortizes" if of_dense <= _NOTHING else verdict
    return (
        f"{found.name}, bytes at batch one: verification {verdict}. A pass over {k} tokens (gamma {k - 1}) reads "
        f"{_percent(1 - near.amortization)} less than {k} plain passes, where the study says "
        f"{_percent(1 - near.claimed)}, for it takes every pass to read all weights (sections 2.3, 5.1, 5.2). Counted, "
        f"a plain pass reads "
        f"{_percent(found.plain_of_weights)} of them, one over {k} tokens {_percent(near.against_all)}."
    )


def _time(found: Mixture, near: CoverageRow) -> str:
    k, time = near.window, found.time_a_token.get(near.window)
    if time is None:
        return f"Passes over several tokens were not timed: mlsd calibrate {quoted(found.name)}."
    passes = k * time.value
    text = (
        f"T({k}) is {passes:.2f} T(1), {_times(time)} of a plain pass a token: a round over {k} tokens gains only if "
        f"it commits more than {passes:.2f} of them, drafting not counted."
    )
    if near.amortization is None or time.low is None or time.high is None:
        return text
    if time.low > near.amortization:
        return f"{text} That is more time than bytes: arithmetic, not memory, decides here."
    if time.high < near.amortization:
        return f"{text} That is less time than bytes: a fixed time of each pass is shared too."
    return f"{text} Time follows bytes as far as the measurement can tell."


def _routing(found: Mixture, near: CoverageRow) -> str:
    table, k = found.coverage, near.window
    text = (
        f"Independent uniform routing (MoESD) expects {near.uniform:.1f} experts in {k} tokens, {near.text:.1f} were "
        f"counted. Over all k it misses by at most {_percent(table.uniform_error)}, one correlation, "
        f"r = {_times(table.correlation_interval)}, by {_percent(table.correlated_error)}."
    )
    if found.synthetic:
        text += (
            " The weights are random, so this is a random router's choice; a trained one chooses otherwise. In a model "
            "cut in depth, embedding and head are a larger share of the bytes, which flatters it (mlsd advise scales "
            "them)."
        )
    return text


_percent = partial(format_percent, digits=0)


def _times(estimate: Interval) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} (95 % {estimate.low:.2f} to {estimate.high:.2f})"
