"""Tables that set the machines of a database side by side."""

from __future__ import annotations

from mlsd.analysis.study.machines import MachineClaim, MachineRow, compared, machine_claims, machine_names, machine_rows
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import Cell, Column, Table, interval, number, numbers, percent, table, words


def _plain(row: MachineRow) -> Cell:
    return number(row.plain_tok_s, 1, note=f"spread {percent(row.spread).text}")


MACHINE: dict[str, Column[MachineRow]] = {
    "machine": words("machine", lambda row: row.machine),
    "target": words("target", lambda row: row.target),
    "plain": numbers("plain tok/s", _plain),
    "published": numbers("published", lambda row: number(row.peak_gb_s, 0), "of the memory", "GB/s"),
    "read": numbers("read", lambda row: number(row.read_gb_s, 1), "bytes that a token reads x plain tok/s", "GB/s"),
    "wide": numbers("T(5)/T(1)", lambda row: number(row.wide_pass), "1 is free, 5 saves nothing"),
    "experts": numbers("N(8)", lambda row: number(row.experts, 1), "mean distinct experts of a layer in 8 tokens"),
    "use": words("use", lambda row: row.best and row.best.setting),
    "text": words("text", lambda row: row.best and row.best.text),
    "best": words("best tried", lambda row: row.best and row.best.best and row.best.best.setting),
    "speedup": numbers("its speedup", lambda row: interval(row.best.ratio if row.best else None, 2, "x")),
}


def machine_table(study: Study) -> Table:
    """Every target on every machine, each with its own interval."""
    return table("Machines side by side", machine_rows(study), *MACHINE.values(), id="machines-compared")


def claims_by_machine(study: Study) -> Table:
    """Which of the published claims hold on which machine."""

    def decisions(machine: str, at: int) -> Column[MachineClaim]:
        return words(machine, lambda row: row.decisions[at])

    return table(
        "Claims by machine",
        machine_claims(study),
        words("claim", lambda row: row.text),
        *(decisions(machine, at) for at, machine in enumerate(machine_names(compared(study)))),
        id="claims-by-machine",
        note="no machine's trials say anything of a claim.",
    )
