"""The audit of a source: every rule on every row, the worst finding is the row's verdict.

`bounds` may say `impossible`; what merely disagrees or is unusual (`doubts`) is suspicious, or asked about. A row that
no rule bounds is not judged. Rows of which it is known that they are false are judged, and judge nobody. How often a
verdict is false: `python -m benchmarks truth`.
"""

from collections.abc import Callable

import numpy as np

from mlsd.audits import bounds, doubts
from mlsd.audits.frame import Frame, findings, frame
from mlsd.audits.rows import SEVERITY, Audit, AuditContext, Credibility, RowAudit, RuleFinding

Rule = Callable[[Frame], Frame]
BOUNDS: tuple[Rule, ...] = (
    bounds.round_shorter_than_its_parts, bounds.more_bandwidth_than_the_chip, bounds.speedup_above_mgl,
    bounds.figures_disagree, bounds.counts_disagree, bounds.trial_not_valid,
)  # fmt: skip
RULES: tuple[Rule, ...] = (
    *BOUNDS, doubts.speed_ignores_acceptance, doubts.runs_of_one_setting_apart, doubts.figures_copied,
    doubts.all_or_nothing_accepted, doubts.speedup_is_theory, doubts.output_is_a_loop, doubts.arms_do_not_match,
    doubts.plain_speed_unexpected,
)  # fmt: skip
_IDENTITY = (
    "table", "label", "target", "chip", "drafter", "draft", "options", "gamma", "prompt", "n_prompt", "n_predict",
    "repeat",
)  # fmt: skip
# What a row that is not judged would have to state, and where it does.
_PLAIN_RUN = "a plain run of the same file on the same chip, or a speedup"
_LENGTH = "tokens a round: mgl, or draft_len and an acceptance rate"
_SIZE = "the model's size and quantization (as in `8B Q4_K_M`)"
_PEAK = "the memory's peak bandwidth (--peak-gb-s, or a chip)"


def audit(source: str, *contexts: AuditContext, possible: bool = True) -> Audit:
    """Audit all rows of the contexts, each among its own; without `possible` findings that doubt nothing are left out.

    Sentences on what is possible, in no table and on no page, are half of the time of an audit.
    """
    if not any(context.rows for context in contexts):
        return Audit(source=source, rows=(), notes=_notes(contexts))
    rows = frame(*contexts)
    said: dict[int, list[RuleFinding]] = {at: [] for at in rows.index}
    bounded = set[int]()
    for rule in RULES:
        of_rows = rule(rows)
        holds = of_rows["kind"] == "possible"
        bounded.update(of_rows.index[holds])
        for at, finding in findings(rule.__name__, of_rows if possible else of_rows[~holds]):
            said[at].append(finding)
    missing, cost = _missing(rows), _round_cost(rows)
    judged = [at for at, is_judged in zip(rows.index, rows["judged"], strict=True) if is_judged]
    of = [row for context in contexts for row in context.rows]
    audits = []
    for at, row in zip(judged, of, strict=True):
        least: Credibility = "possible" if at in bounded else "not judged"
        verdicts = [least, *(finding.verdict for finding in said[at] if not finding.ask)]
        verdict = max(verdicts, key=SEVERITY.__getitem__)
        identity = {name: value for name in _IDENTITY if (value := getattr(row, name)) not in (None, "")}
        lacks, findings_of_row = missing[at] if verdict == "not judged" else (), tuple(said[at])
        audits.append(RowAudit(
            identity=identity, verdict=verdict, findings=findings_of_row, missing=lacks, round_cost=cost[at],
        ))  # fmt: skip
    return Audit(source=source, rows=tuple(audits), notes=_notes(contexts))


def _notes(contexts: tuple[AuditContext, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for context in contexts for note in context.notes))


def _missing(rows: Frame) -> list[tuple[str, ...]]:
    """What the table would have to state for each row to be judged."""
    speed = rows["tok_s"].notna() | rows["speedup"].notna()
    spec = rows["speculative"]
    lacks = (
        (np.where(speed, _PLAIN_RUN, "a speed"), spec & (~speed | rows["speedup_least"].isna())),
        (_LENGTH, spec & rows["mgl_most"].isna()),
        ("a speed", ~spec & rows["tok_s"].isna()),
        (_SIZE, ~spec & rows["pass_bytes"].isna() & rows["target_bytes"].isna()),
        (_PEAK, ~spec & rows["peak_gb_s"].isna()),
    )
    columns = [np.where(where, what, "") for what, where in lacks]
    return [tuple(str(what) for what in row if what) for row in zip(*columns, strict=True)]


def _round_cost(rows: Frame) -> list[float | None]:
    """Of a round in plain steps, ``C = MGL / speedup``: what verification and drafts cost together."""
    speedup = rows["speedup"].fillna(rows["tok_s"] / rows["base_mean"])
    by_rate = (1.0 + rows["gamma"] * rows["acceptance"]).where(rows["acceptance_of"].fillna("proposed") == "proposed")
    mgl = rows["stated_mgl"].fillna(rows["committed"]).fillna(by_rate)
    cost = (mgl / speedup.where(speedup > 0)).where(rows["speculative"])
    return [None if value != value else float(value) for value in cost]
