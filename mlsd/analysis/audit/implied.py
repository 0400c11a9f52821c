"""What a row implies beside what it states: tokens a round, its longest round, the least that a round must do.

Each figure is taken at the end of its interval that favours the row; None where the table does not say enough.
"""

import re

from mlsd.analysis.audit.plain_speed import least_pass_ms
from mlsd.analysis.audit.rows import AuditContext, AuditRow
from mlsd.formats.printed import Printed, exact
from mlsd.trials.acceptance import WORDS, Meaning, mgl_of

# A cache may keep this much of the weights between passes: the system cache of an M2 Ultra is 96 MB.
CACHE_BYTES = 100_000_000
MOST_A_ROUND = 256.0  # tokens of a round of which nothing is said: look-ups on a GPU propose 64 and more


def tokens_a_round(row: AuditRow) -> Printed | None:
    """MGL as printed, else the output's tokens over its rounds."""
    if row.mgl is not None or row.rounds is None or not row.n_output or row.rounds.low <= 0:
        return row.mgl
    return exact(row.n_output).over(row.rounds)


def most_committed(row: AuditRow) -> float | None:
    """The largest MGL the row allows: as printed, by its rounds, by its rate in the meaning that favours it most,
    else gamma + 1; 1 for AR.
    """
    if not row.speculative:
        return 1.0
    if (stated := tokens_a_round(row)) is not None:
        return stated.high
    spans = spans_by_meaning(row)
    decided = row.acceptance is None or len(spans) == len(row.meanings)
    return max((most for _, most in spans.values()), default=None) if decided else None


def spans_by_meaning(row: AuditRow) -> dict[Meaning, tuple[float, float]]:
    """Least and most tokens a round that rate and gamma allow, in each meaning that the columns decide.

    A share of output tokens decides both ends. The others do where drafts have full length; else they bound from above,
    and a rate of proposals over drafts of at least one token a round from below by nothing.
    """
    rate = row.acceptance
    if rate is None:
        return {} if row.gamma is None else {"proposed": (1.0, row.gamma + 1.0)}
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


def reading(row: AuditRow, needed: float) -> str:
    """Which meaning of the rate the row needs to hold, where the table does not say and the usual one does not do."""
    spans = spans_by_meaning(row)
    if row.mgl is not None or row.rounds is not None or len(spans) < 2 or spans["proposed"][1] >= needed:
        return ""
    fitting = [WORDS[meaning] for meaning, (_, most) in spans.items() if most >= needed]
    return f", if the rate is {' or '.join(fitting)}" if fitting else " under every meaning of the rate"


def least_speedup(row: AuditRow, context: AuditContext, plain: float | None = None) -> float | None:
    """The least the speedup can be: as printed, or the row's tok/s over its fastest baseline, or over `plain`.

    None where the only baselines have a much deeper context, whose passes are slower than the row's own.
    """
    baseline = context.baseline(row)
    if baseline is None and context.baselines(row):
        return None
    lows = [] if row.speedup is None or plain is not None else [row.speedup.low]
    over = plain or (baseline.most if baseline is not None else 0.0)
    if row.tok_s is not None and over > 0:
        lows.append(row.tok_s.low / over)
    return min(lows, default=None)


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
    return committed * slowest_ms * (length / (length - 1) if length > 1 else 1.0) or None


def least_proposed(row: AuditRow) -> float:
    """The fewest tokens a round proposed on average: by its counts, else by the length of its drafts.

    Full-length drafting proposes gamma, but for the last gamma tokens of the output, where a program may stop short.
    Otherwise it is what was accepted: MGL - 1.
    """
    if row.n_proposed is not None and row.rounds is not None:
        return row.n_proposed / row.rounds.high
    if row.gamma is not None and row.fixed_length:
        return row.gamma * max(0.0, 1.0 - tail(row))
    return max(0.0, row.mgl.low - 1.0) if row.mgl is not None else 0.0


def tail(row: AuditRow) -> float:
    """By what share of the output its last round may run past the end."""
    return row.gamma / (row.n_predict - 1) if row.gamma and row.n_predict and row.n_predict > 1 else 0.0


# One pass of the draft proposes a whole block; one of a tree a whole level.
_BLOCKS = re.compile(r"dflash|dspark|block|medusa|hydra|parallel|pard(?![a-z])")
_TREES = re.compile(r"tree|eagle-?2|sequoia|specinfer")


def least_draft_passes(row: AuditRow) -> float:
    """The fewest passes of its draft that a round needs."""
    mgl, proposed = tokens_a_round(row), least_proposed(row)
    named = f"{row.drafter} {row.draft or ''}".lower()
    if _BLOCKS.search(named):
        return min(1.0, proposed)
    return min(proposed, max(0.0, mgl.low - 1.0) if mgl is not None else 0.0) if _TREES.search(named) else proposed


def least_draft_ms(row: AuditRow, context: AuditContext) -> float:
    """The least time a round spent drafting: as printed, else passes of the draft at its own speed or the chip's."""
    if row.draft_ms is not None:
        return row.draft_ms.low
    known = max(context.draft_token_ms.get(row.draft or "", 0.0), context.timed_draft_ms(row))
    expected = least_pass_ms(row.draft, row) if row.draft else None
    return least_draft_passes(row) * max(known, expected or 0.0)


def least_target_ms(row: AuditRow, context: AuditContext) -> tuple[float, str] | None:
    """The least time of a target pass, and by what: the plain run, else the fastest that public rows lead to expect."""
    baseline = context.baseline(row)
    if baseline is not None and baseline.most > 0:
        return 1e3 / baseline.most, baseline.words
    expected = None if context.baselines(row) else least_pass_ms(row.target, row)
    return None if expected is None else (expected, " (the fastest that public rows of its chip lead to expect)")


def least_round_bytes(row: AuditRow, context: AuditContext) -> float | None:
    """Bytes a round moved from memory at least: one target pass and its drafts, less what a cache can keep."""
    if row.bytes_claimed is not None:
        return row.bytes_claimed.low
    if row.target not in context.pass_bytes:
        return None if row.pass_bytes is None else max(0.0, row.pass_bytes - CACHE_BYTES)
    drafts = max(0.0, context.pass_bytes.get(row.draft or "", 0.0) - CACHE_BYTES) * least_draft_passes(row)
    return max(0.0, context.pass_bytes[row.target] - CACHE_BYTES) + drafts
