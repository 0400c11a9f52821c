"""What each gamma gives, what it would need to break even, and which is best, with intervals over prompts or blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlsd.analysis.fits import bootstrap, costmodel
from mlsd.analysis.results.paired_trials import Pair, groups_of
from mlsd.errors import AnalysisError
from mlsd.records import Record
from mlsd.stats import Interval, best_of, mean_over


class MeasuredGamma(Record, frozen=True, kw_only=True):
    """One draft length as measured."""

    gamma: int
    speedup: Interval  # geometric mean
    mgl: Interval
    break_even_mgl: Interval  # round time / T(1): the MGL at which speedup is 1
    break_even_alpha: float | None  # the i.i.d. acceptance probability for it; None: even full acceptance loses
    draft_share: float  # of the round's time
    verify_share: float


class BestGamma(Record, frozen=True, kw_only=True):
    """The gamma with the highest mean speedup; 0 is off."""

    gamma: int
    low: int | None  # 95 % of resamples of prompts or blocks have their best gamma from low to high
    high: int | None
    share: float | None  # of resamples that agree with `gamma`
    speedup: Interval  # of the best gamma, corrected for the choice; 1 when off


def by_gamma(pairs: Sequence[Pair]) -> list[MeasuredGamma]:
    """Every measured gamma, for pairs of one target and drafter. Raises AnalysisError of nothing."""
    if not pairs:
        raise AnalysisError("No speculative trial was measured beside a plain one.")
    result = []
    for gamma in sorted({pair.gamma for pair in pairs}):
        group = [pair for pair in pairs if pair.gamma == gamma]
        groups = groups_of(group)
        # From whole times: a round costs MGL / speedup plain passes, bookkeeping included.
        needed = mean_over([pair.mgl / pair.speedup for pair in group], groups, ratio=True)
        total = sum(pair.round_ms * pair.rounds for pair in group)
        result.append(
            MeasuredGamma(
                gamma=gamma,
                speedup=mean_over([pair.speedup for pair in group], groups, ratio=True),
                mgl=mean_over([pair.mgl for pair in group], groups),
                break_even_mgl=needed,
                break_even_alpha=costmodel.break_even_alpha(gamma, needed.value),
                draft_share=sum(pair.draft_ms * pair.rounds for pair in group) / total,
                verify_share=sum(pair.verify_ms * pair.rounds for pair in group) / total,
            )
        )
    return result


def best_gamma(pairs: Sequence[Pair], *, n_resamples: int = 2000, seed: int = 0) -> BestGamma:
    """The best gamma, "off" included, and how sure that is from a bootstrap over prompts or blocks."""
    measured = by_gamma(pairs)
    gammas = np.array([0, *(one.gamma for one in measured)])
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups_of(pairs)))}
    index, n_blocks = bootstrap.block_index(np.array([numbers[group] for group in groups_of(pairs)]))
    sums, counts = np.zeros((n_blocks, len(gammas))), np.zeros((n_blocks, len(gammas)))
    for pair, block in zip(pairs, index, strict=True):
        column = int(np.searchsorted(gammas, pair.gamma))
        sums[block, column] += np.log(pair.speedup)
        counts[block, column] += 1
    with np.errstate(invalid="ignore"):
        block_means = np.where(counts > 0, sums / np.maximum(counts, 1), 0.0)
    present = (counts > 0).astype(float)
    present[:, 0] = 1.0  # off is always there, with speedup 1
    best = int(np.argmax(block_means.sum(axis=0) / present.sum(axis=0)))
    winner = next((one.speedup for one in measured if one.gamma == gammas[best]), None)
    chosen = Interval(value=1.0, low=1.0, high=1.0) if winner is None else best_of(winner, len(measured), ratio=True)
    if n_blocks < bootstrap.LEAST_BLOCKS:
        return BestGamma(gamma=int(gammas[best]), low=None, high=None, share=None, speedup=chosen)
    weights = bootstrap.multiplicities(n_blocks, n_resamples, seed)
    seen = weights @ present
    means = np.where(seen > 0, weights @ block_means / np.maximum(seen, 1e-9), -np.inf)
    winners = gammas[np.argmax(means, axis=1)]
    low, high = np.quantile(winners, [0.025, 0.975], method="nearest")
    share = float(np.mean(winners == gammas[best]))
    return BestGamma(gamma=int(gammas[best]), low=int(low), high=int(high), share=share, speedup=chosen)
