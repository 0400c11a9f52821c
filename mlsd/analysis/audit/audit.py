"""The audit of a table: every rule on every row, the worst finding is the row's verdict.

A rule asks one question of one row: a pure function (row, context) -> Finding, or None where the table does not say
enough. Each figure is taken at the end of its interval that favours the row. `impossible` is said only when a bound
that any program must obey is broken by more than rounding and noise can explain, by most of the row's repeats as well;
columns and counts that merely disagree are a slip of bookkeeping, and `suspicious`. How often that is wrong:
`python -m benchmarks truth`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mlsd.analysis.audit.model_name import same_model
from mlsd.analysis.audit.plain_speed import least_pass_ms, plain_speed
from mlsd.analysis.audit.rows import (
    SAME_SPEED_RATIO,
    SEVERITY,
    Audit,
    AuditContext,
    AuditRow,
    Credibility,
    RowAudit,
    RuleFinding,
    chance_of_more,
    median_of_others,
)
from mlsd.measure.exchange.printed import Printed, exact
from mlsd.trials.acceptance import WORDS, Meaning, mgl_of

Rule = Callable[[AuditRow, AuditContext], RuleFinding | None]

# A cache may keep this much of the weights between passes: the system cache of an M2 Ultra is 96 MB.
CACHE_BYTES = 100_000_000
SUSPICIOUS_SDS, IMPOSSIBLE_SDS = 3.3, 8.0  # a bound may be broken by so many standard deviations of repeats
POOLED_SLACK = 0.5  # over prompts whose MGL has a coefficient of variation of 0.7
SAME_WORK_RATIO = 1.5  # rounds of equal work differ by less than this between prompts and depths
SAME_CASE_RATIO = 1.25  # repeats of one case differ by less than this
BOOKKEEPING_RATIO = 1.02  # programs differ by a token in what they divide by
HONEST_SLOPES = (0.9, 1.06)  # of log speed over log MGL: a last short round and dear rejections bend it a little
COINCIDENCE = 5e-3  # chance, of a case or of the table, below which equal repeats are not chance
# Rules that may raise a doubt, but judge no speed and no count.
NOT_JUDGING = (
    "columns_disagree", "arms_do_not_match", "all_or_nothing_accepted", "settings_equal", "faster_elsewhere",
    "slower_than_the_machine", "rate_copied",
)  # fmt: skip
MOST_TIMES_PLAIN = 20.0  # of a rate whose rounds are not known
SHALLOW = 4096  # tokens of context up to which a plain pass is not much slower than an empty one's
FEWEST_COPIES = 2  # pairs of settings with one rate
FEWEST_PROPOSED = 50  # drafted tokens before none or all accepted means anything


def audit_row(row: AuditRow, context: AuditContext) -> RowAudit:
    """Ask all rules of one row. Rules that do not apply leave no finding; a row that no rule bounds is not judged."""
    findings: tuple[RuleFinding, ...] = tuple(f for rule in RULES if (f := rule(row, context)) is not None)
    judged = any(finding.rule not in NOT_JUDGING for finding in findings)
    verdicts: list[Credibility] = [
        *(finding.verdict for finding in findings if judged or finding.verdict != "possible")
    ]
    verdict: Credibility = max(verdicts, key=SEVERITY.__getitem__, default="not judged")
    missing = what_is_missing(row, context) if verdict == "not judged" else ()
    return RowAudit(identity=identity(row), verdict=verdict, findings=findings, missing=missing)


def what_is_missing(row: AuditRow, context: AuditContext) -> tuple[str, ...]:
    """What the table would have to state for the row to be judged."""
    size = row.pass_bytes or context.pass_bytes.get(row.target)
    known: list[tuple[object, str]]
    if not row.speculative:
        known = [
            (row.tok_s, "a speed"),
            (size, "the model's size and quantization (as in `8B Q4_K_M`)"),
            (context.peak(row), "the memory's peak bandwidth (--peak-gb-s, or a chip)"),
        ]
    else:
        speed = row.tok_s or row.speedup
        plain = "a plain run of the same file on the same chip, or a speedup"
        known = [
            (speed and least_speedup(row, context), plain if speed else "a speed"),
            (most_committed(row), "tokens a round: mgl, or draft_len and an acceptance rate"),
        ]
    return tuple(what for value, what in known if value is None)


def audit(source: str, *contexts: AuditContext) -> Audit:
    """Audit all rows of the contexts, each among its own."""
    rows = tuple(audit_row(row, context) for context in contexts for row in context.rows)
    notes = tuple(dict.fromkeys(note for context in contexts for note in context.notes))
    return Audit(source=source, rows=rows, notes=notes)


_IDENTITY = (
    "table", "label", "target", "chip", "drafter", "draft", "gamma", "prompt", "n_prompt", "n_predict", "repeat",
)  # fmt: skip


def identity(row: AuditRow) -> dict[str, str | int]:
    """What the source states of the row's case."""
    return {name: value for name in _IDENTITY if (value := getattr(row, name)) is not None}


