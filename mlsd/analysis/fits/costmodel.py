"""What speculative decoding should gain: the published speedup formulas and the one built from measured costs.

Pure functions of numbers; nothing here reads data, fits or prints. Times may be in any one unit, as only their ratios
matter; acceptances are fractions, speedups are ratios of decode tok/s to that of AR.

Sources: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding" (ICML 2023);
AtomGradient, "Does Speculative Decoding Help Mixture-of-Experts?" (2026), equations 1 and 2;
Mainardi, Sandikci, Vanschoren, "An Empirical Study of Speculative Decoding for Small Language Models", eq. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mlsd.errors import AnalysisError
from mlsd.trials.acceptance import rate_of

X = TypeVar("X", float, npt.NDArray[np.float64])  # one case, or an array of them


def speedup_classical(alpha: float, gamma: X, draft_cost: float) -> X:
    """Speedup when verifying costs one plain pass at any gamma (Leviathan et al., theorem 3.8).

    ``S = (1 - a^(g+1)) / ((1 - a)(c g + 1))``; `alpha` a: i.i.d. acceptance probability; `draft_cost` c: time of one
    draft token / T(1); `gamma` g, a number or an array.
    """
    committed = (1.0 - alpha ** (gamma + 1.0)) / (1.0 - alpha) if alpha < 1.0 else gamma + 1.0
    return committed / (draft_cost * gamma + 1.0)


def speedup_batch_published(gamma: X, t_seq: float, t_draft: X, t_verify: X) -> X:
    """Speedup as the mixture-of-experts study defines it (its equation 2).

    ``S = g T_seq / (T_draft(g) + T_verify(g))``; `t_seq`: T(1); `t_draft`: all drafting of a round; `t_verify`: the
    pass over the draft. It counts every proposed token as output, rejected ones too, so it holds only at an acceptance
    rate of one (and then forgets the bonus token). Kept to be fitted, compared and shown to fail.
    """
    return gamma * t_seq / (t_draft + t_verify)


def speedup_overhead(committed_per_round: X, draft_over_verify: X) -> X:
    """Speedup from MGL and drafting overhead (small-model study, equation 1): ``S = MGL / (1 + C_d / C_v)``.

    `draft_over_verify` is the time of all drafting of a round / the time of its verification, taken to cost one plain
    pass. Retrieval drafters have it near 0; then S approaches MGL, its upper bound.
    """
    return committed_per_round / (1.0 + draft_over_verify)


def speedup_measured(committed_per_round: X, t_one: float, t_draft: X, t_verify: X, t_rollback: float = 0.0) -> X:
    """Speedup from costs that were each measured (design of mlsd).

    ``S = E[committed] * T(1) / (T_draft(g) + T(g + 1) + T_rollback)``. `t_one`: T(1), one plain pass of the target;
    `t_draft`: drafting of one round, catch-up included; `t_verify`: T(gamma + 1); `t_rollback`: rollback and the rest.
    """
    return committed_per_round * t_one / (t_draft + t_verify + t_rollback)


def break_even_alpha(gamma: int, break_even_mgl: float) -> float | None:
    """The i.i.d. acceptance probability that gives the MGL of speedup 1, or None when even full acceptance loses."""
    return rate_of(max(break_even_mgl, 1.0), "position", gamma)


def conditional_acceptance(proposed: Sequence[int], accepted: Sequence[int]) -> list[float | None]:
    """Acceptance at each position given that all before it were accepted, from the counts of rounds.

    ``a_i = #(accepted >= i) / #(accepted >= i - 1 and proposed >= i)``; None where no round got that far.
    """
    n_proposed, n_accepted = np.asarray(proposed), np.asarray(accepted)
    if n_proposed.shape != n_accepted.shape:
        raise AnalysisError("Proposed and accepted counts come from different numbers of rounds.")
    if np.any(n_accepted > n_proposed) or np.any(n_accepted < 0):
        raise AnalysisError("A round accepted more tokens than were proposed.")
    longest = int(n_proposed.max()) if n_proposed.size else 0
    result: list[float | None] = []
    for i in range(1, longest + 1):
        tried = int(np.sum((n_accepted >= i - 1) & (n_proposed >= i)))
        result.append(float(np.sum(n_accepted >= i)) / tried if tried else None)
    return result
