"""Audit rows from tables of others, in a file, and what is known beside them."""

import functools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from mlsd.audits import published_tables as published
from mlsd.audits.bounds import whole_drafts
from mlsd.audits.cells import CellError, rows_of
from mlsd.audits.frame import peak_gb_s
from mlsd.audits.headings import HEADINGS
from mlsd.audits.model_name import read_model_name, stored_as
from mlsd.audits.read import chips_in, read_pasted
from mlsd.audits.rows import AuditContext, AuditRow, PastedRow
from mlsd.errors import TableError
from mlsd.hardware.chips import with_known_peak
from mlsd.outside import read_given
from mlsd.records import Record
from mlsd.stats import grouped

NEEDED = ("gamma", "n_predict", "acceptance")  # without them most rules have nothing to judge
_FEWEST_SAME, _SAME_SHARE = 4, 0.9  # rows that print the figures of a published study before they are taken for it
_MOST_GAMMA = 256  # no program drafts so much, and all ways to stop short are too many to try
_NAMED = 5  # rows or models that a note names
_FULL_SHARE, _FULL_CHANCE = 0.9, 1e-4  # counts that must fit full-length drafts, and how rarely chance may do that
_SHIFTS = tuple(0.93 + 0.0061 * i for i in range(24))  # of an acceptance, to see how easily any number fits


class Assumed(Record, frozen=True, kw_only=True):
    """What whoever asks says of a table; None leaves it to the table."""

    full_drafts: bool | None = None  # whether every round proposes gamma tokens; else the counts decide
    peak_gb_s: float | None = None  # of the memory; else that of each row's chip
    model: str | None = None  # of rows that name none
    chip: str | None = None


NOTHING = Assumed()
STANDARD_INPUT = Path("-")


def table_contexts(path: Path, assumed: Assumed = NOTHING) -> list[AuditContext]:
    """A context of each table in a file as people paste them, and of a server's log.

    Raises: TableError naming file, line and column.
    """
    if path == STANDARD_INPUT:
        data, name = sys.stdin.buffer.read(), "standard input"
    else:
        data, name = read_given(path, TableError, "Give the path of a file."), path.name
    pasted, notes = read_pasted(data, name)
    contexts, broken = list[AuditContext](), list[TableError]()
    for rows in grouped(pasted, lambda row: row.group).values():
        try:
            contexts.append(rows_context(rows, name, assumed))
        except TableError as error:
            broken.append(error)
    if not contexts:
        raise broken[0]
    notes = [*contexts[-1].notes, *notes, *(error.message for error in broken)]
    return [*contexts[:-1], msgspec.structs.replace(contexts[-1], notes=tuple(notes))]


def one_speed(tok_s: float, assumed: Assumed) -> AuditContext:
    """The context of a plain speed that somebody asks about alone."""
    return rows_context([PastedRow(line=2, cells={"tok_s": str(tok_s), "label": "plain decoding"})], "asked", assumed)


def rows_context(pasted: Sequence[PastedRow], source: str, assumed: Assumed) -> AuditContext:
    """The context of the rows of one table. Raises: TableError when none is finished and understood."""
    done = [row for row in pasted if row.cells.get("status", "ok") in ("ok", "valid", "hot")]
    alone = [row for row in done if row.cells.get("users", "1") in ("1", "-", "")]
    rows, cells_lost = list[AuditRow](), list[str]()
    lost = [f"line {row.line}, {row.broken}" for row in alone if row.broken]
    for row in (row for row in alone if not row.broken):
        cells = _around(row, assumed) | row.cells
        label = cells.get("label", "")
        names = [row.setting, cells.get("answer", ""), cells.get("method", "")] + ([] if "repeat" in cells else [label])
        if not re.search("[^\\W\\d]", label):  # a number names nothing
            label = row.quote
        try:
            setting = " ".join(filter(None, names))
            rows += _understood(cells, row, cells_lost, table=row.table or source, label=label, setting=setting)
        except CellError as error:
            lost.append(_where(row, error))
    rows = [row for row in rows if row.tok_s is not None or row.speculative]
    if not rows:
        message = f"{source}, {lost[0]}." if lost else "The table holds no finished row with a decode speed."
        hint = "No row of the table could be read." if lost else f"Columns that are read: {', '.join(HEADINGS)}."
        raise TableError(message, hint=hint)
    speculative = any(row.speculative for row in rows)
    missing = [name for name in NEEDED if speculative and all(getattr(row, name) is None for row in rows)]
    more = f"; and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    n_users, n_failed = len(done) - len(alone), len(pasted) - len(done)
    notes = [
        *([f"{len(lost)} rows were not understood and left out: {'; '.join(lost[:_NAMED])}{more}."] if lost else []),
        *([f"Cells that are no number and were left out: {_first_of(cells_lost, '; ')}."] if cells_lost else []),
        *([f"{n_users} rows are of several users at once and were left out."] if n_users else []),
        *([f"{n_failed} rows are not ok and were left out."] if n_failed else []),
        *([f"Fewer rules apply: no row says {', '.join(missing)}."] if missing else []),
    ]
    exact_counts = _full_drafts(rows)
    rows, of_length = _with_length(rows, assumed.full_drafts) if speculative else (rows, [])
    context = AuditContext(rows=tuple(rows), peak_gb_s=assumed.peak_gb_s, exact_counts=exact_counts, notes=tuple(notes))
    return _with_knowledge(context, of_length)


