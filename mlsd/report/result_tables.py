"""Tables of our own results: settings by workload, gammas, fits, claims, audit, machine, warnings, trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlsd.analysis.answer import Advice
from mlsd.analysis.audit_rows import RowAudit
from mlsd.analysis.fit import Fit, HeldOut
from mlsd.analysis.metrics import Speedup
from mlsd.analysis.study import Study
from mlsd.report.study_tables import EFFECT_TONES, TONES, effect_cell
from mlsd.report.tables import Cell, Table, head, interval, name, number, percent, significant, text
from mlsd.units import format_bytes

MOST_TRIALS = 2000  # rows of a page that still scrolls; the rest is in the database
_UNITS = {"memory_bytes": format_bytes, "wired_limit_bytes": format_bytes}


def advice_table(advices: Sequence[Advice]) -> Table:
    """What to use for each target and workload."""
    rows = []
    for advice in advices:
        best = advice.best
        tone = "good" if advice.use != "off" else ""
        rows.append(
            (
                text(advice.target),
                text(advice.workload),
                text(advice.use, tone),  # type: ignore[arg-type]
                text(best.setting if best else None),
                interval(best.ratio if best else None, 2, "x"),
                effect_cell(best),
                percent(best.smallest_effect if best else None, 0),
                number(best.n_blocks if best else None, 0),
            )
        )
    return Table(
        id="advice",
        title="Which setting for which workload",
        heads=(
            name("target"),
            name("workload", "the prompt's kind of text"),
            name("use", "answer.advise: the fastest setting whose interval lies above 1, else off"),
            name("best tried"),
            head("its speedup", "metrics.speedups by workload: geometric mean over blocks, Student's t interval"),
            name("verdict", "metrics.Speedup.effect"),
            head("would have shown", "metrics.smallest_effect: the effect seen with 80 % chance"),
            head("blocks", "metrics.pairs: SD trials with an AR trial of their block"),
        ),
        rows=tuple(rows),
        trace="answer.advise over metrics.speedups(by workload), from the store's view trial_summary",
    )


def speedup_table(speedups: Sequence[Speedup]) -> Table:
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
        for s in speedups
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
            head("speedup", "geometric mean over blocks of SD / AR, Student's t interval"),
            name("verdict", "metrics.Speedup.effect"),
            head("accepted", "accepted / proposed"),
            head("MGL", "committed / rounds"),
            head("blocks"),
            head("valid trials"),
        ),
        rows=tuple(rows),
        trace="metrics.speedups(by workload), from the store's view trial_summary",
        interactive=True,
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
            head("speedup", "outlook.by_gamma: geometric mean over blocks"),
            head("MGL", "outlook.by_gamma"),
            head("MGL to break even", "outlook.by_gamma: round time / T(1)"),
            head("alpha to break even", "costmodel.break_even_alpha: acceptance of each position"),
            head("drafting", "share of the round's time"),
            head("verifying", "share of the round's time"),
            name("best gamma", "outlook.best_gamma: share of bootstrap resamples over blocks that agree; 0 is off"),
        ),
        rows=tuple(rows),
        trace="study_fits.fit_pairs over evidence.evidence",
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
    for curve in study.curve_fits:
        errors = {e.model: e for e in curve.held_out}
        for fit in curve.fits:
            about = f"T(k) of {curve.target}, from {curve.source}"
            rows.append(_fit_cells(about, fit, errors.get(fit.model), None, curve.chosen))
    return Table(
        id="fits",
        title="Fitted models",
        heads=(
            name("of"),
            name("model", "fit_models"),
            name("estimates", "fit.fit: least squares on log ratios; interval from a bootstrap over blocks"),
            head("AICc", "fit.fit"),
            head("held-out gamma or k", "fit.held_out: median |predicted / observed - 1|"),
            head("held-out prompt", "fit.held_out: median |predicted / observed - 1|"),
            name("choice", "fit.select: the simplest model whose held-out error is not worse than the best"),
        ),
        rows=tuple(rows),
        trace="study_fits.fit_pairs and fit_curves over evidence.evidence",
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
    tones = {"confirmed": "good", "refuted": "bad", "undecided": "doubt", "not measured": "quiet"}
    rows = []
    for verdict in study.claims:
        counts = verdict.published_audit or {}
        printed = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
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
        trace="claims.decide_all over evidence.evidence",
    )


def _trial_list(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:30]))
    return f"trials {shown}{f' and {len(ids) - 30} more' if len(ids) > 30 else ''}" if ids else ""


def environment_table(study: Study) -> Table:
    """The machine and the build."""
    rows = []
    for field, value in msgspec.structs.asdict(study.environment).items():
        if field == "host":
            continue
        shown = _UNITS[field](value) if field in _UNITS and value is not None else value
        label = field.removesuffix("_bytes").replace("_", " ")
        rows.append((text(label), text(shown) if value is not None else text("could not be read", "quiet")))
    run = study.runs[-1]
    rows += [
        (text("runs"), text(len(study.runs))),
        (text("first and last run"), text(f"{study.runs[0].started_at} to {run.ended_at or run.status}")),
        (text("profile"), text(study.profile)),
        (text("seed of the order"), text(run.seed)),
    ]
    return Table(
        id="environment",
        title="Environment",
        heads=(name("what"), name("value", "table run: environment of the latest run")),
        rows=tuple(rows),
        trace="store.runs: the environment of the latest run of this machine",
    )


def models_table(study: Study) -> Table:
    """The models by content."""
    rows = [
        (
            text(label),
            text((facts.ref.sha256 or "not hashed")[:16], note=facts.ref.sha256 or ""),
            text(facts.architecture),
            number(None if facts.n_parameters is None else facts.n_parameters / 1e6, 2),
            number(None if facts.n_parameters_active is None else facts.n_parameters_active / 1e6, 2),
            text(format_bytes(facts.weight_bytes)),
            text(format_bytes(facts.active_bytes)),
            text(f"{facts.n_experts_used} of {facts.n_experts}" if facts.n_experts else None),
            text(", ".join(f"{kind} {count}" for kind, count in facts.tensor_types.items())),
            text("random weights" if facts.synthetic else "", "doubt"),
        )
        for label, facts in study.facts.items()
    ]
    return Table(
        id="models",
        title="Models",
        heads=(
            name("model"),
            name("SHA-256"),
            name("architecture"),
            head("parameters, 10⁶"),
            head("active, 10⁶"),
            name("weights"),
            name("read a token"),
            name("experts"),
            name("tensors by type"),
            name("note"),
        ),
        rows=tuple(rows),
        trace="store.models: table model, read from the GGUF headers",
    )


def warning_table(study: Study) -> Table:
    """Doubts, those of one kind together."""
    groups: dict[str, list[str]] = {}
    advice = {}
    for warning in study.warnings:
        groups.setdefault(warning.code, []).append(warning.message)
        advice[warning.code] = warning.advice
    rows = [
        (
            text(code, "doubt"),
            number(len(messages), 0),
            Cell(text=messages[0], sort=messages[0], note=" ".join(messages[1:12])),
            text(advice[code]),
        )
        for code, messages in groups.items()
    ]
    counts = Counter(c.rule for c in study.contradictions)
    for rule, count in counts.items():
        first = next(c for c in study.contradictions if c.rule == rule)
        sentence = f"trial {first.trial_id}: {first.sentence}"
        rows.append(
            (text(f"identity: {rule}", "bad"), number(count, 0), text(sentence), text("Do not use these trials."))
        )
    return Table(
        id="warnings",
        title="Warnings",
        heads=(
            name("code", "checks.check_run and metrics.contradictions"),
            head("times"),
            name("what (the first)"),
            name("what to do"),
        ),
        rows=tuple(rows),
        trace="store.warnings of this machine's runs, and metrics.contradictions",
        note="" if rows else "Nothing speaks against these trials.",
    )


def audit_table(study: Study) -> Table:
    """Trials that the audit doubts."""
    rows = []
    for row in study.audit.rows:
        for finding in row.findings:
            if finding.verdict != "possible":
                about = [str(row.identity[f]) for f in ("target", "draft", "gamma", "prompt") if f in row.identity]
                rows.append(
                    (
                        text(row.identity["label"]),
                        text(", ".join(about)),
                        text(finding.verdict, TONES[finding.verdict]),
                        text(finding.rule),
                        text(finding.sentence),
                    )
                )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in study.audit.counts().items())
    return Table(
        id="audit",
        title="Audit of these trials",
        heads=(name("trial"), name("arm"), name("verdict"), name("rule", "audit_rules"), name("why")),
        rows=tuple(rows[:200]),
        trace="audit.audit over audit_trials.trials_context",
        note=f"{len(study.audit.rows)} finished trials: {counts}."
        + (f" The first 200 of {len(rows)} findings." if len(rows) > 200 else ""),
    )


def trial_table(study: Study) -> Table:
    """Every trial with its verdict; of very many, those that failed or are not valid and the latest."""
    audited: dict[str, RowAudit] = (
        {str(row.identity["label"]): row for row in study.audit.rows} if _finished(study) else {}
    )
    frame = study.trials
    note = ""
    if len(frame) > MOST_TRIALS:
        doubtful = frame["valid"].fillna(False) == False  # noqa: E712  # a column, not a flag
        frame = frame.loc[sorted({*frame.index[doubtful][: MOST_TRIALS // 2], *frame.index[-(MOST_TRIALS // 2) :]})]
        note = f"{len(frame)} of {len(study.trials)} trials: those not valid first, then the latest. All: mlsd export."
    rows = [_trial_cells(row, audited) for row in frame.to_dict("records")]
    return Table(
        id="trials",
        title="Every trial",
        heads=(
            head("trial", "trial.id"),
            name("suite"),
            name("target"),
            name("drafter"),
            head("gamma"),
            name("prompt"),
            head("repeat"),
            head("prompt tokens"),
            head("tokens"),
            head("decode tok/s", "(n_tokens - 1) / decode_ns"),
            head("rounds"),
            head("accepted", "accepted / proposed"),
            head("MGL", "committed / rounds"),
            name("output", "losslessness against plain greedy decoding"),
            name("valid", "every call succeeded, rollback exact, output lossless"),
            name("audit", "audit.audit_row"),
        ),
        rows=tuple(rows),
        trace="frames.trials: the store's view trial_summary, one row a trial",
        note=note,
        interactive=True,
    )


def _finished(study: Study) -> bool:
    return bool((study.trials["status"] == "ok").any())


def _trial_cells(row: Mapping[Any, Any], audited: dict[str, RowAudit]) -> tuple[Cell, ...]:
    value = {key: None if item is None or item != item or str(item) == "<NA>" else item for key, item in row.items()}
    found = audited.get(f"trial {value['trial_id']}")
    failed = value["status"] != "ok"
    reason = str(value["error"] or value["invalid_reason"] or "")
    output = "failed" if failed else value["verdict"] or "not greedy"
    tone = {"diverged": "bad", "failed": "bad", "near_tie": "doubt"}.get(str(output), "")
    why = " ".join(f.sentence for f in found.findings if f.verdict != "possible") if found else ""
    return (
        number(_real(value["trial_id"]), 0),
        text(value["suite"]),
        text(value["target"]),
        text("AR" if value["arm"] == "ar" else value["draft"] or value["drafter"], note=str(value["options"] or "")),
        number(_real(value["gamma"]), 0),
        text(value["prompt"]),
        number(_real(value["repeat"]), 0),
        number(_real(value["n_prompt"]), 0),
        number(_real(value["n_tokens"]), 0),
        number(_real(value["decode_tok_s"]), 1),
        number(_real(value["rounds"]), 0),
        percent(_real(value["acceptance_rate"])),
        number(_real(value["mgl"]), 2),
        text(output, tone),  # type: ignore[arg-type]
        text("yes") if value["valid"] else text("no", "bad", reason),
        text(found.verdict, TONES[found.verdict], why) if found else text(None),
    )


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
