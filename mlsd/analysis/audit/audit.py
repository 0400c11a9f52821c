"""The audit of a table: every rule on every row, the worst finding is the row's verdict.

A rule asks one question of one row: a pure function (row, context) -> Found, or None where the table does not say
enough. `impossible` is said only when a bound that any program must obey is broken by more than rounding and noise can
explain, by most of the row's repeats as well; columns and counts that merely disagree are a slip of bookkeeping, and
`suspicious`. Rows of which it is known that they are false are judged, and judge nobody. How often a verdict is false:
`python -m benchmarks truth`.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from mlsd.analysis.audit import implied
from mlsd.analysis.audit.model_name import same_model
from mlsd.analysis.audit.plain_speed import plain_speed
from mlsd.analysis.audit.rows import (
    SEVERITY,
    Audit,
    AuditContext,
    AuditRow,
    Credibility,
    RowAudit,
    RuleFinding,
    between,
    chance_of_more,
    median_of_others,
)
from mlsd.formats.printed import Printed, exact
from mlsd.records import CONTROLS
from mlsd.trials.acceptance import WORDS

SUSPICIOUS_SDS, IMPOSSIBLE_SDS = 3.3, 8.0  # a bound may be broken by so many standard deviations of repeats
POOLED_SLACK = 0.5  # over prompts whose MGL has a coefficient of variation of 0.7
SAME_WORK_RATIO = 1.5  # rounds of equal work differ by less than this between prompts and depths
SAME_CASE_RATIO = 1.25  # repeats of one case differ by less than this
BOOKKEEPING_RATIO = 1.02  # programs differ by a token in what they divide by
HONEST_SLOPES = (0.9, 1.06)  # of log speed over log MGL: a last short round and dear rejections bend it a little
COINCIDENCE = 5e-3  # chance, of a case or of the table, below which equal repeats are not chance
SHALLOW = 4096  # tokens of context up to which a plain pass is not much slower than an empty one's
FEWEST_COPIES = 2  # pairs of settings with one rate
FEWEST_PROPOSED = 50  # drafted tokens before none or all accepted means anything
_IDENTITY = (
    "table", "label", "target", "chip", "drafter", "draft", "options", "gamma", "prompt", "n_prompt", "n_predict",
    "repeat",
)  # fmt: skip


class Found(NamedTuple):
    """What a rule found of a row; `ask` is a question to the author, though nothing is doubted."""

    kind: Literal["possible", "ask", "suspicious", "impossible"]
    figures: dict[str, float]  # that decide, units in their names
    sentence: str  # without its stop


Rule = Callable[[AuditRow, AuditContext], Found | None]


def audit_row(row: AuditRow, context: AuditContext) -> RowAudit:
    """Ask all rules of one row. Rules that do not apply leave no finding; a row that no rule bounds is not judged."""
    findings = tuple(_finding(rule.__name__, found) for rule in RULES if (found := rule(row, context)) is not None)
    verdicts: list[Credibility] = [found.verdict for found in findings if not found.ask]
    verdict: Credibility = max(verdicts, key=SEVERITY.__getitem__, default="not judged")
    identity = {name: value for name in _IDENTITY if (value := getattr(row, name)) not in (None, "")}
    missing = what_is_missing(row, context) if verdict == "not judged" else ()
    return RowAudit(identity=identity, verdict=verdict, findings=findings, missing=missing)


def _finding(rule: str, found: Found) -> RuleFinding:
    kind, figures, text = found
    if kind == "ask":  # it may begin with the name of a program
        return RuleFinding(rule=rule, figures=figures, sentence=text + "." * (text[-1] not in ".?"), ask=True)
    text = text[0].upper() + text[1:] + (": this cannot be true." if kind == "impossible" else ".")
    return RuleFinding(rule=rule, verdict=kind, figures=figures, sentence=text)


def can_be(row: AuditRow, context: AuditContext) -> bool:
    """Whether no bound that any program must obey is broken."""
    found = (rule(row, context) for rule in BOUNDS)
    return all(one is None or one.kind != "impossible" for one in found)


def what_is_missing(row: AuditRow, context: AuditContext) -> tuple[str, ...]:
    """What the table would have to state for the row to be judged."""
    known: list[tuple[object, str]]
    if row.speculative:
        speed = row.tok_s or row.speedup
        plain = "a plain run of the same file on the same chip, or a speedup"
        known = [
            (speed and implied.least_speedup(row, context), plain if speed else "a speed"),
            (implied.most_committed(row), "tokens a round: mgl, or draft_len and an acceptance rate"),
        ]
    else:
        size = row.pass_bytes or context.pass_bytes.get(row.target)
        known = [
            (row.tok_s, "a speed"),
            (size, "the model's size and quantization (as in `8B Q4_K_M`)"),
            (context.peak(row), "the memory's peak bandwidth (--peak-gb-s, or a chip)"),
        ]
    return tuple(what for value, what in known if value is None)


def audit(source: str, *contexts: AuditContext) -> Audit:
    """Audit all rows of the contexts, each among its own."""
    rows = tuple(audit_row(row, context) for context in contexts for row in context.rows)
    notes = tuple(dict.fromkeys(note for context in contexts for note in context.notes))
    return Audit(source=source, rows=rows, notes=notes)


# --- bounds that any program obeys ------------------------------------------------------------------------------

Excess = tuple[float, dict[str, float], str]  # above 1 where a bound is broken; the figures, and both sides in words


def round_shorter_than_its_parts(row: AuditRow, context: AuditContext) -> Found | None:
    """Is a round at least as long as its drafts and one plain target pass? ``MGL / tok/s >= T_draft + T(1)``."""
    longest, target = implied.longest_round_ms(row, context), implied.least_target_ms(row, context)
    if not row.speculative or longest is None or target is None or (row.mgl or row.acceptance) is None:
        return None
    drafting = implied.least_draft_ms(row, context)

    def bound(faster: float, plain: float | None) -> Excess:
        (one, how), round_ms = target if plain is None else (1e3 / plain, ""), longest / faster
        excess = (one + drafting) / round_ms
        figures = {"round_ms": round_ms, "target_pass_ms": one, "draft_ms": drafting, "too_short_by": excess}
        facts = f"a round took at most {_ms(round_ms)} ms, one target pass {_ms(one)} ms{how}"
        return excess, figures, facts + (f" and its drafts {_ms(drafting)} ms" if drafting else "")

    return _bounded(row, context, bound)


def more_bandwidth_than_the_chip(row: AuditRow, context: AuditContext) -> Found | None:
    """Are the bytes a round must move under the peak bandwidth of the memory?"""
    longest, n_bytes = implied.longest_round_ms(row, context), implied.least_round_bytes(row, context)
    peak = context.peak(row)
    if longest is None or n_bytes is None or peak is None:
        return None
    moved = "is said to move" if row.bytes_claimed is not None else "moves at least"

    def bound(faster: float, plain: float | None) -> Excess:
        round_ms = longest / faster
        needed = n_bytes / round_ms / 1e6
        figures = {"needed_gb_s": needed, "peak_gb_s": peak, "round_gb": n_bytes / 1e9, "round_ms": round_ms}
        facts = f"a round {moved} {n_bytes / 1e9:.1f} GB in {_ms(round_ms)} ms, {needed:.0f} GB/s of the {peak:.0f}"
        return needed / peak, figures, f"{facts} that the memory has"

    return _bounded(row, context, bound)


def speedup_above_mgl(row: AuditRow, context: AuditContext) -> Found | None:
    """Is speedup at most MGL? A round costs one target pass or more, so it cannot gain more than it commits."""
    most, least = implied.most_committed(row), implied.least_speedup(row, context)
    if not row.speculative or least is None:
        return None
    if most is None:  # of which nothing is judged, unless no program proposes so many tokens at once
        if least <= implied.MOST_A_ROUND:
            return None
        facts = f"the speedup is {least:.4g}, no round commits more than {implied.MOST_A_ROUND:.0f} tokens"
        return Found("impossible", {"speedup": least, "mgl_at_most": implied.MOST_A_ROUND}, facts)

    def bound(faster: float, plain: float | None) -> Excess:
        speedup = least if plain is None else faster * (implied.least_speedup(row, context, plain) or 0.0)
        claimed = speedup if row.speedup is None or plain is not None else row.speedup.value
        figures = {"speedup": claimed, "mgl_at_most": most, "above_by": speedup / most}
        facts = f"the speedup is {claimed:.2f}, a round commits at most {most:.2f} tokens"
        return speedup / most, figures, facts + implied.reading(row, speedup)

    return _bounded(row, context, bound)


def _bounded(row: AuditRow, context: AuditContext, bound: Callable[[float, float | None], Excess]) -> Found:
    """Possible while the bound holds or noise breaks it, suspicious beyond, impossible where nothing explains it.

    `bound` says by how much it is broken where the row is so much faster, over its fastest baseline or another plain
    speed. The row itself and the mean of its repeats are held against the noise, the latter over the mean baseline and
    with the error of a mean. Slack is given where a mean of speedups over unequal prompts may honestly exceed what an
    MGL pooled over their rounds allows.
    """
    excess, figures, facts = bound(1.0, None)
    visible = SUSPICIOUS_SDS * context.noise * (not row.pooled_mgl)
    far = POOLED_SLACK if row.pooled_mgl else IMPOSSIBLE_SDS * context.noise
    doubtful = excess > 1.0 + visible
    if excess * context.typical(row) > 1.0 + far and doubtful:
        return Found("impossible", figures, facts)
    if not doubtful and (mean := context.case_mean(row)) is not None:
        faster, plain, error = mean
        of_mean, mean_figures, mean_facts = bound(faster, plain)
        if of_mean > 1.0 + visible * error:
            doubtful, figures, facts = True, mean_figures, f"in the mean of its repeats {mean_facts}"
    if not doubtful and excess > 1.0:
        facts += ", within the noise"
    why = "means over unequal prompts" if row.pooled_mgl else "noise"
    return _judged(doubtful, figures, facts, f": too much, but {why} might explain it")


# --- figures that must agree ------------------------------------------------------------------------------------


def figures_disagree(row: AuditRow, context: AuditContext) -> Found | None:
    """Do counts and columns that say one thing agree: rounds, tokens and rates; tok/s, ms a token and speedup?"""
    counts = _counts(row, context)
    if counts is not None and counts.kind != "possible":
        return counts
    ratio, words, figures = max(_columns(row, context), key=lambda one: one[0], default=(1.0, "", {}))
    if ratio <= BOOKKEEPING_RATIO:
        return counts
    return _judged(True, figures | {"apart_by": ratio}, f"{words}: they differ by a factor of {ratio:.3f}")


def _counts(row: AuditRow, context: AuditContext) -> Found | None:
    """Do MGL, acceptance, rounds and tokens describe one and the same output? tokens = rounds + accepted.

    A token a round more or less is a question of what is counted; what remains beyond it cannot be.
    """
    if row.n_output is not None and row.n_predict is not None and row.n_output > row.n_predict:
        figures = {"n_output": float(row.n_output), "n_predict": float(row.n_predict)}
        sentence = f"The output has {row.n_output} tokens where {row.n_predict} were allowed"
        return _judged(True, figures, sentence, ": the last round was counted past the end")
    mgl = implied.tokens_a_round(row)
    if not row.speculative or (row.gamma is None and (row.acceptance is None or row.acceptance_of != "output")):
        return None
    if mgl is None:
        found = whole_counts(row)
        return found if found is None or context.exact_counts else found._replace(kind="possible")
    spans = implied.spans_by_meaning(row)
    slack = 1.0 + implied.tail(row)  # the last round may commit tokens past the end, by less than gamma
    beyond = {of: max(mgl.low / (most * slack), least / (mgl.high * slack)) for of, (least, most) in spans.items()}
    meaning = min(beyond, key=beyond.__getitem__)
    least, most = spans[meaning]
    figures = {"mgl_stated": mgl.value, "mgl_at_most": most, "mgl_at_least": least}
    facts = f"The row states {mgl.value:.2f} tokens a round, its acceptance and gamma allow {least:.2f} to {most:.2f}"
    if mgl.low - 1.0 > most * slack * (1.0 + IMPOSSIBLE_SDS * context.noise):
        return Found("impossible", figures, facts)
    if row.acceptance is not None and meaning != "proposed" and row.acceptance_of is None:
        facts += f" if the rate is {WORDS[meaning]}"
    why = ": they count different things, the bonus token perhaps"
    return _judged(beyond[meaning] > BOOKKEEPING_RATIO, figures, facts, why)


def whole_counts(row: AuditRow) -> Found | None:
    """Is there a whole number of rounds and accepted tokens behind the acceptance rate of full-length drafts?

    Doubted only in a table whose other counts fit: rates pooled over turns and outputs that end early need not.
    ``accepted / (gamma rounds - missing) = acceptance`` and ``rounds + accepted = tokens`` give
    ``rounds = (tokens + acceptance missing) / (1 + acceptance gamma)``, which must be whole.
    """
    rate, gamma, n = row.acceptance, row.gamma, row.n_predict
    if rate is None or not row.fixed_length or not n or not gamma or "proposed" not in row.meanings:
        return None
    if gamma > implied.MOST_A_ROUND:  # no program drafts so much, and all ways to stop short are too many to try
        return None
    # A program may count the first token or not, run past the end, or propose less in the last gamma tokens.
    run_past = [(total, 0) for total in range(max(1, n - 1), n + gamma + 1)]
    stop_short = [(max(1, n - 1), missing) for missing in range(1, gamma * (gamma + 1) // 2 + 1)]
    for total, missing in run_past + stop_short:
        rounds = math.ceil((total + rate.high * missing) / (1 + rate.high * gamma) - 1e-9)
        if rounds <= (total + rate.low * missing) / (1 + rate.low * gamma) + 1e-9:
            figures = {"tokens": float(total), "rounds": float(rounds), "accepted": float(total - rounds)}
            sentence = f"{rounds} rounds and {total - rounds} accepted tokens give {total} tokens at this rate"
            return Found("possible", figures, sentence)
    figures = {"acceptance": rate.value, "n_predict": float(n), "gamma": float(gamma)}
    sentence = f"No whole number of drafts of {gamma} gives {n} tokens at an acceptance of {100 * rate.value:.3f} %"
    return Found("suspicious", figures, sentence)


def _columns(row: AuditRow, context: AuditContext) -> Iterator[tuple[float, str, dict[str, float]]]:
    """By what factor columns that say the same thing differ, in words and figures.

    A speedup may be a ratio to the repeat's own baseline, to any mean or to any median of them.
    """
    tok_s, ms, speedup, rate = row.tok_s, row.ms_per_token, row.speedup, row.acceptance
    if tok_s is not None and ms is not None and tok_s.low > 0 and ms.low > 0:
        by_ms = exact(1e3).over(ms)
        words = f"tok_s is {tok_s.value:g}, ms_per_token {ms.value:g} is {by_ms.value:.4g} tok/s"
        yield _ratio_between(tok_s, by_ms), words, {"tok_s": tok_s.value, "ms_per_token": ms.value}
    plain = context.agreeing_baselines(row) if row.speculative and speedup is not None else None
    if speedup is not None and tok_s is not None and plain is not None:
        ratio = tok_s.over(plain)
        over = f"{plain.high:.3g}" if plain.low > 0.99 * plain.high else f"{plain.low:.3g} to {plain.high:.3g}"
        words = f"speedup is {speedup.value:.4g}, tok_s {tok_s.value:g} over the plain {over} is {ratio.low:.3g}"
        words += f" to {ratio.high:.3g}" if ratio.high > 1.02 * ratio.low else ""
        figures = {"speedup": speedup.value, "tok_s": tok_s.value, "baseline_tok_s": plain.high}
        yield _ratio_between(speedup, ratio), words, figures
    if rate is not None and row.n_accepted is not None and row.n_proposed and row.acceptance_of == "proposed":
        counted = exact(row.n_accepted / row.n_proposed)
        words = f"acceptance is {rate.value:.4g}, {row.n_accepted} of {row.n_proposed} is {counted.value:.4g}"
        yield _ratio_between(rate, counted), words, {"acceptance": rate.value}


def _ratio_between(one: Printed, other: Printed) -> float:
    """By what factor two intervals miss each other; 1 when they meet."""
    return max([1.0, *(a.low / b.high for a, b in ((one, other), (other, one)) if b.high > 0)])


# --- rows against their table -----------------------------------------------------------------------------------


def speed_ignores_acceptance(row: AuditRow, context: AuditContext) -> Found | None:
    """Is throughput independent of acceptance? Equal work takes equal time, so accepted tokens must show in tok/s."""
    if not row.comparable or not row.speculative or row.acceptance is None:
        return None
    found = [one for one in (_round_of_its_work(row, context), _slope(row, context)) if one is not None]
    return max(found, key=lambda one: one.kind == "suspicious", default=None)


def _round_of_its_work(row: AuditRow, context: AuditContext) -> Found | None:
    found = context.round_passes(row)
    typical, n_rows = context.round_medians[found[0]] if found is not None else (0.0, 0)
    if found is None or row.acceptance is None or n_rows < 2:
        return None
    ratio = max(found[1] / typical, typical / found[1])
    figures = {"round": found[1], "typical_round": typical, "acceptance": row.acceptance.value, "differs_by": ratio}
    sentence = f"A round of this row took {found[1] / typical:.2f} times what rounds of the same work in the table take"
    doubtful = ratio > max(SAME_WORK_RATIO, 1.0 + IMPOSSIBLE_SDS * context.noise)
    return _judged(doubtful, figures, sentence, ": speed does not follow acceptance as it must")


def _slope(row: AuditRow, context: AuditContext) -> Found | None:
    """Over the whole table, does speed rise with the tokens a round commits as ``speed = MGL / round`` says: slope 1?

    Log speed against log(1 + gamma acceptance) within target, draft and gamma. Throughput that acceptance does not
    touch has slope 0; acceptance halved or with the bonus counted more than 1.1, doubled less than 0.9 (simulated).
    """
    slope = context.slope if row.fixed_length else None
    if slope is None:
        return None
    low, high = HONEST_SLOPES
    figures = {"slope": slope.value, "standard_error": slope.error, "cases": float(slope.n_cases)}
    sentence = f"Over {slope.n_cases} cases speed goes with the {slope.value:.2f}th power of the tokens a round commits"
    doubtful = max(low - slope.value, slope.value - high) > SUSPICIOUS_SDS * slope.error
    why = f" (standard error {slope.error:.2f}), not the first: acceptance did not make it, or drafts are shorter"
    return _judged(doubtful, figures, sentence, why)


def runs_of_one_setting_apart(row: AuditRow, context: AuditContext) -> Found | None:
    """Does a run lie near its repeats, and a plain run near others of its target and depth?

    Depths that are not stated are taken as equal.
    """
    paces, own = context.repeated_paces.get(row.case), row.pace
    if not row.speculative and row.tok_s is not None:
        paces, own = context.baseline_speeds.get((*row.host, row.n_prompt, *row.run_of)), row.tok_s.value or None
    if not row.comparable or not paces or own is None or len(paces) < 2 or (row.speculative and row.repeat is None):
        return None
    faster = own / median_of_others(paces, own)
    what = "A round of this run went" if row.speculative else "This plain run went"
    sentence = f"{what} {faster:.2f} times as fast as the others of its setting"
    return _judged(max(faster, 1 / faster) > _same_case(context), {"times_as_fast": faster}, sentence)


def _same_case(context: AuditContext) -> float:
    return max(SAME_CASE_RATIO, 1.0 + IMPOSSIBLE_SDS * context.noise)


def figures_copied(row: AuditRow, context: AuditContext) -> Found | None:
    """Do repeats print one time, or lengths of draft one rate, oftener than noise and digits allow?

    Two lengths of one rate and one speed are asked about: the longer is capped, or a row was copied.
    """
    if not row.comparable:
        return None
    rate = _copied_rate(row, context)
    if rate is not None and rate.kind == "suspicious":
        return rate
    shorter = context.equal_rates.capped.get(row.case)
    same = f"At gamma {row.gamma} the rate is that of gamma {shorter} to the digit, and nearly so the speed"
    capped = None if shorter is None else Found("ask", {}, f"{same}: is the draft capped, or a row copied?")
    return _equal_times(row, context) or capped


def _equal_times(row: AuditRow, context: AuditContext) -> Found | None:
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
    more = f", and as often as in this table in {100 * context.chance_of_copies:.2g} % of tables"
    return _judged(doubtful, figures, sentence, more * (chance > COINCIDENCE))


def _copied_rate(row: AuditRow, context: AuditContext) -> Found | None:
    """Is one acceptance printed for several lengths of draft that run at other speeds, oftener than chance does that?

    Longer drafts of equal text accept a smaller share; two that happen to print the same are counted against how finely
    the rates are printed. A cap that makes the lengths equal makes the speeds equal too, and is asked about instead.
    """
    equal = context.equal_rates
    if row.acceptance is None or row.case not in equal.copied:
        return None
    rate, n, expected = row.acceptance.value, equal.n_copied, equal.expected
    figures = {"acceptance": rate, "pairs_alike": float(n), "pairs_by_chance": expected}
    sentence = (
        f"{100 * rate:.4g} % is printed for other lengths of draft, which run at another speed, too: {n} such pairs in "
        f"the table, where chance gives {expected:.2g}; longer drafts accept a smaller share"
    )
    return _judged(n >= FEWEST_COPIES and chance_of_more(n, expected) <= COINCIDENCE, figures, sentence)


_LOOKUPS = re.compile(r"oracle|random|pld|look-?(?:up|ahead)|n-?gram|rest$|suffix|copy")


def all_or_nothing_accepted(row: AuditRow, context: AuditContext) -> Found | None:
    """Is acceptance exactly 0 or 100 %? Then a degenerate prompt, a false counter or one model for both is likely.

    Not where the output was compared with plain decoding, nor of controls and of look-ups in a text that repeats.
    """
    expected = row.drafter in CONTROLS or _LOOKUPS.search(f"{row.drafter} {row.draft}".lower())
    if row.acceptance is None or not row.speculative or expected or row.lossless:
        return None
    rate = row.acceptance.value
    proposed = math.inf if row.n_proposed is None else row.n_proposed
    if row.gamma and row.n_predict:
        proposed = row.n_predict * row.gamma / (1.0 + row.gamma * rate)
    if 0.0 < rate < 1.0 or proposed < FEWEST_PROPOSED:
        return None
    return _judged(True, {"acceptance": rate}, f"{100 * rate:.2f} % of proposed tokens were accepted")


def output_is_a_loop(row: AuditRow, context: AuditContext) -> Found | None:
    """Does the output repeat a few tokens to its end? What is accepted of that says nothing of text: ask."""
    if row.loop is None or not row.speculative:
        return None
    sentence = f"The last third of the output repeats {row.loop} tokens: acceptance of a loop says nothing of text"
    return Found("ask", {"period": float(row.loop)}, sentence)


def arms_do_not_match(row: AuditRow, context: AuditContext) -> Found | None:
    """Do both arms of a ratio come from one engine, one file and one token count? Another prompt is not doubted.

    It is asked about where another program decodes the file plainly much faster than the row's own plain run.
    """
    if not row.speculative:
        return None
    other = row.baseline_target or another_file(row, context)
    if other is not None:
        sentence = f"The speedup is over a plain run of {other}, another file than {row.target}"
        return _judged(True, {}, sentence, ": the ratio is not what speculation gained")
    plain = [r for r in context.comparable if r.host == row.host and not r.speculative] if row.claims_ratio else []
    differing = []
    engines, lengths = {one.engine for one in plain}, {one.n_predict for one in plain}
    if row.engine is not None and engines and not engines & {None, row.engine}:
        differing.append(f"program ({min(map(str, engines))} against {row.engine})")
    if row.n_predict is not None and lengths and not lengths & {None, row.n_predict}:
        differing.append("token count")
    if differing:
        sentence = f"No baseline of {row.target} has the same {' and '.join(differing)} as this row"
        return _judged(True, {"differences": float(len(differing))}, sentence)
    return _faster_elsewhere(row, context)


def another_file(row: AuditRow, context: AuditContext) -> str | None:
    """The file whose plain runs the printed speedup is a ratio to, where only the quantization differs."""
    if row.speedup is None or row.tok_s is None or context.baselines(row):
        return None
    for (target, chip), rows in context.plain.items():
        if chip != row.chip or not same_model(target, row.target):
            continue
        speeds = between([other.tok_s for other in rows if other.tok_s is not None])
        if speeds is not None and _ratio_between(row.speedup, row.tok_s.over(speeds)) <= BOOKKEEPING_RATIO:
            return target
    return None


def _faster_elsewhere(row: AuditRow, context: AuditContext) -> Found | None:
    if row.program is None or not context.programs - {None, row.program}:
        return None
    own = context.baseline(row)
    others = [one for one in context.baselines(row) if one.program not in (None, row.program)]
    speeds = {one.program: one.tok_s.value for one in others if one.tok_s is not None and one.n_prompt == row.n_prompt}
    program = max(speeds, key=speeds.__getitem__, default=None)
    if own is None or program is None or (ratio := speeds[program] / own.mean.value) <= _same_case(context):
        return None
    plainly = f"{program} decodes the same file plainly {ratio:.2f} times as fast as {row.program}"
    return Found("ask", {"faster_by": ratio}, f"{plainly}: how much of the gain is left over the faster plain run?")


def slower_than_the_machine(row: AuditRow, context: AuditContext) -> Found | None:
    """Is a plain run as fast as its chip should decode that model? A ratio to one that is not is too high: ask."""
    deep = (row.n_prompt or 0) + (row.n_output or row.n_predict or 0) > SHALLOW
    baseline = context.baseline(row) if row.claims_ratio else None
    own = row.tok_s if not row.speculative else None if baseline is None else baseline.fastest
    expected = None if row.chip is None or own is None or deep else plain_speed(row.target, row.chip)
    if own is None or expected is None or (row.speculative and own.high >= expected[0]):
        return None
    low, high = expected
    figures = {"plain_tok_s": own.value, "least_expected_tok_s": low, "most_expected_tok_s": high}
    run = f"{own.value:.4g} tok/s of {row.target} on an {row.chip}"
    span = f"the {low:.3g} to {high:.3g} that public rows lead to expect"
    if row.speculative:
        sentence = f"The plain run that it is compared with, {run}, lies below {span}: a ratio to it is too high"
    elif own.high < low:
        sentence = f"{run}, plain, lies below {span}: is it hot, busy, on battery, or was it computed otherwise?"
    else:
        return _judged(False, figures, f"{run}, plain, lies {'above' if own.low > high else 'within'} {span}")
    return Found("ask", figures, sentence)


def trial_not_valid(row: AuditRow, context: AuditContext) -> Found | None:
    """Did every native call succeed, is the output lossless, and can counts, times and tokens be at all?"""
    if row.cannot_be is not None:
        return Found("impossible", {}, row.cannot_be)
    if row.failed_native_calls:
        figures = {"failed_native_calls": float(row.failed_native_calls)}
        facts = f"{row.failed_native_calls} native calls failed, and a call that fails decodes nothing"
        return Found("impossible", figures, facts)
    return Found("suspicious", {}, f"It is not valid: {row.invalid_reason}") if row.invalid_reason else None


# The rules that may say `impossible`.
BOUNDS: tuple[Rule, ...] = (
    round_shorter_than_its_parts, more_bandwidth_than_the_chip, speedup_above_mgl, figures_disagree, trial_not_valid,
)  # fmt: skip
RULES: tuple[Rule, ...] = (
    *BOUNDS, speed_ignores_acceptance, runs_of_one_setting_apart, figures_copied, all_or_nothing_accepted,
    output_is_a_loop, arms_do_not_match, slower_than_the_machine,
)  # fmt: skip


def _judged(doubtful: bool, figures: dict[str, float], sentence: str, why: str = "") -> Found:
    """Possible, or suspicious for a reason that goes on from the sentence."""
    return Found("suspicious" if doubtful else "possible", figures, sentence + why * doubtful)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"