# --- what a row implies -----------------------------------------------------------------------------------------


def most_committed(row: AuditRow) -> float | None:
    """The largest MGL the row allows: as printed, by its rounds, by its rate in the meaning that favours it most,
    else gamma + 1; 1 for AR.
    """
    if not row.speculative:
        return 1.0
    if row.mgl is not None:
        return row.mgl.high
    tokens = row.n_output or row.n_predict
    if row.rounds is not None and tokens and row.rounds.low > 0:
        return tokens / row.rounds.low
    if row.acceptance is None:
        return None if row.gamma is None else row.gamma + 1.0
    readings = most_by_meaning(row)
    return max(readings.values()) if len(readings) == len(row.meanings) else None


def most_by_meaning(row: AuditRow) -> dict[Meaning, float]:
    """The largest MGL that the row's rate allows, in each meaning it may have and that its columns decide."""
    if row.acceptance is None:
        return {}
    found = {meaning: mgl_of(row.acceptance.high, meaning, row.gamma) for meaning in row.meanings}
    return {meaning: mgl for meaning, mgl in found.items() if mgl is not None}


def _reading(row: AuditRow, needed: float) -> str:
    """Which meaning of the rate the row needs to hold, where the table does not say and the usual one does not do."""
    readings = most_by_meaning(row)
    if row.mgl is not None or row.rounds is not None or len(readings) < 2:
        return ""
    if readings["proposed"] >= needed:
        return ""
    fitting = [WORDS[meaning] for meaning, mgl in readings.items() if mgl >= needed]
    return f", if the rate is {' or '.join(fitting)}" if fitting else " under every meaning of the rate"


def least_speedup(row: AuditRow, context: AuditContext) -> float | None:
    """The least the speedup can be: as printed, or the row's tok/s over its fastest baseline.

    None where the only baselines have a much deeper context, whose passes are slower than the row's own.
    """
    baseline = context.baseline(row)
    lows = [] if row.speedup is None else [row.speedup.low]
    if row.tok_s is not None and baseline is not None and baseline.fastest.high > 0:
        lows.append(row.tok_s.low / baseline.fastest.high)
    return None if not lows or (baseline is None and context.baselines(row)) else min(lows)


def longest_round_ms(row: AuditRow, context: AuditContext) -> float | None:
    """The longest a round can have taken: ``MGL / tok/s``.

    A program may count the first token, which prefill made, so n_predict tokens may be n_predict - 1 of decoding.
    """
    committed = most_committed(row)
    if committed is None:
        return None
    if row.tok_s is not None and row.tok_s.low > 0:
        slowest_ms = 1e3 / row.tok_s.low
    else:
        speedup, baseline = row.speedup, context.baseline(row)
        if speedup is None or baseline is None or speedup.low <= 0 or baseline.mean.low <= 0:
            return None
        slowest_ms = 1e3 / (baseline.mean.low * speedup.low)
    length = row.n_predict or row.n_output or 0
    counted = length / (length - 1) if length > 1 else 1.0
    return committed * slowest_ms * counted or None


def least_proposed(row: AuditRow) -> float:
    """The fewest tokens a round proposed on average: by its counts, else by the length of its drafts.

    Full-length drafting proposes gamma, but for the last gamma tokens of the output, where a program may stop short.
    Otherwise it is what was accepted: MGL - 1.
    """
    if row.n_proposed is not None and row.rounds is not None:
        return row.n_proposed / row.rounds.high
    if row.gamma is not None and row.fixed_length:
        return row.gamma * max(0.0, 1.0 - _tail(row))
    return max(0.0, row.mgl.low - 1.0) if row.mgl is not None else 0.0


def _tail(row: AuditRow) -> float:
    return row.gamma / (row.n_predict - 1) if row.gamma and row.n_predict and row.n_predict > 1 else 0.0


def least_draft_passes(row: AuditRow) -> float:
    """The fewest passes of its draft that a round needs."""
    mgl = tokens_a_round(row)
    return row.draft_passes(least_proposed(row), 0.0 if mgl is None else max(0.0, mgl.low - 1.0))


