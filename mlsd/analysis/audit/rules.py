"""The rules of the audit: each asks one question of one row and answers with figures, or not at all.

A rule is a pure function (row, context) -> Finding, or None where the table does not say enough. `impossible` is said
only when a bound that any program must obey is broken by more than rounding and noise can explain.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlsd.analysis.audit import bounds
from mlsd.analysis.audit.rows import AuditContext, AuditRow, Credibility, Finding

Rule = Callable[[AuditRow, AuditContext], Finding | None]

SAME_WORK_RATIO = 1.5  # rounds of equal work differ by less than this between prompts and depths
SAME_CASE_RATIO = 1.25  # repeats of one case differ by less than this


def round_shorter_than_its_parts(row: AuditRow, context: AuditContext) -> Finding | None:
    """Is a round at least as long as its drafts and one plain target pass? ``MGL / tok/s >= T_draft + T(1)``."""
    longest, plain = bounds.longest_round_ms(row, context), bounds.plain_pass_ms(row, context)
    if not row.speculative or longest is None or plain is None:
        return None
    if row.mgl is None and row.acceptance is None:
        return None
    drafting = bounds.least_draft_ms(row, context)
    excess = (plain + drafting) / longest
    figures = {"round_ms": longest, "target_pass_ms": plain, "draft_ms": drafting, "too_short_by": excess}
    facts = f"a round took at most {longest:.1f} ms, one target pass {plain:.1f} ms and its drafts {drafting:.1f} ms"
    return _beyond("round_shorter_than_its_parts", excess, row, context, figures, facts)


def more_bandwidth_than_the_chip(row: AuditRow, context: AuditContext) -> Finding | None:
    """Are the bytes a round must move under the peak bandwidth of the memory?"""
    longest, n_bytes = bounds.longest_round_ms(row, context), bounds.least_round_bytes(row, context)
    if longest is None or n_bytes is None or context.peak_gb_s is None:
        return None
    needed = n_bytes / longest / 1e6
    figures = {"needed_gb_s": needed, "peak_gb_s": context.peak_gb_s, "round_gb": n_bytes / 1e9, "round_ms": longest}
    moved = "is said to move" if row.bytes_claimed is not None else "moves at least"
    facts = (
        f"a round {moved} {n_bytes / 1e9:.1f} GB in {longest:.1f} ms, {needed:.0f} GB/s of the {context.peak_gb_s:.0f} "
        "that the memory has"
    )
    return _beyond("more_bandwidth_than_the_chip", needed / context.peak_gb_s, row, context, figures, facts)


def speedup_above_mgl(row: AuditRow, context: AuditContext) -> Finding | None:
    """Is speedup at most MGL? A round costs one target pass or more, so it cannot gain more than it commits."""
    speedup, most = bounds.speedup_of(row, context), bounds.most_committed(row)
    if not row.speculative or speedup is None or most is None:
        return None
    excess = speedup.low / most
    figures = {"speedup": speedup.value, "mgl_at_most": most, "above_by": excess}
    facts = f"the speedup is {speedup.value:.2f}, a round commits at most {most:.2f} tokens"
    return _beyond("speedup_above_mgl", excess, row, context, figures, facts)


def counts_disagree(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do MGL, acceptance, rounds and tokens describe one and the same output? tokens = rounds + accepted."""
    if not row.speculative or row.gamma is None:
        return None
    most = 1.0 + row.gamma * (1.0 if row.acceptance is None else min(1.0, row.acceptance.high))
    said = None if row.mgl is None else row.mgl.low
    if row.rounds is not None and row.n_predict:
        said = max(said or 0.0, row.n_predict / row.rounds.high)
    if said is None:
        return whole_counts(row)
    figures = {"mgl_said": said, "mgl_at_most": most}
    facts = f"the row speaks of {said:.2f} tokens a round, its acceptance and gamma allow {most:.2f}"
    # The last round may commit tokens past the end, by less than gamma.
    slack = 1.0 + (row.gamma / row.n_predict if row.n_predict else 0.0)
    return _beyond("counts_disagree", said / most / slack, row, context, figures, facts)


