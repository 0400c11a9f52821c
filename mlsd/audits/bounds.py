"""Bounds that any program obeys: the rules that may say `impossible`.

Each is an expression over the frame, with its formula. `impossible` is said only where a bound is broken by more than
rounding and noise can explain, by most of the row's repeats as well.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from mlsd.audits.frame import Frame, Series, first_verdicts, verdicts
from mlsd.trials.acceptance_meanings import DESCRIPTIONS, MEANINGS

SUSPICIOUS_SDS, IMPOSSIBLE_SDS = 3.3, 8.0  # a bound may be broken by so many standard deviations of repeats
POOLED_SLACK = 0.5  # over prompts whose MGL has a coefficient of variation of 0.7
BOOKKEEPING_RATIO = 1.02  # programs differ by a token in what they divide by
# Over answers a mean of tok/s is above that of their mean time: by 1 + cv^2 for a coefficient of variation cv of 0.39.
MEAN_OF_RATES = 1.15

_EXPECTED = " (the fastest that public rows of its chip lead to expect)"

Bound = Callable[[Any, Series], tuple[Series, Any, dict[str, Any]]]  # excess above 1, template, its values


def round_shorter_than_its_parts(rows: Frame) -> Frame:
    """Is a round at least as long as its drafts and one plain target pass? ``MGL / tok/s >= T_draft + T(1)``."""

    def bound(faster: Any, plain: Series) -> tuple[Series, Any, dict[str, Any]]:
        target = (1e3 / plain).fillna(rows["target_pass_ms"])
        round_ms, drafts = rows["round_longest_ms"] / faster, rows["draft_least_ms"]
        how = np.select(
            [plain.notna(), rows["pass_expected"], rows["base_program"] == 1],
            ["", _EXPECTED, " (another program's plain run less 15 %)"], "",
        )  # fmt: skip
        excess = (target + drafts) / round_ms
        has_drafts = drafts.map(
            lambda ms: f" and its drafts {ms:.1f} ms" if ms >= 10 else f" and its drafts {ms:.3g} ms"
        )
        return excess, "a round took at most {round_ms:ms} ms, one target pass {target_pass_ms:ms} ms{how}{drafts}", {
            "round_ms": round_ms, "target_pass_ms": target, "draft_ms": drafts, "too_short_by": excess, "how": how,
            "drafts": has_drafts.where(drafts > 0, ""),
        }  # fmt: skip

    said = rows["mgl"].notna() | rows["acceptance"].notna()
    where = rows["speculative"] & said & rows["round_longest_ms"].notna() & rows["target_pass_ms"].notna()
    return _bounded(rows, where, bound)


def more_bandwidth_than_the_chip(rows: Frame) -> Frame:
    """Are the bytes that a round must move under the peak bandwidth? ``bytes / round <= peak`` of the memory."""

    def bound(faster: Any, plain: Series) -> tuple[Series, Any, dict[str, Any]]:
        round_ms = rows["round_longest_ms"] / faster
        needed, peak = rows["round_bytes"] / round_ms / 1e6, rows["peak_gb_s"]
        moved = np.where(rows["bytes_claimed"].notna(), "is said to move", "moves at least")
        text = "a round {moved} {round_gb:.1f} GB in {round_ms:ms} ms, {needed_gb_s:.0f} GB/s of the {peak_gb_s:.0f}"
        return needed / peak, f"{text} that the memory has", {
            "needed_gb_s": needed, "peak_gb_s": peak, "round_gb": rows["round_bytes"] / 1e9, "round_ms": round_ms,
            "moved": moved,
        }  # fmt: skip

    where = rows["round_longest_ms"].notna() & rows["round_bytes"].notna() & rows["peak_gb_s"].notna()
    return _bounded(rows, where, bound)


def speedup_above_mgl(rows: Frame) -> Frame:
    """Is speedup at most MGL? A round costs one target pass or more, so it cannot gain more than it commits.

    Where the row does not say what it commits, no drafter of its kind proposes more than `frame.MOST_PROPOSED`.
    """
    most, least = rows["mgl_most"].fillna(rows["mgl_limit"]), rows["speedup_least"]

    def bound(faster: Any, plain: Series) -> tuple[Series, Any, dict[str, Any]]:
        speedup = (faster * rows["tok_s_low"] / plain).fillna(least)
        claimed = rows["speedup"].where(plain.isna()).fillna(speedup)
        text = "the speedup is {speedup:.2f}, a round commits at most {mgl_at_most:.2f} tokens{reading}"
        limit = "the speedup is {speedup:.4g}, no round of such a drafter commits more than {mgl_at_most:.0f} tokens"
        return speedup / most, pd.Series(np.where(rows["mgl_most"].isna(), limit, text), rows.index), {
            "speedup": claimed, "mgl_at_most": most, "above_by": speedup / most, "reading": _reading(rows, speedup),
        }  # fmt: skip

    return _bounded(rows, rows["speculative"] & least.notna(), bound)


def _reading(rows: Frame, needed: Series) -> Series:
    """Which meaning of the rate the row needs to hold, where the table does not say and the usual one does not do."""
    fits = [(DESCRIPTIONS[of], rows[f"most_{of}"] >= needed) for of in MEANINGS]
    n_meanings = rows[[f"most_{of}" for of in MEANINGS]].notna().sum(axis=1)
    asked = (
        rows["stated_mgl"].isna() & rows["acceptance"].notna() & (n_meanings > 1) & ~(rows["most_proposed"] >= needed)
    )
    readings = pd.Series("", rows.index)
    for i in rows.index[asked]:
        name = " or ".join(word for word, fit in fits if fit[i])
        readings[i] = f", if the rate is {name}" if name else " under every meaning of the rate"
    return readings


def _bounded(rows: Frame, where: Series, bound: Bound) -> Frame:
    """Possible while the bound holds or noise breaks it, suspicious beyond, impossible where nothing explains it.

    `bound` says by how much it is broken where the row is so much faster, over its fastest baseline or another plain
    speed. The row itself and the mean of its repeats are held against the noise, the latter over the mean baseline and
    with the error of a mean. Slack is given where a mean of speedups over unequal prompts may honestly exceed what an
    MGL pooled over their rounds allows.
    """
    excess, text, values = bound(1.0, pd.Series(np.nan, rows.index))
    of_mean, _, mean_values = bound(rows["mean_faster"], rows["mean_plain"].where(rows["mean_faster"].notna()))
    visible = (SUSPICIOUS_SDS * rows["noise"]).where(~rows["pooled_mgl"], 0.0)
    far = (IMPOSSIBLE_SDS * rows["noise"]).where(~rows["pooled_mgl"], POOLED_SLACK)
    doubtful = excess > 1.0 + visible
    impossible = doubtful & (excess * rows["typical"] > 1.0 + far)
    in_mean = ~doubtful & rows["mean_faster"].notna() & (of_mean > 1.0 + visible * rows["mean_error"])
    for name, value in mean_values.items():
        values[name] = pd.Series(value, rows.index).where(in_mean, pd.Series(values[name], rows.index))
    within = (excess > 1.0) & ~doubtful & ~in_mean
    text = pd.Series(text, rows.index)
    sentence = np.select([in_mean, within], ["in the mean of its repeats " + text, text + ", within the noise"], text)
    why = np.where(rows["pooled_mgl"], "means over unequal prompts", "noise")
    return verdicts(
        where, np.select([impossible, doubtful | in_mean], ["impossible", "suspicious"], "possible"), sentence,
        [f": too much, but {word} might explain it" for word in why], **values,
    )  # fmt: skip


# --- figures that must agree ------------------------------------------------------------------------------------


def counts_disagree(rows: Frame) -> Frame:
    """Are accepted tokens part of the output? ``tokens = rounds + accepted``, ``proposed <= gamma rounds``.

    The last round may run past the end by less than gamma, and a program may count the first token or not.
    """
    accepted, output, rounds = rows["n_accepted"], rows["n_output"].fillna(rows["n_predict"]), rows["rounds_low"]
    past = rows["gamma"].fillna(rows["n_proposed"] / rows["rounds_high"]).fillna(0.0) + 1.0
    allowed, of_rounds = rows["n_output"] / rows["n_predict"], rows["rounds_high"] * rows["gamma"]
    causes: list[tuple[Series, str, str]] = [
        (allowed > 1, "The output has {n_output:.0f} tokens where {n_predict:.0f} were allowed",
         ": the last round was counted past the end"),
        (accepted > output + past, "{n_accepted:.0f} drafted tokens are accepted in an output of {output:.0f}",
         ": accepted tokens are part of the output"),
        (accepted + rounds > output + past, "{n_accepted:.0f} accepted tokens and one of each of {rounds:.0f} rounds "
         "are more than the output of {output:.0f}", ": each round adds a token of its own"),
        (rows["n_proposed"] > of_rounds * BOOKKEEPING_RATIO,
         "{n_proposed:.0f} tokens are proposed in {rounds:.0f} rounds of at most {gamma:.0f}",
         ": no round proposes more than gamma"),
        (accepted + rows["rounds_high"] < output / BOOKKEEPING_RATIO - past,
         "{n_accepted:.0f} accepted tokens and one of each of {rounds:.0f} rounds are fewer than the output of "
         "{output:.0f}", ": every token is accepted or a round's own"),
    ]  # fmt: skip
    where = rows["speculative"] & (
        allowed.notna() | (accepted.notna() & output.notna()) | (of_rounds + rows["n_proposed"]).notna()
    )
    where &= (rows["n_proposed"] > 0) | rows["rounds"].notna() | (allowed > 1)
    broken = [cause for cause, _, _ in causes]
    # A share of rounds that draft less than they could need not be counted, so only the first four doubt.
    fine = "Accepted, proposed and output tokens and rounds agree"
    return verdicts(
        where, np.where(np.logical_or.reduce(broken), "suspicious", "possible"),
        np.select(broken, [text for _, text, _ in causes], fine), np.select(broken, [why for *_, why in causes], ""),
        n_accepted=accepted, n_proposed=rows["n_proposed"], rounds=rows["rounds"], gamma=rows["gamma"], output=output,
        n_output=rows["n_output"], n_predict=rows["n_predict"],
    )  # fmt: skip


def figures_disagree(rows: Frame) -> Frame:
    """Do columns that say one thing agree: tokens a round, rate and gamma; tok/s, ms a token and speedup?"""
    of_rate = _rate_and_length(rows)
    first = first_verdicts(of_rate[of_rate["kind"] != "possible"], _columns(rows), of_rate, _whole_drafts(rows))
    return pd.concat([first, _includes_the_prompt(rows)])


def _includes_the_prompt(rows: Frame) -> Frame:
    """Is the speed lower than its milliseconds a token say? Then the time of the prompt may be in it: ask."""
    ms = rows[["ms_per_token", "ms_per_token_high"]].where(rows["ms_per_token"] > 0)
    text = "{tok_s:.4g} tok/s is less than {ms_per_token:g} ms a token say ({by_ms:.4g} tok/s)"
    return verdicts(
        rows["tok_s_high"] * BOOKKEEPING_RATIO < 1e3 / ms["ms_per_token_high"], "ask",
        f"{text}: is the time of the prompt in it?",
        tok_s=rows["tok_s"], ms_per_token=rows["ms_per_token"], by_ms=1e3 / ms["ms_per_token"],
    )  # fmt: skip


def _rate_and_length(rows: Frame) -> Frame:
    """Does MGL lie between what rate and gamma allow? More than a token a round beyond it cannot be."""
    slack = 1.0 + rows["tail"]  # the last round may commit tokens past the end, by less than gamma
    beyond = pd.DataFrame({
        of: np.fmax(rows["stated_mgl_low"] / rows[f"most_{of}"], rows[f"least_{of}"] / rows["stated_mgl_high"]) / slack
        for of in MEANINGS
    })  # fmt: skip
    beyond = beyond.where(rows[[f"most_{of}" for of in MEANINGS]].notna().to_numpy())
    # Without a rate gamma alone bounds from above.
    by_gamma = (rows["stated_mgl_low"] / ((rows["gamma"] + 1.0) * slack)).where(rows["acceptance"].isna())
    beyond["proposed"] = beyond["proposed"].fillna(by_gamma)
    where = rows["speculative"] & rows["stated_mgl"].notna() & beyond.notna().any(axis=1)
    where &= rows["gamma"].notna() | (rows["acceptance_of"] == "output")
    meaning = beyond.fillna(np.inf).idxmin(axis=1)
    most, least = (
        pd.Series(np.select([meaning == of for of in MEANINGS], [rows[f"{end}_{of}"] for of in MEANINGS]), rows.index)
        for end in ("most", "least")
    )
    most, least = most.fillna(rows["gamma"] + 1.0), least.fillna(1.0)
    far = rows["stated_mgl_low"] - 1.0 > most * slack * (1.0 + IMPOSSIBLE_SDS * rows["noise"])
    worst = beyond.min(axis=1)
    unsaid = rows["acceptance"].notna() & rows["acceptance_of"].isna() & (meaning != "proposed") & ~far
    text = "The row states {mgl_stated:.2f} tokens a round, its acceptance and gamma allow {mgl_at_least:.2f} to "
    text += "{mgl_at_most:.2f}{reading}"
    return verdicts(
        where, np.select([far, worst > BOOKKEEPING_RATIO], ["impossible", "suspicious"], "possible"), text,
        ": they count different things, the bonus token perhaps",
        mgl_stated=rows["stated_mgl"], mgl_at_most=most, mgl_at_least=least,
        reading=(" if the rate is " + meaning.map(DESCRIPTIONS.get).astype(str)).where(unsaid, ""),
    )  # fmt: skip


@functools.lru_cache(maxsize=10_000)
def whole_drafts(rate_low: float, rate_high: float, gamma: int, n: int) -> tuple[int, int] | None:
    """Total and rounds of full-length drafts that give the rate, None where there are none.

    ``accepted / (gamma rounds - missing) = rate`` and ``rounds + accepted = tokens`` give
    ``rounds = (tokens + rate missing) / (1 + rate gamma)``, which must be whole. A program may count the first token or
    not, run past the end, or propose less in the last gamma tokens.
    """
    missing = np.concatenate([np.zeros(gamma + 1 + (n > 1), int), np.arange(1, gamma * (gamma + 1) // 2 + 1)])
    least = max(1, n - 1)
    total = np.concatenate([np.arange(least, n + gamma + 1), np.full(gamma * (gamma + 1) // 2, least)])
    missing = missing[: len(total)]
    rounds = np.ceil((total + rate_high * missing) / (1.0 + rate_high * gamma) - 1e-9)
    fits = np.flatnonzero(rounds <= (total + rate_low * missing) / (1.0 + rate_low * gamma) + 1e-9)
    return (int(total[fits[0]]), int(rounds[fits[0]])) if len(fits) else None


def _whole_drafts(rows: Frame) -> Frame:
    """Is there a whole number of rounds and accepted tokens behind the acceptance rate of full-length drafts?

    Doubted only in a table whose other counts fit: rates pooled over turns and outputs that end early need not.
    """
    by_proposals = rows["acceptance_of"].fillna("proposed") == "proposed"
    counted = rows["acceptance"].notna() & (rows["n_predict"] > 0) & (rows["gamma"] > 0) & (rows["gamma"] <= 256)
    where = rows["speculative"] & by_proposals & counted & rows["fixed_length"] & rows["stated_mgl"].isna()
    keys = [rows.loc[where, name] for name in ("acceptance_low", "acceptance_high", "gamma", "n_predict")]
    whole = [whole_drafts(low, high, int(gamma), int(n)) for low, high, gamma, n in zip(*keys, strict=True)]
    counts = pd.DataFrame([one or (np.nan, np.nan) for one in whole], rows.index[where], ["total", "rounds"])
    total, rounds = (counts[name].reindex(rows.index) for name in ("total", "rounds"))
    none = total.isna()
    text = "{rounds:.0f} rounds and {accepted:.0f} accepted tokens give {tokens:.0f} tokens at this rate"
    no = "No whole number of drafts of {gamma:.0f} gives {n_predict:.0f} tokens at an acceptance of {percent:.3f} %"
    return verdicts(
        where, np.where(none & rows["exact_counts"], "suspicious", "possible"), np.where(none, no, text),
        tokens=total, rounds=rounds, accepted=total - rounds, acceptance=rows["acceptance"],
        n_predict=rows["n_predict"], gamma=rows["gamma"], percent=100 * rows["acceptance"],
    )  # fmt: skip


def _columns(rows: Frame) -> Frame:
    """By what factor columns that say the same thing differ.

    A speedup may be a ratio to the repeat's own baseline, to any mean or to any median of them.
    """
    by_ms = 1e3 / rows[["ms_per_token", "ms_per_token_high", "ms_per_token_low"]].where(rows["ms_per_token_low"] > 0)
    plain_low, plain_high = rows["agreed_low"], rows["agreed_high"]
    ratio_low = (rows["tok_s_low"] / plain_high).where(rows["speculative"] & (plain_low > 0))
    ratio_high = rows["tok_s_high"] / plain_low
    counted = (rows["n_accepted"] / rows["n_proposed"]).where(rows["acceptance_of"] == "proposed")
    length = rows["n_output"].fillna(rows["n_predict"])
    # A speed may count the token that prefill made; one below it counts the prompt's time.
    first = (length / (length - 1)).where(length > 1, 1.0)
    faster = rows["tok_s_low"] / first / by_ms["ms_per_token_low"]
    apart = pd.DataFrame({
        "ms": faster.mask(faster <= MEAN_OF_RATES, 1.0),
        "speedup": _apart(rows["speedup_low"], rows["speedup_high"], ratio_low, ratio_high),
        "rate": _apart(rows["acceptance_low"], rows["acceptance_high"], counted, counted),
    })  # fmt: skip
    texts = {
        "ms": "tok_s is {tok_s:g}, ms_per_token {ms_per_token:g} is {by_ms:.4g} tok/s",
        "speedup": "speedup is {speedup:.4g}, tok_s {tok_s:g} over the plain {plain} is {over}",
        "rate": "acceptance is {acceptance:.4g}, {n_accepted:.0f} of {n_proposed:.0f} is {counted:.4g}",
    }
    worst = apart.max(axis=1)
    return verdicts(
        worst > BOOKKEEPING_RATIO, "suspicious",
        apart.fillna(0.0).idxmax(axis=1).map(texts) + ": they differ by a factor of {apart_by:.3f}",
        tok_s=rows["tok_s"], ms_per_token=rows["ms_per_token"], by_ms=by_ms["ms_per_token"], speedup=rows["speedup"],
        baseline_tok_s=plain_high, acceptance=rows["acceptance"], n_accepted=rows["n_accepted"],
        n_proposed=rows["n_proposed"], counted=counted, apart_by=worst,
        plain=_span(plain_low, plain_high, plain_high, 1.01), over=_span(ratio_low, ratio_high, ratio_low, 1.02),
    )  # fmt: skip


def _span(low: Series, high: Series, value: Series, near: float) -> list[str]:
    """From low to high in words, one value where they are near."""
    ends = zip(low, high, value, strict=True)
    return [f"{a:.3g} to {b:.3g}" if b > near * a else f"{v:.3g}" for a, b, v in ends]


def _apart(low: Series, high: Series, other_low: Series, other_high: Series) -> Series:
    """By what factor two intervals miss each other; 1 when they meet, NaN where one is not stated."""
    ratio = np.maximum(low / other_high.where(other_high > 0), other_low / high.where(high > 0)).clip(lower=1.0)
    return ratio.where(low.notna() & other_low.notna())


def trial_not_valid(rows: Frame) -> Frame:
    """Did every native call succeed, is the output lossless, and can counts, times and tokens be at all?"""
    failed = rows["failed_native_calls"] > 0
    impossible = rows["cannot_be"].notna() | failed
    text = np.select(
        [rows["cannot_be"].notna(), failed],
        ["{cannot_be}", "{failed_native_calls:.0f} native calls failed, and a call that fails decodes nothing"],
        "It is not valid: {reason}",
    )
    return verdicts(
        impossible | rows["invalid_reason"].notna(), np.where(impossible, "impossible", "suspicious"), text,
        failed_native_calls=rows["failed_native_calls"].where(failed), cannot_be=rows["cannot_be"].fillna(""),
        reason=rows["invalid_reason"].fillna(""),
    )  # fmt: skip
