"""The tests that decide the claims on one's own trials: pure functions from pairs to an effect with its interval.

A test returns None where the study does not hold what its population asks for. Intervals are over prompts, of one
prompt over blocks (`paired_trials.groups_of`); those of the best or worst of several hold together (Dunnett 1955).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from mlsd.analysis.results.paired_trials import Pair, PairedTrials, groups_of
from mlsd.records import DRAFT_MODEL
from mlsd.stats import Interval, Visible, grouped, mean_over, smallest_effect

K = TypeVar("K", bound=Hashable)
Decision = Literal["holds here", "does not hold here", "not decided yet", "not measured", "refuted"]

ACCEPTANCE_LIMIT = 0.04
SMALL_TARGET = 2.5e9  # parameters: the study's own are 1 to 2 x 10^9
STABLE_WITHIN = 0.10  # a change of speedup over all prompt lengths that still counts as none
# Names of `mlsd.drafters.METHODS`.
RETRIEVAL = ("pld", "rest")
TREES = {"draft-tree": DRAFT_MODEL, "eagle3-tree": "eagle3"}  # verifies trees -> the same drafter with a chain
SELF_DRAFTING = ("layer-skip",)  # methods whose drafting model is a part of the target
OWN_MEMORY = '"mode":"own"'  # their option that keeps the target's memory from the draft
COMPONENT_AWARE = "layer-skip"  # drafts with the part of a hybrid that its option `component` names
PARALLEL, SEQUENTIAL = ("falcon-h1",), ("qwen35", "qwen35moe", "qwen3next")


class TestOutcome(NamedTuple):
    """What a test found."""

    decision: Decision
    effect: Interval
    meaning: str  # what the effect is, unit included
    against: float  # the value that the effect is compared with
    pairs: tuple[Pair, ...]
    visible: Visible | None = None  # the effects that would have been decided 4 times in 5
    detail: str = ""


Test = Callable[[PairedTrials], TestOutcome | None]


def acceptance_below(paired: PairedTrials) -> TestOutcome | None:
    """Is the acceptance rate of every draft model on every target below 4 %?"""
    pairs = paired.draft_models()
    by_models = _grouped(pairs, lambda p: (p.target, p.draft))
    if not by_models:
        return None
    effects = {key: _acceptance(group, len(by_models)) for key, group in by_models.items()}
    (target, draft), (highest, visible) = max(effects.items(), key=lambda item: item[1][0].value)
    detail = f"Highest: {draft} on {target}; {len(effects)} pairs of models."
    decision: Decision = "not decided yet"
    if _above(highest, ACCEPTANCE_LIMIT) == "holds here":
        decision = "does not hold here"
    elif all(_above(_acceptance(group)[0], ACCEPTANCE_LIMIT) == "does not hold here" for group in by_models.values()):
        decision = "holds here"
    meaning = "highest acceptance rate of a pair of models"
    return TestOutcome(decision, highest, meaning, ACCEPTANCE_LIMIT, tuple(pairs), visible, detail)


def moe_speedup(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of expert models above 1 at the gamma that does best on average?"""
    pairs = [p for p in paired.draft_models() if paired.mixture(p.target)]
    by_setting = _grouped(pairs, lambda p: (p.draft, p.gamma))
    if not by_setting:
        return None
    effects = {key: _ratio(group, [p.speedup for p in group], len(by_setting)) for key, group in by_setting.items()}
    best = max(effects, key=lambda key: effects[key][0].value)
    effect, visible = effects[best]
    detail = f"Best of {len(effects)} settings: {best[0]}, gamma {best[1]}."
    return _against_one(effect, visible, "speedup at the best gamma", by_setting[best], detail)


