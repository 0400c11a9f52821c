"""Tables of what was found: settings by workload, gammas, fits, claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlsd.analysis.claims.claims import ClaimVerdict
from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.fits.study_fits import CurveFit, PairFit
from mlsd.analysis.results.best_setting import BestSetting
from mlsd.analysis.results.round_sums import AcceptedCounts, accepted_counts
from mlsd.analysis.results.speedups import Speedup, deep_arms
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
from mlsd.trials.acceptance import of_output
from mlsd.units import quoted


def best_table(answers: Sequence[BestSetting]) -> Table:
    """What to use for each target and workload."""
    return table(
        "Which setting for which workload",
        answers,
        words("target", lambda a: a.target),
        words("workload", lambda a: a.workload, "the prompt's kind of text"),
        words(
            "use",
            lambda a: text(a.use, "good" if a.use != "off" else ""),
            "best_setting: the fastest setting that is decided to be faster, else off",
        ),
        words("best tried", lambda a: a.arm and a.arm.setting),
        numbers(
            "its speedup",
            lambda a: interval(a.ratio, 2, "x"),
            "speedups.speedups by workload, together: trials.decisions",
        ),
        words(
            "verdict",
            lambda a: effect_cell(a.arm) if a.ratio is None else text(a.effect, EFFECT_TONES[a.effect]),
            "decisions.effect_of: whether that interval excludes 1, or lies within 3 % of it",
        ),
        numbers("of settings", lambda a: a.n_settings, "compared with plain decoding"),
        numbers("more blocks", _more_blocks, "that would decide it, if it is as it looks"),
        numbers(
            "blocks",
            lambda a: a.arm.n_blocks if a.arm else None,
            "paired_trials.pair_up: SD trials with an AR trial of their block",
        ),
        id="best",
        trace="best_setting.best_settings over speedups.speedups(by workload), from the store's view trial_summary",
    )


def _more_blocks(answer: BestSetting) -> int | None:
    return answer.arm.standing.more_blocks if answer.arm is not None and answer.arm.standing is not None else None


def energy_table(study: Study) -> Table:
    """Joules per token of plain decoding and of each setting, whole generations of the same blocks."""
    return table(
        "Energy of a token",
        study.energy,
        words("target", lambda row: row.target),
        words("setting", lambda row: row.setting),
        numbers("plain, J", lambda row: number(row.plain.per_token, 3), "energy.joules, same blocks"),
        numbers("speculative, J", lambda row: number(row.speculative.per_token, 3), "energy.joules"),
        numbers("ratio", lambda row: number(row.ratio, 2, "x"), "below 1 speculation saves energy"),
        numbers("counted over", lambda row: number(row.speculative.window_s, 0, " s"), "trials joined; at least 10 s"),
        words("counter", lambda row: row.plain.why_not or row.speculative.why_not or row.source),
        id="energy",
        trace="energy.energy_rows: cumulative counters read before and after each generation",
    )


def speedup_table(found: Sequence[Speedup]) -> Table:
    """Every setting on every workload."""
    return table(
        "Every setting on every workload",
        found,
        words("target", lambda s: s.target),
        words("setting", lambda s: s.setting),
        words("workload", lambda s: s.workload),
        numbers("SD tok/s", lambda s: number(s.decode_tok_s, 1), "median over blocks"),
        numbers("plain tok/s", lambda s: number(s.baseline_tok_s, 1), "median over the same blocks"),
        numbers(
            "speedup",
            lambda s: interval(s.ratio, 2, "x", EFFECT_TONES[s.effect]),
            "geometric mean of SD / AR; intervals of all settings of a target hold together, at every look",
        ),
        words("verdict", effect_cell, "speedups.Speedup.effect"),
        numbers("accepted", lambda s: percent(s.acceptance_rate), "accepted / proposed"),
        numbers("of output", lambda s: percent(of_output(s.mgl)), "accepted / committed: 1 - 1 / MGL", detail=True),
        numbers("MGL", lambda s: number(s.mgl), "committed / rounds"),
        numbers("blocks", lambda s: s.n_blocks),
        numbers(
            "valid trials",
            lambda s: Cell(
                text=f"{s.n_valid} of {s.n_trials}", sort=s.n_valid / s.n_trials, note=s.invalid_reason or ""
            ),
        ),
        id="speedups",
        trace="speedups.speedups(by workload), from the store's view trial_summary",
        interactive=True,
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
        trace="round_sums.accepted_counts: shares of the rounds of valid trials",
    )


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    return table(
        "Speculation over depth",
        deep_arms(study.trials),
        words("target", lambda row: row.found.target),
        words("setting", lambda row: row.found.setting),
        words("prompt", lambda row: row.prompt),
        numbers("depth", lambda row: row.depth, "tokens of other text before the prompt"),
        numbers("plain tok/s", lambda row: number(row.found.baseline_tok_s, 1), "median over blocks"),
        numbers("T(1) ms", lambda row: number(row.plain_ms), "mean pass of plain decoding"),
        numbers(
            "T(k)/T(1)",
            lambda row: number(row.verify_ms / row.plain_ms if row.plain_ms else None),
            "mean pass of the arm's verifications over it",
        ),
        numbers(
            "speedup",
            lambda row: interval(row.found.ratio, 2, "x", EFFECT_TONES[row.found.effect]),
            "geometric mean of SD / AR over blocks",
        ),
        words("verdict", lambda row: effect_cell(row.found), "speedups.Speedup.effect"),
        numbers("accepted", lambda row: percent(row.found.acceptance_rate), "accepted / proposed"),
        id="depth",
        trace="speedups.speedups by prompt, of prompts that were measured at several depths",
    )


def gamma_table(fits: Iterable[PairFit]) -> Table:
    """What each gamma gives and what it would need."""
    return table(
        "Draft lengths: what they give and what they need",
        [(found, g) for found in fits for g in found.gammas],
        words("pair", lambda row: row[0].pair),
        numbers("gamma", lambda row: row[1].gamma),
        numbers("speedup", lambda row: interval(row[1].speedup, 2, "x"), "break_even.by_gamma: geometric mean"),
        numbers("MGL", lambda row: interval(row[1].mgl), "break_even.by_gamma"),
        numbers(
            "MGL to break even", lambda row: interval(row[1].break_even_mgl), "break_even.by_gamma: round time / T(1)"
        ),
        numbers(
            "alpha to break even",
            lambda row: (
                number(alpha, 3) if (alpha := row[1].break_even_alpha) is not None else text("none suffices", "bad")
            ),
            "costmodel.break_even_alpha: acceptance of each position",
        ),
        numbers("drafting", lambda row: percent(row[1].draft_share, 0), "share of the round's time"),
        numbers("verifying", lambda row: percent(row[1].verify_share, 0), "share of the round's time"),
        words(
            "best gamma",
            lambda row: _best_gamma(row[0]),
            "break_even.best_gamma: share of bootstrap resamples that agree; 0 is off",
        ),
        id="gammas",
        trace="study_fits.fit_pairs over pairs.pair_trials",
    )


def _best_gamma(found: PairFit) -> Cell:
    best = found.best
    if best.share is None:
        return text(best.gamma or "off")
    spread = f"95 % of resamples have their best gamma from {best.low} to {best.high}"
    return text(f"{best.gamma or 'off'} ({100 * best.share:.0f} %)", note=spread)


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
            "fit.fit: least squares on log ratios; interval from a bootstrap over prompts or blocks",
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
        trace="study_fits.fit_pairs and fit_curves over pairs.pair_trials",
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
        f"{name} {interval(found, 3).text} {fit.units[name]}".strip() for name, found in fit.estimates.items()
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
        trace="claims.decide_all over pairs.pair_trials",
    )


def _printed_audit(verdict: ClaimVerdict) -> Cell:
    counts = verdict.published_audit or {}
    shown = ("refuted: " if verdict.print_refuted else "") + ", ".join(f"{n} {w}" for w, n in counts.items() if n)
    return text(shown or None, "bad" if counts.get("impossible") else "")


def _trial_list(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:30]))
    return f"trials {shown}{f' and {len(ids) - 30} more' if len(ids) > 30 else ''}" if ids else ""
