"""The tests that decide the claims on one's own trials: pure functions from pairs to an effect with its interval.

A test returns None where the study does not hold what its population asks for. Intervals are over prompts, of one
prompt over blocks (`paired_trials.groups_of`); those of the best or worst of several hold together (Dunnett 1955).
What texts too different for a common mean say alike, each by itself, is decided as well (an intersection-union test,
Berger 1982), so that further texts that agree never undo a decision.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from mlsd.analysis.claims.proportions import Counts, pooled
from mlsd.analysis.results.paired_trials import Pair, PairedTrials, groups_of
from mlsd.records import DRAFT_MODEL
from mlsd.stats import Interval, Visible, grouped, mean_over, smallest_effect

K = TypeVar("K", bound=Hashable)
Decision = Literal["holds here", "does not hold here", "not decided yet", "not measured", "refuted"]

ACCEPTANCE_LIMIT = 0.04
_EACH = " Every text says so by itself."
ALL_WEIGHTS = 0.9  # a share from which a token as good as reads all weights
STUDY_GAMMA = 16  # the study's largest
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
Found = Iterator[tuple[float, Sequence[Pair]]]  # factors, each with the pairs behind it


def acceptance_below(paired: PairedTrials) -> TestOutcome | None:
    """Is the acceptance rate of every draft model on every target below 4 %?"""
    by_models = _grouped(paired.draft_models(), lambda p: (p.target, p.draft))
    if not by_models:
        return None
    texts = {
        key: [_counts(own) for own in _grouped(group, lambda p: p.prompt).values()] for key, group in by_models.items()
    }
    effects = {key: pooled(own, len(texts)) for key, own in texts.items()}
    (target, draft), highest = max(effects.items(), key=lambda item: item[1].value)
    alone = {key: [pooled([text]) for text in own] for key, own in texts.items()}
    decided = [_common(pooled(own), alone[key], ACCEPTANCE_LIMIT) for key, own in texts.items()]
    above = [_common(effects[key], alone[key], ACCEPTANCE_LIMIT) for key in texts]
    detail = f"Highest: {draft} on {target}; {len(effects)} pairs of models."
    if any(_above(effects[key], ACCEPTANCE_LIMIT) != one for key, one in zip(texts, above, strict=True)):
        detail += _EACH
    decision: Decision = "not decided yet"
    if "holds here" in above:
        decision = "does not hold here"
    elif all(one == "does not hold here" for one in decided):
        decision = "holds here"
    pairs = tuple(pair for group in by_models.values() for pair in group)
    meaning = "highest acceptance rate of a pair of models"
    return TestOutcome(decision, highest, meaning, ACCEPTANCE_LIMIT, pairs, None, detail)


def _counts(pairs: Sequence[Pair]) -> Counts:
    """The acceptance rate of a text, worth as many trials as one repeat has rounds.

    A round's tokens stand and fall together, greedy repeats accept the same again, and gammas read the same text.
    """
    settings = len({(pair.gamma, pair.options, pair.repeat) for pair in pairs})
    rate = sum(pair.accepted for pair in pairs) / sum(pair.proposed for pair in pairs)
    return Counts(rate, sum(pair.rounds for pair in pairs) / settings)


def moe_speedup(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of expert models above 1 at the gamma that does best on average?"""
    pairs = [p for p in paired.draft_models() if paired.mixture(p.target)]
    by_setting = _grouped(pairs, lambda p: (p.draft, p.gamma))
    if not by_setting:
        return None
    effects = {key: _ratio(group, [p.speedup for p in group], len(by_setting)) for key, group in by_setting.items()}
    best = max(effects, key=lambda key: effects[key][0].value)
    group, (effect, visible) = by_setting[best], effects[best]
    detail = f"Best of {len(effects)} settings: {best[0]}, gamma {best[1]}."
    alone = _by_text(group, [p.speedup for p in group], len(effects))
    return _against_one(effect, visible, "speedup at the best gamma", group, detail, alone)


