"""The tests that decide the claims on one's own trials: pure functions from pairs to an effect with its interval.

A test returns None where the study does not hold what its population asks for. Intervals are over prompts, of one
prompt over blocks (`paired_trials.groups_of`); those of the best or worst of several hold together (Dunnett 1955).
What each of some texts too different for a common mean says by itself is decided as well (an intersection-union test,
Berger 1982), so that further texts that agree never undo a decision.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from mlsd.analysis.results.paired_trials import Pair, PairedTrials, groups_of
from mlsd.records import DRAFT_MODEL
from mlsd.stats import Interval, Visible, grouped, mean_over, smallest_effect
from mlsd.trials.proportions import Counts, pooled

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


def _factor(meaning: str) -> Callable[[Callable[[PairedTrials], Found]], Test]:
    """The test of a claim that these factors are above 1 on average."""

    def test_of(factors: Callable[[PairedTrials], Found]) -> Test:
        @wraps(factors)
        def test(paired: PairedTrials) -> TestOutcome | None:
            found = list(factors(paired))
            if not found:
                return None
            mean = _mean([pairs[0] for _, pairs in found], [factor for factor, _ in found])
            return mean.outcome(meaning, _flat(pairs for _, pairs in found))

        return test

    return test_of


def acceptance_below(paired: PairedTrials) -> TestOutcome | None:
    """Is the acceptance rate of every draft model on every target below 4 %?"""
    by_models = _grouped(paired.draft_models(), lambda p: (p.target, p.draft))
    if not by_models:
        return None
    effects, above, alone = dict[tuple[str, str | None], Interval](), list[Decision](), list[Decision]()
    detail = ""
    for key, group in by_models.items():
        texts = [_counts(own) for own in _grouped(group, lambda p: p.prompt).values()]
        each = [pooled([text]) for text in texts]
        effects[key] = pooled(texts, len(by_models))
        above.append(_common(effects[key], each, ACCEPTANCE_LIMIT))
        alone.append(_common(pooled(texts), each, ACCEPTANCE_LIMIT))
        detail = _EACH if above[-1] != _above(effects[key], ACCEPTANCE_LIMIT) else detail
    (target, draft), highest = max(effects.items(), key=lambda item: item[1].value)
    decision: Decision = "holds here" if set(alone) == {"does not hold here"} else "not decided yet"
    if "holds here" in above:
        decision = "does not hold here"
    detail = f"Highest: {draft} on {target}; {len(effects)} pairs of models.{detail}"
    meaning = "highest acceptance rate of a pair of models"
    return TestOutcome(decision, highest, meaning, ACCEPTANCE_LIMIT, _flat(by_models.values()), None, detail)


def _counts(pairs: Sequence[Pair]) -> Counts:
    """The acceptance rate of a text, worth as many trials as one repeat has rounds.

    A round's tokens stand and fall together, greedy repeats accept the same again, and gammas read the same text.
    """
    settings = len({(pair.gamma, pair.options, pair.repeat) for pair in pairs})
    return Counts(_acceptance(pairs), sum(pair.rounds for pair in pairs) / settings)


def moe_speedup(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of expert models above 1 at the gamma that does best on average?"""
    return _at_best_setting(paired, "speedup at the best gamma", lambda p: p.speedup)


def without_acceptance(paired: PairedTrials) -> TestOutcome | None:
    """Would a mixture of experts gain from batch verification alone, had no drafted token been accepted?

    ``T_seq / (T_draft + T_verify + rest)``: a round that commits the target's own token, over the time it took.
    """
    return _at_best_setting(paired, "speedup if nothing were accepted", lambda p: p.t_one_ms / p.round_ms)


