"""What a study found as pandas frames, one row each: arms, passes, traffic of memory, experts, claims, equations.

Columns are declared with unit and meaning beside what fills them; a value that was not measured is missing, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mlsd.analysis.experts.amortization import Mixture
from mlsd.analysis.experts.coverage import CoverageRow
from mlsd.analysis.fits.calibration import PassTime
from mlsd.analysis.results.frames import Column, typed_frame
from mlsd.analysis.study.machine_findings import Bandwidth
from mlsd.analysis.study.traffic import Pass, Roof
from mlsd.stats import Interval
from mlsd.trials.arms import PLAIN
from mlsd.trials.sums import PART_NAMES

if TYPE_CHECKING:
    import pandas as pd

Get = Callable[[Any], Any]  # of a row
Filled = tuple[Column, Get]  # a column and what fills it


def _text(name: str, meaning: str, get: Get) -> Filled:
    return Column(name, "string", meaning), get


def _count(name: str, meaning: str, get: Get) -> Filled:
    return Column(name, "Int64", meaning), get


def _number(name: str, meaning: str, get: Get) -> Filled:
    return Column(name, "float64", meaning), get


def _ends(name: str, meaning: str, get: Get, level: int = 95) -> tuple[Filled, ...]:
    """A value with the ends of its interval, which holds in so many per cent."""

    def end(which: str) -> Get:
        return lambda row: None if (found := get(row)) is None else getattr(found, which)

    words = f"end of its {level} % interval"
    low, high = (Column(f"{name}_{side}", "float64", f"{side} {words}") for side in ("low", "high"))
    return _number(name, meaning, end("value")), (low, end("low")), (high, end("high"))


def made(rows: Iterable[Any], columns: Iterable[Filled]) -> pd.DataFrame:
    """The frame of these rows."""
    chosen = list(columns)
    return typed_frame((tuple(get(row) for _, get in chosen) for row in rows), tuple(column for column, _ in chosen))


def row_of(row: Any, columns: Iterable[Filled]) -> dict[str, Any]:
    """One row by its columns' names."""
    return {column.name: get(row) for column, get in columns}


def _part(part: str) -> Filled:
    return _number(f"{part}_ms", "mean of a round", lambda a: a.ms_per_round.get(part))


ARMS: tuple[Filled, ...] = (  # of an `ArmResult`
    _text("suite", "suite that planned it", lambda a: a.question.suite),
    _text("target", "id of the target", lambda a: a.case.target.id),
    _text("setting", "plain, or method with draft, options and gamma", lambda a: PLAIN if a.is_plain else a.setting),
    _text("drafter", "drafting method", lambda a: a.case.drafter.name),
    _text("draft", "id of the draft model", lambda a: a.case.drafter.draft and a.case.drafter.draft.id),
    _count("gamma", "most tokens proposed a round", lambda a: a.case.gamma),
    _text("text", "prompt, kind of text, or how many are pooled", lambda a: a.text),
    _count("n_predict", "output tokens asked for", lambda a: a.question.n_predict),
    _count("n_trials", "trials", lambda a: a.n_trials),
    _count("n_valid", "of them valid", lambda a: a.n_valid),
    _count("n_blocks", "blocks with plain decoding beside it", lambda a: a.n_blocks),
    _number("tok_s", "decode tok/s, geometric mean over blocks", lambda a: a.tok_s),
    _number("plain_tok_s", "of plain decoding in the same blocks", lambda a: a.plain_tok_s),
    _number("spread", "of tok/s over blocks: half the range over the median", lambda a: a.spread),
    *_ends("speedup", "tok_s / plain_tok_s, block by block", lambda a: a.ratio),
    _text("effect", "faster, slower, no difference, not decided yet", lambda a: None if a.is_plain else a.effect),
    _number("acceptance_rate", "accepted / proposed", lambda a: a.acceptance_rate),
    _number("mgl", "tokens committed a round", lambda a: a.mgl),
    _number("break_even_mgl", "MGL that plain decoding would equal", lambda a: a.break_even_mgl),
    *map(_part, PART_NAMES),
    _number("first_token_ms", "prefill of target and draft, up to the first token", lambda a: a.first_token_ms),
    _number("plain_first_token_ms", "of plain decoding in the same blocks", lambda a: a.plain_first_token_ms),
    *_ends("pays_from", "output tokens from which the whole request is faster", lambda a: a.pays_from, 90),
    _count("memory_bytes", "weights of target and draft, and the arm's contexts", lambda a: a.memory_bytes),
    _count("n_loops", "outputs that repeat themselves to their end", lambda a: a.n_loops),
    _text("verdict", "lossless, near_tie, not_judged or diverged", lambda a: a.verdict),
)


class TimedPass(NamedTuple):
    """A time with the model it is of."""

    model: str
    time: PassTime
    plain_ms: float | None  # T(1) at this depth, of target passes


