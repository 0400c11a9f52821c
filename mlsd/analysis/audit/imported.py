"""Audit rows from tables of others, in a file or imported into a database, and what is known beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from mlsd.analysis.audit import published_tables as published
from mlsd.analysis.audit.audit import whole_counts
from mlsd.analysis.audit.model_size import LEAST_SHARE, least_pass_bytes
from mlsd.analysis.audit.rows import AuditContext, AuditRow
from mlsd.errors import TableError
from mlsd.measure.exchange import read_table
from mlsd.measure.exchange.printed import Printed, exact, parse_printed, says_nothing
from mlsd.measure.exchange.study_csv import NOT_UNDERSTOOD, RATE
from mlsd.measure.store.rows import ImportedRow
from mlsd.records import DRAFT_MODEL, NO_DRAFTER
from mlsd.stats import grouped
from mlsd.trials.acceptance import MEANINGS

NEEDED = ("draft_len", "n_predict", "draft_acceptance_rate")  # without them most rules have nothing to judge
# A draft's own baseline may be of a file twice the size (BF16 for Q8_0), or pay for sampling that drafting does not.
DRAFT_SHARE = 0.5
_NAMED = 5  # rows or models that a note names
_FULL_SHARE, _FULL_CHANCE = 0.9, 1e-4  # counts that must fit full-length drafts, and how rarely chance may do that
_SHIFTS = tuple(0.93 + 0.0061 * i for i in range(24))  # of an acceptance, to see how easily any number fits


def read_csv(path: Path, *, full_drafts: bool | None = None, peak_gb_s: float | None = None) -> AuditContext:
    """Read a CSV in the column layout of the mixture-of-experts study. Raises TableError naming column and line."""
    table = read_table(path, "study-csv")
    context = imported_context(table, full_drafts=full_drafts, peak_gb_s=peak_gb_s)
    logs = [row.raw["raw_log"] for row in table if row.raw.get("raw_log")]
    lost = sum(not (path.parent / str(log)).exists() for log in logs)
    if not lost:
        return context
    note = f"{lost} of {len(logs)} raw logs that the table names are not there to be checked."
    return msgspec.structs.replace(context, notes=(*context.notes, note))


def imported_context(
    imported: Iterable[ImportedRow], *, full_drafts: bool | None = None, peak_gb_s: float | None = None
) -> AuditContext:
    """The context of one table's rows.

    `full_drafts`: whether every round proposes gamma tokens; None decides it from the counts. `peak_gb_s`: the memory's
    peak in GB/s; None takes it from a published study of the same chip. Raises TableError when no row is finished.
    """
    table = list(imported)
    done = [row for row in table if row.status == "ok" and (row.decode_tok_s is not None or row.draft_model)]
    if not done:
        raise TableError("The table holds no finished row with a decode speed.", hint="Give one with a finished run.")
    rows = [_row(row) for row in done]
    if len(chips := {row.chip for row in rows if row.chip}) == 1:
        rows = [msgspec.structs.replace(row, chip=min(chips)) for row in rows]
    notes = list(_left_out(table, done))
    missing = [name for name in NEEDED if table[0].format == "study-csv" and name not in table[0].raw]
    if missing:
        notes.append(f"Fewer rules apply: the table has no column {', '.join(missing)}.")
    exact_counts = _looks_full(rows)
    if any(row.speculative for row in rows):
        by_draft = grouped((row for row in rows if row.speculative), lambda row: row.draft)
        whole = {draft: _looks_full(own) if full_drafts is None else full_drafts for draft, own in by_draft.items()}
        rows = [msgspec.structs.replace(row, fixed_length=row.speculative and whole[row.draft]) for row in rows]
        full = all(whole.values())
        some = ", ".join(str(draft) for draft, is_full in whole.items() if is_full)
        of = f" of {some}, others of unknown length" if some and not full else ""
        said = f"Full-length drafts{of}" if full or some else "Drafts of unknown length"
        how = "as told" if full_drafts is not None else "decided from the counts"
        more = "" if full or full_drafts is not None else "; where every draft has draft_len tokens, say --full-drafts"
        notes.append(f"{said}: {how}{more}.")
    context = _with_knowledge(tuple(rows), {row.chip or "" for row in done}, peak_gb_s, tuple(notes))
    return msgspec.structs.replace(context, exact_counts=exact_counts, notes=(*context.notes, *_sizes(context)))


def _left_out(table: list[ImportedRow], done: list[ImportedRow]) -> Iterator[str]:
    """What rows are not judged because they are not finished, or were not understood."""
    lost = [row.status.removeprefix(NOT_UNDERSTOOD) for row in table if row.status.startswith(NOT_UNDERSTOOD)]
    if lost:
        more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        yield f"{len(lost)} rows were not understood and left out: {'; '.join(lost[:_NAMED])}{more}."
    if len(table) > len(done) + len(lost):
        yield f"{len(table) - len(done) - len(lost)} rows are not ok and were left out."


def _sizes(context: AuditContext) -> Iterator[str]:
    """Of which models a known peak says nothing, because their size is not known."""
    rows = [row for row in context.rows if context.peak(row) is not None]
    unknown = sorted({row.target for row in rows if row.pass_bytes is None and row.target not in context.pass_bytes})
    if unknown:
        named = ", ".join(unknown[:_NAMED]) + (", ..." if len(unknown) > _NAMED else "")
        yield f"The memory's peak bounds nothing of {named}: say the size (`8B Q4_K_M`, or a column model_gb)."


def _row(row: ImportedRow) -> AuditRow:
    """The row with its printed digits, where the table kept them."""

    def cell(column: str, value: float | None) -> Printed | None:
        text = str(row.raw.get(column) or "").strip()
        if value is None or (value <= 0 and column != RATE):
            return None
        return parse_printed(text) if text else exact(value)

    def own(column: str) -> Printed | None:
        """A cell of a column that the store has no place for; what is not a number is no figure."""
        try:
            text = str(row.raw.get(column) or "")
            return None if says_nothing(text) else parse_printed(text)
        except ValueError:
            return None

    def name(text: str | None) -> str | None:
        return " ".join(text.split()) if text else None  # a cell of several lines would print as several rows

    def count(column: str) -> int | None:
        figure = own(column)
        return None if figure is None or figure.value != int(figure.value) else int(figure.value)

    speculative = row.draft_model is not None
    acceptance, meaning = cell(RATE, row.acceptance_rate), name(str(row.raw.get("acceptance_of") or ""))
    if acceptance is not None and row.acceptance_rate is not None and acceptance.value > row.acceptance_rate:
        acceptance = acceptance.scaled(0.01)  # a column in per cent
    if acceptance is None and (of_output := own("accepted_of_output")) is not None:
        acceptance, meaning = of_output.scaled(0.01 if of_output.value > 1 else 1.0), "output"
    ns_per_token = row.decode_ns_per_token
    target = _stored_as(name(row.target_model), name(str(row.raw.get("quantization") or "")))
    model_gb = own("model_gb")
    return AuditRow(
        table=row.source,
        label=name(row.job_id) or f"row {row.row}",
        target=target or "an unnamed target",
        chip=name(row.chip),
        drafter=DRAFT_MODEL if speculative else NO_DRAFTER,
        draft=name(row.draft_model),
        gamma=(row.gamma or None) if speculative else None,
        prompt=name(row.prompt_key),
        n_prompt=row.n_prompt,
        n_predict=row.n_predict,
        repeat=row.repeat,
        tok_s=cell("tokens_per_sec", row.decode_tok_s),
        ms_per_token=cell("eval_ms_per_token", None if ns_per_token is None else ns_per_token / 1e6),
        speedup=cell("speedup_vs_baseline", row.speedup),
        acceptance=acceptance.at_most(1.0) if acceptance is not None and speculative else None,
        acceptance_of=next((known for known in MEANINGS if known == meaning), None),
        mgl=own("mgl") if speculative else None,
        rounds=own("rounds") if speculative else None,
        n_output=count("n_output"),
        baseline_target=_stored_as(name(row.target_model), name(str(row.raw.get("baseline_quantization") or "")))
        if row.raw.get("baseline_quantization") and row.raw["baseline_quantization"] != row.raw.get("quantization")
        else None,
        pass_bytes=LEAST_SHARE * 1e9 * model_gb.low if model_gb else least_pass_bytes(target or ""),
        program=name(str(row.raw.get("program") or "")),
    )


def _stored_as(model: str | None, quantization: str | None) -> str | None:
    """The file: a model in a quantization, which its name may state already."""
    if not model or not quantization or quantization.lower() in model.lower():
        return model
    return f"{model} {quantization}"


def _looks_full(rows: list[AuditRow]) -> bool:
    """Whether the counts fit drafts of full length far more often than figures of so few digits do by chance."""
    log_chance, fitting, asked = 0.0, 0, 0
    for row in grouped((r for r in rows if r.speculative and r.acceptance), lambda r: (r.case, r.acceptance)).values():
        whole = [_is_whole(row[0], shift) for shift in (1.0, *_SHIFTS)]
        if whole[0] is None:
            continue
        asked, fitting = asked + 1, fitting + whole[0]
        log_chance += math.log(max(1, sum(map(bool, whole[1:]))) / len(_SHIFTS)) if whole[0] else 0.0
    return asked > 0 and fitting / asked >= _FULL_SHARE and log_chance <= math.log(_FULL_CHANCE)


def _is_whole(row: AuditRow, shift: float) -> bool | None:
    acceptance = (
        None if row.acceptance is None else row.acceptance.plus(row.acceptance.value * (shift - 1)).at_most(1.0)
    )
    found = whole_counts(msgspec.structs.replace(row, fixed_length=True, acceptance=acceptance))
    return None if found is None else found.verdict == "possible"


def _with_knowledge(
    rows: tuple[AuditRow, ...], chips: set[str], peak_gb_s: float | None, notes: tuple[str, ...]
) -> AuditContext:
    """Add sizes and peak from a published study of the same chip and models, and draft speeds from the table itself."""
    own = AuditContext(rows=rows)
    known = {row.target for row in rows} | {row.draft for row in rows if row.draft}
    timed = {name: [r.tok_s.high for r in own.plain_runs(name) if r.tok_s is not None] for name in known}
    draft_ms = {name: DRAFT_SHARE * 1e3 / max(values) for name, values in timed.items() if values}
    sizes: dict[str, float] = {}
    source = "as told"
    for name in published.names():
        study = published.load(name)
        if study.machine is None or chips != {study.machine.chip} or not known <= {model.id for model in study.models}:
            continue
        sizes = {m.id: m.pass_bytes for m in study.models if m.pass_bytes is not None}
        in_print = published.context(study).draft_token_ms
        draft_ms = in_print | published.draft_token_ms(study, own) | draft_ms
        peak_gb_s, source = peak_gb_s or study.machine.peak_gb_s, study.machine.source
        taken = "model sizes, peak bandwidth and speeds that the table lacks are taken from it"
        notes += (f"Chip and models are those of {study.title}: {taken}.",)
    return AuditContext(
        rows=rows,
        peak_gb_s=peak_gb_s,
        peak_source=source if peak_gb_s else "",
        pass_bytes=sizes,
        draft_token_ms=draft_ms,
        notes=notes,
    )
