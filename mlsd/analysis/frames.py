"""The study as pandas frames with declared columns: trials, rounds, pairs, passes, traffic, experts, findings.

Owns the names, types and meanings of columns. `None` in the store is a missing value here, never 0. The frame of pairs
is what claims, equations and fits compute on; its facts are 0 or empty where a file does not say them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from mlsd.columns import Column, Get, Kind, chosen, column, flat
from mlsd.errors import AnalysisError
from mlsd.formats.tables import TRIALS, rows_of
from mlsd.records import Case, ModelFacts, Trial
from mlsd.store.rows import Run
from mlsd.store.store import Store
from mlsd.trials.acceptance_meanings import loop_of
from mlsd.trials.arms import options_text
from mlsd.trials.fields import ARM
from mlsd.trials.rates import PARTS, Sums, speed
from mlsd.trials.results import ArmResult, Measured, TrialPair

if TYPE_CHECKING:
    import pandas as pd

    from mlsd.analysis.experts.coverage import CoverageRow, Mixture
    from mlsd.analysis.fits.calibration import PassTime


def _summed(name: str, meaning: str, format: str = "n") -> Column:
    return column(name, format, meaning, itemgetter(name))


OUTCOMES: tuple[Column, ...] = (  # of rows by name
    _summed("environment_key", "host, backend, device and llama.cpp build", ""),
    _summed("case_id", "content hash of the configuration", ""),
    _summed("repeat", "repeat of the block"),
    _summed("proposed", "tokens proposed in such a round"),
    _summed("accepted", "of them accepted"),
    _summed("rounds", "rounds that ended so"),
    _summed("committed", "sum over them: tokens added to the output"),
    *(_summed(part, f"sum over them: {part.removesuffix('_ns')}") for part in PARTS),
)


def trials(stored: Sequence[Measured], runs: Iterable[Run]) -> pd.DataFrame:
    """Trials with the sums of their rounds: columns `TRIALS`, one row a trial."""
    return frame_of(rows_of(stored, runs), TRIALS)


def outcomes(store: Store, of: Container[int]) -> pd.DataFrame:
    """How the rounds of each case and repeat of these trials ended: columns `OUTCOMES`."""
    names = [one.name for one in OUTCOMES]
    return frame_of((dict(zip(names, row, strict=True)) for row in store.round_outcomes(of)), OUTCOMES)


ROUNDS: tuple[Column, ...] = (  # of a trial's id, a round's number, and the round
    column("trial_id", "n", "row in the table trial", itemgetter(0)),
    column("number", "n", "of the round in its trial, from 0", itemgetter(1), label="round"),
    column("proposed", "n", "drafted tokens sent to verification", "2.proposed"),
    column("accepted", "n", "proposed tokens that matched", "2.accepted"),
    column("committed", "n", "tokens added to the output", "2.committed"),
    column("rows", "n", "positions that the target decoded", "2.rows"),
    column("draft_ns", "ms", "drafting", "2.draft_ns", label="draft ms"),
    column("verify_ns", "ms", "the target pass", "2.verify_ns", label="verify ms"),
    column("rollback_ns", "ms", "forgetting rejected tokens", "2.rollback_ns", label="rollback ms"),
    column("sample_ns", "ms", "reading tokens, acceptance rule", "2.sample_ns", label="sample ms"),
    column("other_ns", "ms", "bookkeeping", "2.other_ns", label="other ms"),
)


def rounds(store: Store, of: Container[int]) -> pd.DataFrame:
    """Every round of these trials: columns `ROUNDS`."""
    stored = (one for one in store.trials() if one.id in of)
    return frame_of(((one.id, number, each) for one in stored for number, each in enumerate(one.trial.rounds)), ROUNDS)


class Paired(NamedTuple):
    """A trial beside the plain one of its block, with what the files of target and draft say."""

    case: Case
    trial: Trial
    whole: Sums
    trial_id: int
    baseline_id: int
    speedup: float
    t_one_ms: float
    draft_ms: float
    verify_ms: float
    rest_ms: float
    target: ModelFacts | None
    draft: ModelFacts | None
    perplexity_ratio: float | None


def _fact(name: str) -> Get:
    return lambda p: 0 if p.target is None else getattr(p.target, name) or 0


_PAIRS: tuple[Column, ...] = (  # of a `Paired`; times are means over the rounds of a trial
    column("trial_id", "n", "the speculative trial"),
    column("baseline_id", "n", "the plain trial of its block"),
    column("target", "", "id of the target", "case.target.id"),
    column("drafter", "", "drafting method", "case.drafter.name"),
    column("draft", "", "id of the draft model", "case.drafter.draft.id"),
    column("options", "", "options of the drafter, as JSON", lambda p: options_text(p.case.drafter)),
    column("component", "", "the part of the target that drafts", "case.drafter.options.component"),
    column("gamma", "n", "most tokens proposed a round", "case.gamma"),
    column("prompt", "", "name of the prompt", "case.prompt.key"),
    column("n_prompt", "n", "prompt tokens", lambda p: p.trial.n_prompt or 0),
    column("block", "n", "number of the planned block", "trial.block"),
    column("repeat", "n", "repeat of the block", "trial.repeat"),
    column("started_s", "3", "when it began, seconds since 1970", lambda p: _seconds(p.trial.started_at)),
    column("loops", "flag", "its output repeats itself to the end", lambda p: loop_of(p.trial.tokens) is not None),
    column("speedup", "3", "tok/s over those of the plain trial"),
    column("t_one_ms", "3", "decode time a token of the plain trial"),
    column("mgl", "3", "committed / rounds", "whole.mgl"),
    column("proposed", "n", "drafted tokens sent to verification", "whole.proposed"),
    column("accepted", "n", "proposed tokens that matched", "whole.accepted"),
    column("rounds", "n", "rounds", "whole.rounds"),
    column("draft_ms", "3", "drafting of a round"),
    column("verify_ms", "3", "verification of a round"),
    column("rest_ms", "3", "rollback, sampling and bookkeeping of a round"),
    column("round_ms", "3", "the whole round", lambda p: p.draft_ms + p.verify_ms + p.rest_ms),
    column("mixture", "flag", "the target routes to experts", lambda p: bool(_fact("n_experts")(p))),
    column("parameters", "3", "of the target", _fact("n_parameters")),
    column("active", "3", "parameters that a token of the target reads", _fact("n_parameters_active")),
    column("weight_bytes", "3", "of the target's tensors", _fact("weight_bytes")),
    column("architecture", "", "of the target", lambda p: p.target.architecture if p.target else ""),
    column("shape", "", "equal for quantizations of one model", lambda p: _shape(p.target)),
    column("draft_parameters", "3", "of the draft model", "draft.n_parameters"),
    column("perplexity_ratio", "3", "of the drafting part over the whole model"),
)
_NEVER_MISSING: dict[Kind, Kind] = {"string": "object", "Int64": "int64", "boolean": "bool"}
PAIRS = tuple(one._replace(kind=_NEVER_MISSING.get(one.dtype, one.dtype)) for one in _PAIRS)
_OF_CASE = [  # what all pairs of a case have in common
    "target", "drafter", "draft", "options", "component", "gamma", "prompt", "mixture", "parameters", "active",
    "weight_bytes", "architecture", "shape", "draft_parameters",
]  # fmt: skip


def pairs(
    trial_pairs: Iterable[TrialPair], models: Mapping[str, ModelFacts], ratios: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """One row a pair with rounds: columns `PAIRS`; `ratios` are perplexity ratios by the trial that drafted."""
    import pandas as pd

    def paired(pair: TrialPair) -> Paired:
        measured, plain, ratio = pair.measured, pair.plain, (ratios or {}).get(pair.measured.id)
        case, whole, tok_s = measured.case, measured.whole, speed(plain.trial) or math.nan
        draft_ms, verify_ms, *rest_ms = whole.ms_per_round.values()
        target, draft = models.get(case.target.id), models.get(case.drafter.draft.id) if case.drafter.draft else None
        return Paired(
            case, measured.trial, whole, measured.id, plain.id, (speed(measured.trial) or math.nan) / tok_s,
            1e3 / tok_s, draft_ms, verify_ms, sum(rest_ms), target, draft, ratio,
        )  # fmt: skip

    rows = [paired(pair) for pair in trial_pairs if pair.measured.whole.rounds]
    cases = {row.trial.case_id: row for row in rows}
    by_case = frame_of(cases.values(), (of for of in PAIRS if of.name in _OF_CASE)).set_index(pd.Index(cases))
    by_trial = frame_of(rows, (of for of in PAIRS if of.name not in _OF_CASE))
    by_trial[_OF_CASE] = by_case.loc[[row.trial.case_id for row in rows]].set_index(by_trial.index)
    return by_trial[[of.name for of in PAIRS]]


def _seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


def _shape(facts: ModelFacts | None) -> str:
    if facts is None:
        return ""
    shape = (facts.architecture, facts.n_layers, facts.n_embd, facts.n_experts, facts.n_parameters)
    return " ".join(map(str, shape))


BASELINES: tuple[Column, ...] = (  # of an `ArmResult` of plain decoding, one a target
    *chosen(ARM, "suite target text n_predict n_trials n_valid tok_s spread"),
    column("first_at", "", "when the first of its trials began, ISO 8601, UTC", lambda a: _moments(a)[0]),
    column("last_at", "", "when the last of them began", lambda a: _moments(a)[-1]),
)


def _moments(arm: ArmResult) -> list[str]:
    return sorted(one.trial.started_at for one in arm.trials)


class PassRow(NamedTuple):
    """A time with the model it is of."""

    model: str
    time: PassTime
    plain_ms: float | None  # T(1) at this depth, of target passes

    @property
    def efficiency(self) -> float | None:
        return None if self.plain_ms is None else self.plain_ms / self.time.ms.value

    @property
    def time_a_token(self) -> float | None:
        return None if self.efficiency is None else 1 / (self.efficiency * self.time.rows)


PASSES: tuple[Column, ...] = (  # of a `PassRow`
    column("model", "", "id of the model"),
    column("kind", "", "target_pass: T(k); draft_step, prefill, rollback, checkpoint, sample", "time.kind"),
    column("depth", "n", "positions in the context before it", "time.depth"),
    column("k", "n", "positions in the pass", "time.rows"),
    column("ms", "[3]", "median over repeats", "time.ms"),
    column("repeats", "n", "times it was timed", "time.ms.n"),
    column("efficiency", "3", "T(1) / T(k)", label="T(1)/T(k)"),
    column("time_a_token", "3", "T(k) / (k T(1))", label="T(k)/(k T(1))", detail=True),
)
_STUDY_SAYS = "1 / k: all weights loaded once for k positions"

BANDWIDTH: tuple[Column, ...] = (  # of a `Pass`
    column("source", "", "plain decoding, timed passes, known bytes (calibrate memory), plain read", label="from"),
    column("model", "", "id of the model, quantization, or threads of a plain read"),
    column("k", "n", "positions in the pass"),
    column("ms", "[3]", "time of the pass"),
    column("read_gb", "3", "10^9 bytes of the tensors it needs; experts as counted", lambda p: _giga(p.read_bytes)),
    column("weights_gb", "3", "10^9 bytes of all tensors", lambda p: _giga(p.weight_bytes)),
    column("gb_s", "1", "read_gb over the time", label="GB/s"),
    column("claimed_gb_s", "1", "weights_gb over the time, as the study computes it", label="all weights, GB/s"),
    column("of_measured", "0%", "gb_s over what memory gave here", lambda p: p.roof and p.gb_s / p.roof.gb_s),
    column("of_stated", "0%", "gb_s over the published peak", lambda p: p.of_stated(p.gb_s), label="of the peak"),
    column("experts", "1", "distinct experts of a layer, counted"),
    column("time_a_token", "3", "T(k) / (k T(1)): the measured amortization"),
    column("bytes_a_token", "3", "read_gb(k) / (k read_gb(1))"),
    column("claimed_a_token", "3", _STUDY_SAYS, lambda p: p.k and 1 / p.k, label="the study: 1/k"),
    column("gflop_s", "1", "two operations a weight and position, over the time", label="GFLOP/s", detail=True),
    column("intensity", "2", "operations a byte"),
)


def of_passes(timed: Mapping[str, Iterable[PassTime]]) -> pd.DataFrame:
    """What was timed of these models, as `study.passes` has it."""
    return frame_of((one for name, own in timed.items() for one in timed_passes(name, own)), PASSES)


def timed_passes(model: str, every_time: Iterable[PassTime]) -> list[PassRow]:
    """The times of a model, target passes beside T(1) of their depth."""
    times = list(every_time)
    plain = {one.depth: one.ms.value for one in times if (one.kind, one.rows) == ("target_pass", 1)}
    return [PassRow(model, one, plain.get(one.depth) if one.kind == "target_pass" else None) for one in times]


class Counted(NamedTuple):
    """Experts of a mixture in windows of k tokens."""

    mixture: Mixture
    row: CoverageRow


def of_mixtures(mixtures: Iterable[Mixture]) -> pd.DataFrame:
    """Experts of these mixtures, as `study.experts` has them."""
    return frame_of([Counted(one, row) for one in mixtures for row in one.coverage.rows], EXPERTS)


_OF_MOESD, _CLAIMED = "the same, experts by MoESD", "1/k: all weights in every pass"
EXPERTS: tuple[Column, ...] = (  # of a `Counted`
    column("model", "", "id of the mixture", "mixture.name"),
    column("k", "n", "consecutive tokens", "row.window"),
    column("n_experts", "n", "experts of a layer", "mixture.coverage.n_experts"),
    column("n_used", "n", "of them a token", "mixture.coverage.n_used"),
    column("counted", "2", "distinct experts of a layer on real text, mean", "row.text", label="experts counted"),
    column("counted_drafted", "2", "the same in drafted batches", "row.drafted", label="in drafted tokens"),
    column("lowest_layer", "2", "of the layers' means on text", "row.lowest_layer"),
    column("highest_layer", "2", "of the layers' means on text", "row.highest_layer"),
    column("uniform", "2", "E (1 - (1 - K/E)^k), MoESD", "row.uniform", label="uniform (MoESD)"),
    column("correlated", "2", "the same with k^(1 - r) tokens, r fitted", "row.correlated", label="one correlation r"),
    column("bytes_a_token", "3", "bytes(k) / (k bytes(1))", "row.amortization"),
    column("uniform_bytes_a_token", "3", _OF_MOESD, "row.uniform_amortization", label="uniform (MoESD)"),
    column("correlated_bytes_a_token", "3", "the same, one correlation", "row.correlated_amortization"),
    column("time_a_token", "[2]", "T(k) / (k T(1))", lambda c: c.mixture.time_a_token.get(c.row.window)),
    column("of_all_weights", "0%", "bytes of the pass over all", "row.against_all"),
)

CLAIMS: tuple[Column, ...] = (  # of a `ClaimVerdict`
    column("id", "", "short name", "claim.id"),
    column("claim", "", "in our words", "claim.text"),
    column("source", "", "where it is made", "claim.source"),
    column("printed", "", "what the source prints", "claim.printed"),
    column("decision", "", "holds here, does not hold here, not decided yet, not measured, refuted", label="here"),
    column("meaning", "", "what the effect is"),
    column("effect", "[2]", "the figure that decides"),
    column("against", "3", "what it is compared with"),
    column("n", "n", "units behind its interval: texts, of one text repeats", "effect.n"),
    column("n_texts", "n", "texts behind it", lambda v: v.n_texts or None),
    column("n_repeats", "n", "repeats of the text that has most", lambda v: v.n_repeats or None),
    column("printed_rows", "n", "printed rows behind the claim",
           lambda v: sum((v.published_audit or {}).values()) or None),
    column("impossible_rows", "n", "of them impossible", "published_audit.impossible"),
    column("sentence", "", "the decision in words", label="effect"),
)  # fmt: skip


def _predicted(name: str, label: str, meaning: str) -> tuple[Column, ...]:
    off = "that over the measured speedup; 1 is right"
    return (
        column(name, "2x", meaning, f"{name}.speedup", label=label),
        column(f"{name}_off", "[2]", off, f"{name}.off", label=f"{label} / measured", detail=True),
    )


EQUATIONS: tuple[Column, ...] = (  # of an `Equations`
    column("suite", "", "suite that measured it", "arm.question.suite"),
    column("target", "", "id of the target", "arm.case.target.id"),
    column("draft", "", "id of the draft model", "arm.case.drafter.draft.id"),
    column("gamma", "n", "most tokens proposed a round", "arm.case.gamma"),
    column("inputs", "", "rounds: times of these trials; calibration: passes timed without them", label="times from"),
    column("n", "n", "pairs of a speculative and a plain trial", "arm.n_blocks"),
    column("alpha", "1%", "accepted / proposed, as the study counts", detail=True),
    column("mgl", "2", "tokens committed a round", label="MGL"),
    column("proposed_per_round", "1", "gamma, less what short last rounds leave out", label="proposed", detail=True),
    column("c", "2", "drafting a token, in plain passes", detail=True),
    column("t_seq_ms", "3", "a plain pass", label="T_seq ms", detail=True),
    column("t_draft_ms", "3", "drafting of a round", label="T_draft ms", detail=True),
    column("t_verify_ms", "3", "verification of a round", label="T_verify ms", detail=True),
    column("t_rest_ms", "3", "rollback, sampling, bookkeeping of a round", label="T_rest ms", detail=True),
    column("speedup", "[2]x", "measured", "measured", label="measured speedup"),
    *_predicted("eq1", "Eq. 1", "speedup that equation 1 gives: (1 - a^(g+1)) / ((1 - a)(c g + 1))"),
    *_predicted("eq2", "Eq. 2", "speedup that equation 2 gives: g T_seq / (T_draft + T_verify), rejected tokens too"),
    *_predicted("corrected", "corrected", "MGL T_seq / (T_draft + T_verify + rest) of passes timed apart"),
    column("credited", "2", "tokens that equation 2 counts for each one committed"),
)

FRAMES: dict[str, tuple[Column, ...]] = {
    name: flat(columns)
    for name, columns in (
        ("trials", TRIALS), ("rounds", ROUNDS), ("outcomes", OUTCOMES), ("pairs", PAIRS), ("arms", ARM),
        ("baselines", BASELINES), ("passes", PASSES), ("bandwidth", BANDWIDTH), ("experts", EXPERTS),
        ("claims", CLAIMS), ("equations", EQUATIONS),
    )
}  # fmt: skip


def _giga(n: float | None) -> float | None:
    return None if n is None else n / 1e9


def frame_of(rows: Iterable[Any], columns: Iterable[Column]) -> pd.DataFrame:
    """The frame of these rows, of exactly these columns and types; an interval is three columns."""
    import pandas as pd

    every_row, each = list(rows), flat(columns)
    values = {of.name: [of.get(row) for row in every_row] for of in each}
    try:
        index = pd.RangeIndex(len(every_row))
        return pd.DataFrame({of.name: pd.Series(values[of.name], index, of.dtype) for of in each}, index)
    except (TypeError, ValueError) as error:
        raise AnalysisError(
            f"The study holds a value of the wrong type: {error}.", hint="Check the file: mlsd results check."
        ) from error