PASSES: tuple[Filled, ...] = (  # of a `TimedPass`
    _text("model", "id of the model", lambda p: p.model),
    _text("kind", "target_pass: T(k); draft_step, prefill, rollback, checkpoint, sample", lambda p: p.time.kind),
    _count("depth", "positions in the context before it", lambda p: p.time.depth),
    _count("k", "positions in the pass", lambda p: p.time.rows),
    *_ends("ms", "median over repeats", lambda p: p.time.ms),
    _count("repeats", "times it was timed", lambda p: p.time.ms.n),
    _number("efficiency", "T(1) / T(k)", lambda p: p.plain_ms and p.plain_ms / p.time.ms.value),
    _number("time_a_token", "T(k) / (k T(1))", lambda p: p.plain_ms and p.time.ms.value / p.time.rows / p.plain_ms),
)


class Traffic(NamedTuple):
    """Something that read memory, whatever it was."""

    source: str
    name: str
    ms: Interval | None
    read_bytes: float | None
    gb_s: float
    of: Pass | None = None
    roof: Roof | None = None

    @property
    def of_stated(self) -> float | None:
        return self.gb_s / self.roof.stated_gb_s if self.roof and self.roof.stated_gb_s else None


def _of_pass(name: str) -> Get:
    return lambda t: getattr(t.of, name, None)


BANDWIDTH: tuple[Filled, ...] = (  # of a `Traffic`
    _text("source", "plain decoding, timed passes, known bytes (calibrate --memory), plain read", lambda t: t.source),
    _text("model", "id of the model, quantization, or threads of a plain read", lambda t: t.name),
    _count("k", "positions in the pass", _of_pass("k")),
    *_ends("ms", "time of the pass", lambda t: t.ms),
    _number("read_gb", "10^9 bytes of the tensors it needs; experts as counted", lambda t: _giga(t.read_bytes)),
    _number("weights_gb", "10^9 bytes of all tensors", lambda t: t.of and _giga(t.of.weight_bytes)),
    _number("gb_s", "read_gb over the time", lambda t: t.gb_s),
    _number("claimed_gb_s", "weights_gb over the time, as the study computes it", _of_pass("claimed_gb_s")),
    _number("of_measured", "gb_s over what memory gave here", lambda t: t.roof and t.gb_s / t.roof.gb_s),
    _number("of_stated", "gb_s over the published peak", lambda t: t.of_stated),
    _number("experts", "distinct experts of a layer, counted", _of_pass("experts")),
    _number("time_a_token", "T(k) / (k T(1)): the measured amortization", _of_pass("time_a_token")),
    _number("bytes_a_token", "read_gb(k) / (k read_gb(1))", _of_pass("bytes_a_token")),
    _number("claimed_a_token", "1 / k: all weights loaded once for k positions", lambda t: t.of and 1 / t.of.k),
    _number("gflop_s", "two operations a weight and position, over the time", _of_pass("gflop_s")),
    _number("intensity", "operations a byte", _of_pass("intensity")),
)


def traffic(passes: Iterable[Pass], memory: Bandwidth | None, roof: Roof | None) -> list[Traffic]:
    """Passes of models, then what `mlsd calibrate --memory` read."""
    found = [Traffic(one.source, one.model, one.ms, one.read_bytes, one.gb_s, one, roof) for one in passes]
    if memory is not None:
        for known in memory.passes:
            ms = Interval(value=known.ms)
            found.append(
                Traffic("known bytes", known.quant, ms, known.n_bytes, known.n_bytes / known.ms / 1e6, None, roof)
            )
        for n, gb_s in memory.stream.items():
            found.append(Traffic("plain read", f"numpy, {n} threads", None, None, gb_s.value, None, roof))
    return found


def of_passes(timed: Mapping[str, Iterable[PassTime]]) -> pd.DataFrame:
    """What was timed of these models, as `study.passes` has it."""
    rows = []
    for name, own in timed.items():
        times = list(own)
        plain = {one.depth: one.ms.value for one in times if (one.kind, one.rows) == ("target_pass", 1)}
        rows += [TimedPass(name, one, plain.get(one.depth) if one.kind == "target_pass" else None) for one in times]
    return made(rows, PASSES)


def of_mixtures(mixtures: Iterable[Mixture]) -> pd.DataFrame:
    """Experts of these mixtures, as `study.experts` has them."""
    return made([Counted(one, row) for one in mixtures for row in one.coverage.rows], EXPERTS)


class Counted(NamedTuple):
    """Experts of a mixture in windows of k tokens."""

    mixture: Mixture
    row: CoverageRow


