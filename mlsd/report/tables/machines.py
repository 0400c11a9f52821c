"""The table that sets the machines of a database side by side: none is pooled with another."""

from typing import NamedTuple

from mlsd.analysis.study.study import Study, attempt
from mlsd.report.render.table import Cell, Table, interval, number, numbers, percent, table, words
from mlsd.trials.answers import Answer, answers
from mlsd.trials.results import ArmResult

_WIDE = 5  # rows of a pass that verifies four drafted tokens
_WINDOW = 8  # consecutive tokens whose experts are counted


class _Row(NamedTuple):
    """One target on one machine."""

    machine: str
    target: str
    study: Study  # of this machine alone
    plain: ArmResult | None
    best: Answer | None  # over all texts, the one of most settings; of equals one that switches speculation on


def machine_table(study: Study) -> Table:
    """Every target on every machine, each with its own interval."""
    studies = (study, *study.other_machines)
    places = [one.place for one in studies]
    several = {place for place in places if places.count(place) > 1}
    names = [f"{one.place} {one.machine.key[:6]}" if one.place in several else one.place for one in studies]
    return table(
        "Machines side by side",
        [_row(name, one, target) for name, one in zip(names, studies, strict=True) for target in one.targets],
        words("machine", lambda row: row.machine),
        words("target", lambda row: row.target),
        numbers("plain tok/s", _plain),
        numbers("published", lambda row: number(row.study.environment.peak_bandwidth_gb_s, 0), "of the memory", "GB/s"),
        numbers("read", _read, "bytes that a token reads x plain tok/s", "GB/s"),
        numbers(f"T({_WIDE})/T(1)", _wide_pass, f"1 is free, {_WIDE} saves nothing"),
        numbers(f"N({_WINDOW})", _experts, f"mean distinct experts of a layer in {_WINDOW} tokens"),
        words("use", lambda row: row.best and row.best.setting),
        words("text", lambda row: row.best and row.best.text),
        words("best tried", lambda row: row.best and row.best.best and row.best.best.setting),
        numbers("its speedup", lambda row: interval(row.best.ratio if row.best else None, 2, "x")),
        id="machines-compared",
    )


def _row(machine: str, study: Study, target: str) -> _Row:
    plain = [one for one in study.pooled if one.is_plain and one.case.target.id == target and one.tok_s is not None]
    own = [one for one in answers(study.pooled) if one.target == target]
    return _Row(
        machine,
        target,
        study,
        plain=max(plain, key=lambda one: one.n_valid, default=None),
        best=max(own, key=lambda one: (len(one.arms), one.use == "on"), default=None),
    )


def _plain(row: _Row) -> Cell | None:
    return number(row.plain.tok_s, 1, note=f"spread {percent(row.plain.spread).text}") if row.plain else None


def _read(row: _Row) -> Cell:
    facts = row.study.facts.get(row.target)
    tok_s, n_bytes = row.plain and row.plain.tok_s, facts and facts.active_bytes
    return number(tok_s * n_bytes / 1e9 if tok_s and n_bytes else None, 1)


def _wide_pass(row: _Row) -> Cell:
    curves, _ = attempt(lambda: row.study.machine.curves)
    curve = (curves or {}).get(row.target)
    efficiency = curve and curve.efficiency.get(_WIDE)
    return number(1 / efficiency if efficiency else None)


def _experts(row: _Row) -> Cell:
    mixtures, _ = attempt(lambda: row.study.machine.mixtures)
    own = (rows for found in mixtures or () if found.name == row.target for rows in found.coverage.rows)
    return number(next((one.text for one in own if one.window == _WINDOW), None), 1)