_MODEL_IN_WORDS = re.compile(
    r"(?:[a-z][\w.+]*[ -])?(?:\d+(?:\.\d+)?[ -])?(?:[\w.]+-)*\d+(?:\.\d+)?[bm](?![a-z])(?:-[\w.]+)*", re.IGNORECASE
)
_FILE_GB = re.compile(r"(?<![\d.])(\d+\.\d+) ?GB\b")


def _around(row: PastedRow, assumed: Assumed) -> dict[str, str]:
    """Model, size and chip of a row that names none: of the heading over its table, else as assumed.

    A heading that names two chips gives none to a row that does not name its own.
    """
    cells, context = row.cells, f"{row.table} ; {row.above}"
    model = model_in(row.table) or model_in(row.above) or assumed.model
    of_row = chips_in(" ; ".join(cells.get(name, "") for name in ("method", "label", "prompt", "drafter")))
    of_heading = chips_in(row.table) or chips_in(row.above)
    chips = of_row or of_heading
    chip = chips[0] if len(chips) == 1 else None if chips else assumed.chip
    sizes = _FILE_GB.findall(context)
    size = sizes[0] if len(sizes) == 1 and "target" not in cells else None
    named = {"target": model, "chip": chip, "model_gb": size}
    return {name: text for name, text in named.items() if text}


def model_in(text: str) -> str | None:
    """The model that a heading names, with the quantization that stands in it apart: ``Qwen3-8B (Q4_K_M)``."""
    for match in _MODEL_IN_WORDS.finditer(text):
        name = match[0].strip()
        if read_model_name(name).total_b is None or re.fullmatch(r"\d+(?:\.\d+)?b", name, re.IGNORECASE):
            continue
        apart = stored_as(text[: match.start()] + " " + text[match.end() :])
        return f"{name} {apart[0]}" if read_model_name(name).bits is None and len(apart) == 1 else name
    return None


def _understood(cells: dict[str, str], row: PastedRow, lost: list[str], **fields: str) -> list[AuditRow]:
    """The row, without the cells that are no figure where it has a speed without them. Raises: CellError."""
    while True:
        try:
            return rows_of(cells, **fields)
        except CellError as error:
            if error.column in ("tok_s", "gamma", "ms_per_token") or error.column not in cells:
                raise
            lost.append(_where(row, error))
            cells = {name: cell for name, cell in cells.items() if name != error.column}


def _where(row: PastedRow, error: CellError) -> str:
    """Where the cell stands, its column as the table heads it."""
    return f"line {row.line}, column {row.heads.get(error.column, error.column)}: {error.why}"


def _with_length(rows: list[AuditRow], full_drafts: bool | None) -> tuple[list[AuditRow], list[str]]:
    """The rows, each with whether its drafts have full length, and how that was decided."""
    by_draft = grouped((row for row in rows if row.speculative), lambda row: row.draft)
    whole = {draft: _full_drafts(own) if full_drafts is None else full_drafts for draft, own in by_draft.items()}
    rows = [msgspec.structs.replace(row, fixed_length=row.speculative and whole[row.draft]) for row in rows]
    full = all(whole.values())
    some = ", ".join(str(draft) for draft, is_full in whole.items() if is_full)
    of = f" of {some}, others of unknown length" if some and not full else ""
    lengths = f"Full-length drafts{of}" if full or some else "Drafts of unknown length"
    how = "as stated" if full_drafts is not None else "decided from the counts"
    more = "" if full or full_drafts is not None else "; where every draft has gamma tokens, say --full-drafts"
    return rows, [f"{lengths}: {how}{more}."]


def _figures(row: AuditRow) -> tuple[float | None, ...] | None:
    """What tells a printed row from every other, where it states enough."""
    stated = (row.tok_s, row.speedup, row.acceptance, row.mgl)
    if not row.speculative or sum(one is not None for one in stated) < 2:
        return None
    return (row.gamma, *(None if one is None else round(one.value, 6) for one in stated))