def least_draft_ms(row: AuditRow, context: AuditContext) -> float:
    """The least time a round spent drafting: as printed, else passes of the draft at its own speed or the chip's."""
    if row.draft_ms is not None:
        return row.draft_ms.low
    known = max(context.draft_token_ms.get(row.draft or "", 0.0), context.timed_draft_ms(row))
    expected = least_pass_ms(row.draft, row) if row.draft else None
    return least_draft_passes(row) * max(known, expected or 0.0)


def least_target_ms(row: AuditRow, context: AuditContext) -> float | None:
    """The least time of a target pass: by the plain run, else by the fastest that public rows lead to expect."""
    baseline = context.baseline(row)
    if baseline is None or baseline.fastest.high <= 0:
        return None if context.baselines(row) else least_pass_ms(row.target, row)
    return 1e3 / baseline.fastest.high


def least_round_bytes(row: AuditRow, context: AuditContext) -> float | None:
    """Bytes a round moved from memory at least: one target pass and its drafts, less what a cache can keep."""
    if row.bytes_claimed is not None:
        return row.bytes_claimed.low
    if row.target not in context.pass_bytes:
        return None if row.pass_bytes is None else max(0.0, row.pass_bytes - CACHE_BYTES)
    drafts = max(0.0, context.pass_bytes.get(row.draft or "", 0.0) - CACHE_BYTES) * least_draft_passes(row)
    return max(0.0, context.pass_bytes[row.target] - CACHE_BYTES) + drafts


# --- bounds that any program obeys ------------------------------------------------------------------------------