def without_acceptance(paired: PairedTrials) -> TestOutcome | None:
    """Would a mixture of experts gain from batch verification alone, had no drafted token been accepted?

    ``T_seq / (T_draft + T_verify + rest)``: a round that commits the target's own token, over the time it took.
    """
    pairs = [p for p in paired.draft_models() if paired.mixture(p.target) and p.proposed]
    by_setting = _grouped(pairs, lambda p: (p.draft, p.gamma))
    if not by_setting:
        return None
    gains = {key: [p.t_one_ms / p.round_ms for p in group] for key, group in by_setting.items()}
    best = max(gains, key=lambda key: float(np.mean(gains[key])))
    effect, visible = _ratio(by_setting[best], gains[best], len(gains))
    alone = _by_text(by_setting[best], gains[best], len(gains))
    detail = f"Best of {len(gains)} settings: {best[0]}, gamma {best[1]}."
    return _against_one(effect, visible, "speedup if nothing were accepted", by_setting[best], detail, alone)


def loads_all_weights(paired: PairedTrials) -> TestOutcome | None:
    """Does a plain token of a mixture read all of its weights? Counted: the tensors and experts that it needs."""
    shares = {
        name: facts.active_bytes / facts.weight_bytes
        for name, facts in paired.models.items()
        if facts.n_experts and facts.active_bytes and facts.weight_bytes
    }
    beside, alone = ([p for p in own if p.target in shares] for own in (paired.draft_models(), paired.plain))
    if not (pairs := beside or alone):
        return None
    largest = max({p.target for p in pairs}, key=lambda name: shares[name])
    facts, share = paired.models[largest], shares[largest]
    t_one_ms = float(np.median([p.t_one_ms for p in pairs if p.target == largest]))
    would = (facts.weight_bytes or 0) / t_one_ms / 1e6
    detail = f"All weights in the time of a token of {largest} would be {would:.1f} GB/s"
    detail += f"; memory gave {paired.memory_gb_s:.1f}." if paired.memory_gb_s else "."
    decision: Decision = "holds here" if share > ALL_WEIGHTS else "does not hold here"
    meaning = "share of the weights that a plain token reads"
    return TestOutcome(decision, Interval(value=share), meaning, 1.0, tuple(pairs), None, detail)


def slower_than_dense(paired: PairedTrials) -> TestOutcome | None:
    """Is plain decoding of a mixture slower than of a dense model with more active parameters?"""

    def compare(group: list[Pair]) -> Found:
        for one, other in itertools.permutations({p.target: p for p in group}.values(), 2):
            larger = _active(paired, other.target) > _active(paired, one.target) > 0
            if paired.mixture(one.target) and not paired.mixture(other.target) and larger:
                yield one.t_one_ms / other.t_one_ms, [one, other]

    meaning = "time of a plain token of the mixture over that of the larger dense model"
    beside, alone = (grouped(pairs, lambda p: (p.prompt, p.repeat)) for pairs in (paired.draft_models(), paired.plain))
    return _factor(meaning, beside, compare) or _factor(meaning, alone, compare)


def between_dense(paired: PairedTrials) -> TestOutcome | None:
    """Does a mixture gain more than the smallest dense target, and less than the largest?"""
    over, under, used = [], [], []
    for group in _grouped(paired.draft_models(), lambda p: (p.draft, p.gamma, p.prompt, p.repeat)).values():
        dense = sorted((p for p in group if not paired.mixture(p.target)), key=lambda p: _active(paired, p.target))
        if len({_active(paired, p.target) for p in dense}) < 2:
            continue
        for pair in group:
            if paired.mixture(pair.target):
                over.append(pair.speedup / dense[0].speedup)
                under.append(dense[-1].speedup / pair.speedup)
                used.append([pair, dense[0], dense[-1]])
    if not used:
        return None
    firsts = [group[0] for group in used]
    (more, visible), (less, _) = _ratio(firsts, over, 2), _ratio(firsts, under, 2)
    decision = _all([_above(more, 1.0), _above(less, 1.0)])
    detail = f"The largest dense target's over it: {_text(less)}."
    meaning = "speedup of the mixture over that of the smallest dense target"
    return TestOutcome(decision, more, meaning, 1.0, _flat(used), visible, detail)


