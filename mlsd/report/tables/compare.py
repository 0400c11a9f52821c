"""The table of a comparison: what the gate says of every measure."""

from mlsd.analysis.compare.gate import Finding, Measure
from mlsd.analysis.compare.sessions import ComparedSide, Comparison
from mlsd.report.render.table import Cell, Table, Tone, numbers, significant, table, text, words
from mlsd.stats import Interval

_WIDEST = 10.0  # of an interval that says anything
_TONES: dict[str, Tone] = {"faster": "good", "slower": "bad", "not decided yet": "doubt", "same": "quiet"}


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
