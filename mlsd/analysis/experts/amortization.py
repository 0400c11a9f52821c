"""Does verification amortize on a mixture of experts at batch one: k tokens in one pass against k plain passes.

The study (sections 2.3, 5.1 and 5.2) takes all weights to be read by every pass whatever the router chooses, so that a
token of k costs 1/k. Here bytes come from the experts that were counted, times from the passes that were timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from mlsd.analysis.experts.coverage import CoverageRow, CoverageTable
from mlsd.analysis.fits.calibration import median_interval
from mlsd.records import ModelFacts, Record
from mlsd.stats import Interval, grouped
from mlsd.store.rows import CalibrationPoint
from mlsd.units import format_percent, quoted

SATURATED = 0.95  # share of the experts that MoESD calls all of them
_K = 5  # a draft of 4, the least of the study, and the target's own token
_AGREES = 0.05  # relative; counts that differ by less are called equal
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

    @property
    def saturation(self) -> int:
        """Tokens from which MoESD expects 95 % of the experts in use: ``ceil(log_(1-K/E)(1 - 0.95))``."""
        table = self.coverage
        if table.n_used >= table.n_experts:
            return 1
        return math.ceil(math.log(1 - SATURATED) / math.log(1 - table.n_used / table.n_experts))


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
    """Bytes, time, the study's claim, MoESD, and what decides the time; only what was measured."""
    many = [row for row in found.coverage.rows if row.window > 1]
    if not many:
        return (f"{found.name}: experts were counted for single tokens only, which cannot amortize.",)
    timed = found.time_a_token
    near = max((r for r in many if r.window <= _K), key=lambda r: (r.window in timed, r.window), default=many[0])
    made = (_bytes(found, near, many[-1]), _time(found, near, many), _claim(found, near), _routing(found, near))
    return tuple(text for text in (*made, _what_decides(near, timed.get(near.window))) if text)


def _bytes(found: Mixture, near: CoverageRow, far: CoverageRow) -> str:
    if near.amortization is None or far.amortization is None:
        return (
            f"{found.name}: {near.window} tokens choose {near.text:.1f} experts of a layer, where as many plain passes "
            f"read {near.window * found.coverage.n_used}; how many bytes they have is not known of this file."
        )
    saved = 1 - near.amortization
    of_dense = saved / (1 - near.claimed)
    verdict = "amortizes as on a dense model" if of_dense >= _ALL else "amortizes in part"
    verdict = "hardly amortizes" if of_dense <= _NOTHING else verdict
    more = f", over {far.window} tokens {_percent(1 - far.amortization)}" if far is not near else ""
    return (
        f"{found.name}, bytes at batch one: verification {verdict}. A pass over {near.window} tokens (gamma "
        f"{near.window - 1}) reads {_percent(saved)} less than {near.window} plain passes{more}; a dense model would "
        f"save {_percent(1 - near.claimed)}."
    )


def _time(found: Mixture, near: CoverageRow, many: Sequence[CoverageRow]) -> str:
    timed = {row.window: found.time_a_token[row.window] for row in many if row.window in found.time_a_token}
    if not timed:
        return f"Passes over several tokens were not timed: mlsd calibrate {quoted(found.name)}."
    ks = list(timed)
    cheaper = [k for k, time in timed.items() if time.high is not None and time.high < 1]
    dearer = [k for k, time in timed.items() if time.low is not None and time.low > 1]
    best = min(cheaper or ks, key=lambda k: timed[k].value)
    parts = []
    if cheaper:
        where = "every k timed" if len(cheaper) == len(timed) else f"k = {_ks(cheaper, ks)}"
        parts.append(
            f"Measured time amortizes at {where}, most at k = {best}: {_times(timed[best])} of the time a token"
        )
    if dearer:
        parts.append(f"{'a' if cheaper else 'A'} pass costs more than as many plain ones at k = {_ks(dearer, ks)}")
    if not parts:
        parts.append(f"No time is decided: the least, at k = {best}, is {_times(timed[best])} of the time a token")
    text = "; ".join(parts) + "."
    if near.window in timed:
        passes = near.window * timed[near.window].value
        text += (
            f" T({near.window}) is {passes:.2f} T(1): a round over {near.window} tokens gains only if it commits more "
            f"than {passes:.2f} of them, drafting not counted."
        )
    return text


def _claim(found: Mixture, near: CoverageRow) -> str:
    if found.plain_of_weights is None or near.against_all is None or near.amortization is None:
        return ""
    start = (
        f"The study says (sections 2.3, 5.1, 5.2) that every pass loads all weights whatever is routed: a token "
        f"of {near.window} costs 1/{near.window} = {near.claimed:.2f}."
    )
    if found.plain_of_weights >= _ALL:
        return f"{start} That is nearly so here: a plain pass reads {_percent(found.plain_of_weights)} of the weights."
    cost = f"{near.amortization:.2f} in bytes"
    if near.window in found.time_a_token:
        cost += f" and {found.time_a_token[near.window].value:.2f} in time"
    return (
        f"{start} Counted, a plain pass reads {_percent(found.plain_of_weights)} of the weights "
        f"({1 / found.plain_of_weights:.1f} times less than that), a pass over {near.window} tokens "
        f"{_percent(near.against_all)}, and a token costs {cost}."
    )


def _routing(found: Mixture, near: CoverageRow) -> str:
    table = found.coverage
    r = table.correlation_interval
    off = near.uniform / near.text - 1
    if table.uniform_error <= _AGREES:
        text = (
            f"Independent uniform routing (MoESD) is right here within {_percent(table.uniform_error)}: "
            f"{near.uniform:.1f} experts expected in {near.window} tokens, {near.text:.1f} counted."
        )
    else:
        word = "too many" if off > 0 else "too few"
        text = (
            f"Independent uniform routing (MoESD) expects {near.uniform:.1f} experts in {near.window} tokens, "
            f"{near.text:.1f} were counted ({_percent(abs(off))} {word}, up to {_percent(table.uniform_error)} at "
            f"other k); one correlation, r = {_times(r)}, misses by at most {_percent(table.correlated_error)}."
        )
    last = table.rows[-1]
    if last.window >= found.saturation > 1:
        text += (
            f" From {found.saturation} tokens on MoESD expects 95 % of the experts in use; in {last.window} tokens "
            f"{_percent(last.text / table.n_experts)} were."
        )
    if found.synthetic:
        text += (
            " The weights are random, so this is a random router's choice; a trained one chooses otherwise. In a model "
            "cut in depth, embedding and head are a larger share of the bytes, which flatters it (mlsd advise scales "
            "them)."
        )
    return text


def _what_decides(near: CoverageRow, time: Interval | None) -> str:
    if near.amortization is None or time is None or time.low is None or time.high is None:
        return ""
    if time.low > near.amortization:
        return f"At k = {near.window} a token costs more time than bytes: arithmetic, not memory, decides here."
    if time.high < near.amortization:
        return f"At k = {near.window} a token costs less time than bytes: a fixed time of each pass is shared too."
    return f"At k = {near.window} time follows bytes as far as the measurement can tell."


_percent = partial(format_percent, digits=0)


def _times(estimate: Interval) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} (95 % {estimate.low:.2f} to {estimate.high:.2f})"


def _ks(widths: Sequence[int], timed: Sequence[int]) -> str:
    """Widths for people, runs of what was timed joined: ``2 to 9, 16``."""
    runs: list[list[int]] = []
    for k in widths:
        if runs and timed.index(k) == timed.index(runs[-1][-1]) + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
