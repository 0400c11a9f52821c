"""Tables of what was found: settings by workload, gammas, fits, claims."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.fits.fit import Fit, HeldOut
from mlsd.analysis.results.best_setting import BestSetting
from mlsd.analysis.results.speedups import Speedup, deep_trials, speedups
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import Cell, Table, head, interval, name, number, percent, significant, text
from mlsd.report.tables.study import EFFECT_TONES, effect_cell


def best_table(answers: Sequence[BestSetting]) -> Table:
    """What to use for each target and workload."""
    rows = []
    for answer in answers:
        best = answer.arm
        tone = "good" if answer.use != "off" else ""
        rows.append(
            (
                text(answer.target),
                text(answer.workload),
                text(answer.use, tone),  # type: ignore[arg-type]
                text(best.setting if best else None),
                interval(answer.ratio, 2, "x"),
                effect_cell(best) if answer.ratio is None else text(answer.effect, EFFECT_TONES[answer.effect]),
                number(answer.n_settings, 0),
                text(answer.visible.words if answer.visible else None),
                number(best.n_blocks if best else None, 0),
            )
        )
    return Table(
        id="best",
        title="Which setting for which workload",
        heads=(
            name("target"),
            name("workload", "the prompt's kind of text"),
            name("use", "best_setting: the fastest setting whose interval lies above 1, else off"),
            name("best tried"),
            head(
                "its speedup",
                "speedups.speedups by workload; interval corrected for the choice: stats.best_of",
            ),
            name("verdict", "whether that interval excludes 1"),
            head("of settings", "compared with plain decoding"),
            head("would have shown", "stats.smallest_effect: effects decided 4 times in 5; from 4 blocks or prompts"),
            head("blocks", "pairs.pair_up: SD trials with an AR trial of their block"),
        ),
        rows=tuple(rows),
        trace="best_setting.best_settings over speedups.speedups(by workload), from the store's view trial_summary",
    )


def speedup_table(found: Sequence[Speedup]) -> Table:
    """Every setting on every workload."""
    rows = [
        (
            text(s.target),
            text(s.setting),
            text(s.workload),
            number(s.decode_tok_s, 1),
            number(s.baseline_tok_s, 1),
            interval(s.ratio, 2, "x", EFFECT_TONES[s.effect]),
            effect_cell(s),
            percent(s.acceptance_rate),
            number(s.mgl, 2),
            number(s.n_blocks, 0),
            Cell(text=f"{s.n_valid} of {s.n_trials}", sort=s.n_valid / s.n_trials, note=s.invalid_reason or ""),
        )
        for s in found
    ]
    return Table(
        id="speedups",
        title="Every setting on every workload",
        heads=(
            name("target"),
            name("setting"),
            name("workload"),
            head("SD tok/s", "median over blocks"),
            head("AR tok/s", "median over the same blocks"),
            head("speedup", "geometric mean of SD / AR; Student's t over prompts, of one prompt over blocks"),
            name("verdict", "speedups.Speedup.effect"),
            head("accepted", "accepted / proposed"),
            head("MGL", "committed / rounds"),
            head("blocks"),
            head("valid trials"),
        ),
        rows=tuple(rows),
        trace="speedups.speedups(by workload), from the store's view trial_summary",
        interactive=True,
    )


def depth_table(study: Study) -> Table:
    """Every arm over the depth of its prompt: T(1), what a verification takes of it, speedup and acceptance."""
    trials, rows = deep_trials(study.trials), []
    for s in speedups(trials, ("prompt",)):
        own = trials[(trials["prompt"] == s.prompt) & (trials["target"] == s.target) & trials["valid"].fillna(False)]
        arms = own[own["arm"] == "ar"], own[(own["drafter"] == s.drafter) & (own["gamma"] == s.gamma)]
        plain_ms, verify_ms = (arm["verify_ns"].sum() / arm["rounds"].sum() / 1e6 for arm in arms)
        base, _, depth = str(s.prompt).partition("@")
        cells = (
            text(s.target), text(s.setting), text(base), number(int(depth or 0), 0),
            number(s.baseline_tok_s, 1), number(plain_ms, 2), number(verify_ms / plain_ms, 2),
            interval(s.ratio, 2, "x", EFFECT_TONES[s.effect]), effect_cell(s), percent(s.acceptance_rate),
        )  # fmt: skip
        rows.append(((s.target, s.setting, base, int(depth or 0)), cells))
    return Table(
        id="depth",
        title="Speculation over depth",
        heads=(
            name("target"),
            name("setting"),
            name("prompt"),
            head("depth", "tokens of other text before the prompt"),
            head("AR tok/s", "median over blocks"),
            head("T(1) ms", "mean pass of plain decoding"),
            head("T(k)/T(1)", "mean pass of the arm's verifications over it"),
            head("speedup", "geometric mean of SD / AR over blocks"),
            name("verdict", "speedups.Speedup.effect"),
            head("accepted", "accepted / proposed"),
        ),
        rows=tuple(cells for _, cells in sorted(rows, key=lambda row: row[0])),
        trace="speedups.speedups by prompt, of prompts that were measured at several depths",
    )


def gamma_table(study: Study) -> Table:
    """What each gamma gives and what it would need."""
    rows = []
    for found in study.pair_fits:
        best = found.best
        share = "" if best.share is None else f" ({100 * best.share:.0f} %)"
        spread = "" if best.share is None else f"95 % of resamples have their best gamma from {best.low} to {best.high}"
        shown = text(f"{best.gamma or 'off'}{share}", note=spread)
        for g in found.gammas:
            rows.append(
                (
                    text(f"{found.target} + {found.draft or found.drafter}"),
                    number(g.gamma, 0),
                    interval(g.speedup, 2, "x"),
                    interval(g.mgl, 2),
                    interval(g.break_even_mgl, 2),
                    number(g.break_even_alpha, 3) if g.break_even_alpha is not None else text("none suffices", "bad"),
                    percent(g.draft_share, 0),
                    percent(g.verify_share, 0),
                    shown,
                )
            )
    return Table(
        id="gammas",
        title="Draft lengths: what they give and what they need",
        heads=(
            name("pair"),
            head("gamma"),
            head("speedup", "break_even.by_gamma: geometric mean"),
            head("MGL", "break_even.by_gamma"),
            head("MGL to break even", "break_even.by_gamma: round time / T(1)"),
            head("alpha to break even", "costmodel.break_even_alpha: acceptance of each position"),
            head("drafting", "share of the round's time"),
            head("verifying", "share of the round's time"),
            name("best gamma", "break_even.best_gamma: share of bootstrap resamples that agree; 0 is off"),
        ),
        rows=tuple(rows),
        trace="study_fits.fit_pairs over pairs.pair_trials",
    )


def model_table(study: Study) -> Table:
    """Cost models and curves with their estimates and errors of prediction."""
    rows = []
    for found in study.pair_fits:
        about = f"{found.target} + {found.draft or found.drafter}"
        errors = {e.model: e for e in found.held_out_gamma}
        prompts = {e.model: e for e in found.held_out_prompt}
        for fit in found.fits:
            rows.append(_fit_cells(about, fit, errors.get(fit.model), prompts.get(fit.model), found.chosen))
    doubts = []
    for curve in study.curve_fits:
        errors = {e.model: e for e in curve.held_out}
        if curve.doubt is not None:
            widths = ",".join(map(str, curve.time_next))
            doubts.append(f"T(k) of {curve.target}: {curve.doubt}; mlsd calibrate {curve.target} --rows {widths}.")
        for fit in curve.fits:
            about = f"T(k) of {curve.target}, from {curve.source}"
            rows.append(_fit_cells(about, fit, errors.get(fit.model), None, curve.chosen))
    return Table(
        id="fits",
        title="Fitted models",
        heads=(
            name("of"),
            name("model", "fit_models"),
            name("estimates", "fit.fit: least squares on log ratios; interval from a bootstrap over prompts or blocks"),
            head("AICc", "fit.fit"),
            head("held-out gamma or k", "fit.held_out: median |predicted / observed - 1|"),
            head("held-out prompt", "fit.held_out: median |predicted / observed - 1|"),
            name("choice", "fit.select: the simplest model whose held-out error is not worse than the best"),
        ),
        rows=tuple(rows),
        trace="study_fits.fit_pairs and fit_curves over pairs.pair_trials",
        note=" ".join(doubts),
    )


def _fit_cells(
    about: str, fit: Fit, held: HeldOut | None, prompt: HeldOut | None, chosen: str | None
) -> tuple[Cell, ...]:
    values = []
    for parameter, estimate in fit.estimates.items():
        shown = interval(estimate, 3).text
        values.append(f"{parameter} {shown} {fit.units[parameter]}".strip())
    return (
        text(about),
        Cell(text=fit.model, sort=fit.model, note=fit.formula),
        text("; ".join(values)),
        text(significant(fit.aicc, 1)),
        percent(held.median_error if held else None),
        percent(prompt.median_error if prompt else None),
        text("predicts best", "good") if fit.model == chosen else text(None),
    )


def claim_table(study: Study) -> Table:
    """Every published claim, decided on these trials."""
    tones = {
        "holds here": "good",
        "does not hold here": "bad",
        "refuted": "bad",
        "undecided": "doubt",
        "not measured": "quiet",
    }
    rows = []
    for verdict in study.claims:
        counts = verdict.published_audit or {}
        printed = ("refuted: " if verdict.print_refuted else "") + ", ".join(f"{n} {w}" for w, n in counts.items() if n)
        tone = tones[verdict.decision]
        rows.append(
            (
                text(verdict.claim.text),
                text(verdict.decision, tone),  # type: ignore[arg-type]
                Cell(text=verdict.sentence, sort=verdict.sentence, note=_trial_list(verdict.trials)),
                text(f"{verdict.claim.printed} ({verdict.claim.source})"),
                text(printed or None, "bad" if counts.get("impossible") else ""),
            )
        )
    return Table(
        id="claims",
        title="What was claimed, and what these trials say",
        heads=(
            name("claim"),
            name("here", "claims.decide"),
            name("effect", "claim_tests: the tooltip names the trials"),
            name("printed"),
            name("audit of it, rows", "claims.printed_audit"),
        ),
        rows=tuple(rows),
        trace="claims.decide_all over pairs.pair_trials",
    )


def _trial_list(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:30]))
    return f"trials {shown}{f' and {len(ids) - 30} more' if len(ids) > 30 else ''}" if ids else ""