def gamma_slope(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change when gamma doubles?"""
    slopes, used = [], []
    for group in _grouped(paired.draft_models(), lambda p: (p.target, p.draft, p.prompt, p.repeat)).values():
        gammas = [math.log2(p.gamma) for p in group if p.gamma > 0]
        if len(set(gammas)) < 2:
            continue
        slopes.append(math.exp(np.polyfit(gammas, [math.log(p.speedup) for p in group if p.gamma > 0], 1)[0]))
        used.append(group)
    return _factor("factor of speedup when gamma doubles", slopes, used)


def smaller_draft(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the smaller draft beat the larger one on the same target, prompt and gamma?"""
    ratios, used = [], []
    for group in _grouped(paired.draft_models(), lambda p: (p.target, p.gamma, p.prompt, p.repeat)).values():
        sized = sorted(((n, p) for p in group if (n := _parameters(paired, p.draft))), key=lambda item: item[0])
        if len(sized) >= 2 and sized[0][0] < sized[-1][0]:
            ratios.append(sized[0][1].speedup / sized[-1][1].speedup)
            used.append([sized[0][1], sized[-1][1]])
    return _factor("speedup with the smaller draft over that with the larger", ratios, used)


def total_parameters(paired: PairedTrials) -> TestOutcome | None:
    """Does an expert model gain more than dense models of its active size would, by their own trend?

    The trend is a line of log speedup over log parameters through the dense targets of the same prompt.
    """
    ratios, used = [], []
    for group in _grouped(paired.draft_models(), lambda p: (p.draft, p.gamma, p.prompt, p.repeat)).values():
        dense = [p for p in group if not paired.mixture(p.target) and _active(paired, p.target)]
        sizes = [math.log(_active(paired, p.target)) for p in dense]
        if len(set(sizes)) < 2:
            continue
        logs = [math.log(p.speedup) for p in dense]
        slope = float(np.polyfit(sizes, logs, 1)[0])
        for pair in group:
            if paired.mixture(pair.target) and (active := _active(paired, pair.target)):
                at_active = float(np.mean(logs)) + slope * (math.log(active) - float(np.mean(sizes)))
                ratios.append(pair.speedup / math.exp(at_active))
                used.append([pair, *dense])
    return _factor("speedup of the expert model over that of dense ones at its active size", ratios, used)


def prompt_length(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change from the shortest to the longest prompt?

    ``S = a + b log2(length)`` through the mean log speedup at each length: repeats, gammas and targets read the same
    text of a length, so lengths are what is independent. Student's interval of b with two degrees of freedom less.
    """
    swept = [p for p in paired.draft_models() if p.prompt.startswith("length") and p.n_prompt > 0]
    arms = _grouped(swept, lambda p: (p.target, p.draft, p.gamma))
    common = set.intersection(*({p.n_prompt for p in arm} for arm in arms.values())) if arms else set()
    if len(common) < 3:
        return None
    lengths = sorted(common)
    used = [p for arm in arms.values() for p in arm if p.n_prompt in common]
    # Every arm weighs the same at every length: its mean over repeats.
    y = [
        float(np.mean([np.mean([math.log(p.speedup) for p in arm if p.n_prompt == n]) for arm in arms.values()]))
        for n in lengths
    ]
    effect = _change([math.log2(n) for n in lengths], y)
    low, high = effect.low or 0.0, effect.high or math.inf
    decision: Decision = "not decided yet"
    if low >= 1 - STABLE_WITHIN and high <= 1 + STABLE_WITHIN:
        decision = "holds here"
    elif high < 1 - STABLE_WITHIN or low > 1 + STABLE_WITHIN:
        decision = "does not hold here"
    meaning = "factor of speedup from the shortest to the longest prompt"
    return TestOutcome(
        decision, effect, meaning, 1.0, tuple(used), None, f"Stable means within {100 * STABLE_WITHIN:.0f} %."
    )


def _change(x: Sequence[float], y: Sequence[float]) -> Interval:
    """``exp(b (max x - min x))`` of a line through the points, with Student's 95 % interval of its slope b."""
    from scipy.stats import linregress, t

    line, span, n = linregress(x, y), max(x) - min(x), len(x)
    half = float(t.ppf(0.975, n - 2)) * float(line.stderr)
    value, low, high = (math.exp(span * slope) for slope in (line.slope, line.slope - half, line.slope + half))
    return Interval(value=value, low=low, high=high, n=n)


def more_bits(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the quantization with more bytes gain more than the one with fewer, of one model?"""

    def shape(pair: Pair) -> tuple[object, ...] | None:
        facts = paired.models.get(pair.target)
        if facts is None or facts.weight_bytes is None:
            return None
        return (facts.architecture, facts.n_layers, facts.n_embd, facts.n_experts, facts.n_parameters)

    ratios, used = [], []
    known = [p for p in paired.draft_models() if shape(p) is not None]
    for group in _grouped(known, lambda p: (shape(p), p.draft, p.gamma, p.prompt, p.repeat)).values():
        ordered = sorted(group, key=lambda p: paired.models[p.target].weight_bytes or 0)
        if paired.models[ordered[0].target].weight_bytes != paired.models[ordered[-1].target].weight_bytes:
            ratios.append(ordered[-1].speedup / ordered[0].speedup)
            used.append([ordered[-1], ordered[0]])
    return _factor("speedup of the larger quantization over that of the smaller", ratios, used)


def overhead_decides(paired: PairedTrials) -> TestOutcome | None:
    """Would a small target gain if drafting took no time, and does it not gain as it is?"""
    pairs = [p for p in paired.draft_models() if 0 < _parameters(paired, p.target) < SMALL_TARGET]
    if not pairs:
        return None
    speedup, _ = _ratio(pairs, [p.speedup for p in pairs])
    free, visible = _ratio(pairs, [p.speedup * p.round_ms / (p.verify_ms + p.rest_ms) for p in pairs])
    loses, would_gain = _above(speedup, 1.0) == "does not hold here", _above(free, 1.0)
    decision: Decision = "not decided yet"
    if loses and would_gain == "holds here":
        decision = "holds here"
    elif _above(speedup, 1.0) == "holds here" or would_gain == "does not hold here":
        decision = "does not hold here"
    detail = f"Measured speedup {_text(speedup)}."
    return TestOutcome(decision, free, "speedup if drafting took no time", 1.0, tuple(pairs), visible, detail)


def retrieval_steady(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of lookup drafting above 1 on average, and below 1 on no prompt?"""
    pairs = [p for p in paired.pairs if p.drafter in RETRIEVAL]
    if not pairs:
        return None
    effect, visible = _ratio(pairs, [p.speedup for p in pairs])
    by_prompt = _grouped(pairs, lambda p: p.prompt)
    losing = [
        prompt
        for prompt, group in by_prompt.items()
        if _above(_ratio(group, [1 / p.speedup for p in group], len(by_prompt))[0], 1.0) == "holds here"
    ]
    if not losing:
        return _against_one(effect, visible, "speedup", pairs, "Slower on no prompt beyond the noise.")
    detail = f"Slower on: {', '.join(sorted(losing))}."
    return TestOutcome("does not hold here", effect, "speedup", 1.0, tuple(pairs), visible, detail)


def tree_helps(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does tree verification gain over a chain of the same drafter?

    A tree's gamma counts nodes, a chain's counts tokens, so equal gammas mean nothing: each side is taken at the
    setting that does best on average over the target's trials.
    """
    ratios, used = [], []
    for group in _grouped(paired.pairs, lambda p: (p.target, p.draft)).values():
        for method, same in TREES.items():
            tree, chain = (_at_best([p for p in group if p.drafter == name]) for name in (method, same))
            for key in tree.keys() & chain.keys():
                ratios.append(tree[key].speedup / chain[key].speedup)
                used.append([tree[key], chain[key]])
    return _factor("speedup with a tree over that with a chain", ratios, used)


def perplexity_predicts(paired: PairedTrials) -> TestOutcome | None:
    """Does acceptance fall as the perplexity ratio of the drafting part rises? Spearman's rank correlation.

    Of parts that draft with the target's own memory, as in the papers, at the gamma that most trials have. Its interval
    is Fisher's with the standard error ``1.06 / sqrt(n - 3)`` (Fieller, Hartley, Pearson 1957).
    """
    measured = [p for p in paired.pairs if p.trial_id in paired.perplexity_ratios and p.drafter in SELF_DRAFTING]
    shared = [p for p in measured if OWN_MEMORY not in p.options]
    gamma = Counter(p.gamma for p in shared).most_common(1)
    pairs = [p for p in shared if p.gamma == gamma[0][0]]
    groups = _grouped(pairs, lambda p: (p.target, p.drafter, paired.perplexity_ratios[p.trial_id]))
    if len({key[2] for key in groups}) < 4:
        return None
    from scipy.stats import spearmanr

    rates = [sum(p.accepted for p in group) / sum(p.proposed for p in group) for group in groups.values()]
    rank = float(spearmanr([key[2] for key in groups], rates).statistic)
    centre, half = math.atanh(min(max(rank, -0.999), 0.999)), 1.96 * 1.06 / math.sqrt(len(groups) - 3)
    n, (low, high) = len(groups), (math.tanh(centre + half * side) for side in (-1, 1))
    effect = Interval(value=rank, low=low, high=high, n=n)
    meaning = "rank correlation of perplexity ratio and acceptance rate"
    return TestOutcome(
        _above(Interval(value=-rank, low=-high, high=-low, n=n), 0.0), effect, meaning, 0.0, tuple(pairs)
    )


def parallel_hybrids(paired: PairedTrials) -> TestOutcome | None:
    """By how much is acceptance of component-aware drafting higher in parallel hybrids than in sequential ones?"""
    pairs = [p for p in paired.pairs if p.drafter == COMPONENT_AWARE and p.component and p.proposed]

    def of(architectures: Sequence[str]) -> list[Pair]:
        known = {name for name, facts in paired.models.items() if facts.architecture in architectures}
        return [pair for pair in pairs if pair.target in known]

    differences, used = [], []
    for parallel, other in itertools.product(of(PARALLEL), of(SEQUENTIAL)):
        if (parallel.gamma, parallel.prompt, parallel.repeat) == (other.gamma, other.prompt, other.repeat):
            differences.append(parallel.accepted / parallel.proposed - other.accepted / other.proposed)
            used.append([parallel, other])
    if not differences:
        return None
    effect = mean_over(differences, groups_of([group[0] for group in used]))
    meaning = "acceptance rate in parallel less that in sequential hybrids"
    return TestOutcome(_above(effect, 0.0), effect, meaning, 0.0, _flat(used), smallest_effect(effect))


TESTS: dict[str, Test] = {
    test.__name__: test
    for test in (
        acceptance_below,
        moe_speedup,
        gamma_slope,
        smaller_draft,
        total_parameters,
        prompt_length,
        more_bits,
        overhead_decides,
        retrieval_steady,
        tree_helps,
        perplexity_predicts,
        parallel_hybrids,
    )
}


# --- shared -----------------------------------------------------------------------------------------------------


def _grouped(pairs: Iterable[Pair], key: Callable[[Pair], K]) -> dict[K, list[Pair]]:
    return grouped((pair for pair in pairs if pair.proposed or pair.drafter in RETRIEVAL), key)


def _at_best(pairs: Sequence[Pair]) -> dict[tuple[str, int], Pair]:
    """The pairs of the gamma and options with the highest mean speedup, by prompt and repeat."""
    settings = _grouped(pairs, lambda p: (p.gamma, p.options))
    if not settings:
        return {}
    best = max(settings.values(), key=lambda group: float(np.mean([math.log(p.speedup) for p in group])))
    return {(p.prompt, p.repeat): p for p in best}


def _acceptance(pairs: Sequence[Pair], n_choices: int = 1) -> tuple[Interval, Visible | None]:
    """Mean acceptance rate; on the scale asin(sqrt(rate)), where the spread of a rate does not depend on its height."""
    angles = [math.asin(math.sqrt(p.accepted / p.proposed)) for p in pairs]
    found = mean_over(angles, groups_of(pairs), n_choices=n_choices)
    shift = smallest_effect(found, n_choices)

    def rate(angle: float) -> float:
        return math.sin(min(max(angle, 0.0), math.pi / 2)) ** 2

    low, high = (None if end is None else rate(end) for end in (found.low, found.high))
    limit = math.asin(math.sqrt(ACCEPTANCE_LIMIT))
    visible = None
    if shift is not None:
        up, down = (rate(limit + side) - ACCEPTANCE_LIMIT for side in (shift.up, shift.down))
        visible = Visible(up=up, down=down)
    return Interval(value=rate(found.value), low=low, high=high, n=found.n), visible


def _ratio(pairs: Sequence[Pair], values: Sequence[float], n_choices: int = 1) -> tuple[Interval, Visible | None]:
    found = mean_over(values, groups_of(pairs), ratio=True, n_choices=n_choices)
    return found, smallest_effect(found, n_choices, ratio=True)


def _above(effect: Interval, limit: float) -> Decision:
    """Whether the interval lies above, below or across a limit."""
    if effect.low is None or effect.high is None:
        return "not decided yet"
    if effect.low > limit:
        return "holds here"
    return "does not hold here" if effect.high < limit else "not decided yet"


def _factor(meaning: str, factors: Sequence[float], used: Sequence[Sequence[Pair]]) -> TestOutcome | None:
    """The outcome of a claim that a factor is above 1; one factor comes from each group of pairs."""
    if not factors:
        return None
    effect, visible = _ratio([group[0] for group in used], factors)
    return _against_one(effect, visible, meaning, _flat(used))


def _against_one(
    effect: Interval, visible: Visible | None, meaning: str, pairs: Sequence[Pair], detail: str = ""
) -> TestOutcome:
    return TestOutcome(_above(effect, 1.0), effect, meaning, 1.0, tuple(pairs), visible, detail)


def _flat(groups: Iterable[Iterable[Pair]]) -> tuple[Pair, ...]:
    return tuple(dict.fromkeys(pair for group in groups for pair in group))


def _active(paired: PairedTrials, model: str) -> float:
    facts = paired.models.get(model)
    return float((facts.n_parameters_active or 0) if facts else 0)


def _parameters(paired: PairedTrials, model: str | None) -> float:
    facts = paired.models.get(model or "")
    return float((facts.n_parameters or 0) if facts else 0)


def _text(effect: Interval) -> str:
    if effect.low is None or effect.high is None:
        return f"{effect.value:.3f}"
    return f"{effect.value:.3f} ({effect.low:.3f} to {effect.high:.3f})"
