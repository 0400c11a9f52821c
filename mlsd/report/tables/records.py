"""Tables of what was recorded: machine, models, warnings, audit, trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mlsd.records import Environment
from mlsd.report.render.table import Cell, Table, Tone, head, name, number, percent, text
from mlsd.units import format_bytes

if TYPE_CHECKING:
    from mlsd.analysis.audit.rows import RowAudit
    from mlsd.analysis.study.study import Study

TONES: dict[str, Tone] = {"possible": "", "suspicious": "doubt", "impossible": "bad"}
MOST_TRIALS = 2000  # rows of a page that still scrolls; the rest is in the database
_LABELS = {
    "os": "system",
    "gpu_cores": "GPU cores",
    "wired_limit_bytes": "GPU memory limit (wired)",
    "peak_bandwidth_gb_s": "peak bandwidth",
    "peak_bandwidth_source": "peak bandwidth from",
    "mlsd_version": "mlsd",
    "llama_cpp_python_version": "llama-cpp-python",
    "llama_cpp_build": "llama.cpp build",
    "python_version": "Python",
}


def environment_table(study: Study) -> Table:
    """The machine and the build."""
    rows = [row for field, row in machine_rows(study.environment).items() if field != "host"]
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


def machine_rows(environment: Environment, missing: Mapping[str, str] | None = None) -> dict[str, tuple[Cell, Cell]]:
    """What is known of a machine and a build, by field; `missing` says why something is not."""
    rows = {}
    for field, value in msgspec.structs.asdict(environment).items():
        label = _LABELS.get(field, field.removesuffix("_bytes").replace("_", " "))
        if value is None:
            why = (missing or {}).get(field)
            rows[field] = (text(label), text(f"not known: {why}" if why else "could not be read", "quiet"))
        elif isinstance(value, bool):
            rows[field] = (text(label), text("on" if value else "off"))
        else:
            unit = " GB/s" if field.endswith("_gb_s") else ""
            rows[field] = (text(label), text(format_bytes(value) if field.endswith("_bytes") else f"{value}{unit}"))
    return rows


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
            name("code", "checks.check_run and contradictions.contradictions"),
            head("times"),
            name("what (the first)"),
            name("what to do"),
        ),
        rows=tuple(rows),
        trace="store.warnings of this machine's runs, and contradictions.contradictions",
        good_news="nothing speaks against these trials.",
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
        good_news=f"{len(study.audit.rows)} finished trials, all possible; none is doubted.",
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
    return trials_table(frame.to_dict("records"), audited, note)


def trials_table(rows: Iterable[Mapping[Any, Any]], audited: Mapping[str, RowAudit], note: str = "") -> Table:
    """Trials as the store's view `trial_summary` has them, one a row."""
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
            *((name("audit", "audit.audit_row"),) if audited else ()),
        ),
        rows=tuple(_trial_cells(row, audited) for row in rows),
        trace="frames.trials: the store's view trial_summary, one row a trial",
        note=note,
        interactive=True,
    )


def _finished(study: Study) -> bool:
    return bool((study.trials["status"] == "ok").any())


def _trial_cells(row: Mapping[Any, Any], audited: Mapping[str, RowAudit]) -> tuple[Cell, ...]:
    value = {key: None if item is None or item != item or str(item) == "<NA>" else item for key, item in row.items()}
    found = audited.get(f"trial {value['trial_id']}")
    failed = value["status"] != "ok"
    reason = str(value["error"] or value["invalid_reason"] or "")
    output = "failed" if failed else value["verdict"] or "not greedy"
    tone = {"diverged": "bad", "failed": "bad", "near_tie": "doubt"}.get(str(output), "")
    why = " ".join(f.sentence for f in found.findings if f.verdict != "possible") if found else ""
    options = str(value.get("options") or "")
    return (
        number(_real(value["trial_id"]), 0),
        text(value["suite"]),
        text(value["target"]),
        text("AR" if value["arm"] == "ar" else value["draft"] or value["drafter"], note=options),
        number(_real(value["gamma"]), 0),
        text(value["prompt"]),
        number(_real(value["repeat"]), 0),
        number(_real(value["n_prompt"]), 0),
        number(_real(value["n_tokens"]), 0),
        number(_real(value["decode_tok_s"]), 1),
        number(_real(value["rounds"]), 0),
        percent(_real(value["acceptance_rate"])),
        number(_real(value["mgl"]), 2),
        text(output, tone, _tie(value)),  # type: ignore[arg-type]
        text("yes") if value["valid"] else text(f"no: {reason}"[:60] if reason else "no", "bad", reason),
        *((text(found.verdict, TONES[found.verdict], why) if found else text(None),) if audited else ()),
    )


def _tie(value: Mapping[Any, Any]) -> str:
    """What decided about an output that differs from plain decoding."""
    rate, gap, tolerance = (_real(value.get(name)) for name in ("differences_per_1000", "worst_gap", "tolerance"))
    if rate is None or gap is None or tolerance is None:
        return ""
    return f"{rate:.1f} of 1,000 tokens differ, by up to {gap:.3g} logits; noise explains {tolerance:.3g}"


def _real(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