def whole_counts(row: AuditRow) -> Finding | None:
    """Is there a whole number of rounds and accepted tokens behind the acceptance rate of full-length drafts?

    ``accepted / (gamma rounds - missing) = acceptance`` and ``rounds + accepted = tokens`` give
    ``rounds = (tokens + acceptance missing) / (1 + acceptance gamma)``, which must be whole.
    """
    if row.acceptance is None or not row.fixed_length or not row.n_predict or not row.gamma:
        return None
    gamma, n = row.gamma, row.n_predict
    # A program may count the first token or not, run past the end, or propose less in the last gamma tokens.
    run_past = [(total, 0) for total in range(max(1, n - 1), n + gamma + 1)]
    stop_short = [(max(1, n - 1), missing) for missing in range(1, gamma * (gamma + 1) // 2 + 1)]
    for total, missing in run_past + stop_short:
        fewest = (total + row.acceptance.high * missing) / (1 + row.acceptance.high * gamma)
        most = (total + row.acceptance.low * missing) / (1 + row.acceptance.low * gamma)
        rounds = math.ceil(fewest - 1e-9)
        if rounds <= most + 1e-9:
            figures = {"tokens": float(total), "rounds": float(rounds), "accepted": float(total - rounds)}
            sentence = f"{rounds} rounds and {total - rounds} accepted tokens give {total} tokens at this rate."
            return _finding("counts_disagree", "possible", figures, sentence)
    figures = {"acceptance": row.acceptance.value, "n_predict": float(n), "gamma": float(gamma)}
    rate = 100 * row.acceptance.value
    sentence = f"No whole number of drafts of {gamma} gives {n} tokens at an acceptance of {rate:.3f} %."
    return _finding("counts_disagree", "suspicious", figures, sentence)


def columns_disagree(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do columns that say the same thing agree: tok/s and ms a token, speedup and tok/s over the baseline?"""
    worst = 1.0
    figures: dict[str, float] = {}
    if row.tok_s is not None and row.ms_per_token is not None and row.tok_s.low > 0 and row.ms_per_token.low > 0:
        figures |= {"tok_s": row.tok_s.value, "ms_per_token": row.ms_per_token.value}
        worst = max(worst, _apart(row.tok_s.low, row.tok_s.high, *_inverse_ms(row)))
    baseline = context.baseline_tok_s(row)
    if row.speculative and row.speedup is not None and row.tok_s is not None and baseline is not None:
        low, high = row.tok_s.low / baseline.high, row.tok_s.high / baseline.low
        figures |= {"speedup": row.speedup.value, "tok_s": row.tok_s.value, "baseline_tok_s": baseline.value}
        worst = max(worst, _apart(row.speedup.low, row.speedup.high, low, high))
    if not figures:
        return None
    figures["apart_by"] = worst
    facts = "columns that say the same thing differ by a factor of " + f"{worst:.3f}"
    # Programs differ by a token in what they divide by; a few per cent is bookkeeping, not physics.
    return _beyond("columns_disagree", worst / 1.02, row, context, figures, facts)


def _inverse_ms(row: AuditRow) -> tuple[float, float]:
    assert row.ms_per_token is not None
    return 1e3 / row.ms_per_token.high, 1e3 / row.ms_per_token.low


def _apart(low_a: float, high_a: float, low_b: float, high_b: float) -> float:
    """By what factor two intervals miss each other; 1 when they meet."""
    return max(1.0, low_a / high_b if high_b > 0 else 1.0, low_b / high_a if high_a > 0 else 1.0)


def speed_ignores_acceptance(row: AuditRow, context: AuditContext) -> Finding | None:
    """Is throughput independent of acceptance? Equal work takes equal time, so accepted tokens must show in tok/s."""
    mine, (typical, n_rows) = row.implied_round_ms, context.round_medians.get(row.pair, (0.0, 0))
    if mine is None or row.acceptance is None or n_rows < 2:
        return None
    ratio = max(mine / typical, typical / mine)
    figures = {"round_ms": mine, "typical_round_ms": typical, "acceptance": row.acceptance.value, "differs_by": ratio}
    sentence = f"A round of this row took {mine:.1f} ms, rounds of the same work in the table {typical:.1f} ms"
    if ratio <= max(SAME_WORK_RATIO, 1.0 + context.margin(row)):
        return _finding("speed_ignores_acceptance", "possible", figures, sentence + ".")
    sentence += ": speed does not follow acceptance as it must."
    return _finding("speed_ignores_acceptance", "suspicious", figures, sentence)


def baselines_disagree(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do all baselines of a target at one depth give about one speed? Depths that are not stated are taken as equal."""
    slowest, fastest, n_rows = context.baseline_ranges.get((row.target, row.n_prompt), (0.0, 0.0, 0))
    if row.speculative or row.tok_s is None or n_rows < 2:
        return None
    ratio = fastest / max(slowest, 1e-9)
    figures = {"slowest_tok_s": slowest, "fastest_tok_s": fastest, "differ_by": ratio}
    allowed = max(SAME_CASE_RATIO, 1.0 + context.margin(row))
    verdict: Credibility = "possible" if ratio <= allowed else "suspicious"
    sentence = f"Baselines of {row.target} lie between {slowest:.1f} and {fastest:.1f} tok/s."
    return _finding("baselines_disagree", verdict, figures, sentence)


def repeats_too_alike_or_apart(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do repeats of a case scatter as measured times do: neither identical to the digit nor far apart?"""
    if row.tok_s is None or row.repeat is None or row.tok_s.value <= 0 or row.case not in context.repeated_speeds:
        return None
    typical, seen = context.repeated_speeds[row.case]
    equal = seen[row.tok_s.value] - 1
    ratio = max(row.tok_s.value / typical, typical / row.tok_s.value)
    figures = {"tok_s": row.tok_s.value, "typical_tok_s": typical, "equal_repeats": float(equal)}
    if equal and row.tok_s.digits >= 5:
        sentence = f"{equal} other repeats print the same {row.tok_s.value} tok/s to {row.tok_s.digits} digits."
        return _finding("repeats_too_alike_or_apart", "suspicious", figures, sentence)
    allowed = max(SAME_CASE_RATIO, 1.0 + context.margin(row))
    verdict: Credibility = "possible" if ratio <= allowed else "suspicious"
    sentence = f"This repeat ran at {row.tok_s.value:.1f} tok/s, the typical one at {typical:.1f}."
    return _finding("repeats_too_alike_or_apart", verdict, figures, sentence)


def longer_drafts_accept_less(row: AuditRow, context: AuditContext) -> Finding | None:
    """Does a longer draft have at least as many tokens accepted a round? It starts with the shorter draft."""
    if row.acceptance is None or row.gamma is None or not row.fixed_length or not row.n_predict:
        return None
    mine = row.gamma * row.acceptance.high
    worst: tuple[float, int, float] | None = None
    by_gamma = context.accepted_per_round[(*row.pair[:3], row.prompt, row.n_prompt)]
    for gamma, theirs in by_gamma.items():
        # Accepted tokens counted over about n_predict rounds: Poisson counts, four standard deviations.
        excess = theirs - mine - 4.0 * math.sqrt((theirs + mine) / row.n_predict)
        if gamma < row.gamma and (worst is None or excess > worst[0]):
            worst = (excess, gamma, theirs)
    if worst is None:
        return None
    figures = {"accepted_per_round": mine, "shorter_gamma": float(worst[1]), "shorter_accepted": worst[2]}
    sentence = f"At gamma {row.gamma} a round accepts {mine:.3f} tokens, at gamma {worst[1]} it accepts {worst[2]:.3f}"
    if worst[0] <= 0:
        return _finding("longer_drafts_accept_less", "possible", figures, sentence + ".")
    sentence += ", though the longer draft begins with the shorter one."
    return _finding("longer_drafts_accept_less", "suspicious", figures, sentence)


def all_or_nothing_accepted(row: AuditRow, context: AuditContext) -> Finding | None:
    """Is acceptance exactly 0 or 100 %? Then a degenerate prompt, a wrong counter or one model for both is likely."""
    if row.acceptance is None or not row.speculative:
        return None
    rate = row.acceptance.value
    verdict: Credibility = "suspicious" if rate <= 0.0 or rate >= 1.0 else "possible"
    return _finding(
        "all_or_nothing_accepted",
        verdict,
        {"acceptance": rate},
        f"{100 * rate:.2f} % of proposed tokens were accepted.",
    )


def arms_do_not_match(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do both arms come from one program, one prompt and one token count?"""
    known = context.baseline_sets.get(row.target) if row.speculative else None
    if known is None:
        return None
    differing = []
    for name, what in (("program", "program"), ("n_predict", "token count"), ("prompt", "prompt")):
        own, others = getattr(row, name), known[name]
        if own is not None and None not in others and own not in others:
            differing.append(f"{what} ({min(map(str, others))} against {own})" if name == "program" else what)
    figures = {"baselines": float(len(context.baselines(row.target))), "differences": float(len(differing))}
    if not differing:
        return _finding(
            "arms_do_not_match", "possible", figures, "Both arms agree in all that the source says of them."
        )
    sentence = f"No baseline of {row.target} has the same {' and '.join(differing)} as this row."
    return _finding("arms_do_not_match", "suspicious", figures, sentence)


def trial_not_valid(row: AuditRow, context: AuditContext) -> Finding | None:
    """Did every native call of the trial succeed, and is its output lossless?"""
    if row.failed_native_calls:
        figures = {"failed_native_calls": float(row.failed_native_calls)}
        sentence = f"{row.failed_native_calls} native calls failed, so the output is not what the target decodes."
        return _finding("trial_not_valid", "suspicious", figures, sentence)
    if row.invalid_reason:
        return _finding("trial_not_valid", "suspicious", {}, f"The trial is not valid: {row.invalid_reason}.")
    return None


def parts_and_whole(row: AuditRow, context: AuditContext) -> Finding | None:
    """Do the parts of all rounds sum to the decode time within 2 %?"""
    if row.decode_ms is None or row.parts_ms is None or row.decode_ms <= 0:
        return None
    ratio = row.parts_ms / row.decode_ms
    figures = {"decode_ms": row.decode_ms, "parts_ms": row.parts_ms, "ratio": ratio}
    sentence = f"The parts of all rounds sum to {100 * ratio:.1f} % of the decode time."
    verdict: Credibility = "possible"
    if abs(ratio - 1.0) > 0.02:
        verdict = "impossible" if ratio > 1.0 + context.margin(row) else "suspicious"
    return _finding("parts_and_whole", verdict, figures, sentence)


RULES: tuple[Rule, ...] = (
    round_shorter_than_its_parts,
    more_bandwidth_than_the_chip,
    speedup_above_mgl,
    counts_disagree,
    columns_disagree,
    speed_ignores_acceptance,
    baselines_disagree,
    repeats_too_alike_or_apart,
    longer_drafts_accept_less,
    all_or_nothing_accepted,
    arms_do_not_match,
    trial_not_valid,
    parts_and_whole,
)


def _finding(rule: str, verdict: Credibility, figures: dict[str, float], sentence: str) -> Finding:
    return Finding(rule=rule, verdict=verdict, figures=figures, sentence=sentence)


def _beyond(
    rule: str, excess: float, row: AuditRow, context: AuditContext, figures: dict[str, float], facts: str
) -> Finding:
    """Possible while the bound holds, suspicious when broken within the noise, impossible beyond it."""
    sentence = facts[0].upper() + facts[1:]
    if excess <= 1.0:
        return _finding(rule, "possible", figures, sentence + ".")
    if excess > 1.0 + context.margin(row):
        return _finding(rule, "impossible", figures, sentence + ": this cannot be true.")
    why = "means over unequal prompts" if row.pooled_mgl else "noise"
    return _finding(rule, "suspicious", figures, f"{sentence}: too much, but {why} might explain it.")
