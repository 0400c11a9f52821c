"""Tables of what was recorded: machine, models, warnings, audit, trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mlsd.analysis.frames import ROUNDS
from mlsd.columns import chosen, column, columns, inside
from mlsd.formats.tables import TRIALS
from mlsd.hardware.metal_kernels import metal_steps
from mlsd.records import Environment
from mlsd.report.render.table import Table, table
from mlsd.report.tables.columns import experts
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

_NOT_READ = "could not be read"
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
    shown = [row for name, row in machine_rows(study.environment).items() if name != "host"]
    rows: list[tuple[str, Any]] = [row for row in shown if row[1] != _NOT_READ]
    first, last = study.runs[0], study.runs[-1]
    if study.environment.backend == "Metal":
        steps = metal_steps(study.environment.llama_cpp_build)
        rows.append(("kernels", "which build it is, is not known" if steps is None else steps.side))
    rows += [
        ("runs", len(study.runs)),
        ("first and last run", f"{_minute(first.started_at)} to {_minute(last.ended_at) or last.status}"),
        ("profile", study.profile),
        ("seed of the order", last.seed),
    ]
    return table(
        "Environment",
        rows,
        *columns("what=0; value=1"),
        id="environment",
        note=f"Could not be read: {', '.join(label for label, value in shown if value == _NOT_READ) or 'nothing'}.",
    )


def _minute(time: str | None) -> str | None:
    return time and f"{time[:10]} {time[11:16]} UTC"


def machine_rows(environment: Environment, missing: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """What is known of a machine and a build, by field; `missing` says why something is not."""

    def shown(field: str, value: Any) -> str:
        if value is None:
            return f"not known: {missing[field]}" if missing and field in missing else _NOT_READ
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value} GB/s" if field.endswith("_gb_s") else _value(field, value)

    return {
        field: (_LABELS.get(field, field.removesuffix("_bytes").replace("_", " ")), shown(field, value))
        for field, value in msgspec.structs.asdict(environment).items()
    }


def models_table(study: Study) -> Table:
    """The models by content."""

    def types(facts: ModelFacts) -> str:
        return ", ".join(f"{kind} {n}" for kind, n in facts.tensor_types.items())

    of_facts = (
        column("SHA-256", of=lambda f: (f.ref.sha256 or "not hashed")[:16]),
        column("architecture"),
        *columns("parameters, 10⁶:2e6=n_parameters; active, 10⁶:2e6=n_parameters_active"),
        *columns("weights:bytes=weight_bytes; read a token:bytes=active_bytes"),
        column("experts", of=experts),
        column("tensors by type", of=types),
        *columns("random weights:flag=synthetic"),
    )
    return table("Models", study.facts.items(), column("model", of="0"), *inside("1", of_facts), id="models")


def warning_table(study: Study) -> Table:
    """Doubts, those of one kind together."""
    rows: list[tuple[str, int, str, str]] = []
    for code, warnings in grouped(study.warnings, lambda warning: warning.code).items():
        rows.append((code, len(warnings), warnings[0].message, warnings[-1].advice))
    for rule, broken in grouped(study.impossible.items(), lambda row: row[1].rule).items():
        sentence = f"trial {broken[0][0]}: {broken[0][1].sentence}"
        rows.append((f"identity: {rule}", len(broken), sentence, "They are left out everywhere."))
    return table(
        "Warnings",
        rows,
        *columns("code=0; times:n=1; what (the first)=2; what to do=3"),
        id="warnings",
        good_news="nothing speaks against these trials.",
    )


def audit_table(study: Study) -> Table:
    """Trials that the audit finds suspicious or impossible."""
    audit = study.audit
    rows = [(row.identity, finding) for row in audit.rows for finding in row.findings if finding.verdict != "possible"]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in audit.counts().items())
    more = f" The first 200 of {len(rows)} findings." if len(rows) > 200 else ""
    naming = ("target", "draft", "gamma", "prompt")
    return table(
        "Audit of these trials",
        rows[:200],
        column("trial", of="0.label"),
        column("arm", of=lambda row: ", ".join(str(row[0][name]) for name in naming if name in row[0])),
        *columns("verdict=1.verdict; rule=1.rule; why=1.sentence"),
        id="audit",
        good_news=f"{len(audit.rows)} finished trials, all possible; none is doubted.",
        note=f"{len(audit.rows)} finished trials: {counts}.{more}",
    )


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
    measured = [{k: None if v is None or v != v or str(v) == "<NA>" else v for k, v in row.items()} for row in rows]
    return table(
        "Every trial",
        measured,
        *chosen(TRIALS, "trial_id suite target"),
        column("arm", of=lambda row: arm_named(str(row["drafter"]), row["draft"], row.get("options") or "").name),
        *chosen(TRIALS, "gamma prompt repeat n_prompt n_tokens decode_tok_s rounds acceptance_rate accepted_of_output"),
        *chosen(TRIALS, "mgl verdict status reason"),
        *inside(
            lambda row: audited.get(f"trial {row['trial_id']}"), [column("audit", of="verdict")] if audited else ()
        ),
        id="trials",
        note=note,
    )


def probe_table(probed: Probed) -> Table:
    """Rollback strategies as they were tried on a model."""
    return table(
        f"{probed.model.id} on {probed.device} ({probed.backend}), contexts of {probed.n_ctx:,} positions",
        probed.checks,
        *columns("as a=role; strategy; gamma:n; exact:flag; logits off by:6=max_logit_diff"),
        *columns("rounding explains:6=tolerance"),
    )


def runs_table(runs: Iterable[Run]) -> Table:
    """Invocations that measured into a database."""
    return table(
        "Runs",
        runs,
        *columns("run=id; status; started=started_at; suites=plan.suites"),
        *columns("chip=environment.chip; backend=environment.backend*; llama.cpp=environment.llama_cpp_build*"),
    )


def checks_table(title: str, checks: Iterable[Check]) -> Table:
    """Questions of a self-check and their answers."""
    holds = {True: "yes", False: "NO", None: None}
    return table(
        title,
        checks,
        *columns("check=name; of=subject"),
        column("holds", of=lambda check: holds[check.ok]),
        *columns("found=answer"),
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
        record = getattr(trial, name)
        values = {} if record is None else msgspec.structs.asdict(record)
        if shown := ", ".join(f"{key} {_value(key, value)}" for key, value in values.items() if value is not None):
            rows.append((name, shown))
    rows += [(f"answer to turn {turn}", answer[:200]) for turn, answer in enumerate(trial.earlier, 1)]
    rows.append(("output", f"{trial.n_tokens} tokens: {(trial.text or '')[:200]}"))
    proposed, accepted = sum(r.proposed for r in trial.rounds), sum(r.accepted for r in trial.rounds)
    rows.append(("rounds", f"{len(trial.rounds)}, {accepted} of {proposed} proposed tokens accepted"))
    title = f"Trial {stored.id} of case {trial.case_id}, run {stored.run_id}"
    return table(title, rows, *columns("field=0; value=1"))


def rounds_table(trial: Trial) -> Table:
    """Every round of a trial."""
    rows = ((None, number, each) for number, each in enumerate(trial.rounds))
    return table("Rounds", rows, *(column for column in ROUNDS if column.name != "trial_id"))


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
        *columns("machine=name; free memory:bytes=conditions.available_bytes"),
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