def _at_best_setting(paired: PairedTrials, meaning: str, value: Callable[[Pair], float]) -> TestOutcome | None:
    """Of mixtures of experts, at the draft and gamma where this is largest on average."""
    settings = _grouped((p for p in paired.draft_models() if paired.mixture(p.target)), lambda p: (p.draft, p.gamma))
    if not settings:
        return None
    means = {key: _mean(group, list(map(value, group)), len(settings)) for key, group in settings.items()}
    best = max(means, key=lambda key: means[key].effect.value)
    detail = f"Best of {len(settings)} settings: {best[0]}, gamma {best[1]}."
    return means[best].outcome(meaning, settings[best], detail)


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
    largest = max(dict.fromkeys(p.target for p in pairs), key=lambda name: shares[name])
    facts, share = paired.models[largest], shares[largest]
    t_one_ms = float(np.median([p.t_one_ms for p in pairs if p.target == largest]))
    would = (facts.weight_bytes or 0) / t_one_ms / 1e6
    gave = f"; memory gave {paired.memory_gb_s:.1f}" if paired.memory_gb_s else ""
    detail = f"All weights in the time of a token of {largest} would be {would:.1f} GB/s{gave}."
    decision: Decision = "holds here" if share > ALL_WEIGHTS else "does not hold here"
    meaning = "share of the weights that a plain token reads"
    return TestOutcome(decision, Interval(value=share), meaning, 1.0, tuple(pairs), None, detail)


@_factor("time of a plain token of the mixture over that of the larger dense model")
def slower_than_dense(paired: PairedTrials) -> Found:
    """Is plain decoding of a mixture slower than of a dense model with more active parameters?"""

    def compare(pairs: Sequence[Pair]) -> Found:
        for group in grouped(pairs, lambda p: (p.prompt, p.repeat)).values():
            for one, other in itertools.permutations({p.target: p for p in group}.values(), 2):
                larger = _active(paired, other) > _active(paired, one) > 0
                if larger and paired.mixture(one.target) and not paired.mixture(other.target):
                    yield one.t_one_ms / other.t_one_ms, [one, other]

    yield from list(compare(paired.draft_models())) or compare(paired.plain)


def between_dense(paired: PairedTrials) -> TestOutcome | None:
    """Does a mixture gain more than the smallest dense target, and less than the largest?"""
    used = []
    for group in _grouped(paired.draft_models(), lambda p: (p.draft, p.gamma, p.prompt, p.repeat)).values():
        dense = sorted((p for p in group if not paired.mixture(p.target)), key=lambda p: _active(paired, p))
        if len({_active(paired, p) for p in dense}) > 1:
            used += [(pair, dense[0], dense[-1]) for pair in group if paired.mixture(pair.target)]
    if not used:
        return None
    firsts = [pair for pair, _, _ in used]
    more = _mean(firsts, [pair.speedup / smallest.speedup for pair, smallest, _ in used], 2)
    less = _mean(firsts, [largest.speedup / pair.speedup for pair, _, largest in used], 2)
    decision = _all([_above(more.effect, 1.0), _above(less.effect, 1.0)])
    detail = f"The largest dense target's over it: {less.effect.words(3)}."
    meaning = "speedup of the mixture over that of the smallest dense target"
    return TestOutcome(decision, more.effect, meaning, 1.0, _flat(used), more.visible, detail)


@_factor("factor of speedup when gamma doubles")
def gamma_slope(paired: PairedTrials) -> Found:
    """By what factor does speedup change when gamma doubles?"""
    for group in _by_drafts(paired):
        known = [p for p in group if p.gamma > 0]
        if len({p.gamma for p in known}) > 1:
            gammas, speedups = [math.log2(p.gamma) for p in known], [math.log(p.speedup) for p in known]
            yield math.exp(np.polyfit(gammas, speedups, 1)[0]), group


