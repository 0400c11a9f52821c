"""Tables that set the machines of a database side by side."""

from __future__ import annotations

from mlsd.analysis.study.machines import compared, machine_claims, machine_names, machine_rows
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import Table, head, interval, name, number, text


def machine_table(study: Study) -> Table:
    """Every target on every machine, each with its own interval."""
    rows = [
        (
            text(row.machine),
            text(row.target),
            interval(row.plain_tok_s, 1),
            number(row.peak_gb_s, 0),
            interval(row.read_gb_s, 1),
            number(row.wide_pass),
            number(row.experts, 1),
            text(None if row.best is None else row.best.use),
            text(row.best.arm.setting if row.best is not None and row.best.arm is not None else None),
            interval(None if row.best is None else row.best.ratio, 2, "x"),
        )
        for row in machine_rows(study)
    ]
    return Table(
        id="machines-compared",
        title="Machines side by side",
        heads=(
            name("machine"),
            name("target"),
            head("plain tok/s", "stats.mean_over prompts, of one prompt over its blocks"),
            head("published", "chips: the memory's peak", "GB/s"),
            head("read", "bytes that a token reads x plain tok/s", "GB/s"),
            head("T(5)/T(1)", "calibration: 1 is free, 5 saves nothing"),
            head("N(8)", "calibration: mean distinct experts of a layer in 8 tokens"),
            name("use", "best_setting over all workloads"),
            name("best tried"),
            head("its speedup", "speedups.speedups, corrected for the choice: stats.best_of"),
        ),
        rows=tuple(rows),
        trace="study.machines.machine_rows: each machine's own trials, never pooled",
    )


def claims_by_machine(study: Study) -> Table:
    """Which of the published claims hold on which machine."""
    rows = [(text(row.said), *map(text, row.decisions)) for row in machine_claims(study)]
    return Table(
        id="claims-by-machine",
        title="Claims by machine",
        heads=(name("claim"), *(name(machine) for machine in machine_names(compared(study)))),
        rows=tuple(rows),
        trace="claims.decide_all on each machine's own trials",
        note="no machine's trials say anything of a claim.",
    )
