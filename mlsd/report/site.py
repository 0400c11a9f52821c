"""Several studies as a static site: an index with one row a machine and target, and the report of each machine.

Sources are study databases and records. Machines stand side by side and are never pooled.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from mlsd import __version__
from mlsd.analysis.audit.record_identities import problems
from mlsd.analysis.results import comparability
from mlsd.analysis.study.machines import MachineRow, machine_name, machine_row
from mlsd.analysis.study.study import Study, read_study
from mlsd.errors import AnalysisError, MlsdError, TableError
from mlsd.measure.exchange.record import SUFFIX, import_record, is_record, read_record
from mlsd.measure.store.store import Store
from mlsd.records import Record
from mlsd.report.render import html, plot
from mlsd.report.render.sections import FigureEntry, Page, picture, section
from mlsd.report.render.table import Cell, Column, Table, numbers, table, through, words
from mlsd.report.tables.machines import MACHINE
from mlsd.report.write import write_files, write_report
from mlsd.stats import grouped
from mlsd.trials.answers import Use
from mlsd.units import counted


class Entry(Record, frozen=True, kw_only=True):
    """One target on one machine of one source."""

    source: str
    host: str  # the stable hash of the machine
    link: str  # of its report, relative to the index
    build: str | None
    measured_at: str  # ISO 8601: when its latest run began
    n_trials: int
    row: MachineRow


class Site(Record, frozen=True, kw_only=True):
    """What was written."""

    index: str
    reports: tuple[str, ...]
    answer: str
    left_out: tuple[str, ...]  # sources that could not be read, and why


def write_site(sources: Sequence[Path], folder: Path, tell: Callable[[str], None] = lambda step: None) -> Site:
    """Write ``index.html`` and a folder with the report of each machine; `tell` hears what is being done.

    A source that cannot be read is left out and named. Raises: InputError where nothing can be written,
    AnalysisError where no source can be read.
    """
    entries: list[Entry] = []
    reports: list[str] = []
    left_out: list[str] = []
    for source in sources:
        try:
            tell(f"reading {source.name}")
            studies = _studies(source)
        except MlsdError as error:
            left_out.append(f"{source.name}: {error.message}")
            continue
        for study in studies:
            place = _folder(source, {entry.link for entry in entries})
            tell(f"writing {place}")
            reports.append(write_report(study, folder / place).html)
            entries += _entries(study, f"{place}/report.html")
    if not entries:
        raise AnalysisError("No source holds trials.", hint="\n".join(left_out) or "Measure some: mlsd run B.")
    page = _index(entries, left_out)
    write_files(folder, {"index.html": html.render(page).encode()})
    return Site(index=str(folder / "index.html"), reports=tuple(reports), answer=page.answer, left_out=tuple(left_out))


def _studies(source: Path) -> list[Study]:
    """One study for each machine of a source. Raises: MlsdError for one that is neither database nor record."""
    with _opened(source) as store:
        found = [read_study(store, key, others=False) for key in comparability.machines(store)]
    return [dataclasses.replace(study, source=source.name) for study in found]


@contextmanager
def _opened(source: Path) -> Iterator[Store]:
    if not is_record(source):
        with Store.open(source, create=False, read_only=True) as store:
            yield store
        return
    record = read_record(source)
    if found := problems(record):
        raise TableError(f"It contradicts itself: {found[0].where}: {found[0].sentence}.")
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "study.sqlite") as store:
        import_record(store, record)
        yield store


def _folder(source: Path, taken: set[str]) -> str:
    """A name for the folder of a machine, in letters that every server and file system takes."""
    name = source.name.removesuffix(SUFFIX).removesuffix(".sqlite")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "study"
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(one for one in names if f"{one}/report.html" not in taken)


def _entries(study: Study, link: str) -> list[Entry]:
    targets = grouped(study.trials["target"], str)
    return [
        Entry(
            source=study.source,
            host=study.environment.host,
            link=link,
            build=study.environment.llama_cpp_build,
            measured_at=study.runs[-1].started_at,
            n_trials=len(trials),
            row=machine_row(machine_name(study.environment), study, target),
        )
        for target, trials in targets.items()
    ]


# --- the index ------------------------------------------------------------------------------------------------------


_USES: dict[Use, str] = {"on": "faster", "off": "better off", "not decided yet": "not decided yet"}


def _index(entries: Sequence[Entry], left_out: Sequence[str]) -> Page:
    shown = section("index", "Machines and targets", entries, index_table)
    uses: Counter[Use] = Counter(
        entry.row.best.use if entry.row.best is not None else "not decided yet" for entry in entries
    )
    counts = ", ".join(f"{word} for {uses[use]}" for use, word in _USES.items() if uses[use])
    machines = len({entry.host for entry in entries})
    return Page(
        title="Speculative decoding, machine by machine",
        answer=f"Of {counted(len(entries), 'pair')} of machine and target, speculation is {counts}.",
        chart=picture(entries, _HISTORY),
        summary=f"{counted(machines, 'machine')}, {counted(len(entries), 'row')}; each row leads to its report.",
        notes=tuple(f"Left out: {text}" for text in left_out),
        sections=(shown,),
        made=f"mlsd {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
    )


def index_table(entries: Sequence[Entry]) -> Table:
    """Every target of every machine, the latest first."""
    ordered = sorted(entries, key=lambda entry: entry.measured_at, reverse=True)
    return table(
        "Machines and targets",
        ordered,
        words("machine", lambda e: Cell(text=e.row.machine, sort=e.row.machine.lower(), link=e.link)),
        *_of_row("target"),
        words("measured", lambda e: e.measured_at[:10]),
        words("llama.cpp", lambda e: e.build),
        numbers("trials", lambda e: e.n_trials),
        *_of_row("plain", "wide", "use", "text", "best", "speedup"),
        words("source", lambda e: e.source),
        id="machines",
        interactive=True,
    )


def _of_row(*keys: str) -> tuple[Column[Entry], ...]:
    return through(lambda entry: entry.row, [MACHINE[key] for key in keys])


def history(entries: Sequence[Entry]) -> Figure:
    """Plain decoding of each target over time; a line joins the runs of one machine."""
    dates = {entry.measured_at for entry in entries}
    if len(dates) < 2:
        raise AnalysisError("all of it was measured at one time.")
    groups = grouped(entries, lambda entry: (entry.row.machine, entry.host, entry.row.target))
    alike = Counter(machine for machine, _ in {key[:2] for key in groups})
    lines = {
        f"{machine}{f' {host[:6]}' if alike[machine] > 1 else ''}, {target}": sorted(own, key=lambda e: e.measured_at)
        for (machine, host, target), own in groups.items()
    }
    figure, parts = plot.panels(lines, by=lambda own: own[0].row.target)
    for (ax,), shown in parts:
        for index, (label, own) in enumerate(shown):
            known = [(e.measured_at, e.row.plain_tok_s) for e in own if e.row.plain_tok_s is not None]
            when = [date2num(datetime.datetime.fromisoformat(at)) for at, _ in known]
            ax.plot(when, [rate for _, rate in known], **plot.look(index, label=label))
        locator = AutoDateLocator()
        ax.xaxis_date()
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        ax.set(ylabel="plain decode tok/s", ylim=(0, None))
        plot.legend([ax], 1)
    return figure


_HISTORY = FigureEntry("history", "History", history)