def gamma_monotone(paired: PairedTrials) -> TestOutcome | None:
    """Does every step to a larger gamma raise the speedup of every target and draft?"""
    ordered = [sorted(group, key=lambda p: p.gamma) for group in _by_drafts(paired)]
    every = [step for group in ordered for step in itertools.pairwise(group) if step[0].gamma < step[1].gamma]
    steps = grouped(every, lambda step: (step[0].target, step[0].draft, step[0].gamma, step[1].gamma))
    if not steps:
        return None
    means = {
        key: _mean([large for _, large in own], [large.speedup / small.speedup for small, large in own], len(steps))
        for key, own in steps.items()
    }
    (target, draft, small_gamma, large_gamma), worst = min(means.items(), key=lambda item: item[1].effect.value)
    decisions = [mean.decision for mean in means.values()]
    falls = decisions.count("does not hold here")
    detail = f"Worst: {target} with {draft}, gamma {small_gamma} to {large_gamma}; {falls} of {len(means)} steps fall."
    meaning = "factor of speedup of the worst step to a larger gamma"
    used = _flat(step for own in steps.values() for step in own)
    return TestOutcome(_all(decisions), worst.effect, meaning, 1.0, used, None, detail)


@_factor("speedup at gamma 32 or more over that at 16")
def larger_gamma(paired: PairedTrials) -> Found:
    """By what factor does gamma 32 or more beat 16?"""
    for group in _by_drafts(paired):
        by_gamma = {p.gamma: p for p in group}
        if STUDY_GAMMA in by_gamma and max(by_gamma) >= 2 * STUDY_GAMMA:
            yield _over(by_gamma[max(by_gamma)], by_gamma[STUDY_GAMMA])


