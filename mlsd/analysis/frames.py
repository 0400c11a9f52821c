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

from mlsd.errors import AnalysisError
from mlsd.formats.tables import rows_of
from mlsd.records import Case, ModelFacts, Trial
from mlsd.store.rows import Run
from mlsd.store.store import Store
from mlsd.trials.acceptance import loop_of
from mlsd.trials.arms import options_text
from mlsd.trials.fields import ARM, Field, Get, Kind, count, ends, number, text
from mlsd.trials.results import ArmResult, Measured, TrialPair
from mlsd.trials.sums import PARTS, speed

if TYPE_CHECKING:
    import pandas as pd

    from mlsd.analysis.experts.coverage import CoverageRow, Mixture
    from mlsd.analysis.fits.calibration import PassTime


_TEXT: Kind = "string"
_COUNT: Kind = "Int64"
_NUMBER: Kind = "float64"
_FLAG: Kind = "boolean"


def _column(name: str, dtype: Kind, meaning: str) -> Field:
    """Of rows by name; units stand in the name."""
    return Field(name, dtype=dtype, meaning=meaning, get=itemgetter(name))


TRIALS: tuple[Field, ...] = (
    _column("trial_id", _COUNT, "row in the table trial"),
    _column("run_id", _COUNT, "invocation that measured it"),
    _column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    _column("case_id", _TEXT, "content hash of the configuration"),
    _column("suite", _TEXT, "suite it was planned by"),
    _column("arm", _TEXT, "ar or sd"),
    _column("target", _TEXT, "id of the target"),
    _column("drafter", _TEXT, "drafting method"),
    _column("draft", _TEXT, "id of the draft model, where the method has one"),
    _column("gamma", _COUNT, "most tokens proposed a round"),
    _column("prompt", _TEXT, "name of the prompt"),
    _column("n_predict", _COUNT, "output tokens asked for"),
    _column("block_id", _COUNT, "the block: what one process measured together; its trials are compared, no others"),
    _column("block", _COUNT, "number of the planned block"),
    _column("repeat", _COUNT, "repeat of the block"),
    _column("position", _COUNT, "place within the block"),
    _column("status", _TEXT, "valid, hot (valid, and marked), disturbed (its time is not used), invalid or failed"),
    _column("valid", _FLAG, "valid or hot: every call succeeded, rollback is exact, output is lossless"),
    _column("reason", _TEXT, "why it is not simply valid"),
    _column("started_at", _TEXT, "ISO 8601, UTC"),
    _column("n_prompt", _COUNT, "prompt tokens"),
    _column("n_tokens", _COUNT, "output tokens, the first included"),
    _column("prefill_ns", _COUNT, "target prefill, up to the first output token"),
    _column("decode_ns", _COUNT, "from the first output token to the last"),
    _column("rollback_target", _TEXT, "how the target forgets"),
    _column("rollback_draft", _TEXT, "how the draft forgets"),
    _column("fell_back", _TEXT, "why the draft worked in another way than was asked for"),
    _column("failed_native_calls", _COUNT, "llama.cpp calls that returned failure"),
    _column("verdict", _TEXT, "lossless, near_tie, not_judged or diverged"),
    _column("tolerance", _NUMBER, "gap up to which noise explains a token that differs"),
    _column("worst_gap", _NUMBER, "largest gap between the best and the emitted token, when single tokens are decoded"),
    _column("differences_per_1000", _NUMBER, "output tokens in a thousand that single tokens would not have chosen"),
    _column("peak_rss_bytes", _COUNT, "peak resident memory of the worker; what only the GPU maps is not in it"),
    _column("rounds", _COUNT, "rounds"),
    _column("proposed", _COUNT, "drafted tokens sent to verification"),
    _column("accepted", _COUNT, "proposed tokens that matched"),
    _column("committed", _COUNT, "tokens the rounds added to the output"),
    _column("draft_ns", _COUNT, "sum over rounds: drafting"),
    _column("verify_ns", _COUNT, "sum over rounds: target passes"),
    _column("rollback_ns", _COUNT, "sum over rounds: forgetting rejected tokens"),
    _column("sample_ns", _COUNT, "sum over rounds: reading tokens, acceptance rule"),
    _column("other_ns", _COUNT, "sum over rounds: bookkeeping"),
    _column("prompt_key", _TEXT, "content and exact length of the prompt"),
    _column("workload", _TEXT, "kind of text: factual, code, ..."),
    _column("options", _TEXT, "options of the drafter, as JSON"),
    _column("source", _TEXT, "engine: mlsd's own; server: somebody's, over HTTP"),
    _column("decode_tok_s", _NUMBER, "(n_tokens - 1) / decode_ns"),
    _column("acceptance_rate", _NUMBER, "accepted / proposed"),
    _column("accepted_of_output", _NUMBER, "accepted / committed, as mlx_lm counts: 1 - 1 / MGL"),
    _column("mgl", _NUMBER, "committed / rounds"),
    _column("parts_ns", _COUNT, "draft + verify + rollback + sample + other"),
)

