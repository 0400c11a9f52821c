"""What a study found as pandas frames, one row each: arms, passes, traffic of memory, experts, claims, equations.

Fields are declared as those of an arm (`trials.fields`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mlsd.analysis.experts.coverage import CoverageRow, Mixture
from mlsd.analysis.fits.calibration import PassTime
from mlsd.analysis.results.frames import made
from mlsd.trials.fields import ARM, Field, Get, count, ends, number, text

if TYPE_CHECKING:
    import pandas as pd


class TimedPass(NamedTuple):
    """A time with the model it is of."""

    model: str
    time: PassTime
    plain_ms: float | None  # T(1) at this depth, of target passes


PASSES: tuple[Field, ...] = (  # of a `TimedPass`
    text("model", "id of the model", lambda p: p.model),
    text("kind", "target_pass: T(k); draft_step, prefill, rollback, checkpoint, sample", lambda p: p.time.kind),
    count("depth", "positions in the context before it", lambda p: p.time.depth),
    count("k", "positions in the pass", lambda p: p.time.rows),
    *ends("ms", "median over repeats", lambda p: p.time.ms),
    count("repeats", "times it was timed", lambda p: p.time.ms.n),
    number("efficiency", "T(1) / T(k)", lambda p: p.plain_ms and p.plain_ms / p.time.ms.value),
    number("time_a_token", "T(k) / (k T(1))", lambda p: p.plain_ms and p.time.ms.value / p.time.rows / p.plain_ms),
)


BANDWIDTH: tuple[Field, ...] = (  # of a `Pass`
    text("source", "plain decoding, timed passes, known bytes (calibrate --memory), plain read", lambda p: p.source),
    text("model", "id of the model, quantization, or threads of a plain read", lambda p: p.model),
    count("k", "positions in the pass", lambda p: p.k),
    *ends("ms", "time of the pass", lambda p: p.ms),
    number("read_gb", "10^9 bytes of the tensors it needs; experts as counted", lambda p: _giga(p.read_bytes)),
    number("weights_gb", "10^9 bytes of all tensors", lambda p: _giga(p.weight_bytes)),
    number("gb_s", "read_gb over the time", lambda p: p.gb_s),
    number("claimed_gb_s", "weights_gb over the time, as the study computes it", lambda p: p.claimed_gb_s),
    number("of_measured", "gb_s over what memory gave here", lambda p: p.roof and p.gb_s / p.roof.gb_s),
    number("of_stated", "gb_s over the published peak", lambda p: p.of_stated(p.gb_s)),
    number("experts", "distinct experts of a layer, counted", lambda p: p.experts),
    number("time_a_token", "T(k) / (k T(1)): the measured amortization", lambda p: p.time_a_token),
    number("bytes_a_token", "read_gb(k) / (k read_gb(1))", lambda p: p.bytes_a_token),
    number("claimed_a_token", "1 / k: all weights loaded once for k positions", lambda p: p.k and 1 / p.k),
    number("gflop_s", "two operations a weight and position, over the time", lambda p: p.gflop_s),
    number("intensity", "operations a byte", lambda p: p.intensity),
)


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


EXPERTS: tuple[Field, ...] = (  # of a `Counted`
    text("model", "id of the mixture", lambda c: c.mixture.name),
    count("k", "consecutive tokens", lambda c: c.row.window),
    count("n_experts", "experts of a layer", lambda c: c.mixture.coverage.n_experts),
    count("n_used", "of them a token", lambda c: c.mixture.coverage.n_used),
    number("counted", "distinct experts of a layer on real text, mean", lambda c: c.row.text),
    number("counted_drafted", "the same in batches that a draft proposed", lambda c: c.row.drafted),
    number("lowest_layer", "of the layers' means on text", lambda c: c.row.lowest_layer),
    number("highest_layer", "of the layers' means on text", lambda c: c.row.highest_layer),
    number("uniform", "E (1 - (1 - K/E)^k), MoESD", lambda c: c.row.uniform),
    number("correlated", "the same with k^(1 - r) tokens, r fitted", lambda c: c.row.correlated),
    number("bytes_a_token", "bytes(k) / (k bytes(1))", lambda c: c.row.amortization),
    number("uniform_bytes_a_token", "the same, experts by MoESD", lambda c: c.row.uniform_amortization),
    number("correlated_bytes_a_token", "the same, one correlation", lambda c: c.row.correlated_amortization),
    *ends("time_a_token", "T(k) / (k T(1))", lambda c: c.mixture.time_a_token.get(c.row.window)),
    number("of_all_weights", "bytes of the pass over all", lambda c: c.row.against_all),
)

CLAIMS: tuple[Field, ...] = (  # of a `ClaimVerdict`
    text("id", "short name", lambda v: v.claim.id),
    text("claim", "in our words", lambda v: v.claim.text),
    text("source", "where it is made", lambda v: v.claim.source),
    text("printed", "what the source prints", lambda v: v.claim.printed),
    text("decision", "holds here, does not hold here, not decided yet, not measured, refuted", lambda v: v.decision),
    text("meaning", "what the effect is", lambda v: v.meaning),
    *ends("effect", "the figure that decides", lambda v: v.effect),
    number("against", "what it is compared with", lambda v: v.against),
    count("n", "units behind its interval: texts, of one text repeats", lambda v: v.effect and v.effect.n),
    count("n_texts", "texts behind it", lambda v: v.n_texts or None),
    count("n_repeats", "repeats of the text that has most", lambda v: v.n_repeats or None),
    count("printed_rows", "printed rows behind the claim", lambda v: sum((v.published_audit or {}).values()) or None),
    count("impossible_rows", "of them impossible", lambda v: (v.published_audit or {}).get("impossible")),
    text("sentence", "the decision in words", lambda v: v.sentence),
)


def _prediction(name: str, label: str, get: Get) -> tuple[Field, ...]:
    return (
        number(name, f"speedup that {label} gives", lambda e: (found := get(e)) and found.speedup),
        *ends(f"{name}_off", "that over the measured speedup; 1 is right", lambda e: (found := get(e)) and found.off),
    )


EQUATIONS: tuple[Field, ...] = (  # of an `Equations`
    text("suite", "suite that measured it", lambda e: e.arm.question.suite),
    text("target", "id of the target", lambda e: e.arm.case.target.id),
    text("draft", "id of the draft model", lambda e: e.arm.case.drafter.draft and e.arm.case.drafter.draft.id),
    count("gamma", "most tokens proposed a round", lambda e: e.arm.case.gamma),
    text("inputs", "rounds: times of these trials; calibration: passes timed without them", lambda e: e.inputs),
    count("n", "pairs of a speculative and a plain trial", lambda e: e.arm.n_blocks),
    number("alpha", "accepted / proposed, as the study counts", lambda e: e.alpha),
    number("mgl", "tokens committed a round", lambda e: e.mgl),
    number("proposed_per_round", "gamma, less what short last rounds leave out", lambda e: e.proposed_per_round),
    number("c", "drafting a token, in plain passes", lambda e: e.c),
    number("t_seq_ms", "a plain pass", lambda e: e.t_seq_ms),
    number("t_draft_ms", "drafting of a round", lambda e: e.t_draft_ms),
    number("t_verify_ms", "verification of a round", lambda e: e.t_verify_ms),
    number("t_rest_ms", "rollback, sampling, bookkeeping of a round", lambda e: e.t_rest_ms),
    *ends("speedup", "measured", lambda e: e.measured),
    *_prediction("eq1", "equation 1", lambda e: e.eq1),
    *_prediction("eq2", "equation 2", lambda e: e.eq2),
    *_prediction("corrected", "MGL T_seq / (T_draft + T_verify + rest), of passes timed apart,", lambda e: e.corrected),
    number("credited", "tokens that equation 2 counts for each one committed", lambda e: e.credited),
)

FRAMES: dict[str, tuple[Field, ...]] = {
    "arms": ARM,
    "passes": PASSES,
    "bandwidth": BANDWIDTH,
    "experts": EXPERTS,
    "claims": CLAIMS,
    "equations": EQUATIONS,
}


def _giga(n: float | None) -> float | None:
    return None if n is None else n / 1e9
