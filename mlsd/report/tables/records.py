"""Tables of what was recorded: machine, models, warnings, audit, trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mlsd.analysis.frames import ROUNDS
from mlsd.columns import chosen, column, inside
from mlsd.formats.tables import TRIALS
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.records import Environment
from mlsd.report.render.table import Cell, Table, Tone, table, text
from mlsd.report.tables.columns import experts, millions
from mlsd.stats import grouped
from mlsd.trials.arms import arm_named, arm_of
from mlsd.units import NS_PER_MS, format_bytes

if TYPE_CHECKING:
    from mlsd.analysis.study.study import Study
    from mlsd.audits.rows import RowAudit
    from mlsd.lab.machine import Card, Doing
    from mlsd.measure.messages import Check, Probed
    from mlsd.records import ModelFacts, Trial
    from mlsd.store.rows import Run
    from mlsd.trials.results import Measured

TONES: dict[str, Tone] = {"possible": "", "suspicious": "caution", "impossible": "bad", "not judged": ""}
MOST_TRIALS = 500  # rows of a page that still opens at once; the rest is in the database
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
    if study.environment.backend == "Metal":
        steps = metal_steps(study.environment.llama_cpp_build)
        rows += [(text("kernels"), text("which build it is, is not known" if steps is None else steps.side))]
    rows += [
        (text("runs"), text(len(study.runs))),
        (text("first and last run"), text(f"{study.runs[0].started_at} to {run.ended_at or run.status}")),
        (text("profile"), text(study.profile)),
        (text("seed of the order"), text(run.seed)),
    ]
    return table(
        "Environment",
        rows,
        column("what", of="0"),
        column("value", "", "table run: environment of the latest run", "1"),
        id="environment",
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

    def types(facts: ModelFacts) -> str:
        return ", ".join(f"{kind} {n}" for kind, n in facts.tensor_types.items())

    of_facts = (
        column("SHA-256", of=lambda f: text((f.ref.sha256 or "not hashed")[:16], note=f.ref.sha256 or "")),
        column("architecture"),
        column("parameters, 10⁶", "2", "", lambda f: millions(f.n_parameters)),
        column("active, 10⁶", "2", "", lambda f: millions(f.n_parameters_active)),
        column("weights", "bytes", "", "weight_bytes"),
        column("read a token", "bytes", "", "active_bytes"),
        column("experts", of=experts),
        column("tensors by type", of=types),
        column("note", of=lambda f: text("random weights" if f.synthetic else "", "caution")),
    )
    return table("Models", study.facts.items(), column("model", of="0"), *inside("1", of_facts), id="models")


def warning_table(study: Study) -> Table:
    """Doubts, those of one kind together."""
    rows: list[tuple[Cell, int, Cell, str]] = []
    for code, own in grouped(study.warnings, lambda warning: warning.code).items():
        first, *others = [warning.message for warning in own]
        what = Cell(text=first, sort=first, note=" ".join(others[:11]))
        rows.append((text(code, "caution"), len(own), what, own[-1].advice))
    for rule, broken in grouped(study.impossible.items(), lambda found: found[1].rule).items():
        sentence = f"trial {broken[0][0]}: {broken[0][1].sentence}"
        rows.append((text(f"identity: {rule}", "bad"), len(broken), text(sentence), "They are left out everywhere."))
    return table(
        "Warnings",
        rows,
        column("code", of="0"),
        column("times", "n", "", "1"),
        column("what (the first)", of="2"),
        column("what to do", of="3"),
        id="warnings",
        good_news="nothing speaks against these trials.",
    )


def audit_table(study: Study) -> Table:
    """Trials that the audit finds suspicious or impossible."""
    found = study.audit
    rows = [(row.identity, finding) for row in found.rows for finding in row.findings if finding.verdict != "possible"]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found.counts().items())
    more = f" The first 200 of {len(rows)} findings." if len(rows) > 200 else ""
    return table(
        "Audit of these trials",
        rows[:200],
        column("trial", of="0.label"),
        column("arm", of=lambda row: ", ".join(str(row[0][f]) for f in _NAMING if f in row[0])),
        column("verdict", of=lambda row: text(row[1].verdict, TONES[row[1].verdict])),
        column("rule", of="1.rule"),
        column("why", of="1.sentence"),
        id="audit",
        good_news=f"{len(found.rows)} finished trials, all possible; none is doubted.",
        note=f"{len(found.rows)} finished trials: {counts}.{more}",
    )


_NAMING = ("target", "draft", "gamma", "prompt")


def trial_table(study: Study) -> Table:
    """Every trial with its verdict; of very many, those that failed or are not valid and the latest."""
    frame = study.trials
    finished = bool((frame["status"] != "failed").any())
    audited = {str(row.identity["label"]): row for row in study.audit.rows} if finished else {}
    note = ""
    if len(frame) > MOST_TRIALS:
        not_valid = frame["valid"].fillna(False) == False  # noqa: E712  # a column, not a flag
        frame = frame.loc[sorted({*frame.index[not_valid][: MOST_TRIALS // 2], *frame.index[-(MOST_TRIALS // 2) :]})]
        note = f"{len(frame)} of {len(study.trials)} trials, those not valid first. All: mlsd results trials."
    return trials_table(frame.to_dict("records"), audited, note)


def trials_table(rows: Iterable[Mapping[Any, Any]], audited: Mapping[str, RowAudit], note: str = "") -> Table:
    """Trials as the store's view `trial_summary` has them, one a row."""
    known = [{k: None if v is None or v != v or str(v) == "<NA>" else v for k, v in row.items()} for row in rows]

    def judged(row: Mapping[str, Any]) -> Cell:
        found = audited.get(f"trial {row['trial_id']}")
        if found is None:
            return text(None)
        why = " ".join(f.sentence for f in found.findings if f.verdict != "possible")
        return text(found.verdict, TONES[found.verdict], why)

    return table(
        "Every trial",
        known,
        *chosen(TRIALS, "trial_id suite target"),
        column("arm", of=lambda row: arm_named(str(row["drafter"]), row["draft"], row.get("options") or "").name),
        *chosen(TRIALS, "gamma prompt repeat n_prompt n_tokens decode_tok_s rounds acceptance_rate accepted_of_output"),
        *chosen(TRIALS, "mgl"),
        column("output", "", "losslessness against plain greedy decoding", _output),
        column("valid", "", "every call succeeded, rollback exact, output lossless", _valid),
        *((column("audit", of=judged),) if audited else ()),
        id="trials",
        note=note,
        interactive=True,
    )


