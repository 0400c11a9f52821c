"""Tables that set the machines of a database side by side."""

from __future__ import annotations

from mlsd.analysis.study.machines import MachineClaim, compared, machine_claims, machine_names, machine_rows
from mlsd.analysis.study.study import Study
from mlsd.report.render.table import Column, Table, interval, number, numbers, percent, table, words


def machine_table(study: Study) -> Table:
    """Every target on every machine, each with its own interval."""
    return table(
        "Machines side by side",
        machine_rows(study),
        words("machine", lambda row: row.machine),
        words("target", lambda row: row.target),
        numbers(
            "plain tok/s",
            lambda row: number(row.plain_tok_s, 1, note=f"spread {percent(row.spread).text}"),
            "results.ArmResult.tok_s",
        ),
        numbers("published", lambda row: number(row.peak_gb_s, 0), "chips: the memory's peak", "GB/s"),
        numbers("read", lambda row: number(row.read_gb_s, 1), "bytes that a token reads x plain tok/s", "GB/s"),
        numbers("T(5)/T(1)", lambda row: number(row.wide_pass), "calibration: 1 is free, 5 saves nothing"),
        numbers(
            "N(8)", lambda row: number(row.experts, 1), "calibration: mean distinct experts of a layer in 8 tokens"
        ),
        words("use", lambda row: row.best and row.best.setting, "answers.answers over results.pooled_results"),
        words("text", lambda row: row.best and row.best.text),
        words("best tried", lambda row: row.best and row.best.best and row.best.best.setting),
        numbers(
            "its speedup",
            lambda row: interval(row.best.ratio if row.best else None, 2, "x"),
            "results.ArmResult.ratio",
        ),
        id="machines-compared",
    )


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