def gamma_slope(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change when gamma doubles?"""

    def compare(group: list[Pair]) -> Found:
        known = [p for p in group if p.gamma > 0]
        if len({p.gamma for p in known}) > 1:
            gammas, speedups = [math.log2(p.gamma) for p in known], [math.log(p.speedup) for p in known]
            yield math.exp(np.polyfit(gammas, speedups, 1)[0]), group

    return _factor("factor of speedup when gamma doubles", _by_drafts(paired), compare)


def gamma_monotone(paired: PairedTrials) -> TestOutcome | None:
    """Does every step to a larger gamma raise the speedup of every target and draft?"""
    steps: dict[tuple[str, str | None, int, int], list[tuple[Pair, Pair]]] = {}
    for group in _grouped(paired.draft_models(), lambda p: (p.target, p.draft, p.prompt, p.repeat)).values():
        ordered = sorted(group, key=lambda p: p.gamma)
        for small, large in itertools.pairwise(ordered):
            if small.gamma < large.gamma:
                steps.setdefault((small.target, small.draft, small.gamma, large.gamma), []).append((small, large))
    if not steps:
        return None
    found = {}
    for key, own in steps.items():
        larger, ratios = [large for _, large in own], [large.speedup / small.speedup for small, large in own]
        effect, _ = _ratio(larger, ratios, len(steps))
        found[key] = effect, _common(effect, _by_text(larger, ratios, len(steps)), 1.0)
    (target, draft, small_gamma, large_gamma), (worst, _) = min(found.items(), key=lambda item: item[1][0].value)
    decisions = [decision for _, decision in found.values()]
    decision = _all(decisions)
    falls = decisions.count("does not hold here")
    detail = f"Worst: {target} with {draft}, gamma {small_gamma} to {large_gamma}; {falls} of {len(found)} steps fall."
    used = tuple(dict.fromkeys(pair for own in steps.values() for step in own for pair in step))
    return TestOutcome(
        decision, worst, "factor of speedup of the worst step to a larger gamma", 1.0, used, None, detail
    )


def larger_gamma(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does gamma 32 or more beat 16?"""

    def compare(group: list[Pair]) -> Found:
        by_gamma = {p.gamma: p for p in group}
        if STUDY_GAMMA in by_gamma and max(by_gamma) >= 2 * STUDY_GAMMA:
            yield _over(by_gamma[max(by_gamma)], by_gamma[STUDY_GAMMA])

    return _factor("speedup at gamma 32 or more over that at 16", _by_drafts(paired), compare)


def prompt_types(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the speedup of the best text exceed that of the worst, in the same settings?"""
    own = [p for p in paired.draft_models() if not p.prompt.startswith("length")]
    texts = _grouped(own, lambda p: p.prompt)
    if len(texts) < 2:
        return None
    means = {
        text: float(np.mean([math.log(p.speedup) for p in group])) for text, group in texts.items()
    }  # of the same settings each, where a suite measured them
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    keys = {text: {(p.target, p.draft, p.gamma, p.repeat): p for p in texts[text]} for text in (best, worst)}
    shared = [key for key in keys[best] if key in keys[worst]]
    if not shared:
        return None
    ratios = [keys[best][key].speedup / keys[worst][key].speedup for key in shared]
    # Blocks of one text share its acceptance, and two texts are what is compared: repeats are what is independent.
    effect = mean_over(ratios, [key[3] for key in shared], ratio=True, n_choices=len(texts) * (len(texts) - 1) // 2)
    low, high = effect.low or 0.0, effect.high or math.inf
    decision: Decision = "not decided yet"
    if high <= 1 + STABLE_WITHIN:
        decision = "holds here"
    elif low > 1 + STABLE_WITHIN:
        decision = "does not hold here"
    used = tuple(dict.fromkeys(pair for text in (best, worst) for pair in keys[text].values()))
    detail = f"Best {best}, worst {worst} of {len(texts)}; none means within {100 * STABLE_WITHIN:.0f} %."
    return TestOutcome(decision, effect, "factor of speedup from the worst text to the best", 1.0, used, None, detail)


def smaller_draft(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the smaller draft beat the larger one on the same target, prompt and gamma?"""

    def compare(group: list[Pair]) -> Found:
        sized = sorted(((n, p) for p in group if (n := _parameters(paired, p.draft))), key=lambda item: item[0])
        if len(sized) >= 2 and sized[0][0] < sized[-1][0]:
            yield _over(sized[0][1], sized[-1][1])

    groups = _grouped(paired.draft_models(), lambda p: (p.target, p.gamma, p.prompt, p.repeat))
    return _factor("speedup with the smaller draft over that with the larger", groups, compare)


def total_parameters(paired: PairedTrials) -> TestOutcome | None:
    """Does an expert model gain more than dense models of its active size would, by their own trend?

    The trend is a line of log speedup over log parameters through the dense targets of the same prompt.
    """

    def compare(group: list[Pair]) -> Found:
        dense = [p for p in group if not paired.mixture(p.target) and _active(paired, p.target)]
        sizes = [math.log(_active(paired, p.target)) for p in dense]
        if len(set(sizes)) < 2:
            return
        logs = [math.log(p.speedup) for p in dense]
        slope = float(np.polyfit(sizes, logs, 1)[0])
        for pair in group:
            if paired.mixture(pair.target) and (active := _active(paired, pair.target)):
                at_active = float(np.mean(logs)) + slope * (math.log(active) - float(np.mean(sizes)))
                yield pair.speedup / math.exp(at_active), [pair, *dense]

    groups = _grouped(paired.draft_models(), lambda p: (p.draft, p.gamma, p.prompt, p.repeat))
    return _factor("speedup of the expert model over that of dense ones at its active size", groups, compare)


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

    def n_bytes(pair: Pair) -> int:
        return paired.models[pair.target].weight_bytes or 0

    def compare(group: list[Pair]) -> Found:
        fewest, most = min(group, key=n_bytes), max(group, key=n_bytes)
        if n_bytes(fewest) < n_bytes(most):
            yield _over(most, fewest)

    known = [p for p in paired.draft_models() if shape(p) is not None]
    groups = _grouped(known, lambda p: (shape(p), p.draft, p.gamma, p.prompt, p.repeat))
    return _factor("speedup of the larger quantization over that of the smaller", groups, compare)


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

    def compare(group: list[Pair]) -> Found:
        for method, same in TREES.items():
            tree, chain = (_at_best([p for p in group if p.drafter == name]) for name in (method, same))
            yield from (_over(tree[key], chain[key]) for key in tree if key in chain)

    groups = _grouped(paired.pairs, lambda p: (p.target, p.draft))
    return _factor("speedup with a tree over that with a chain", groups, compare)


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
        slower_than_dense,
        loads_all_weights,
        moe_speedup,
        without_acceptance,
        gamma_slope,
        gamma_monotone,
        larger_gamma,
        smaller_draft,
        total_parameters,
        between_dense,
        prompt_length,
        prompt_types,
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


def _common(effect: Interval, alone: Sequence[Interval], limit: float) -> Decision:
    """What the mean over texts says, or where it says nothing what every text says by itself."""
    found = _above(effect, limit)
    each = {_above(one, limit) for one in alone}
    return each.pop() if found == "not decided yet" and len(alone) > 1 and len(each) == 1 else found


def _by_text(pairs: Sequence[Pair], values: Sequence[float], n_choices: int = 1) -> list[Interval]:
    """The mean of each text over its blocks, where there are several texts."""
    texts = grouped(zip(pairs, values, strict=True), lambda one: one[0].prompt)
    if len(texts) < 2:
        return []
    return [_ratio([p for p, _ in own], [value for _, value in own], n_choices)[0] for own in texts.values()]


def _over(one: Pair, other: Pair) -> tuple[float, list[Pair]]:
    return one.speedup / other.speedup, [one, other]


def _by_drafts(paired: PairedTrials) -> dict[Any, list[Pair]]:
    return _grouped(paired.draft_models(), lambda p: (p.target, p.draft, p.prompt, p.repeat))


def _factor(meaning: str, groups: dict[K, list[Pair]], compare: Callable[[list[Pair]], Found]) -> TestOutcome | None:
    """The outcome of a claim that factors are above 1: what each group of pairs gives."""
    found = [one for group in groups.values() for one in compare(group)]
    if not found:
        return None
    factors, used = [factor for factor, _ in found], [pairs for _, pairs in found]
    firsts = [pairs[0] for pairs in used]
    effect, visible = _ratio(firsts, factors)
    return _against_one(effect, visible, meaning, _flat(used), "", _by_text(firsts, factors))


def _all(decisions: Sequence[Decision]) -> Decision:
    """Of a claim that each of these has to hold for."""
    if "does not hold here" in decisions:
        return "does not hold here"
    return "holds here" if set(decisions) == {"holds here"} else "not decided yet"


def _against_one(
    effect: Interval,
    visible: Visible | None,
    meaning: str,
    pairs: Sequence[Pair],
    detail: str = "",
    alone: Sequence[Interval] = (),
) -> TestOutcome:
    decision = _common(effect, alone, 1.0)
    if decision != _above(effect, 1.0):
        detail = f"{detail}{_EACH}".strip()
    return TestOutcome(decision, effect, meaning, 1.0, tuple(pairs), visible, detail)


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