_OUTPUT_TONES: dict[str, Tone] = {"diverged": "bad", "failed": "bad", "not_judged": "bad", "near_tie": "caution"}


def _output(row: Mapping[str, Any]) -> Cell:
    """The verdict, and what decided about an output that differs from plain decoding."""
    output = "failed" if row["status"] == "failed" else row["verdict"] or "not greedy"
    rate, gap, tolerance = (row.get(name) for name in ("differences_per_1000", "worst_gap", "tolerance"))
    why = ""
    if rate is not None and gap is not None and tolerance is not None:
        why = f"{rate:.1f} of 1,000 tokens differ, by up to {gap:.3g} logits; noise explains {tolerance:.3g}"
    return text(output, _OUTPUT_TONES.get(output, ""), why)


def _valid(row: Mapping[str, Any]) -> Cell:
    reason = str(row["reason"] or "")
    if row["valid"]:
        return text("yes, hot", "caution", reason) if row["status"] == "hot" else text("yes")
    if row["status"] == "disturbed":
        return text("disturbed", "caution", reason)
    return text(f"no: {reason}"[:60] if reason else "no", "bad", reason)


def probe_table(found: Probed) -> Table:
    """Rollback strategies as they were tried on a model."""
    return table(
        f"{found.model.id} on {found.device} ({found.backend}), contexts of {found.n_ctx:,} positions",
        found.checks,
        column("as a", of="role"),
        column("strategy"),
        column("gamma", "n"),
        column("exact", "flag"),
        column("logits off by", "6", "", "max_logit_diff"),
        column("rounding explains", "6", "", "tolerance"),
    )