def round_shorter_than_its_parts(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is a round at least as long as its drafts and one plain target pass? ``MGL / tok/s >= T_draft + T(1)``."""
    longest, plain = longest_round_ms(row, context), least_target_ms(row, context)
    if not row.speculative or longest is None or plain is None:
        return None
    if row.mgl is None and row.acceptance is None:
        return None
    drafting = least_draft_ms(row, context)
    excess = (plain + drafting) / longest
    figures = {"round_ms": longest, "target_pass_ms": plain, "draft_ms": drafting, "too_short_by": excess}
    facts = f"a round took at most {longest:.1f} ms, one target pass {plain:.1f} ms and its drafts {drafting:.1f} ms"
    return _beyond("round_shorter_than_its_parts", excess, row, context, figures, facts)


def more_bandwidth_than_the_chip(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Are the bytes a round must move under the peak bandwidth of the memory?"""
    longest, n_bytes, peak = longest_round_ms(row, context), least_round_bytes(row, context), context.peak(row)
    if longest is None or n_bytes is None or peak is None:
        return None
    needed = n_bytes / longest / 1e6
    figures = {"needed_gb_s": needed, "peak_gb_s": peak, "round_gb": n_bytes / 1e9, "round_ms": longest}
    moved = "is said to move" if row.bytes_claimed is not None else "moves at least"
    facts = (
        f"a round {moved} {n_bytes / 1e9:.1f} GB in {longest:.1f} ms, {needed:.0f} GB/s of the {peak:.0f} "
        "that the memory has"
    )
    return _beyond("more_bandwidth_than_the_chip", needed / peak, row, context, figures, facts)


def speedup_above_mgl(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is speedup at most MGL? A round costs one target pass or more, so it cannot gain more than it commits."""
    speedup, most = least_speedup(row, context), most_committed(row)
    if not row.speculative or speedup is None or most is None:
        return None
    claimed = speedup if row.speedup is None else row.speedup.value
    figures = {"speedup": claimed, "mgl_at_most": most, "above_by": speedup / most}
    facts = f"the speedup is {claimed:.2f}, a round commits at most {most:.2f} tokens{_reading(row, speedup)}"
    return _beyond("speedup_above_mgl", speedup / most, row, context, figures, facts)


def faster_than_any_pass(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Where nothing says how many tokens a round commits: is the rate one that passes of the model allow at all?"""
    if not row.speculative or row.tok_s is None or most_committed(row) is not None:
        return None
    baseline, peak, n_bytes = context.baseline(row), context.peak(row), least_round_bytes(row, context)
    most = [] if baseline is None else [(baseline.fastest.high, f"the plain {baseline.fastest.value:.4g}")]
    if peak is not None and n_bytes:
        most.append((1e9 * peak / n_bytes, f"one token a pass at {peak:.0f} GB/s"))
    if not most:
        return None
    plain, what = min(most)
    times = row.tok_s.low / plain
    figures = {"tok_s": row.tok_s.value, "times_plain": times}
    sentence = f"{row.tok_s.value:.4g} tok/s is {times:.3g} times {what}"
    if times <= MOST_TIMES_PLAIN:
        return None
    why = f": no round commits {MOST_TIMES_PLAIN:.0f} tokens in the time of one pass, so this cannot be true."
    return RuleFinding(rule="faster_than_any_pass", verdict="impossible", figures=figures, sentence=sentence + why)


# --- figures that must agree ------------------------------------------------------------------------------------


def counts_disagree(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do MGL, acceptance, rounds and tokens describe one and the same output? tokens = rounds + accepted.

    A token a round more or less is a question of what is counted; what remains beyond it cannot be.
    """
    if row.n_output is not None and row.n_predict is not None and row.n_output > row.n_predict:
        figures = {"n_output": float(row.n_output), "n_predict": float(row.n_predict)}
        sentence = f"The output has {row.n_output} tokens where {row.n_predict} were allowed"
        return _judged("counts_disagree", True, figures, sentence, ": the last round was counted past the end")
    mgl = tokens_a_round(row)
    if not row.speculative or (row.gamma is None and (row.acceptance is None or row.acceptance_of != "output")):
        return None
    if mgl is None:
        return whole_counts(row, context)
    spans = spans_by_meaning(row)
    slack = 1.0 + _tail(row)  # the last round may commit tokens past the end, by less than gamma
    beyond = {of: max(mgl.low / (most * slack), least / (mgl.high * slack)) for of, (least, most) in spans.items()}
    meaning = min(beyond, key=beyond.__getitem__)
    least, most = spans[meaning]
    figures = {"mgl_stated": mgl.value, "mgl_at_most": most, "mgl_at_least": least}
    facts = f"The row states {mgl.value:.2f} tokens a round, its acceptance and gamma allow {least:.2f} to {most:.2f}"
    if mgl.low - 1.0 > most * slack * (1.0 + IMPOSSIBLE_SDS * context.noise):
        return _impossible("counts_disagree", figures, facts)
    if row.acceptance is not None and meaning != "proposed" and row.acceptance_of is None:
        facts += f" if the rate is {WORDS[meaning]}"
    why = ": they count different things, the bonus token perhaps"
    return _judged("counts_disagree", beyond[meaning] > BOOKKEEPING_RATIO, figures, facts, why)


def tokens_a_round(row: AuditRow) -> Printed | None:
    """MGL as printed, else the output's tokens over its rounds."""
    if row.mgl is not None or row.rounds is None or row.n_output is None or row.rounds.low <= 0:
        return row.mgl
    return row.rounds.inverse.scaled(row.n_output)


def spans_by_meaning(row: AuditRow) -> dict[Meaning, tuple[float, float]]:
    """Least and most tokens a round that rate and gamma allow, by the meaning of the rate.

    A share of output tokens decides both ends. The others do where drafts have full length; else they bound from above,
    and a rate of proposals over drafts of at least one token a round from below by nothing.
    """
    rate = row.acceptance
    if rate is None:
        return {"proposed": (1.0, (row.gamma or 0) + 1.0)}
    spans: dict[Meaning, tuple[float, float]] = {}
    for meaning in row.meanings:
        most, least = mgl_of(rate.high, meaning, row.gamma), 1.0
        if meaning == "output":
            least = mgl_of(rate.low, meaning, row.gamma) or 1.0
        elif row.fixed_length and meaning == "proposed":
            least = 1.0 + least_proposed(row) * rate.low
        if most is not None:
            spans[meaning] = (least, most)
    return spans


def whole_counts(row: AuditRow, context: AuditContext | None = None) -> RuleFinding | None:
    """Is there a whole number of rounds and accepted tokens behind the acceptance rate of full-length drafts?

    Doubted only in a table whose other counts fit: rates pooled over turns and outputs that end early need not.
    ``accepted / (gamma rounds - missing) = acceptance`` and ``rounds + accepted = tokens`` give
    ``rounds = (tokens + acceptance missing) / (1 + acceptance gamma)``, which must be whole.
    """
    if row.acceptance is None or not row.fixed_length or not row.n_predict or not row.gamma:
        return None
    if "proposed" not in row.meanings:
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
            sentence = f"{rounds} rounds and {total - rounds} accepted tokens give {total} tokens at this rate"
            return _judged("counts_disagree", False, figures, sentence)
    figures = {"acceptance": row.acceptance.value, "n_predict": float(n), "gamma": float(gamma)}
    rate = 100 * row.acceptance.value
    sentence = f"No whole number of drafts of {gamma} gives {n} tokens at an acceptance of {rate:.3f} %"
    return _judged("counts_disagree", context is None or context.exact_counts, figures, sentence)


def columns_disagree(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do columns that say the same thing agree: tok/s and ms a token, speedup and tok/s over some baseline, and rates?

    A speedup may be a ratio to the repeat's own baseline, to any mean or to any median of them.
    """
    contradictions: list[tuple[float, str, dict[str, float]]] = []  # apart by, in words, figures
    if row.tok_s is not None and row.ms_per_token is not None and row.tok_s.low > 0 and row.ms_per_token.low > 0:
        by_ms = row.ms_per_token.inverse.scaled(1e3)
        words = f"tok_s is {row.tok_s.value:g}, ms_per_token {row.ms_per_token.value:g} is {by_ms.value:.4g} tok/s"
        figures = {"tok_s": row.tok_s.value, "ms_per_token": row.ms_per_token.value}
        contradictions.append((_apart(row.tok_s, by_ms), words, figures))
    reach = context.agreeing_baselines(row)
    if row.speculative and row.speedup is not None and row.tok_s is not None and reach is not None and reach[0] > 0:
        slowest, fastest = reach
        low, high = row.tok_s.low / fastest, row.tok_s.high / slowest
        over = f"{fastest:.3g}" if slowest > 0.99 * fastest else f"{slowest:.3g} to {fastest:.3g}"
        words = f"speedup is {row.speedup.value:.4g}, tok_s {row.tok_s.value:g} over the plain {over} is {low:.3g}"
        words += f" to {high:.3g}" if high > 1.02 * low else ""
        figures = {"speedup": row.speedup.value, "tok_s": row.tok_s.value, "baseline_tok_s": fastest}
        ratio = Printed(value=low, low=low, high=high, digits=row.tok_s.digits)
        contradictions.append((_apart(row.speedup, ratio), words, figures))
    if row.acceptance is not None and row.n_accepted is not None and row.n_proposed and row.acceptance_of == "proposed":
        counted = exact(row.n_accepted / row.n_proposed)
        words = f"acceptance is {row.acceptance.value:.4g}, {row.n_accepted} of {row.n_proposed} is {counted.value:.4g}"
        contradictions.append((_apart(row.acceptance, counted), words, {"acceptance": row.acceptance.value}))
    if not contradictions:
        return None
    worst, words, _ = max(contradictions, key=lambda one: one[0])
    figures = {name: value for _, _, own in contradictions for name, value in own.items()} | {"apart_by": worst}
    agrees = worst <= BOOKKEEPING_RATIO
    sentence = "Columns that say the same thing agree" if agrees else words[0].upper() + words[1:]
    return _judged("columns_disagree", not agrees, figures, sentence, f": they differ by a factor of {worst:.3f}")


def _apart(one: Printed, other: Printed) -> float:
    """By what factor two intervals miss each other; 1 when they meet."""
    gaps = [a.low / b.high for a, b in ((one, other), (other, one)) if b.high > 0]
    return max([1.0, *gaps])


# --- rows against their table -----------------------------------------------------------------------------------


def speed_ignores_acceptance(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is throughput independent of acceptance? Equal work takes equal time, so accepted tokens must show in tok/s."""
    found = context.round_passes(row) if row.speculative else None
    typical, n_rows = context.round_medians[found[0]] if found is not None else (0.0, 0)
    if found is None or row.acceptance is None or n_rows < 2:
        return None
    ratio = max(found[1] / typical, typical / found[1])
    figures = {"round": found[1], "typical_round": typical, "acceptance": row.acceptance.value, "differs_by": ratio}
    sentence = f"A round of this row took {found[1] / typical:.2f} times what rounds of the same work in the table take"
    doubtful = ratio > max(SAME_WORK_RATIO, 1.0 + IMPOSSIBLE_SDS * context.noise)
    why = ": speed does not follow acceptance as it must"
    return _judged("speed_ignores_acceptance", doubtful, figures, sentence, why)


def slope_of_speed(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Over the whole table, does speed rise with the tokens a round commits as ``speed = MGL / round`` says: slope 1?

    Log speed against log(1 + gamma acceptance) within target, draft and gamma. Throughput that acceptance does not
    touch has slope 0; acceptance halved or with the bonus counted more than 1.1, doubled less than 0.9 (simulated).
    """
    slope = context.slope if row.speculative and row.fixed_length and row.acceptance is not None else None
    if slope is None:
        return None
    low, high = HONEST_SLOPES
    figures = {"slope": slope.value, "standard_error": slope.error, "cases": float(slope.n_cases)}
    sentence = f"Over {slope.n_cases} cases speed goes with the {slope.value:.2f}th power of the tokens a round commits"
    outside = max(low - slope.value, slope.value - high)
    doubtful = outside > SUSPICIOUS_SDS * slope.error
    why = f" (standard error {slope.error:.2f}), not the first: acceptance did not make it, or drafts are shorter"
    return _judged("slope_of_speed", doubtful, figures, sentence, why)


def baselines_disagree(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is a baseline near the others of its target and depth? Depths that are not stated are taken as equal."""
    speeds = context.baseline_speeds.get((*row.host, row.n_prompt, *row.run_of), [])
    if row.speculative or row.tok_s is None or row.tok_s.value <= 0 or len(speeds) < 2:
        return None
    typical = median_of_others(speeds, row.tok_s.value)
    ratio = max(row.tok_s.value / typical, typical / row.tok_s.value)
    figures = {"tok_s": row.tok_s.value, "typical_tok_s": typical, "differ_by": ratio}
    sentence = f"This baseline of {row.target} ran at {row.tok_s.value:.1f} tok/s, the others at {typical:.1f}"
    return _judged("baselines_disagree", ratio > _same_case(context), figures, sentence)


def repeats_too_equal(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do repeats print the same time more often than their noise and digits allow, here or over all cases?"""
    times = context.repeated_times.get(row.case) if row.repeat is not None and row.printed_time else None
    if times is None:
        return None
    equal, n = times[row.printed_time], times.total()
    chance = min(1.0, math.comb(n, equal) * context.chance_of_equal(row) ** (equal - 1))
    figures = {"equal_repeats": float(equal - 1), "chance": chance, "chance_over_the_table": context.chance_of_copies}
    sentence = (
        f"{equal - 1} of {n - 1} other repeats print the same time; chance gives that in {100 * chance:.2g} % of cases"
    )
    doubtful = equal > 1 and (chance <= COINCIDENCE or (equal == n and context.chance_of_copies <= COINCIDENCE))
    more = f", and as often as in this table in {100 * context.chance_of_copies:.2g} % of tables" * (
        chance > COINCIDENCE
    )
    return _judged("repeats_too_equal", doubtful, figures, sentence, more)


def repeats_apart(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do repeats of a case lie as near to each other as the baselines' noise says?"""
    paces, own = context.repeated_paces.get(row.case), row.pace
    if row.repeat is None or own is None or paces is None:
        return None
    typical = median_of_others(paces, own)
    ratio = max(own / typical, typical / own)
    sentence = f"The rounds of this repeat were {own / typical:.2f} times as fast as those of the others"
    return _judged("repeats_apart", ratio > _same_case(context), {"times_as_fast": own / typical}, sentence)


def _same_case(context: AuditContext) -> float:
    return max(SAME_CASE_RATIO, 1.0 + IMPOSSIBLE_SDS * context.noise)


def longer_drafts_accept_less(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Does a longer draft have at least as many tokens accepted a round? It starts with the shorter draft."""
    if row.acceptance is None or row.gamma is None or not row.fixed_length or not row.n_predict:
        return None
    mine = row.gamma * row.acceptance.high
    worst: tuple[float, int, float] | None = None
    by_gamma = context.accepted_per_round[(*row.pair_but_gamma, row.prompt, row.n_prompt)]
    for gamma, theirs in by_gamma.items():
        # A round accepts a geometric number: variance m (1 + m), n_predict / (1 + m) rounds; runs of luck double it.
        variance = sum(m * (1 + m) ** 2 for m in (mine, theirs)) / row.n_predict
        excess = theirs - mine - 4.0 * math.sqrt(2.0 * variance)
        if gamma < row.gamma and (worst is None or excess > worst[0]):
            worst = (excess, gamma, theirs)
    if worst is None:
        return None
    figures = {"accepted_per_round": mine, "shorter_gamma": float(worst[1]), "shorter_accepted": worst[2]}
    sentence = f"At gamma {row.gamma} a round accepts {mine:.3f} tokens, at gamma {worst[1]} it accepts {worst[2]:.3f}"
    why = ", though the longer draft begins with the shorter one"
    return _judged("longer_drafts_accept_less", worst[0] > 0, figures, sentence, why)


def all_or_nothing_accepted(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is acceptance exactly 0 or 100 %? Then a degenerate prompt, a wrong counter or one model for both is likely."""
    if row.acceptance is None or not row.speculative or row.may_accept_all:
        return None
    rate = row.acceptance.value
    proposed = math.inf if row.n_proposed is None else row.n_proposed
    if row.gamma and row.n_predict:
        proposed = row.n_predict * row.gamma / (1.0 + row.gamma * rate)
    doubtful = (rate <= 0.0 or rate >= 1.0) and proposed >= FEWEST_PROPOSED
    sentence = f"{100 * rate:.2f} % of proposed tokens were accepted"
    return _judged("all_or_nothing_accepted", doubtful, {"acceptance": rate}, sentence)


def arms_do_not_match(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do both arms of a ratio come from one program, one prompt and one token count? Another prompt is not doubted."""
    other = row.baseline_target or another_file(row, context)
    if row.speculative and other is not None:
        sentence = f"The speedup is over a plain run of {other}, another file than {row.target}"
        return _judged("arms_do_not_match", True, {}, sentence, ": the ratio is not what speculation gained")
    known = context.baseline_sets.get(row.host) if row.speculative else None
    if known is None:
        return None
    differing = []
    for name, what in (("program", "program"), ("n_predict", "token count"), ("prompt", "prompt")):
        own, others = getattr(row, name), known[name]
        if own is not None and None not in others and own not in others:
            differing.append(f"{what} ({min(map(str, others))} against {own})" if name == "program" else what)
    figures = {"baselines": float(len(context.baselines(row))), "differences": float(len(differing))}
    if not differing:
        sentence = "Both arms agree in all that the source says of them"
        return _judged("arms_do_not_match", False, figures, sentence)
    sentence = f"No baseline of {row.target} has the same {' and '.join(differing)} as this row"
    return _judged("arms_do_not_match", row.claims_ratio and differing != ["prompt"], figures, sentence)


def another_file(row: AuditRow, context: AuditContext) -> str | None:
    """The file whose plain runs the printed speedup is a ratio to, where only the quantization differs."""
    if row.speedup is None or row.tok_s is None or context.baselines(row):
        return None
    for (target, chip), rows in context.plain.items():
        speeds = [other.tok_s for other in rows if other.tok_s is not None]
        if chip != row.chip or not same_model(target, row.target) or not speeds:
            continue
        low, high = row.tok_s.low / max(s.high for s in speeds), row.tok_s.high / min(s.low for s in speeds)
        if _apart(row.speedup, Printed(value=low, low=low, high=high, digits=row.tok_s.digits)) <= BOOKKEEPING_RATIO:
            return target
    return None


def settings_equal(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do two lengths of draft have one rate and one speed? Then the longer is capped, or a row was copied: ask."""
    if not row.speculative or not row.gamma or row.tok_s is None or row.acceptance is None:
        return None
    for other in context.settings[(*row.pair_but_gamma, row.prompt, row.n_prompt)]:
        if not other.gamma or other.gamma >= row.gamma or other.tok_s is None:
            continue
        near = max(row.tok_s.value, other.tok_s.value) <= SAME_SPEED_RATIO * min(row.tok_s.value, other.tok_s.value)
        if near and other.acceptance == row.acceptance and 0 < row.acceptance.value < 1 and row.acceptance.digits >= 2:
            sentence = (
                f"At gamma {row.gamma} the rate is that of gamma {other.gamma} to the digit, and nearly so the speed: "
                "is the draft capped, or a row copied?"
            )
            return RuleFinding(rule="settings_equal", verdict="possible", figures={}, sentence=sentence, ask=True)
    return None


def faster_elsewhere(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Does another program decode the same file plainly much faster than the row's own plain run?"""
    own = context.baseline(row) if row.speculative and row.program is not None else None
    if own is None:
        return None
    others = [r for r in context.baselines(row) if r.program not in (None, row.program) and r.n_prompt == row.n_prompt]
    speeds = {r.program: r.tok_s.value for r in others if r.tok_s is not None}
    if not speeds:
        return None
    program = max(speeds, key=speeds.__getitem__)
    ratio = speeds[program] / own.mean.value
    if ratio <= _same_case(context):
        return None
    sentence = (
        f"{program} decodes the same file plainly {ratio:.2f} times as fast as {row.program}: "
        "how much of the gain is left over the faster plain run?"
    )
    return RuleFinding(
        rule="faster_elsewhere", verdict="possible", figures={"faster_by": ratio}, sentence=sentence, ask=True
    )


def slower_than_the_machine(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is a plain run as fast as its chip should decode that model? A ratio to one that is not is too high: ask."""
    deep = (row.n_prompt or 0) + (row.n_output or row.n_predict or 0) > SHALLOW
    baseline = context.baseline(row) if row.claims_ratio else None
    own = row.tok_s if not row.speculative else None if baseline is None else baseline.fastest
    should = None if row.chip is None or own is None or deep else plain_speed(row.target, row.chip)
    if own is None or should is None:
        return None
    figures = {"plain_tok_s": own.value, "least_expected_tok_s": should.low, "most_expected_tok_s": should.high}
    run = f"{own.value:.4g} tok/s of {row.target} on an {row.chip}"
    span = f"the {should.low:.3g} to {should.high:.3g} that public rows lead to expect"
    slow = own.high < should.low
    if not slow:
        sentence = f"{run}, plain, lies {'above' if own.low > should.high else 'within'} {span}."
    elif row.speculative:
        sentence = f"The plain run that it is compared with, {run}, lies below {span}: a ratio to it is too high."
    else:
        sentence = f"{run}, plain, lies below {span}: is it hot, busy, on battery, or was it computed otherwise?"
    return RuleFinding(rule="slower_than_the_machine", verdict="possible", figures=figures, sentence=sentence, ask=slow)


def rate_copied(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Is one acceptance printed for several lengths of draft that run at other speeds, oftener than chance does that?

    Longer drafts of equal text accept a smaller share; two that happen to print alike are counted against how finely
    the rates are printed. A cap that makes the lengths equal makes the speeds equal too, and is asked about instead.
    """
    if not row.speculative or not row.gamma or row.acceptance is None:
        return None
    cases, copies, expected = context.copied_rates
    if row.case not in cases:
        return None
    figures = {"acceptance": row.acceptance.value, "pairs_alike": float(copies), "pairs_by_chance": expected}
    doubtful = copies >= FEWEST_COPIES and chance_of_more(copies, expected) <= COINCIDENCE
    sentence = (
        f"{100 * row.acceptance.value:.4g} % is printed for other lengths of draft, which run at another speed, too"
    )
    why = f": {copies} such pairs in the table, where chance gives {expected:.2g}; longer drafts accept a smaller share"
    return _judged("rate_copied", doubtful, figures, sentence, why)


# --- own trials -------------------------------------------------------------------------------------------------


def trial_not_valid(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Did every native call of the trial succeed, and is its output lossless?"""
    if row.failed_native_calls:
        figures = {"failed_native_calls": float(row.failed_native_calls)}
        sentence = f"{row.failed_native_calls} native calls failed, so the output is not what the target decodes"
        return _judged("trial_not_valid", True, figures, sentence)
    if row.invalid_reason:
        return _judged("trial_not_valid", True, {}, f"The trial is not valid: {row.invalid_reason}")
    return None


def trial_breaks_an_identity(row: AuditRow, context: AuditContext) -> RuleFinding | None:
    """Do the counts, times and tokens of the trial agree with each other?"""
    if row.cannot_be is None:
        return None
    sentence = f"The trial cannot be: {row.cannot_be}."
    return RuleFinding(rule="trial_breaks_an_identity", verdict="impossible", figures={}, sentence=sentence)


RULES: tuple[Rule, ...] = (
    round_shorter_than_its_parts,
    more_bandwidth_than_the_chip,
    speedup_above_mgl,
    faster_than_any_pass,
    counts_disagree,
    columns_disagree,
    speed_ignores_acceptance,
    slope_of_speed,
    baselines_disagree,
    repeats_too_equal,
    repeats_apart,
    longer_drafts_accept_less,
    all_or_nothing_accepted,
    arms_do_not_match,
    settings_equal,
    faster_elsewhere,
    slower_than_the_machine,
    rate_copied,
    trial_not_valid,
    trial_breaks_an_identity,
)


def _judged(rule: str, doubtful: bool, figures: dict[str, float], sentence: str, why: str = "") -> RuleFinding:
    """Possible, or suspicious for a reason that goes on from the sentence."""
    verdict: Credibility = "suspicious" if doubtful else "possible"
    return RuleFinding(rule=rule, verdict=verdict, figures=figures, sentence=f"{sentence}{why if doubtful else ''}.")


def _impossible(rule: str, figures: dict[str, float], facts: str) -> RuleFinding:
    return RuleFinding(rule=rule, verdict="impossible", figures=figures, sentence=f"{facts}: this cannot be true.")


def _beyond(
    rule: str, excess: float, row: AuditRow, context: AuditContext, figures: dict[str, float], facts: str
) -> RuleFinding:
    """Possible while the bound holds or noise breaks it, suspicious beyond, impossible where nothing explains it.

    The row itself and the mean of its repeats are held against the noise, the latter with the error of a mean.
    Slack is given where a mean of speedups over unequal prompts may honestly exceed what an MGL pooled over their
    rounds allows.
    """
    sentence = facts[0].upper() + facts[1:]
    ratio, error = context.case_mean(row)
    visible = SUSPICIOUS_SDS * context.noise * (not row.pooled_mgl)
    far = POOLED_SLACK if row.pooled_mgl else IMPOSSIBLE_SDS * context.noise
    doubtful = excess > 1.0 + visible or excess * ratio > 1.0 + visible * error
    if doubtful and excess * context.typical(row) > 1.0 + far:
        return _impossible(rule, figures, sentence)
    if not doubtful and excess > 1.0:
        sentence += ", within the noise"
    why = "means over unequal prompts" if row.pooled_mgl else "noise"
    return _judged(rule, doubtful, figures, sentence, f": too much, but {why} might explain it")
