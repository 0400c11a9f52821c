"""Tables of what was found: settings by workload, gammas, fits, claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.analysis.claims.claims import ClaimVerdict
from mlsd.analysis.fits.costmodel import break_even_alpha
from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.depths import deep_arms
from mlsd.analysis.results.round_sums import AcceptedCounts, accepted_counts
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import (
    Cell,
    Column,
    Table,
    Tone,
    interval,
    number,
    numbers,
    percent,
    significant,
    table,
    text,
    words,
)
from mlsd.report.tables.paper import EFFECT_TONES, effect_cell
from mlsd.trials.answers import Answer
from mlsd.trials.results import ArmResult
from mlsd.units import quoted


def best_table(found: Sequence[Answer]) -> Table:
    """What to use for each target and text."""
    return table(
        "Which setting for which text",
        found,
        words("target", lambda a: a.target),
        words("text", lambda a: a.text, "the prompt, or its kind of text where tasks are pooled"),
        numbers("output tokens", lambda a: a.n_predict),
        words("use", lambda a: text(a.setting, "good" if a.use == "on" else ""), "answers.Answer.use"),
        words("best tried", lambda a: a.best and a.best.setting),
        numbers("its speedup", lambda a: interval(a.ratio, 2, "x"), "results.ArmResult.ratio"),
        words("verdict", lambda a: effect_cell(a.best), "results.ArmResult.effect"),
        numbers("of settings", lambda a: len(a.arms), "compared with plain decoding"),
        numbers(
            "more blocks",
            lambda a: a.best.standing.more_blocks if a.best and a.best.standing else None,
            "that would decide it, if it is as it looks",
        ),
        numbers("blocks", lambda a: a.best.n_blocks if a.best else None, "pairs that the speedup is made of"),
        id="best",
    )


def energy_table(study: Study) -> Table:
    """Joules per token of plain decoding and of each setting, whole generations of the same blocks."""
    return table(
        "Energy of a token",
        study.energy,
        words("target", lambda row: row.arm.case.target.id),
        words("setting", lambda row: row.arm.setting),
        words("text", lambda row: row.arm.text),
        numbers("plain, J", lambda row: number(row.plain.per_token, 3), "energy.joules, same blocks"),
        numbers("speculative, J", lambda row: number(row.speculative.per_token, 3), "energy.joules"),
        numbers("ratio", lambda row: number(row.ratio, 2, "x"), "below 1 speculation saves energy"),
        numbers("counted over", lambda row: number(row.speculative.window_s, 0, " s"), "trials joined; at least 10 s"),
        words("counter", lambda row: row.plain.why_not or row.speculative.why_not or row.source),
        id="energy",
    )


def speedup_table(found: Iterable[ArmResult]) -> Table:
    """Every setting on every text."""
    return table(
        "Every setting on every text",
        [one for one in found if not one.is_plain],
        *place_columns(),
        *result_columns(),
        id="speedups",
        interactive=True,
    )


def place_columns() -> tuple[Column[ArmResult], ...]:
    """What tells one arm's row from another's."""
    return (
        words("target", lambda s: s.case.target.id),
        words("setting", lambda s: text(s.setting, note=s.fell_back or "")),
        words("text", lambda s: s.text, "the prompt, or its kind of text; pooled: so many kinds"),
        numbers("output tokens", lambda s: s.question.n_predict),
        words("suite", lambda s: s.question.suite),
    )


def result_columns() -> tuple[Column[ArmResult], ...]:
    """What is measured and decided of an arm, in every table that shows one."""
    return (
        numbers("SD tok/s", lambda s: number(s.tok_s, 1), "geometric mean over blocks, then prompts"),
        numbers("plain tok/s", lambda s: number(s.plain_tok_s, 1), "the same of plain decoding, in the same blocks"),
        numbers(
            "speedup",
            lambda s: interval(s.ratio, 2, "x", EFFECT_TONES[s.effect]),
            "SD over plain tok/s; intervals of a session hold together",
        ),
        words("verdict", effect_cell, "results.ArmResult.effect"),
        numbers("accepted", lambda s: percent(s.acceptance_rate), "accepted / proposed"),
        numbers("of output", lambda s: percent(s.accepted_of_output), "1 - 1 / MGL", detail=True),
        numbers("MGL", lambda s: number(s.mgl), "committed / rounds"),
        numbers("break-even MGL", lambda s: number(s.break_even_mgl), "MGL / speedup", detail=True),
        numbers("blocks", lambda s: s.n_blocks),
        numbers(
            "valid trials",
            lambda s: Cell(text=f"{s.n_valid} of {s.n_trials}", sort=s.n_valid / s.n_trials, note=s.why_not or ""),
        ),
    )


_COUNTS = ("0", "1", "2", "3", "4", "5 to 8", "9 and more")
_ENDS = (0, 1, 2, 3, 4, 8, None)  # the last accepted count of each


def accepted_table(study: Study) -> Table:
    """Of every arm how many rounds accepted how many tokens."""
    found = accepted_counts(study.outcomes, study.trials)

    def column(place: int) -> Column[AcceptedCounts]:
        first = 0 if not place else (_ENDS[place - 1] or 0) + 1
        end = _ENDS[place]
        return numbers(_COUNTS[place], lambda one: percent(sum(one.shares[first : None if end is None else end + 1])))

    return table(
        "Rounds by how many tokens they accepted",
        found,
        words("target", lambda one: one.target),
        words("setting", lambda one: one.setting),
        numbers("rounds", lambda one: sum(one.rounds)),
        *map(column, range(len(_COUNTS))),
        id="accepted-counts",
    )


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    of_arm = [
        (head, lambda row, cell=cell: cell(row.found)) for head, cell in (*place_columns()[:2], *result_columns())
    ]
    return table(
        "Speculation over depth",
        deep_arms(study.results),
        *of_arm[:2],
        words("prompt", lambda row: row.prompt),
        numbers("depth", lambda row: row.depth, "tokens of other text before the prompt"),
        numbers("T(1) ms", lambda row: number(row.plain_ms), "mean pass of plain decoding"),
        numbers(
            "T(k)/T(1)",
            lambda row: number(row.verify_ms / row.plain_ms if row.plain_ms else None),
            "mean pass of the arm's verifications over it",
        ),
        *of_arm[2:],
        id="depth",
    )


def gamma_table(pooled: Iterable[ArmResult]) -> Table:
    """What each gamma gives and what it would need."""
    arms = [one for one in pooled if not one.is_plain and one.n_valid and one.ratio is not None]

    def share(one: ArmResult, part: str) -> Cell:
        return percent(one.ms_per_round.get(part, 0.0) / (sum(one.ms_per_round.values()) or 1.0), 0)

    def alpha(one: ArmResult) -> Cell:
        needed = one.break_even_mgl
        found = None if needed is None else break_even_alpha(one.case.gamma, needed)
        return number(found, 3) if found is not None else text(needed and "none suffices", "bad" if needed else "")

    return table(
        "Draft lengths: what they give and what they need",
        sorted(arms, key=lambda one: (one.question.suite, one.question.target, one.text, one.label, one.case.gamma)),
        *place_columns(),
        numbers("gamma", lambda one: one.case.gamma),
        numbers(
            "speedup", lambda one: interval(one.ratio, 2, "x", EFFECT_TONES[one.effect]), "results.ArmResult.ratio"
        ),
        words("verdict", effect_cell, "results.ArmResult.effect"),
        numbers("MGL", lambda one: number(one.mgl), "committed / rounds"),
        numbers("MGL to break even", lambda one: number(one.break_even_mgl), "MGL / speedup"),
        numbers("alpha to break even", alpha, "costmodel.break_even_alpha: acceptance of each position"),
        numbers("drafting", lambda one: share(one, "draft"), "share of the round's time"),
        numbers("verifying", lambda one: share(one, "verify"), "share of the round's time"),
        id="gammas",
    )


def model_table(pairs: Iterable[PairFit], curves: Iterable[CurveFit]) -> Table:
    """Cost models and curves with their estimates and errors of prediction."""
    rows: list[tuple[str, Fit, HeldOut | None, HeldOut | None, str | None]] = []
    for found in pairs:
        errors = {e.model: e for e in found.held_out_gamma}
        prompts = {e.model: e for e in found.held_out_prompt}
        rows += [(found.pair, fit, errors.get(fit.model), prompts.get(fit.model), found.chosen) for fit in found.fits]
    doubts = []
    for curve in curves:
        errors = {e.model: e for e in curve.held_out}
        if curve.doubt is not None:
            widths = ",".join(map(str, curve.time_next))
            doubts.append(
                f"T(k) of {curve.target}: {curve.doubt}; mlsd calibrate {quoted(curve.target)} --rows {widths}."
            )
        about = f"T(k) of {curve.target}, from {curve.source}"
        rows += [(about, fit, errors.get(fit.model), None, curve.chosen) for fit in curve.fits]
    return table(
        "Fitted models",
        rows,
        words("of", lambda row: row[0]),
        words("model", lambda row: Cell(text=row[1].model, sort=row[1].model, note=row[1].formula), "fit_models"),
        words(
            "estimates",
            lambda row: _estimates(row[1]),
            "fit.fit: least squares on log ratios; interval from a bootstrap; not identified: others fit as well",
        ),
        numbers("AICc", lambda row: text(significant(row[1].aicc, 1)), "fit.fit"),
        numbers(
            "held-out gamma or k",
            lambda row: percent(row[2].median_error if row[2] else None),
            "fit.held_out: median |predicted / observed - 1|",
        ),
        numbers(
            "held-out prompt",
            lambda row: percent(row[3].median_error if row[3] else None),
            "fit.held_out: median |predicted / observed - 1|",
        ),
        words(
            "choice",
            lambda row: text("predicts best", "good") if row[1].model == row[4] else None,
            "fit.select: the simplest model whose held-out error is not worse than the best",
        ),
        id="fits",
        note=" ".join(doubts),
    )


def held_out_table(pairs: Iterable[PairFit], curves: Iterable[CurveFit], whole: Iterable[HeldOut]) -> Table:
    """How models predict what they were not fitted to: a gamma, a prompt, a k, a whole target."""
    rows: list[tuple[str, str, HeldOut, str | None]] = []
    for found in pairs:
        rows += [(found.pair, "held-out gammas", error, found.chosen) for error in found.held_out_gamma]
        rows += [(found.pair, "held-out prompts", error, None) for error in found.held_out_prompt]
    rows += [(f"T(k) of {c.target}", "held-out k", error, c.chosen) for c in curves for error in c.held_out]
    rows += [("every target", "a whole target held out", error, None) for error in whole]
    return table(
        "Errors of prediction",
        rows,
        words("of", lambda row: row[0]),
        words("predicting", lambda row: row[1]),
        words("model", lambda row: row[2].model),
        numbers("median error", lambda row: percent(row[2].median_error)),
        numbers("95th percentile", lambda row: percent(row[2].p95_error)),
        words("choice", lambda row: "chosen" if row[2].model == row[3] else None),
    )


def _estimates(fit: Fit) -> str:
    return "; ".join(
        f"{name} not identified"
        if name in fit.not_identified
        else f"{name} {interval(found, 3).text} {fit.units[name]}".strip()
        for name, found in fit.estimates.items()
    )


_DECISION_TONES: dict[str, Tone] = {
    "holds here": "good",
    "does not hold here": "bad",
    "refuted": "bad",
    "undecided": "doubt",
    "not measured": "quiet",
}


def claim_table(study: Study) -> Table:
    """Every published claim, decided on these trials."""
    return table(
        "What was claimed, and what these trials say",
        study.claims,
        words("claim", lambda v: v.claim.text),
        words("here", lambda v: text(v.decision, _DECISION_TONES[v.decision]), "claims.decide"),
        words(
            "effect",
            lambda v: Cell(text=v.sentence, sort=v.sentence, note=_trial_list(v.trials)),
            "claim_tests: the tooltip names the trials",
        ),
        words("printed", lambda v: f"{v.claim.printed} ({v.claim.source})"),
        words("audit of it, rows", _printed_audit, "claims.printed_audit"),
        id="claims",
        note="Effects stand over several arms; their intervals are Student's over prompts (of one prompt over blocks), "
        "corrected for the choice of the best: another kind than those of one arm.",
    )


def _printed_audit(verdict: ClaimVerdict) -> Cell:
    counts = verdict.published_audit or {}
    shown = ("refuted: " if verdict.print_refuted else "") + ", ".join(f"{n} {w}" for w, n in counts.items() if n)
    return text(shown or None, "bad" if counts.get("impossible") else "")


def _trial_list(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:30]))
    return f"trials {shown}{f' and {len(ids) - 30} more' if len(ids) > 30 else ''}" if ids else ""