def runs_table(runs: Iterable[Run]) -> Table:
    """Invocations that measured into a database."""

    def suites(run: Run) -> str:
        names = run.plan.get("suites") or ()
        return names if isinstance(names, str) else " ".join(names)

    return table(
        "Runs",
        runs,
        column("run", of="id"),
        column("status"),
        column("started", of=lambda run: run.started_at[:19]),
        column("suites", of=suites),
        column("chip", of="environment.chip"),
        column("backend", of="environment.backend", detail=True),
        column("llama.cpp", of="environment.llama_cpp_build", detail=True),
    )


def checks_table(title: str, checks: Iterable[Check]) -> Table:
    """Questions of a self-check and their answers."""
    held: dict[bool | None, tuple[str, Tone]] = {True: ("yes", "good"), False: ("NO", "bad"), None: ("-", "quiet")}
    return table(
        title,
        checks,
        column("check", of="name"),
        column("of", of="subject"),
        column("holds", of=lambda check: text(*held[check.ok])),
        column("found", of="answer"),
    )


# In another line of a trial, or too long for one.
_APART = ("case_id", "gamma", "tokens", "rounds", "text", "conditions", "losslessness", "earlier")


def trial_card(stored: Measured) -> Table:
    """Everything of one trial but its rounds."""
    trial, case = stored.trial, stored.case
    rows = [
        ("configuration", f"suite {case.suite}, {case.target.id}, {arm_of(case).setting}"),
        ("prompt", f"{case.prompt.key}, {case.n_predict} tokens to predict"),
    ]
    for name, value in msgspec.structs.asdict(trial).items():
        if name not in _APART and value is not None:
            rows.append((name.removesuffix("_ns").removesuffix("_bytes").replace("_", " "), _value(name, value)))
    for name in ("losslessness", "conditions"):
        known = {} if (record := getattr(trial, name)) is None else msgspec.structs.asdict(record)
        if shown := ", ".join(f"{key} {_value(key, value)}" for key, value in known.items() if value is not None):
            rows.append((name, shown))
    rows += [(f"answer to turn {turn}", answer[:200]) for turn, answer in enumerate(trial.earlier, 1)]
    rows.append(("output", f"{trial.n_tokens} tokens: {(trial.text or '')[:200]}"))
    proposed, accepted = sum(r.proposed for r in trial.rounds), sum(r.accepted for r in trial.rounds)
    rows.append(("rounds", f"{len(trial.rounds)}, {accepted} of {proposed} proposed tokens accepted"))
    title = f"Trial {stored.id} of case {trial.case_id}, run {stored.run_id}"
    return table(title, rows, column("field", of="0"), column("value", of="1"))


def rounds_table(trial: Trial) -> Table:
    """Every round of a trial."""
    rows = ((None, number, each) for number, each in enumerate(trial.rounds))
    return table("Rounds", rows, *(one for one in ROUNDS if one.name != "trial_id"))


def _value(name: str, value: Any) -> str:
    if name.endswith("_ns"):
        return f"{value / NS_PER_MS:.3f} ms"
    return format_bytes(value) if name.endswith("_bytes") else str(value)


def machines_table(machines: Mapping[str, tuple[Card, Doing | None]]) -> Table:
    """The machines of a lab by address as they joined, and what each measures."""
    power = {None: None, True: "battery", False: "connected"}

    def measures(row: tuple[str, tuple[Card, Doing | None]]) -> str:
        now = row[1][1]
        return f"{now.n_done} of {now.n_total} trials" if now else "nothing"

    of_card = (
        column("machine", of="name"),
        column("free memory", "bytes", "", "conditions.available_bytes"),
        column("power", of=lambda card: power[card.conditions.on_battery]),
        column("heat", of="conditions.thermal_state"),
    )
    return table(
        "Machines",
        machines.items(),
        column("address", of="0"),
        *inside("1.0", of_card),
        column("measures", of=measures),
    )
