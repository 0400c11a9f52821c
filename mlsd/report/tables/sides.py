"""Tables that set two or more sides beside each other: the machines of a database, none pooled; builds and settings."""

from typing import NamedTuple

from mlsd.analysis.compare.gate import Finding, Measure
from mlsd.analysis.compare.sessions import ComparedSide, Comparison
from mlsd.analysis.study.study import Study, attempt
from mlsd.columns import column
from mlsd.report.render.table import Cell, Table, Tone, number, percent, significant, table, text
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
        column("machine"),
        column("target"),
        column("plain tok/s", "1", "", _plain),
        column("published GB/s", "0", "of the memory", "study.environment.peak_bandwidth_gb_s"),
        column("read GB/s", "1", "bytes that a token reads x plain tok/s", _read),
        column(f"T({_WIDE})/T(1)", "2", f"1 is free, {_WIDE} saves nothing", _wide_pass),
        column(f"N({_WINDOW})", "1", f"mean distinct experts of a layer in {_WINDOW} tokens", _experts),
        column("use", of="best.setting"),
        column("text", of="best.text"),
        column("best tried", of="best.best.setting"),
        column("its speedup", "[2]x", "", "best.ratio"),
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


def _read(row: _Row) -> float | None:
    facts = row.study.facts.get(row.target)
    tok_s, n_bytes = row.plain and row.plain.tok_s, facts and facts.active_bytes
    return tok_s * n_bytes / 1e9 if tok_s and n_bytes else None


def _wide_pass(row: _Row) -> float | None:
    curves, _ = attempt(lambda: row.study.machine.curves)
    curve = (curves or {}).get(row.target)
    efficiency = curve and curve.efficiency.get(_WIDE)
    return 1 / efficiency if efficiency else None


def _experts(row: _Row) -> float | None:
    mixtures, _ = attempt(lambda: row.study.machine.mixtures)
    counted = (rows for one in mixtures or () if one.name == row.target for rows in one.coverage.rows)
    return next((one.text for one in counted if one.window == _WINDOW), None)


# --- builds and settings ------------------------------------------------------------------------------------------


def comparison_table(found: Comparison) -> Table:
    """Every measure of one comparison."""
    return table(
        f"{side_name(found.b)} (B) against {side_name(found.a)} (A)",
        found.findings,
        column("measure", of="measure.name"),
        column("A", "n", "", lambda f: _shown(f.a)),
        column("B", "n", "", lambda f: _shown(f.b)),
        column("unit", "", "of A and B", "measure.unit", ""),
        column("B / A", "n", "geometric mean over blocks; of shares the difference, in points", _change),
        column("99.5 %", "n", "t over blocks, corrected for the number of measures", lambda f: _ends(f, f.change)),
        column("A / A", "n", "the control, A once more, likewise", lambda f: _ends(f, f.control)),
        column("verdict", "", "whether no change is in the interval",
               lambda f: text(f.words, _TONES.get(f.verdict, ""))),
        id=f"compare-{found.session}",
        note=_note(found),
    )  # fmt: skip


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


def _ends(finding: Finding, of: Interval | None) -> Cell:
    if of is None or of.low is None or of.high is None or of.high - of.low > _WIDEST:
        return text(None, note="too few blocks, or too much noise, to say anything")
    return Cell(text=f"{_scaled(finding.measure, of.low)} .. {_scaled(finding.measure, of.high)}", sort=of.low)


def _note(found: Comparison) -> str:
    how = f"{found.n_blocks} blocks, one worker process a build and block."
    return " ".join((how, *found.outputs, *(f"Not counted: {reason}." for reason in found.invalid)))