@functools.cache
def _published() -> list[tuple[published.PublishedStudy, AuditContext, dict[object, AuditRow]]]:
    """Each study of one source, its context, and its rows by their figures."""
    studies = [study for study in map(published.load, published.names()) if not study.separate]
    contexts = [(study, published.context(study)) for study in studies]
    return [(study, one, {key: row for row in one.rows if (key := _figures(row))}) for study, one in contexts]


def _with_knowledge(context: AuditContext, of_length: list[str]) -> AuditContext:
    """Add what a published study says of the rows, where they print its figures: all of it and its plain runs.

    Of a study of the same chip and models, add sizes, peak, and draft speeds beside those of the table itself.
    """
    chips = {row.chip for row in context.rows if row.chip}
    named = {row.target for row in context.rows} | {row.draft for row in context.rows if row.draft}
    for study, printed, by_figures in _published():
        same = [by_figures.get(_figures(row)) for row in context.rows]
        n_same = sum(one is not None for one in same)
        if n_same >= _FEWEST_SAME and n_same >= _SAME_SHARE * len(same):
            note = f"These rows are those of {study.citation}: models and plain runs are taken from it."
            rows = tuple(
                mine if row is None else msgspec.structs.replace(row, table=mine.table, label=mine.label)
                for mine, row in zip(context.rows, same, strict=True)
            )
            beside = tuple(row for row in printed.rows if not row.speculative)
            return msgspec.structs.replace(printed, rows=rows, beside=beside, notes=(*context.notes, note))
        if study.machine is not None and chips == {study.machine.chip} and named <= {m.id for m in study.models}:
            taken = "model sizes, peak bandwidth and speeds that the table lacks are taken from it"
            of_length = [*of_length, f"Chip and models are those of {study.title}: {taken}."]
            context = msgspec.structs.replace(
                context,
                peak_gb_s=context.peak_gb_s or printed.peak_gb_s,
                pass_bytes=printed.pass_bytes,
                draft_token_ms=printed.draft_token_ms | published.draft_token_ms(study, context.rows),
            )
    return msgspec.structs.replace(context, notes=(*context.notes, *of_length, *_unknown(context)))


def _unknown(context: AuditContext) -> Iterator[str]:
    """Of which models a known peak says nothing, because their size is not known; chips of whose memory none is."""
    rows = [row for row in context.rows if context.peak_gb_s or peak_gb_s(row.chip, row.pass_bytes)]
    models = sorted({row.target for row in rows if row.pass_bytes is None and row.target not in context.pass_bytes})
    if models:
        named = _first_of(models)
        yield f"The memory's peak bounds nothing of {named}: no bytes are known (`8B Q4_K_M` or model_gb tells)."
    chips = dict.fromkeys(row.chip for row in context.rows if row.chip and not context.peak_gb_s)
    if unknown := [chip for chip in chips if peak_gb_s(chip, None) is None]:
        listed = ", ".join(with_known_peak())
        yield f"No peak bandwidth is known of {_first_of(unknown)} (--peak-gb-s says it); known are {listed}."


def _first_of(names: Sequence[str], mark: str = ", ") -> str:
    return mark.join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _full_drafts(rows: list[AuditRow]) -> bool:
    """Whether the counts fit drafts of full length far more often than figures of so few digits do by chance."""
    chances = list[float]()  # of each rate that fits: how often one that is shifted does
    keyed = {
        (row.target, row.draft, row.gamma, row.prompt, row.n_prompt, row.n_predict, row.acceptance): row for row in rows
    }
    counted = [
        row for row in keyed.values()
        if row.speculative and row.acceptance_of in (None, "proposed") and row.mgl is None and row.rounds is None
        and row.acceptance and row.n_predict and 0 < (row.gamma or 0) <= _MOST_GAMMA
    ]  # fmt: skip
    for row in counted:
        fits, *shifted = [_is_whole(row, shift) for shift in (1.0, *_SHIFTS)]
        chances += [max(1, sum(shifted)) / len(_SHIFTS)] if fits else []
    enough = bool(counted) and len(chances) / len(counted) >= _FULL_SHARE
    return enough and math.prod(chances) <= _FULL_CHANCE


def _is_whole(row: AuditRow, shift: float) -> bool:
    assert row.acceptance is not None and row.gamma is not None and row.n_predict is not None
    by = row.acceptance.value * (shift - 1)
    low, high = (min(1.0, end + by) for end in (row.acceptance.low, row.acceptance.high))
    return whole_drafts(low, high, row.gamma, row.n_predict) is not None
