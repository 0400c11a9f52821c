"""The tables of comparisons: what the gate says of every measure, and which build of a list changed one."""

from __future__ import annotations

from collections.abc import Sequence

from mlsd.analysis.compare.bisect import Search
from mlsd.analysis.compare.gate import Finding
from mlsd.analysis.compare.sessions import Comparison, Side
from mlsd.report.render.table import Cell, Table, Tone, head, name, number, percent, significant, text
from mlsd.stats import Interval

_WIDEST = 10.0  # of an interval that says anything
_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "undecided": "doubt", "same": "quiet"}


def comparison_table(found: Comparison) -> Table:
    """Every measure of one comparison."""
    return Table(
        id=f"compare-{found.session or 'databases'}",
        title=f"{side_name(found.b)} (B) against {side_name(found.a)} (A)",
        heads=(
            name("measure"),
            head("A"),
            head("B"),
            name("", "unit of A and B"),
            head("B / A", "gate.judge: geometric mean over blocks; of shares the difference, in points"),
            head("99.5 %", "gate.judge: t over blocks, corrected for the number of measures"),
            head("A / A", "the control, A once more, likewise"),
            name("verdict", "gate.judge: the interval excludes no change, or lies within the margin"),
        ),
        rows=tuple(_row(finding) for finding in found.findings),
        trace="analysis.compare.sessions over the runs of one session of mlsd compare",
        note=_note(found),
    )


def side_name(side: Side) -> str:
    """A side as a reader tells it from another."""
    place = side.environment
    what = f"llama-cpp-python {place.llama_cpp_python_version}, {place.llama_cpp_build}"
    return f"{side.build} [{what}{f'; {side.settings}' if side.settings else ''}]"


def _row(finding: Finding) -> tuple[Cell, ...]:
    measure, change = finding.measure, finding.change

    def shown(value: float | None) -> Cell:
        return text(None) if value is None else Cell(text=significant(value), sort=value)

    def scaled(value: float) -> str:
        return f"{value:.3f}" if measure.is_ratio else f"{100 * value:+.1f}"

    def ends(of: Interval | None) -> Cell:
        if of is None or of.low is None or of.high is None or of.high - of.low > _WIDEST:
            return text(None, note="too few blocks, or too much noise, to say anything")
        return Cell(text=f"{scaled(of.low)} .. {scaled(of.high)}", sort=of.low)

    return (
        text(measure.name),
        shown(finding.a),
        shown(finding.b),
        text(measure.unit),
        number(None) if change is None else Cell(text=scaled(change.value), sort=change.value),
        ends(change),
        ends(finding.control),
        text(finding.words, _TONES.get(finding.verdict, "")),
    )


def _note(found: Comparison) -> str:
    how = f"{found.n_blocks} blocks, one worker process a build and block" if found.interleaved else "not interleaved"
    return " ".join((f"{how}.", *found.outputs, *(f"Not counted: {reason}." for reason in found.invalid), *found.notes))


def search_table(found: Search, builds: Sequence[Side]) -> Table:
    """A search over builds: how sure it is of each."""
    rows = []
    for place, side in enumerate(builds):
        chance = found.chances[place - 1] if place and found.chances else None
        sure = place == found.found
        rows.append(
            (
                number(place, 0),
                text(side_name(side)),
                number(found.turns[place], 0),
                percent(chance),
                text("first changed" if sure else "", "bad" if sure else ""),
            )
        )
    return Table(
        id="compare-search",
        title=f"Which build changed {found.measure or 'anything'}",
        heads=(
            head("build"),
            name("named"),
            head("turns", "worker processes it ran in"),
            head("first to change", "bisect.first_changed"),
            name(""),
        ),
        rows=tuple(rows),
        trace="analysis.compare.bisect over the runs of one session of mlsd compare --bisect",
    )