EXPERTS: tuple[Filled, ...] = (  # of a `Counted`
    _text("model", "id of the mixture", lambda c: c.mixture.name),
    _count("k", "consecutive tokens", lambda c: c.row.window),
    _count("n_experts", "experts of a layer", lambda c: c.mixture.coverage.n_experts),
    _count("n_used", "of them a token", lambda c: c.mixture.coverage.n_used),
    _number("counted", "distinct experts of a layer on real text, mean", lambda c: c.row.text),
    _number("counted_drafted", "the same in batches that a draft proposed", lambda c: c.row.drafted),
    _number("lowest_layer", "of the layers' means on text", lambda c: c.row.lowest_layer),
    _number("highest_layer", "of the layers' means on text", lambda c: c.row.highest_layer),
    _number("uniform", "E (1 - (1 - K/E)^k), MoESD", lambda c: c.row.uniform),
    _number("correlated", "the same with k^(1 - r) tokens, r fitted", lambda c: c.row.correlated),
    _number("bytes_a_token", "bytes(k) / (k bytes(1))", lambda c: c.row.amortization),
    _number("uniform_bytes_a_token", "the same, experts by MoESD", lambda c: c.row.uniform_amortization),
    _number("correlated_bytes_a_token", "the same, one correlation", lambda c: c.row.correlated_amortization),
    *_ends("time_a_token", "T(k) / (k T(1))", lambda c: c.mixture.time_a_token.get(c.row.window)),
    _number("of_all_weights", "bytes of the pass over all", lambda c: c.row.against_all),
)

CLAIMS: tuple[Filled, ...] = (  # of a `ClaimVerdict`
    _text("id", "short name", lambda v: v.claim.id),
    _text("claim", "in our words", lambda v: v.claim.text),
    _text("source", "where it is made", lambda v: v.claim.source),
    _text("printed", "what the source prints", lambda v: v.claim.printed),
    _text("decision", "holds here, does not hold here, not decided yet, not measured, refuted", lambda v: v.decision),
    _text("meaning", "what the effect is", lambda v: v.meaning),
    *_ends("effect", "the figure that decides", lambda v: v.effect),
    _number("against", "what it is compared with", lambda v: v.against),
    _count("n", "texts or blocks behind it", lambda v: v.effect and v.effect.n),
    _count("printed_rows", "printed rows behind the claim", lambda v: sum((v.published_audit or {}).values()) or None),
    _count("impossible_rows", "of them impossible", lambda v: (v.published_audit or {}).get("impossible")),
    _text("sentence", "the decision in words", lambda v: v.sentence),
)


def _prediction(name: str, label: str, get: Get) -> tuple[Filled, ...]:
    return (
        _number(name, f"speedup that {label} gives", lambda e: get(e).speedup),
        *_ends(f"{name}_off", "that over the measured speedup; 1 is right", lambda e: get(e).off),
    )


EQUATIONS: tuple[Filled, ...] = (  # of an `Equations`
    _text("suite", "suite that measured it", lambda e: e.arm.question.suite),
    _text("target", "id of the target", lambda e: e.arm.case.target.id),
    _text("draft", "id of the draft model", lambda e: e.arm.case.drafter.draft and e.arm.case.drafter.draft.id),
    _count("gamma", "most tokens proposed a round", lambda e: e.arm.case.gamma),
    _text("inputs", "rounds: times of these trials; calibration: passes timed without them", lambda e: e.inputs),
    _count("n", "pairs of a speculative and a plain trial", lambda e: e.arm.n_blocks),
    _number("alpha", "accepted / proposed, as the study counts", lambda e: e.alpha),
    _number("mgl", "tokens committed a round", lambda e: e.mgl),
    _number("proposed_per_round", "gamma, less what short last rounds leave out", lambda e: e.proposed_per_round),
    _number("c", "drafting a token, in plain passes", lambda e: e.c),
    _number("t_seq_ms", "a plain pass", lambda e: e.t_seq_ms),
    _number("t_draft_ms", "drafting of a round", lambda e: e.t_draft_ms),
    _number("t_verify_ms", "verification of a round", lambda e: e.t_verify_ms),
    _number("t_rest_ms", "rollback, sampling, bookkeeping of a round", lambda e: e.t_rest_ms),
    *_ends("speedup", "measured", lambda e: e.measured),
    *_prediction("eq1", "equation 1", lambda e: e.eq1),
    *_prediction("eq2", "equation 2", lambda e: e.eq2),
    *_prediction("corrected", "MGL T_seq / (T_draft + T_verify + rest)", lambda e: e.corrected),
    _number("credited", "tokens that equation 2 counts for each one committed", lambda e: e.credited),
)

FRAMES: dict[str, tuple[Column, ...]] = {
    name: tuple(column for column, _ in columns)
    for name, columns in {
        "arms": ARMS,
        "passes": PASSES,
        "bandwidth": BANDWIDTH,
        "experts": EXPERTS,
        "claims": CLAIMS,
        "equations": EQUATIONS,
    }.items()
}


def _giga(n: float | None) -> float | None:
    return None if n is None else n / 1e9