OUTCOMES: tuple[Field, ...] = (
    _column("environment_key", _TEXT, "host, backend, device and llama.cpp build"),
    _column("case_id", _TEXT, "content hash of the configuration"),
    _column("repeat", _COUNT, "repeat of the block"),
    _column("proposed", _COUNT, "tokens proposed in such a round"),
    _column("accepted", _COUNT, "of them accepted"),
    _column("rounds", _COUNT, "rounds that ended so"),
    _column("committed", _COUNT, "sum over them: tokens added to the output"),
    *(_column(part, _COUNT, f"sum over them: {part.removesuffix('_ns')}") for part in PARTS),
)


def trials(stored: Sequence[Measured], runs: Iterable[Run]) -> pd.DataFrame:
    """Trials with the sums of their rounds: columns `TRIALS`, one row a trial."""

    def derived(one: Measured, row: dict[str, Any]) -> dict[str, Any]:
        case, parts = one.case, [row[part] for part in PARTS]
        return row | {
            "prompt_key": f"{case.prompt.sha256}:{case.prompt.n_tokens}",
            "workload": case.prompt.workload or case.prompt.key,
            "options": options_text(case.drafter),
            "source": case.source,
            "parts_ns": None if None in parts else sum(parts),
        }

    return made(map(derived, stored, rows_of(stored, runs)), TRIALS)


def outcomes(store: Store, of: Container[int]) -> pd.DataFrame:
    """How the rounds of each case and repeat of these trials ended: columns `OUTCOMES`."""
    names = [field.name for field in OUTCOMES]
    return made((dict(zip(names, row, strict=True)) for row in store.round_outcomes(of)), OUTCOMES)


ROUNDS: tuple[Field, ...] = (  # of a trial's id, a round's number, and the round
    count("trial_id", "row in the table trial", lambda r: r[0]),
    count("number", "of the round in its trial, from 0", lambda r: r[1]),
    *(count(name, meaning, lambda r, name=name: getattr(r[2], name)) for name, meaning in (  # type: ignore[misc]
        ("proposed", "drafted tokens sent to verification"),
        ("accepted", "proposed tokens that matched"),
        ("committed", "tokens added to the output"),
        ("rows", "positions that the target decoded"),
        ("draft_ns", "drafting"),
        ("verify_ns", "the target pass"),
        ("rollback_ns", "forgetting rejected tokens"),
        ("sample_ns", "reading tokens, acceptance rule"),
        ("other_ns", "bookkeeping"),
    )),
)  # fmt: skip


def rounds(store: Store, of: Container[int]) -> pd.DataFrame:
    """Every round of these trials: columns `ROUNDS`."""
    stored = (one for one in store.trials() if one.id in of)
    return made(((one.id, number, each) for one in stored for number, each in enumerate(one.trial.rounds)), ROUNDS)


class Paired(NamedTuple):
    """A trial beside the plain one of its block, with what the files of target and draft say."""

    pair: TrialPair
    target: ModelFacts | None
    draft: ModelFacts | None
    perplexity_ratio: float | None

    @property
    def own(self) -> Trial:
        return self.pair.own.trial

    @property
    def case(self) -> Case:
        return self.pair.own.case

    @property
    def ms(self) -> dict[str, float]:
        return self.pair.own.whole.ms_per_round

    @property
    def t_one_ms(self) -> float:
        return 1e3 / (speed(self.pair.plain.trial) or math.nan)

    @property
    def rest_ms(self) -> float:
        return self.ms["rollback"] + self.ms["sample"] + self.ms["other"]


def _name(name: str, meaning: str, get: Get) -> Field:
    return Field(name, meaning, get, "object")


def _whole(name: str, meaning: str, get: Get) -> Field:
    return Field(name, meaning, get, "int64")


def _fact(name: str) -> Get:
    return lambda p: 0 if p.target is None else getattr(p.target, name) or 0


