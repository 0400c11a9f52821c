"""The answer in sentences: does verification amortize on this mixture at batch one, at which k, by how much."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.experts.amortization import STUDY_FORM, Mixture, PassShare
from mlsd.stats import Interval

_K = 5  # a draft of 4, the least of the study, and the target's own token
_AGREES = 0.05  # relative; counts that differ by less are called equal
_ALL, _NOTHING = 0.9, 0.1  # of what a dense model saves


def sentences(found: Mixture) -> tuple[str, ...]:
    """Bytes, time, the study's claim, MoESD, and which theory of T(k) holds; only what was measured."""
    many = [share for share in found.shares if share.k > 1]
    if not many:
        return (f"{found.name}: experts were counted for single tokens only, which cannot amortize.",)
    near = max((s for s in many if s.k <= _K), key=lambda s: (s.time is not None, s.k), default=many[0])
    made = (_bytes(found, near, many[-1]), _time(found, near, many), _claim(found, near), _routing(found, near))
    return tuple(text for text in (*made, _theory(found, near)) if text)


def _bytes(found: Mixture, near: PassShare, far: PassShare) -> str:
    if near.text_bytes is None or far.text_bytes is None:
        return (
            f"{found.name}: {near.k} tokens choose {near.experts:.1f} experts of a layer, where as many plain passes "
            f"read {near.k * found.coverage.n_used}; how many bytes they have is not known of this file."
        )
    saved = 1 - near.text_bytes
    of_dense = saved / (1 - near.claimed)
    verdict = "amortizes as on a dense model" if of_dense >= _ALL else "amortizes in part"
    verdict = "hardly amortizes" if of_dense <= _NOTHING else verdict
    more = f", over {far.k} tokens {_percent(1 - far.text_bytes)}" if far is not near else ""
    return (
        f"{found.name}, bytes at batch one: verification {verdict}. A pass over {near.k} tokens (gamma {near.k - 1}) "
        f"reads {_percent(saved)} less than {near.k} plain passes{more}; a dense model would save "
        f"{_percent(1 - near.claimed)}."
    )


def _time(found: Mixture, near: PassShare, many: Sequence[PassShare]) -> str:
    timed = [(s, s.time) for s in many if s.time is not None]
    if not timed:
        return f"Passes over several tokens were not timed: mlsd calibrate {found.name}."
    ks = [s.k for s, _ in timed]
    cheaper = [s.k for s, time in timed if time.high is not None and time.high < 1]
    dearer = [s.k for s, time in timed if time.low is not None and time.low > 1]
    decided = [(s, time) for s, time in timed if s.k in cheaper] or timed
    best, shortest = min(decided, key=lambda row: row[1].value)
    parts = []
    if cheaper:
        where = "every k timed" if len(cheaper) == len(timed) else f"k = {_ks(cheaper, ks)}"
        parts.append(
            f"Measured time amortizes at {where}, most at k = {best.k}: {_times(shortest)} of the time a token"
        )
    if dearer:
        parts.append(f"{'a' if cheaper else 'A'} pass costs more than as many plain ones at k = {_ks(dearer, ks)}")
    if not parts:
        parts.append(f"No time is decided: the least, at k = {best.k}, is {_times(shortest)} of the time a token")
    text = "; ".join(parts) + "."
    if near.time is not None and near.passes is not None:
        text += (
            f" T({near.k}) is {near.passes:.2f} T(1): a round over {near.k} tokens gains only if it commits more than "
            f"{near.passes:.2f} of them, drafting not counted."
        )
    return text


def _claim(found: Mixture, near: PassShare) -> str:
    if found.plain_of_weights is None or near.of_weights is None or near.text_bytes is None:
        return ""
    start = (
        f"The study says (sections 2.3, 5.1, 5.2) that every pass loads all weights whatever is routed: a token "
        f"of {near.k} costs 1/{near.k} = {near.claimed:.2f}."
    )
    if found.plain_of_weights >= _ALL:
        return f"{start} That is nearly so here: a plain pass reads {_percent(found.plain_of_weights)} of the weights."
    cost = f"{near.text_bytes:.2f} in bytes"
    if near.time is not None:
        cost += f" and {near.time.value:.2f} in time"
    return (
        f"{start} Counted, a plain pass reads {_percent(found.plain_of_weights)} of the weights "
        f"({1 / found.plain_of_weights:.1f} times less than that), a pass over {near.k} tokens "
        f"{_percent(near.of_weights)}, and a token costs {cost}."
    )


def _routing(found: Mixture, near: PassShare) -> str:
    table = found.coverage
    r = table.correlation_interval
    row = next(row for row in table.rows if row.window == near.k)
    off = row.uniform / row.text - 1
    if table.uniform_error <= _AGREES:
        text = (
            f"Independent uniform routing (MoESD) is right here within {_percent(table.uniform_error)}: "
            f"{row.uniform:.1f} experts expected in {near.k} tokens, {row.text:.1f} counted."
        )
    else:
        word = "too many" if off > 0 else "too few"
        text = (
            f"Independent uniform routing (MoESD) expects {row.uniform:.1f} experts in {near.k} tokens, {row.text:.1f} "
            f"were counted ({_percent(abs(off))} {word}, up to {_percent(table.uniform_error)} at other k); one "
            f"correlation, r = {_times(r)}, misses by at most {_percent(table.correlated_error)}."
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


def _theory(found: Mixture, near: PassShare) -> str:
    if not found.theories:
        return ""
    chosen = next(t for t in found.theories if t.name == found.chosen)
    study = next(t for t in found.theories if t.name == STUDY_FORM)
    others = [t.held_out.median_error for t in found.theories if t is not study]
    span = (
        _percent(min(others))
        if _percent(min(others)) == _percent(max(others))
        else (f"{100 * min(others):.0f} to {_percent(max(others))}")
    )
    if chosen is study:
        text = (
            f"The times alone do not decide between the forms of T(k): those that follow the experts miss k they were "
            f"not fitted to by {span} (median), a line, as if all weights were read, by "
            f"{_percent(study.held_out.median_error)}."
        )
    else:
        text = (
            f"The times agree with the counts: '{chosen.says}' misses k it was not fitted to by "
            f"{_percent(chosen.held_out.median_error)} (median), a line, as if all weights were read, by "
            f"{_percent(study.held_out.median_error)}."
        )
    return f"{text} {_what_decides(near)}".strip()


def _what_decides(near: PassShare) -> str:
    if near.text_bytes is None or near.time is None or near.time.low is None or near.time.high is None:
        return ""
    if near.time.low > near.text_bytes:
        return f"At k = {near.k} a token costs more time than bytes: arithmetic, not memory, decides here."
    if near.time.high < near.text_bytes:
        return f"At k = {near.k} a token costs less time than bytes: a fixed time of each pass is shared too."
    return f"At k = {near.k} time follows bytes as far as the measurement can tell."


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %"


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
