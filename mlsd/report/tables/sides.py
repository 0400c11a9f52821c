"""Tables that set two or more sides beside each other: the machines of a database, none pooled; builds and settings."""

from typing import NamedTuple

from mlsd.analysis.compare.gate import Finding, Measure
from mlsd.analysis.compare.sessions import ComparedSide, Comparison
from mlsd.analysis.study.study import Study, attempt
from mlsd.report.render.table import (
    Cell,
    Table,
    Tone,
    interval,
    number,
    numbers,
    percent,
    significant,
    table,
    text,
    words,
)
from mlsd.stats import Interval
from mlsd.trials.on_or_off import Answer, answers
from mlsd.trials.results import ArmResult

_WIDE = 5  # rows of a pass that verifies four drafted tokens
_WINDOW = 8  # consecutive tokens whose experts are counted
_WIDEST = 10.0  # of an interval that says anything
_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "not decided yet": "caution", "same": "quiet"}


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


# --- builds and settings ------------------------------------------------------------------------------------------


def comparison_table(found: Comparison) -> Table:
    """Every measure of one comparison."""
    return table(
        f"{side_name(found.b)} (B) against {side_name(found.a)} (A)",
        found.findings,
        words("measure", lambda f: f.measure.name),
        numbers("A", lambda f: _shown(f.a)),
        numbers("B", lambda f: _shown(f.b)),
        words("", lambda f: f.measure.unit, "unit of A and B"),
        numbers("B / A", _change, "geometric mean over blocks; of shares the difference, in points"),
        numbers("99.5 %", lambda f: _ends(f.measure, f.change), "t over blocks, corrected for the number of measures"),
        numbers("A / A", lambda f: _ends(f.measure, f.control), "the control, A once more, likewise"),
        words("verdict", lambda f: text(f.words, _TONES.get(f.verdict, "")), "whether no change is in the interval"),
        id=f"compare-{found.session}",
        note=_note(found),
    )


def side_name(side: ComparedSide) -> str:
    """A side as a reader tells it from another."""
    place = side.environment
    what = f"llama-cpp-python {place.llama_cpp_python_version}, {place.llama_cpp_build}"
    return f"{side.build} [{what}{f'; {side.settings}' if side.settings else ''}]"


def _shown(value: float | None) -> Cell:
    return text(None) if value is None else Cell(text=significant(value), sort=value)


def _scaled(measure: Measure, value: float) -> str:
    return f"{value:.3f}" if measure.is_ratio else f"{100 * value:+.1f}"


def _change(finding: Finding) -> Cell:
    change = finding.change
    return text(None) if change is None else Cell(text=_scaled(finding.measure, change.value), sort=change.value)


def _ends(measure: Measure, of: Interval | None) -> Cell:
    if of is None or of.low is None or of.high is None or of.high - of.low > _WIDEST:
        return text(None, note="too few blocks, or too much noise, to say anything")
    return Cell(text=f"{_scaled(measure, of.low)} .. {_scaled(measure, of.high)}", sort=of.low)


def _note(found: Comparison) -> str:
    how = f"{found.n_blocks} blocks, one worker process a build and block."
    return " ".join((how, *found.outputs, *(f"Not counted: {reason}." for reason in found.invalid)))
