"""The tests that decide the claims on one's own trials: each an expression over the frame of pairs.

A test returns None where the study does not hold what its population asks for. Its effect is the figure that decides:
a mean over texts (of one text over repeats) with Student's interval, where one of several was chosen with Dunnett's
(1955), so that all hold together; or, where the mean decides nothing and each text says the same by itself (an
intersection-union test, Berger 1982), that of the text which says it least. So further texts that agree never undo a
decision. Nothing is decided from fewer than three blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mlsd.analysis.pairs import PairedTrials, units_of
from mlsd.methods import of_kind
from mlsd.records import DRAFT_MODEL
from mlsd.stats import Interval, Visible, mean_over, smallest_effect, t_quantile
from mlsd.trials.decisions import LEAST_BLOCKS
from mlsd.trials.proportions import Counts, pooled
from mlsd.units import counted

if TYPE_CHECKING:
    import pandas as pd

Decision = Literal["holds here", "does not hold here", "not decided yet", "not measured", "refuted"]
HOLDS: Decision = "holds here"
FAILS: Decision = "does not hold here"
OPEN: Decision = "not decided yet"

ACCEPTANCE_LIMIT = 0.04
ALL_WEIGHTS = 0.9  # a share from which a token as good as reads all weights
STUDY_GAMMA = 16  # the study's largest
SMALL_TARGET = 2.5e9  # parameters: the study's own are 1 to 2 x 10^9
STABLE_WITHIN = 0.10  # a change of speedup over all prompt lengths that still counts as none
RETRIEVAL = of_kind("look-up")
TREES = {"draft-tree": DRAFT_MODEL, "eagle3-tree": "eagle3"}  # verifies trees -> the same drafter with a chain
SELF_DRAFTING = of_kind("own layers")  # methods whose drafting model is a part of the target
OWN_MEMORY = '"mode":"own"'  # their option that keeps the target's memory from the draft
COMPONENT_AWARE = "layer-skip"  # drafts with the part of a hybrid that its option `component` names
PARALLEL, SEQUENTIAL = ("falcon-h1",), ("qwen35", "qwen35moe", "qwen3next")

BLOCK = ["prompt", "repeat"]
PAIR = ["target", "draft"]
ARM = [*PAIR, "gamma"]


class TestOutcome(NamedTuple):
    """What a test found."""

    decision: Decision
    effect: Interval  # the figure that decides
    meaning: str  # what the effect is, unit included
    against: float | None  # the value that the effect is compared with; None: that is not known here
    pairs: pd.DataFrame  # columns `trial_id`, `baseline_id`, `target`, `draft`, `drafter`, `prompt`, `repeat`
    visible: Visible | None = None  # the effects that would have been decided 4 times in 5
    detail: str = ""


Test = Callable[[PairedTrials], TestOutcome | None]


# --- what is accepted -------------------------------------------------------------------------------------------------


def acceptance_below(paired: PairedTrials) -> TestOutcome | None:
    """Is accepted / proposed below 4 % for every draft model on every target? (study, abstract, 4.7)

    Of each pair of models the mean over texts, with the wider of two intervals: Student's over texts, and Clopper and
    Pearson's over all rounds of a repeat (a round's tokens stand and fall together, greedy repeats accept the same
    again, and gammas read the same text), for texts that all accept nothing scatter too little. Each text has Clopper
    and Pearson's of its own. No interval shows a rare text that is copied whole before it was drawn.
    """
    pairs = paired.drafted
    models = list(pairs.groupby(PAIR))
    if not models:
        return None
    means: dict[Any, _Mean] = {}
    for key, of_pair in models:
        texts = {prompt: _share(of_text, len(models)) for prompt, of_text in of_pair.groupby("prompt")}
        rate = mean_over([share.value for share in texts.values()], n_choices=len(models))
        wider, n_blocks = _wider(rate, _share(of_pair, len(models))), len(of_pair[BLOCK].drop_duplicates())
        means[key] = _common(wider, texts, ACCEPTANCE_LIMIT, n_blocks).below
    target, draft = _deciding(means, lambda mean: -mean.effect.value)
    detail = f"That is {draft} on {target}, of {counted(len(means), 'pair')} of models."
    return means[target, draft].outcome("acceptance rate of a pair of models", pairs, detail)


def _wider(mean: Interval, counted_share: Interval) -> Interval:
    """A mean rate with the wider interval of the two, between 0 and 1."""
    lows = [end for end in (mean.low, counted_share.low) if end is not None]
    highs = [end for end in (mean.high, counted_share.high) if end is not None]
    return Interval(value=mean.value, low=max(0.0, min(lows)), high=min(1.0, max(highs)), n=mean.n)


def _share(pairs: pd.DataFrame, n_choices: int) -> Interval:
    """The acceptance rate of these pairs, worth as many trials as one repeat of a setting has rounds."""
    settings = len(pairs[["gamma", "options", "repeat"]].drop_duplicates())
    accepted, proposed = int(pairs["accepted"].sum()), int(pairs["proposed"].sum())
    return pooled([Counts(accepted / proposed, pairs["rounds"].sum() / settings)], n_choices)


def prompt_types(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the speedup of the best text exceed that of the worst, in the same settings? (6)

    Blocks of one text share its acceptance, and two texts are what is compared: repeats are what is independent.
    Holds where the interval lies within 10 % of none, fails where it lies beyond.
    """
    pairs = paired.drafted
    pairs = pairs[~pairs["prompt"].str.startswith("length")]
    means = np.log(pairs["speedup"]).groupby(pairs["prompt"]).mean()
    if len(means) < 2:
        return None
    best, worst = str(means.idxmax()), str(means.idxmin())
    fast, slow = (
        pairs[pairs["prompt"] == text].drop_duplicates([*ARM, "repeat"], keep="last") for text in (best, worst)
    )
    both = fast.merge(slow, on=[*ARM, "repeat"], suffixes=("", "_slow"))
    if both.empty:
        return None
    n_choices = len(means) * (len(means) - 1) // 2
    ratios = both["speedup"] / both["speedup_slow"]
    effect = mean_over(ratios.tolist(), both["repeat"].tolist(), ratio=True, n_choices=n_choices)
    decision, against = _stable(effect, 0.0)
    if both["repeat"].nunique() < LEAST_BLOCKS:
        decision = OPEN
    detail = f"Best {best}, worst {worst} of {len(means)}; none means within {100 * STABLE_WITHIN:.0f} %."
    meaning = "factor of speedup from the worst text to the best"
    return TestOutcome(decision, effect, meaning, against, _stack(fast, slow), None, detail)