def prompt_types(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does the speedup of the best text exceed that of the worst, in the same settings?"""
    own = [p for p in paired.draft_models() if not p.prompt.startswith("length")]
    texts = _grouped(own, lambda p: p.prompt)
    if len(texts) < 2:
        return None
    # Of the same settings each, where a suite measured them.
    means = {text: _mean_log(group) for text, group in texts.items()}
    worst, best = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    slow, fast = ({(p.target, p.draft, p.gamma, p.repeat): p for p in texts[text]} for text in (worst, best))
    shared = [key for key in fast if key in slow]
    if not shared:
        return None
    ratios = [fast[key].speedup / slow[key].speedup for key in shared]
    # Blocks of one text share its acceptance, and two texts are what is compared: repeats are what is independent.
    effect = mean_over(ratios, [key[3] for key in shared], ratio=True, n_choices=len(texts) * (len(texts) - 1) // 2)
    detail = f"Best {best}, worst {worst} of {len(texts)}; none means within {100 * STABLE_WITHIN:.0f} %."
    meaning = "factor of speedup from the worst text to the best"
    return TestOutcome(_stable(effect, 0.0), effect, meaning, 1.0, _flat((fast.values(), slow.values())), None, detail)


@_factor("speedup with the smaller draft over that with the larger")
def smaller_draft(paired: PairedTrials) -> Found:
    """By what factor does the smaller draft beat the larger one on the same target, prompt and gamma?"""
    for group in _grouped(paired.draft_models(), lambda p: (p.target, p.gamma, p.prompt, p.repeat)).values():
        sized = sorted(((n, p) for p in group if (n := _parameters(paired, p.draft))), key=lambda item: item[0])
        if len(sized) >= 2 and sized[0][0] < sized[-1][0]:
            yield _over(sized[0][1], sized[-1][1])


@_factor("speedup of the expert model over that of dense ones at its active size")
def total_parameters(paired: PairedTrials) -> Found:
    """Does an expert model gain more than dense models of its active size would, by their own trend?

    The trend is a line of log speedup over log parameters through the dense targets of the same prompt.
    """
    for group in _grouped(paired.draft_models(), lambda p: (p.draft, p.gamma, p.prompt, p.repeat)).values():
        dense = [p for p in group if not paired.mixture(p.target) and _active(paired, p)]
        sizes = [math.log(_active(paired, p)) for p in dense]
        if len(set(sizes)) < 2:
            continue
        logs = [math.log(p.speedup) for p in dense]
        slope = float(np.polyfit(sizes, logs, 1)[0])
        for pair in group:
            if paired.mixture(pair.target) and (active := _active(paired, pair)):
                at_active = float(np.mean(logs)) + slope * (math.log(active) - float(np.mean(sizes)))
                yield pair.speedup / math.exp(at_active), [pair, *dense]


def prompt_length(paired: PairedTrials) -> TestOutcome | None:
    """By what factor does speedup change from the shortest to the longest prompt?

    ``S = a + b log2(length)`` through the mean log speedup at each length: repeats, gammas and targets read the same
    text of a length, so lengths are what is independent. Student's interval of b with two degrees of freedom less.
    """
    swept = [p for p in paired.draft_models() if p.prompt.startswith("length") and p.n_prompt > 0]
    arms = list(_grouped(swept, lambda p: (p.target, p.draft, p.gamma)).values())
    lengths = sorted(set.intersection(*({p.n_prompt for p in arm} for arm in arms))) if arms else []
    if len(lengths) < 3:
        return None
    from scipy.stats import linregress, t

    # Every arm weighs the same at every length: its mean over repeats.
    y = [float(np.mean([_mean_log([p for p in arm if p.n_prompt == n]) for arm in arms])) for n in lengths]
    line, n = linregress([math.log2(n) for n in lengths], y), len(lengths)
    span, half = math.log2(lengths[-1] / lengths[0]), float(t.ppf(0.975, n - 2)) * float(line.stderr)
    value, low, high = (math.exp(span * slope) for slope in (line.slope, line.slope - half, line.slope + half))
    effect = Interval(value=value, low=low, high=high, n=n)
    used = tuple(p for arm in arms for p in arm if p.n_prompt in lengths)
    meaning = "factor of speedup from the shortest to the longest prompt"
    detail = f"Stable means within {100 * STABLE_WITHIN:.0f} %."
    return TestOutcome(_stable(effect, 1 - STABLE_WITHIN), effect, meaning, 1.0, used, None, detail)


@_factor("speedup of the larger quantization over that of the smaller")
def more_bits(paired: PairedTrials) -> Found:
    """By what factor does the quantization with more bytes gain more than the one with fewer, of one model?"""

    def n_bytes(pair: Pair) -> int:
        facts = paired.models.get(pair.target)
        return (facts.weight_bytes or 0) if facts else 0

    def model(pair: Pair) -> tuple[object, ...]:
        facts = paired.models[pair.target]
        return (facts.architecture, facts.n_layers, facts.n_embd, facts.n_experts, facts.n_parameters)

    known = [p for p in paired.draft_models() if n_bytes(p)]
    for group in _grouped(known, lambda p: (model(p), p.draft, p.gamma, p.prompt, p.repeat)).values():
        fewest, most = min(group, key=n_bytes), max(group, key=n_bytes)
        if n_bytes(fewest) < n_bytes(most):
            yield _over(most, fewest)


def overhead_decides(paired: PairedTrials) -> TestOutcome | None:
    """Would a small target gain if drafting took no time, and does it not gain as it is?"""
    pairs = [p for p in paired.draft_models() if 0 < _parameters(paired, p.target) < SMALL_TARGET]
    if not pairs:
        return None
    speedup = _mean(pairs, [p.speedup for p in pairs]).effect
    free = _mean(pairs, [p.speedup * p.round_ms / (p.verify_ms + p.rest_ms) for p in pairs])
    gains, would_gain = _above(speedup, 1.0), _above(free.effect, 1.0)
    decision: Decision = "not decided yet"
    if gains == "does not hold here" and would_gain == "holds here":
        decision = "holds here"
    elif gains == "holds here" or would_gain == "does not hold here":
        decision = "does not hold here"
    detail, meaning = f"Measured speedup {speedup.words(3)}.", "speedup if drafting took no time"
    return TestOutcome(decision, free.effect, meaning, 1.0, tuple(pairs), free.visible, detail)


def retrieval_steady(paired: PairedTrials) -> TestOutcome | None:
    """Is the speedup of lookup drafting above 1 on average, and below 1 on no prompt?"""
    pairs = [p for p in paired.pairs if p.drafter in RETRIEVAL]
    if not pairs:
        return None
    mean, by_prompt = _mean(pairs, [p.speedup for p in pairs]), _grouped(pairs, lambda p: p.prompt)
    slowdowns = {
        prompt: _mean(own, [1 / p.speedup for p in own], len(by_prompt)).effect for prompt, own in by_prompt.items()
    }
    losing = sorted(prompt for prompt, effect in slowdowns.items() if _above(effect, 1.0) == "holds here")
    decision: Decision = "does not hold here" if losing else _above(mean.effect, 1.0)
    detail = f"Slower on: {', '.join(losing)}." if losing else "Slower on no prompt beyond the noise."
    return TestOutcome(decision, mean.effect, "speedup", 1.0, tuple(pairs), mean.visible, detail)


@_factor("speedup with a tree over that with a chain")
def tree_helps(paired: PairedTrials) -> Found:
    """By what factor does tree verification gain over a chain of the same drafter?

    A tree's gamma counts nodes, a chain's counts tokens, so equal gammas mean nothing: each side is taken at the
    setting that does best on average over the target's trials.
    """

    def at_best(group: Sequence[Pair], name: str) -> dict[tuple[str, int], Pair]:
        settings = _grouped((p for p in group if p.drafter == name), lambda p: (p.gamma, p.options))
        return {(p.prompt, p.repeat): p for p in max(settings.values(), key=_mean_log, default=[])}

    for group in _grouped(paired.pairs, lambda p: (p.target, p.draft)).values():
        for method, same in TREES.items():
            tree, chain = at_best(group, method), at_best(group, same)
            yield from (_over(tree[key], chain[key]) for key in tree if key in chain)


def perplexity_predicts(paired: PairedTrials) -> TestOutcome | None:
    """Does acceptance fall as the perplexity ratio of the drafting part rises? Spearman's rank correlation.

    Of parts that draft with the target's own memory, as in the papers, at the gamma that most trials have. Its interval
    is Fisher's with the standard error ``1.06 / sqrt(n - 3)`` (Fieller, Hartley, Pearson 1957).
    """
    ratios = paired.perplexity_ratios
    measured = [p for p in paired.pairs if p.trial_id in ratios and p.drafter in SELF_DRAFTING]
    shared = [p for p in measured if OWN_MEMORY not in p.options]
    gamma = Counter(p.gamma for p in shared).most_common(1)
    pairs = [p for p in shared if p.gamma == gamma[0][0]]
    groups = _grouped(pairs, lambda p: (p.target, p.drafter, ratios[p.trial_id]))
    if len({key[2] for key in groups}) < 4:
        return None
    from scipy.stats import spearmanr

    rank = float(spearmanr([key[2] for key in groups], list(map(_acceptance, groups.values()))).statistic)
    centre, half = math.atanh(min(max(rank, -0.999), 0.999)), 1.96 * 1.06 / math.sqrt(len(groups) - 3)
    n, (low, high) = len(groups), (math.tanh(centre + half * side) for side in (-1, 1))
    decision = _above(Interval(value=-rank, low=-high, high=-low, n=n), 0.0)
    meaning = "rank correlation of perplexity ratio and acceptance rate"
    return TestOutcome(decision, Interval(value=rank, low=low, high=high, n=n), meaning, 0.0, tuple(pairs))


def parallel_hybrids(paired: PairedTrials) -> TestOutcome | None:
    """By how much is acceptance of component-aware drafting higher in parallel hybrids than in sequential ones?"""
    kinds = {name: facts.architecture for name, facts in paired.models.items()}
    pairs = [p for p in paired.pairs if p.drafter == COMPONENT_AWARE and p.component and p.proposed]
    parallel, sequential = ([p for p in pairs if kinds.get(p.target) in own] for own in (PARALLEL, SEQUENTIAL))
    used = [
        (one, other)
        for one, other in itertools.product(parallel, sequential)
        if (one.gamma, one.prompt, one.repeat) == (other.gamma, other.prompt, other.repeat)
    ]
    if not used:
        return None
    differences = [_acceptance([one]) - _acceptance([other]) for one, other in used]
    effect = mean_over(differences, groups_of([one for one, _ in used]))
    meaning = "acceptance rate in parallel less that in sequential hybrids"
    return TestOutcome(_above(effect, 0.0), effect, meaning, 0.0, _flat(used), smallest_effect(effect))


_TESTS: tuple[Test, ...] = (
    acceptance_below, slower_than_dense, loads_all_weights, moe_speedup, without_acceptance, gamma_slope,
    gamma_monotone, larger_gamma, smaller_draft, total_parameters, between_dense, prompt_length, prompt_types,
    more_bits, overhead_decides, retrieval_steady, tree_helps, perplexity_predicts, parallel_hybrids,
)  # fmt: skip
TESTS: dict[str, Test] = {test.__name__: test for test in _TESTS}


# --- shared -----------------------------------------------------------------------------------------------------


class _Mean(NamedTuple):
    """A geometric mean, and where there are several texts that of each over its blocks."""

    effect: Interval
    visible: Visible | None
    alone: list[Interval]

    @property
    def decision(self) -> Decision:
        """Whether it is above 1."""
        return _common(self.effect, self.alone, 1.0)

    def outcome(self, meaning: str, pairs: Sequence[Pair], detail: str = "") -> TestOutcome:
        if self.decision != _above(self.effect, 1.0):
            detail = f"{detail}{_EACH}".strip()
        return TestOutcome(self.decision, self.effect, meaning, 1.0, tuple(pairs), self.visible, detail)


def _mean(pairs: Sequence[Pair], values: Sequence[float], n_choices: int = 1) -> _Mean:
    """Of values that these pairs give; of one of `n_choices`."""
    found = mean_over(values, groups_of(pairs), ratio=True, n_choices=n_choices)
    texts = list(grouped(zip(pairs, values, strict=True), lambda one: one[0].prompt).values())
    alone = [_mean([p for p, _ in own], [v for _, v in own], n_choices).effect for own in texts if len(texts) > 1]
    return _Mean(found, smallest_effect(found, n_choices, ratio=True), alone)


def _grouped(pairs: Iterable[Pair], key: Callable[[Pair], K]) -> dict[K, list[Pair]]:
    return grouped((pair for pair in pairs if pair.proposed or pair.drafter in RETRIEVAL), key)


def _by_drafts(paired: PairedTrials) -> Iterable[list[Pair]]:
    return _grouped(paired.draft_models(), lambda p: (p.target, p.draft, p.prompt, p.repeat)).values()


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


def _stable(effect: Interval, least: float) -> Decision:
    """Whether the interval lies between `least` and what still counts as no change upwards, or beside."""
    low, high = effect.low or 0.0, effect.high or math.inf
    if low >= least and high <= 1 + STABLE_WITHIN:
        return "holds here"
    return "does not hold here" if high < least or low > 1 + STABLE_WITHIN else "not decided yet"


def _all(decisions: Sequence[Decision]) -> Decision:
    """Of a claim that each of these has to hold for."""
    if "does not hold here" in decisions:
        return "does not hold here"
    return "holds here" if set(decisions) == {"holds here"} else "not decided yet"


def _over(one: Pair, other: Pair) -> tuple[float, list[Pair]]:
    return one.speedup / other.speedup, [one, other]


def _flat(groups: Iterable[Iterable[Pair]]) -> tuple[Pair, ...]:
    return tuple(dict.fromkeys(pair for group in groups for pair in group))


def _mean_log(pairs: Sequence[Pair]) -> float:
    return float(np.mean([math.log(pair.speedup) for pair in pairs]))


def _acceptance(pairs: Sequence[Pair]) -> float:
    return sum(pair.accepted for pair in pairs) / sum(pair.proposed for pair in pairs)


def _active(paired: PairedTrials, pair: Pair) -> float:
    """Parameters of the target for a token; 0 where they are not known."""
    facts = paired.models.get(pair.target)
    return float((facts.n_parameters_active or 0) if facts else 0)


def _parameters(paired: PairedTrials, model: str | None) -> float:
    facts = paired.models.get(model or "")
    return float((facts.n_parameters or 0) if facts else 0)