PAIRS: tuple[Field, ...] = (  # of a `Paired`; times are means over the rounds of a trial
    _whole("trial_id", "the speculative trial", lambda p: p.pair.own.id),
    _whole("baseline_id", "the plain trial of its block", lambda p: p.pair.plain.id),
    _name("target", "id of the target", lambda p: p.case.target.id),
    _name("drafter", "drafting method", lambda p: p.case.drafter.name),
    _name("draft", "id of the draft model", lambda p: p.case.drafter.draft and p.case.drafter.draft.id),
    _name("options", "options of the drafter, as JSON", lambda p: options_text(p.case.drafter)),
    _name("component", "the part of the target that drafts", lambda p: p.case.drafter.options.get("component")),
    _whole("gamma", "most tokens proposed a round", lambda p: p.case.gamma),
    _name("prompt", "name of the prompt", lambda p: p.case.prompt.key),
    _whole("n_prompt", "prompt tokens", lambda p: p.own.n_prompt or 0),
    _whole("block", "number of the planned block", lambda p: p.own.block),
    _whole("repeat", "repeat of the block", lambda p: p.own.repeat),
    number("started_s", "when it began, seconds since 1970", lambda p: _seconds(p.own.started_at)),
    Field("loops", "its output repeats itself to the end", lambda p: loop_of(p.own.tokens) is not None, "bool"),
    number("speedup", "tok/s over those of the plain trial", lambda p: p.pair.ratio),
    number("t_one_ms", "decode time a token of the plain trial", lambda p: p.t_one_ms),
    number("mgl", "committed / rounds", lambda p: p.pair.own.whole.mgl),
    _whole("proposed", "drafted tokens sent to verification", lambda p: p.pair.own.whole.proposed),
    _whole("accepted", "proposed tokens that matched", lambda p: p.pair.own.whole.accepted),
    _whole("rounds", "rounds", lambda p: p.pair.own.whole.rounds),
    number("draft_ms", "drafting of a round", lambda p: p.ms["draft"]),
    number("verify_ms", "verification of a round", lambda p: p.ms["verify"]),
    number("rest_ms", "rollback, sampling and bookkeeping of a round", lambda p: p.rest_ms),
    number("round_ms", "the whole round", lambda p: p.ms["draft"] + p.ms["verify"] + p.rest_ms),
    Field("mixture", "the target routes to experts", lambda p: bool(_fact("n_experts")(p)), "bool"),
    number("parameters", "of the target", _fact("n_parameters")),
    number("active", "parameters that a token of the target reads", _fact("n_parameters_active")),
    number("weight_bytes", "of the target's tensors", _fact("weight_bytes")),
    _name("architecture", "of the target", lambda p: p.target.architecture if p.target else ""),
    _name("shape", "equal for quantizations of one model", lambda p: _shape(p.target)),
    number("draft_parameters", "of the draft model", lambda p: p.draft and p.draft.n_parameters),
    number("perplexity_ratio", "of the drafting part over the whole model", lambda p: p.perplexity_ratio),
)


def pairs(
    found: Iterable[TrialPair], models: Mapping[str, ModelFacts], ratios: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """One row a pair with rounds: columns `PAIRS`; `ratios` are perplexity ratios by the trial that drafted."""

    def paired(one: TrialPair) -> Paired:
        draft = one.own.case.drafter.draft
        of_draft = models.get(draft.id) if draft else None
        return Paired(one, models.get(one.own.case.target.id), of_draft, (ratios or {}).get(one.own.id))

    return made((paired(one) for one in found if one.own.whole.rounds), PAIRS)


def _seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


def _shape(facts: ModelFacts | None) -> str:
    if facts is None:
        return ""
    shape = (facts.architecture, facts.n_layers, facts.n_embd, facts.n_experts, facts.n_parameters)
    return " ".join(map(str, shape))


def _of_arm(*names: str) -> tuple[Field, ...]:
    return tuple(field for field in ARM if field.name in names)


BASELINES: tuple[Field, ...] = (  # of an `ArmResult` of plain decoding, one a target
    *_of_arm("suite", "target", "text", "n_predict", "n_trials", "n_valid", "tok_s", "spread"),
    text("first_at", "when the first of its trials began, ISO 8601, UTC", lambda a: _moments(a)[0]),
    text("last_at", "when the last of them began", lambda a: _moments(a)[-1]),
)


def _moments(arm: ArmResult) -> list[str]:
    return sorted(one.trial.started_at for one in arm.trials)


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
    text("source", "plain decoding, timed passes, known bytes (calibrate memory), plain read", lambda p: p.source),
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
    "trials": TRIALS,
    "rounds": ROUNDS,
    "outcomes": OUTCOMES,
    "pairs": PAIRS,
    "arms": ARM,
    "baselines": BASELINES,
    "passes": PASSES,
    "bandwidth": BANDWIDTH,
    "experts": EXPERTS,
    "claims": CLAIMS,
    "equations": EQUATIONS,
}


def _giga(n: float | None) -> float | None:
    return None if n is None else n / 1e9


def made(rows: Iterable[Any], fields: Iterable[Field]) -> pd.DataFrame:
    """The frame of these rows, of exactly these columns and types."""
    import pandas as pd

    chosen = list(fields)
    types: dict[Any, Any] = {field.name: field.dtype for field in chosen}
    records = [tuple(field.get(row) for field in chosen) for row in rows]
    try:
        return pd.DataFrame.from_records(records, columns=list(types)).astype(types)
    except (TypeError, ValueError) as error:
        raise AnalysisError(
            f"The study holds a value of the wrong type: {error}.", hint="Check the file: mlsd results check."
        ) from error