def prompt_length(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change from the shortest to the longest prompt? (4.8)

    ``S = a + b log2(length)`` through the mean log speedup at each length: repeats, gammas and targets read the same
    text of a length, so lengths are what is independent. Student's interval of b with two degrees of freedom less.
    Holds where it lies within 10 % of none, fails where it lies beyond.
    """
    swept = paired.drafted
    swept = swept[swept["prompt"].str.startswith("length") & (swept["n_prompt"] > 0)]
    # Every arm weighs the same at every length: its mean over repeats.
    by_length = np.log(swept["speedup"]).groupby([swept["n_prompt"], *(swept[name] for name in ARM)]).mean()
    table = by_length.unstack(ARM).dropna() if len(by_length) else by_length
    if len(table) < LEAST_BLOCKS:
        return None
    lengths = [int(n) for n in table.index]
    x, y = np.log2(lengths), table.mean(axis=1).to_numpy()
    slope, start = np.polyfit(x, y, 1)
    freedom = len(lengths) - 2
    error = math.sqrt(((y - start - slope * x) ** 2).sum() / freedom / ((x - x.mean()) ** 2).sum())
    span, half = math.log2(lengths[-1] / lengths[0]), t_quantile(0.975, freedom) * error
    value, low, high = (math.exp(span * rise) for rise in (slope, slope - half, slope + half))
    effect = Interval(value=value, low=low, high=high, n=len(lengths))
    meaning = "factor of speedup from the shortest to the longest prompt"
    detail = f"Stable means within {100 * STABLE_WITHIN:.0f} %."
    used = swept[swept["n_prompt"].isin(lengths)]
    decision, against = _stable(effect, 1 - STABLE_WITHIN)
    return TestOutcome(decision, effect, meaning, against, used, None, detail)


# --- plain decoding ---------------------------------------------------------------------------------------------------


def slower_than_dense(paired: PairedTrials) -> TestOutcome | None:
    """Is plain decoding of a mixture slower than of a dense model with more active parameters? (4.1)

    Time a token over time a token on the same prompt and repeat. Two models are never in one block, so that only
    repeats that alternate between them tell a model from the drift of the machine: they are the units. Of models that
    were measured one after the other nothing is decided, whatever the texts say.
    """
    plain = paired.plain
    dense = plain[~plain["mixture"]]
    both = plain[plain["mixture"]].merge(dense, on=BLOCK, suffixes=("", "_dense"))
    both = both[(both["active_dense"] > both["active"]) & (both["active"] > 0)]
    if both.empty:
        return None
    factors = both["t_one_ms"] / both["t_one_ms_dense"]
    effect = mean_over(factors.tolist(), both["repeat"].tolist(), ratio=True)
    used = plain[plain["trial_id"].isin([*both["trial_id"], *both["trial_id_dense"]])]
    meaning = "time of a plain token of the mixture over that of the larger dense model"
    if why := measured_apart(used):
        return TestOutcome(OPEN, Interval(value=effect.value), meaning, 1.0, used, None, why)
    decision = _above(effect, 1.0) if effect.n >= LEAST_BLOCKS else OPEN
    return TestOutcome(decision, effect, meaning, 1.0, used, smallest_effect(effect, ratio=True))


def measured_apart(plain: pd.DataFrame) -> str:
    """Why times of these plain trials of several targets do not compare; empty where each repeat held all of them."""
    if plain["target"].nunique() < 2:
        return ""
    spans = plain.groupby("repeat").agg(
        first=("started_s", "min"), last=("started_s", "max"), n=("target", "nunique")
    ).sort_values("first")  # fmt: skip
    in_turn = (spans["n"] == plain["target"].nunique()).all() and (spans["first"] > spans["last"].shift()).iloc[
        1:
    ].all()
    if in_turn and len(spans) > 1:
        return ""
    middles = plain.groupby("target")["started_s"].median()
    minutes = (middles.max() - middles.min()) / 60
    changes = plain.groupby(["target", "prompt"])["t_one_ms"].agg(lambda times: times.max() / times.min() - 1)
    drift = f"while plain decoding of one text changed by up to {100 * changes.max():.0f} %"
    when = drift if plain["repeat"].nunique() > 1 else "once, so that nobody knows how the machine drifted"
    return (
        f"The models were measured one after the other, up to {minutes:.1f} minutes apart, {when}. Repeats in turn "
        "tell them apart: the same run with --repeats 1, then 2, then 3."
    )


def loads_all_weights(paired: PairedTrials) -> TestOutcome | None:
    """Does a plain token of a mixture read all of its weights? (2.3, 4.1, 5.2)

    ``weights / T(1)`` in GB/s: what memory would have to give. It fails where that is more than memory gave; less
    refutes nothing. It holds where the file says that a token needs nine tenths of the weights.
    """
    shares = {
        name: (facts.active_bytes / facts.weight_bytes, facts.weight_bytes)
        for name, facts in paired.models.items()
        if facts.n_experts and facts.active_bytes and facts.weight_bytes
    }
    mixtures = paired.plain[paired.plain["target"].isin(list(shares))]
    if mixtures.empty:
        return None
    largest = max(dict.fromkeys(mixtures["target"]), key=lambda name: shares[name][0])
    share, weight_bytes = shares[largest]
    mixtures = mixtures[mixtures["target"] == largest]
    gb_s = weight_bytes / mixtures["t_one_ms"] / 1e6
    needed = mean_over(gb_s.tolist(), units_of(mixtures).tolist(), ratio=True)
    gave, enough = paired.memory_gb_s, len(mixtures[BLOCK].drop_duplicates()) >= LEAST_BLOCKS
    decision = FAILS if gave is not None and enough and _above(needed, gave) == HOLDS else OPEN
    said = f"By its file a plain token of {largest} needs {100 * share:.0f} % of its weights"
    more = "" if gave is not None else "; what memory gives was not measured (mlsd calibrate memory)"
    meaning = "GB/s that memory would have to give for all weights in a plain token's time"
    texts = _by_text(np.exp(np.log(gb_s).groupby(mixtures["prompt"]).mean()).to_dict())
    detail = f"{said}{more}.{texts if decision == OPEN else ''}"
    return TestOutcome(HOLDS if share > ALL_WEIGHTS else decision, needed, meaning, gave, mixtures, None, detail)


# --- mixtures of experts ----------------------------------------------------------------------------------------------


def moe_speedup(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of expert models above 1 at the gamma that does best on average? (abstract, 6)"""
    return _at_best_setting(paired.drafted, "speedup", "speedup at the best gamma")


def without_acceptance(paired: PairedTrials) -> TestOutcome | None:
    """Would a mixture of experts gain from batch verification alone, had no drafted token been accepted? (2.2, 4.7)

    ``T_seq / (T_draft + T_verify + rest)``: a round that commits the target's own token, over the time it took.
    """
    pairs = paired.drafted
    alone = pairs.assign(alone=pairs["t_one_ms"] / pairs["round_ms"])
    return _at_best_setting(alone, "alone", "speedup if nothing were accepted")


def _at_best_setting(pairs: pd.DataFrame, column: str, meaning: str) -> TestOutcome | None:
    """Of mixtures of experts, at the draft and gamma where this is largest on average."""
    settings = dict(list(pairs[pairs["mixture"]].groupby(["draft", "gamma"])))
    if not settings:
        return None
    means = {key: _mean(some.assign(factor=some[column]), len(settings)) for key, some in settings.items()}
    best = max(means, key=lambda key: means[key].value)
    draft, gamma = best
    return means[best].outcome(
        meaning, settings[best], f"Best of {counted(len(settings), 'setting')}: {draft}, gamma {gamma}."
    )


def between_dense(paired: PairedTrials) -> TestOutcome | None:
    """Does a mixture gain more than the smallest dense target, and less than the largest? (4.3)

    Speedups, whose plain trials are in their own blocks, so that drift between targets cancels.
    """
    pairs, by = paired.drafted, ["draft", "gamma", *BLOCK]
    dense = pairs[~pairs["mixture"]].sort_values("active").groupby(by)
    ends = dense.first().merge(dense.last(), on=by, suffixes=("_small", "_large"))
    both = pairs[pairs["mixture"]].merge(ends[ends["active_small"] < ends["active_large"]].reset_index(), on=by)
    if both.empty:
        return None
    ids = {*both["trial_id"], *both["trial_id_small"], *both["trial_id_large"]}
    smallest = _mean(both.assign(factor=both["speedup"] / both["speedup_small"]), 2)
    largest = _mean(both.assign(factor=both["speedup_large"] / both["speedup"]), 2)
    return _both(
        {
            "speedup of the mixture over that of the smallest dense target": smallest,
            "speedup of the largest dense target over that of the mixture": largest,
        },
        pairs[pairs["trial_id"].isin(ids)],
    )


def total_parameters(paired: PairedTrials) -> TestOutcome | None:
    """Does an expert model gain more than dense models of its active size would, by their own trend? (4.3)

    The trend is a line of log speedup over log parameters through the dense targets of the same prompt.
    """
    by = ["draft", "gamma", *BLOCK]
    pairs = paired.drafted[paired.drafted["active"] > 0].sort_values(by, kind="stable")
    dense, moe = pairs[~pairs["mixture"]], pairs[pairs["mixture"]]
    lines = _lines(dense, by, np.log(dense["active"]), np.log(dense["speedup"]))
    on_trend = moe.merge(lines, left_on=by, right_index=True)
    if on_trend.empty:
        return None
    trend = np.exp(on_trend["y"] + on_trend["slope"] * (np.log(on_trend["active"]) - on_trend["x"]))
    used = _stack(on_trend, dense.merge(on_trend[by].drop_duplicates(), on=by))
    meaning = "speedup of the expert model over that of dense ones at its active size"
    return _mean(on_trend.assign(factor=on_trend["speedup"] / trend)).outcome(meaning, used)


def more_bits(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the quantization with more bytes gain more than the one with fewer, of one model? (4.2)"""
    pairs = paired.drafted
    both = _versus(pairs, ["shape", "draft", "gamma", *BLOCK], "weight_bytes", larger=True)
    return _factor(both, "speedup of the larger quantization over that of the smaller")


def smaller_draft(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the smaller draft beat the larger one on the same target, prompt and gamma? (4.5)"""
    both = _versus(paired.drafted, ["target", "gamma", *BLOCK], "draft_parameters")
    return _factor(both, "speedup with the smaller draft over that with the larger")


# --- the draft length -------------------------------------------------------------------------------------------------


def gamma_slope(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change when gamma doubles? (4.4) ``ln S = a + b log2(gamma)``, by least squares."""
    by = [*PAIR, *BLOCK]
    pairs = paired.drafted.sort_values(by, kind="stable")
    lines = _lines(pairs, by, np.log2(pairs["gamma"]), np.log(pairs["speedup"]))
    swept = pairs.merge(lines, left_on=by, right_index=True)
    if swept.empty:
        return None
    each = swept.drop_duplicates(by)
    return _mean(each.assign(factor=np.exp(each["slope"]))).outcome("factor of speedup when gamma doubles", swept)


def gamma_monotone(paired: PairedTrials) -> TestOutcome | None:
    """Does every step to a larger gamma raise the speedup of every target and draft? (4.4, figure 2)"""
    pairs = paired.drafted.sort_values("gamma", kind="stable").drop_duplicates([*ARM, *BLOCK], keep="last")
    before = pairs.groupby([*PAIR, *BLOCK])[["gamma", "speedup", "trial_id"]].shift()
    stepped = pairs.assign(
        factor=pairs["speedup"] / before["speedup"], before=before["gamma"], before_id=before["trial_id"]
    ).dropna(subset="before")  # fmt: skip
    steps = dict(list(stepped.groupby([*PAIR, "before", "gamma"])))
    if not steps:
        return None
    means = {key: _mean(step, len(steps)) for key, step in steps.items()}
    target, draft, small, large = key = _deciding(means)
    falling = [mean for mean in means.values() if mean.decision == FAILS]
    detail = f"That is {target} with {draft}, gamma {small:g} to {large}; certain to fall: "
    detail += f"{len(falling)} of {counted(len(means), 'step')}."
    used = pairs[pairs["trial_id"].isin({*stepped["trial_id"], *stepped["before_id"]})]
    return means[key].outcome("factor of speedup of a step to a larger gamma", used, detail)


def larger_gamma(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does gamma 32 or more beat 16? (5.4)"""
    pairs = paired.drafted
    largest = (
        pairs[pairs["gamma"] >= 2 * STUDY_GAMMA].sort_values("gamma").drop_duplicates([*PAIR, *BLOCK], keep="last")
    )
    both = largest.merge(pairs[pairs["gamma"] == STUDY_GAMMA], on=[*PAIR, *BLOCK], suffixes=("", "_other"))
    return _factor(both, "speedup at gamma 32 or more over that at 16")


# --- other methods and papers -----------------------------------------------------------------------------------------


def overhead_decides(paired: PairedTrials) -> TestOutcome | None:
    """Would a small target gain if drafting took no time, and does it not gain as it is? (seed study of small models)

    ``S (T_draft + T_verify + rest) / (T_verify + rest)`` beside S.
    """
    pairs = paired.drafted
    pairs = pairs[(pairs["parameters"] > 0) & (pairs["parameters"] < SMALL_TARGET)]
    if pairs.empty:
        return None
    verifying = pairs["round_ms"] - pairs["draft_ms"]
    free = _mean(pairs.assign(factor=pairs["speedup"] * pairs["round_ms"] / verifying))
    measured = _mean(pairs.assign(factor=pairs["speedup"])).below
    return _both({"speedup if drafting took no time": free, "measured speedup": measured}, pairs)


def retrieval_steady(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of lookup drafting above 1 on average, and below 1 on no prompt?"""
    pairs = paired.pairs[paired.pairs["drafter"].isin(RETRIEVAL)]
    if pairs.empty:
        return None
    mean, texts = _mean(pairs.assign(factor=pairs["speedup"])), list(pairs.groupby("prompt"))
    each = {str(text): _mean(some.assign(factor=some["speedup"]), len(texts)) for text, some in texts}
    losing = {text: of_text for text, of_text in each.items() if of_text.decision == FAILS}
    if not losing:
        return mean.outcome("speedup", pairs, "Slower on no prompt beyond the noise.")
    worst = _deciding(losing)
    return losing[worst].outcome(f"speedup on {worst}", pairs, f"Slower on: {', '.join(sorted(losing))}.")


def tree_helps(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does tree verification gain over a chain of the same drafter?

    A tree's gamma counts nodes, a chain's counts tokens, so equal gammas mean nothing: each side is taken at the
    setting that does best on average over the target's trials.
    """
    pairs = paired.pairs[paired.pairs["proposed"] > 0].fillna({"draft": ""})
    by = [*PAIR, "method", "tree"]
    sides = pairs.assign(tree=pairs["drafter"].isin(TREES), method=pairs["drafter"].replace(TREES))
    sides = sides[sides["method"].isin(TREES.values())]
    if sides["tree"].nunique() < 2:
        return None
    logs = np.log(sides["speedup"]).groupby([*(sides[name] for name in by), sides["gamma"], sides["options"]]).mean()
    best = logs.loc[logs.groupby(by).idxmax()].index.to_frame(index=False)
    sides = best.merge(sides, on=[*by, "gamma", "options"])
    chains = sides[~sides["tree"]]
    both = sides[sides["tree"]].merge(chains, on=[*PAIR, "method", *BLOCK], suffixes=("", "_other"))
    return _factor(both, "speedup with a tree over that with a chain")


def perplexity_predicts(paired: PairedTrials) -> TestOutcome | None:
    """Does acceptance fall as the perplexity ratio of the drafting part rises? Spearman's rank correlation.

    Of parts that draft with the target's own memory, as in the papers, at the gamma that most trials have. Its interval
    is Fisher's with the standard error ``1.06 / sqrt(n - 3)`` (Fieller, Hartley, Pearson 1957).
    """
    pairs = paired.pairs
    pairs = pairs[pairs["drafter"].isin(SELF_DRAFTING) & pairs["perplexity_ratio"].notna() & (pairs["proposed"] > 0)]
    pairs = pairs[~pairs["options"].str.contains(OWN_MEMORY, regex=False)]
    if pairs.empty:
        return None
    pairs = pairs[pairs["gamma"] == pairs["gamma"].value_counts().idxmax()]
    sums = pairs.groupby(["target", "drafter", "perplexity_ratio"])[["accepted", "proposed"]].sum().reset_index()
    if sums["perplexity_ratio"].nunique() < 4:
        return None
    rates = sums["accepted"] / sums["proposed"]
    n, rank = len(sums), float(sums["perplexity_ratio"].rank().corr(rates.rank()))
    centre, half = math.atanh(min(max(rank, -0.999), 0.999)), 1.96 * 1.06 / math.sqrt(n - 3)
    low, high = math.tanh(centre - half), math.tanh(centre + half)
    decision = _above(Interval(value=-rank, low=-high, high=-low, n=n), 0.0)
    meaning = "rank correlation of perplexity ratio and acceptance rate"
    return TestOutcome(decision, Interval(value=rank, low=low, high=high, n=n), meaning, 0.0, pairs)


def parallel_hybrids(paired: PairedTrials) -> TestOutcome | None:
    """By how much is acceptance of component-aware drafting higher in parallel hybrids than in sequential ones?"""
    pairs = paired.pairs
    pairs = pairs[(pairs["drafter"] == COMPONENT_AWARE) & pairs["component"].notna() & (pairs["proposed"] > 0)]
    pairs = pairs.assign(rate=pairs["accepted"] / pairs["proposed"])
    parallel, sequential = (pairs[pairs["architecture"].isin(kinds)] for kinds in (PARALLEL, SEQUENTIAL))
    both = parallel.merge(sequential, on=["gamma", *BLOCK], suffixes=("", "_other"))
    if both.empty:
        return None
    effect = mean_over((both["rate"] - both["rate_other"]).tolist(), units_of(both).tolist())
    meaning = "acceptance rate in parallel less that in sequential hybrids"
    decision = _above(effect, 0.0) if len(both[BLOCK].drop_duplicates()) >= LEAST_BLOCKS else OPEN
    used = pairs[pairs["trial_id"].isin({*both["trial_id"], *both["trial_id_other"]})]
    return TestOutcome(decision, effect, meaning, 0.0, used, smallest_effect(effect))


_TESTS: tuple[Test, ...] = (
    acceptance_below, slower_than_dense, loads_all_weights, moe_speedup, without_acceptance, gamma_slope,
    gamma_monotone, larger_gamma, smaller_draft, total_parameters, between_dense, prompt_length, prompt_types,
    more_bits, overhead_decides, retrieval_steady, tree_helps, perplexity_predicts, parallel_hybrids,
)  # fmt: skip
TESTS: dict[str, Test] = {test.__name__: test for test in _TESTS}


# --- shared -----------------------------------------------------------------------------------------------------


class _Mean(NamedTuple):
    """A mean over texts beside each text's own, and what they decide together."""

    decision: Decision  # whether it is above the limit
    effect: Interval  # the figure that decides
    value: float  # of the mean over texts
    texts: Mapping[Any, Interval]  # each by itself
    limit: float
    text: str = ""  # whose figure decides, where the mean does not
    visible: Visible | None = None

    @property
    def below(self) -> _Mean:
        """The same of a claim that it is below the limit."""
        return self._replace(decision=_OPPOSITE.get(self.decision, self.decision))

    def outcome(self, meaning: str, pairs: pd.DataFrame, detail: str = "") -> TestOutcome:
        if self.text:
            detail += f" Every text says so by itself; the figure is that of {self.text}, which says it least."
        if self.decision == OPEN:
            detail += _by_text({text: mean.value for text, mean in self.texts.items()})
        return TestOutcome(self.decision, self.effect, meaning, self.limit, pairs, self.visible, detail.strip())


def _by_text(values: Mapping[Any, float]) -> str:
    """Two texts, whose interval says nothing."""
    each = ", ".join(f"{text} {value:.3f}" for text, value in values.items())
    return f" By text: {each}." if len(values) == 2 else ""


_OPPOSITE: dict[Decision, Decision] = {HOLDS: FAILS, FAILS: HOLDS}


def _deciding(means: Mapping[Any, _Mean], size: Callable[[_Mean], float] = lambda mean: mean.effect.value) -> Any:
    """Of means that a claim says something of each of, the key of that which decides it: the least that fails, else
    that is open, else of all.
    """
    order = (FAILS, OPEN, HOLDS)
    return min(means, key=lambda key: (order.index(means[key].decision), size(means[key])))


def _both(means: Mapping[str, _Mean], pairs: pd.DataFrame) -> TestOutcome:
    """The test of a claim that says something of two means, by what they mean."""
    meaning = _deciding(means)
    (other,) = means.keys() - {meaning}
    return means[meaning].outcome(meaning, pairs, f"{other.capitalize()}: {means[other].effect.text(3)}.")


def _mean(factors: pd.DataFrame, n_choices: int = 1) -> _Mean:
    """Whether the geometric mean of the column `factor` is above 1; of one of `n_choices`."""
    whole = mean_over(factors["factor"].tolist(), units_of(factors).tolist(), ratio=True, n_choices=n_choices)
    texts = {
        str(text): mean_over(some["factor"].tolist(), some["repeat"].tolist(), ratio=True, n_choices=n_choices)
        for text, some in factors.groupby("prompt")
    }
    mean = _common(whole, texts, 1.0, len(factors[BLOCK].drop_duplicates()))
    return mean._replace(visible=smallest_effect(whole, n_choices, ratio=True))


def _common(whole: Interval, texts: Mapping[Any, Interval], limit: float, n_blocks: int) -> _Mean:
    """What the mean over texts says, or where it says nothing what every text says by itself."""
    if len(texts) == 1:
        (whole,) = texts.values()
    decision = _above(whole, limit) if n_blocks >= LEAST_BLOCKS else OPEN
    sides = {_above(of_text, limit) for of_text in texts.values()}
    if decision != OPEN or len(texts) < 2 or len(sides) > 1 or OPEN in sides or n_blocks < LEAST_BLOCKS * len(texts):
        return _Mean(decision, whole, whole.value, texts, limit)
    (decision,) = sides
    least = min(texts, key=lambda text: (texts[text].low or 0.0) if decision == HOLDS else -(texts[text].high or 0.0))
    return _Mean(decision, texts[least], whole.value, texts, limit, str(least))


def _factor(merged: pd.DataFrame, meaning: str) -> TestOutcome | None:
    """The test of a claim that `speedup` is above `speedup_other`, of pairs that were merged."""
    if merged.empty:
        return None
    both = merged.assign(factor=merged["speedup"] / merged["speedup_other"])
    others = merged[[name for name in merged if str(name).endswith("_other")]]
    others = others.rename(columns=lambda name: str(name).removesuffix("_other"))
    shared = [name for name in ("target", "draft", "drafter", *BLOCK) if name not in others]
    used = _stack(merged, others.join(merged[shared]))
    return _mean(both).outcome(meaning, used.drop_duplicates("trial_id"))


def _versus(pairs: pd.DataFrame, by: Sequence[str], size: str, *, larger: bool = False) -> pd.DataFrame:
    """Of pairs that differ in a size alone the smallest beside the largest (`_other`), or the other way round."""
    ordered = pairs[pairs[size] > 0].sort_values(size, ascending=not larger, kind="stable").groupby(list(by))
    both = ordered.first().merge(ordered.last(), on=list(by), suffixes=("", "_other")).reset_index()
    return both[both[size] != both[f"{size}_other"]]


def _lines(pairs: pd.DataFrame, by: Sequence[str], x: pd.Series[Any], y: pd.Series[Any]) -> pd.DataFrame:
    """The least-squares line of y over x of each group with several x: its `slope`, and the means `x` and `y` of it."""
    keys = [pairs[name] for name in by]
    x_mean, y_mean = (values.groupby(keys).transform("mean") for values in (x, y))
    moments = pairs[list(by)].assign(x=x_mean, y=y_mean, xx=(x - x_mean) ** 2, xy=(x - x_mean) * (y - y_mean))
    moments = moments[x.groupby(keys).transform("nunique") > 1]
    lines = moments.groupby(list(by)).agg({"x": "first", "y": "first", "xx": "sum", "xy": "sum"})
    return lines.assign(slope=lines["xy"] / lines["xx"])


def _stack(*frames: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def _above(effect: Interval, limit: float) -> Decision:
    """Whether the interval lies above, below or across a limit."""
    if effect.low is None or effect.high is None:
        return OPEN
    if effect.low > limit:
        return HOLDS
    return FAILS if effect.high < limit else OPEN


def _stable(effect: Interval, least: float) -> tuple[Decision, float]:
    """Whether the interval lies between `least` and what still counts as no change upwards, or beside; by which end."""
    low, high, most = effect.low or 0.0, effect.high or math.inf, 1 + STABLE_WITHIN
    if low >= least and high <= most:
        return HOLDS, most
    return FAILS if high < least or low > most else OPEN, most if low >= least else least
