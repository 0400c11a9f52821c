"""Published tables as data: every figure as printed, with its source; read here, judged elsewhere.

A study is one TOML file in this folder. Tables hold strings, so that no printed digit is lost; `rows` gives audit rows,
`context` adds what the rules need: the memory's peak, the bytes of a pass, the cost of a draft token.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from mlsd.audits.cells import rows_of
from mlsd.audits.rows import AuditContext, AuditRow
from mlsd.errors import TableError, choose
from mlsd.records import Record

_FOLDER = Path(__file__).parent / "published"


class PublishedMachine(Record, frozen=True, kw_only=True):
    """Where a study measured."""

    chip: str
    peak_gb_s: float
    source: str


class PublishedModel(Record, frozen=True, kw_only=True):
    """A model of a study and what one token of it at least reads."""

    id: str
    name: str
    pass_bytes: float | None = None  # bytes of all weights that one token needs
    source: str = ""
    draft_timed_as: str | None = None  # the model whose printed tok/s bounds the time of a draft token
    active_b: str | None = None  # parameters used for one token, 10^9, as printed
    total_b: str | None = None


class PublishedTable(Record, frozen=True, kw_only=True):
    """One table: columns and cells as printed. `audited` tables become rows of the audit."""

    name: str
    title: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    audited: bool = True
    fixed_length: bool = False
    pooled_mgl: bool = False
    n_predict: int | None = None
    program: str | None = None
    same: dict[str, str] = msgspec.field(default_factory=dict)  # columns whose cell is the same in every row
    known_error: str = ""  # why no row of the table should be believed, where that is known

    @property
    def cells(self) -> list[dict[str, str]]:
        """The rows by column, shared cells included; empty cells and N/A are left out."""
        result = []
        for row in self.rows:
            if len(row) != len(self.columns):
                raise TableError(f"{self.name}: a row has {len(row)} cells, not {len(self.columns)}: {row[0]}.")
            named = self.same | dict(zip(self.columns, row, strict=True))
            result.append({column: cell for column, cell in named.items() if cell not in ("", "N/A")})
        return result


class PublishedStudy(Record, frozen=True, kw_only=True):
    """A published study."""

    name: str
    title: str
    authors: str
    year: int | None = None
    address: str = ""  # where it was read
    date: str = ""  # of the figures, as the source states it
    separate: bool = False  # tables of several sources, none of which judges another's rows
    verdict: str = ""  # what would make it possible, then what the audit finds and the figures that decide
    machine: PublishedMachine | None = None
    models: tuple[PublishedModel, ...] = ()
    tables: tuple[PublishedTable, ...] = ()
    drafting_ms: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)  # method -> target -> least of a round
    notes: tuple[str, ...] = ()

    @property
    def citation(self) -> str:
        return f"{self.title} ({self.authors}{f', {self.year}' if self.year else ''})"

    def table(self, name: str) -> PublishedTable:
        """The table of that name; raises TableError with the names there are."""
        for table in self.tables:
            if table.name == name:
                return table
        raise TableError(
            f"{self.name} has no table {name!r}.", hint=f"It has: {', '.join(t.name for t in self.tables)}."
        )


@cache
def names() -> list[str]:
    """The studies that ship with mlsd."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@cache
def load(name: str) -> PublishedStudy:
    """Read a study. Raises TableError when there is none of that name."""
    if name not in names():
        raise TableError(f"No published study is called {name!r}.", hint=choose(name, names()))
    return msgspec.toml.decode((_FOLDER / f"{name}.toml").read_bytes(), type=PublishedStudy)


def contexts(study: PublishedStudy) -> list[AuditContext]:
    """One context of the study, or one for each of its tables where they are of several sources."""
    if not study.separate:
        return [context(study)]
    return [context(msgspec.structs.replace(study, tables=(table,))) for table in study.tables if table.audited]


def context(study: PublishedStudy) -> AuditContext:
    """The rows of all audited tables with what is known of machine and models."""
    rows = tuple(row for table in study.tables if table.audited for row in table_rows(table, study.drafting_ms))
    sources = tuple(f"{model.name}: {model.source}" for model in study.models if model.source)
    return AuditContext(
        rows=rows,
        peak_gb_s=None if study.machine is None else study.machine.peak_gb_s,
        pass_bytes={model.id: model.pass_bytes for model in study.models if model.pass_bytes is not None},
        draft_token_ms=draft_token_ms(study, rows),
        notes=(f"Source: {study.address} ({study.date}).", study.verdict.strip(), *study.notes, *sources),
    )


def draft_token_ms(study: PublishedStudy, rows: Iterable[AuditRow]) -> dict[str, float]:
    """Least time of one draft token: the printed speed of the same model, scaled by bytes where the file differs.

    A pass takes a fixed time plus the time to read its bytes, so it shrinks by less than its bytes do.
    """
    sizes = {model.id: model.pass_bytes for model in study.models}
    fastest: dict[str, float] = {}
    for row in rows:
        if not (row.speculative or row.invalid_reason or row.cannot_be) and row.tok_s is not None:
            fastest[row.target] = max(row.tok_s.high, fastest.get(row.target, 0.0))
    result = {}
    for model in study.models:
        if model.draft_timed_as in fastest:
            draft_bytes, timed_bytes = sizes[model.id], sizes[model.draft_timed_as]
            result[model.id] = (
                1e3
                / fastest[model.draft_timed_as]
                * (min(1.0, draft_bytes / timed_bytes) if draft_bytes and timed_bytes else 1.0)
            )
    return result


def table_rows(table: PublishedTable, draft_ms: Mapping[str, Mapping[str, str]] | None = None) -> list[AuditRow]:
    """The cells of a table as audit rows; empty cells and N/A are left out.

    Columns are those that `cells` reads. A wide table names a column ``speedup:MODEL`` or ``mgl:MODEL`` and gives a row
    for each model. `draft_ms` is the time that another table prints of a drafter on a target. Raises: TableError naming
    the row.
    """
    stated = {name: getattr(table, name) for name in ("fixed_length", "pooled_mgl", "n_predict", "program")}
    models = sorted({column.partition(":")[2] for column in table.columns if ":" in column})
    rows: list[AuditRow] = []
    for named in table.cells:
        cells = {column: cell for column, cell in named.items() if ":" not in column}
        for model in models or [""]:
            of_model = {name.partition(":")[0]: cell for name, cell in named.items() if name.endswith(f":{model}")}
            if model and not of_model:
                continue
            row = cells | ({"target": model, **of_model} if model else {})
            drafting = (draft_ms or {}).get(row.get("drafter", ""), {}).get(row.get("target", ""))
            try:
                rows += rows_of(({"draft_ms": drafting} if drafting else {}) | row, table=table.name, **stated)
            except ValueError as error:
                raise TableError(f"{table.name}: a row cannot be read: {error} in {list(row.values())}.") from error
    return rows
