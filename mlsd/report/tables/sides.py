"""Tables that set two or more sides beside each other: the machines of a database, none pooled; builds and settings."""

from typing import Any

from mlsd.analysis.compare.gate import Finding, Measure
from mlsd.analysis.compare.sessions import ComparedSide, Comparison
from mlsd.analysis.study.study import Study, attempt
from mlsd.columns import column, columns
from mlsd.report.render.table import Table, table
from mlsd.stats import Interval
from mlsd.trials.on_or_off import answers

_WIDE = 5  # rows of a pass that verifies four drafted tokens
_WINDOW = 8  # consecutive tokens whose experts are counted
_WIDEST = 10.0  # of an interval that says anything


def machine_table(study: Study) -> Table:
    """Every target on every machine, each with its own interval."""
    studies = (study, *study.other_machines)
    machines = [each.machine_name for each in studies]
    names = [f"{m} {each.machine.key[:6]}" if machines.count(m) > 1 else m
             for m, each in zip(machines, studies, strict=True)]  # fmt: skip
    return table(
        "Machines side by side",
        [
            _machine_row(name, each, target)
            for name, each in zip(names, studies, strict=True)
            for target in each.targets
        ],
        *columns("machine; target; plain tok/s:1=plain.tok_s; published GB/s:0=peak_gb_s"),
        column("read GB/s", "1", "bytes that a token reads x plain tok/s"),
        column(f"T({_WIDE})/T(1)", "2", f"1 is free, {_WIDE} saves nothing", "wide"),
        column(f"N({_WINDOW})", "1", f"mean distinct experts of a layer in {_WINDOW} tokens", "experts"),
        *columns("use=best.setting; text=best.text; best tried=best.best.setting; its speedup:[2]x=best.ratio"),
        id="machines-compared",
    )


def _machine_row(machine: str, study: Study, target: str) -> dict[str, Any]:
    """One target on one machine; of equal answers the one that switches speculation on."""
    of_target = [answer for answer in answers(study.pooled) if answer.target == target]
    curves, _ = attempt(lambda: study.machine.curves)
    mixtures, _ = attempt(lambda: study.machine.mixtures)
    counted = [row for mixture in mixtures or () if mixture.name == target for row in mixture.coverage.rows]
    plain = study.plain_by_target.get(target)
    n_bytes = study.facts[target].active_bytes if target in study.facts else None
    curve = (curves or {}).get(target)
    return {
        "machine": machine,
        "target": target,
        "peak_gb_s": study.environment.peak_bandwidth_gb_s,
        "plain": plain,
        "read GB/s": plain.tok_s * n_bytes / 1e9 if plain is not None and plain.tok_s and n_bytes else None,
        "wide": 1 / curve.efficiency[_WIDE] if curve is not None and curve.efficiency.get(_WIDE) else None,
        "experts": next((row.text for row in counted if row.window == _WINDOW), None),
        "best": max(of_target, key=lambda answer: (len(answer.arms), answer.use == "on"), default=None),
    }


def comparison_table(comparison: Comparison) -> Table:
    """Every measure of one comparison of builds or settings."""
    how = f"{comparison.n_blocks} blocks, one worker process a build and block."
    return table(
        f"{side_name(comparison.b)} (B) against {side_name(comparison.a)} (A)",
        comparison.findings,
        *columns("measure=measure.name; A:[2]=a; B:[2]=b"),
        column("unit", "", "of A and B", "measure.unit", ""),
        column("B / A", "n", "geometric mean over blocks; of shares the difference, in points",
               lambda f: f.change and _scaled(f.measure, f.change.value)),
        column("99.5 %", "n", "t over blocks, corrected for the number of measures", lambda f: _ends(f, f.change)),
        column("A / A", "n", "the control, A once more, likewise", lambda f: _ends(f, f.control)),
        column("verdict", "", "whether no change is in the interval", "sentence"),
        id=f"compare-{comparison.session}",
        note=" ".join((how, *comparison.outputs, *(f"Not counted: {reason}." for reason in comparison.invalid))),
    )  # fmt: skip


def side_name(side: ComparedSide) -> str:
    """A side as a reader tells it from another."""
    where = side.environment
    what = f"llama-cpp-python {where.llama_cpp_python_version}, {where.llama_cpp_build}"
    return f"{side.build} [{what}{f'; {side.settings}' if side.settings else ''}]"


def _scaled(measure: Measure, value: float) -> str:
    return f"{value:.3f}" if measure.is_ratio else f"{100 * value:+.1f}"


def _ends(finding: Finding, of: Interval | None) -> str | None:
    """None of too few blocks, or of an interval too wide to say anything."""
    if of is None or of.low is None or of.high is None or of.high - of.low > _WIDEST:
        return None
    return f"{_scaled(finding.measure, of.low)} .. {_scaled(finding.measure, of.high)}"
