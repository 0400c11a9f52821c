"""The study's equations and its bandwidth analysis in numbers: predicted beside measured, bytes beside times."""

from collections.abc import Sequence
from typing import Any

from mlsd.analysis.frames import BANDWIDTH, EQUATIONS
from mlsd.analysis.study.equations import Equations, equation_1
from mlsd.analysis.study.study import Study
from mlsd.analysis.study.traffic import M2_ULTRA, Pass
from mlsd.audits import published_tables as published
from mlsd.columns import chosen, column
from mlsd.errors import AnalysisError
from mlsd.report.render.prose import prose
from mlsd.report.render.table import Table, table
from mlsd.report.tables.columns import of_their_arms
from mlsd.stats import Interval, grouped
from mlsd.units import quoted

SHOWN = (2, 3, 5, 9, 17, 33, 64)  # k of the table of passes; the figure and the frame have all
_PRINTED = (("moe_q4", "draft_0.8b", "16"), ("dense_9b", "draft_0.8b", "16"))  # rows that a sentence computes


def equation_table(predictions: Sequence[Equations]) -> Table:
    """Speedup by equation 1, equation 2 and the corrected form, beside the measured one. Raises AnalysisError."""
    if not predictions:
        raise AnalysisError(
            "No draft model has valid trials beside plain decoding, so the equations have no inputs.",
            hint="Measure some: mlsd run B D.",
        )
    return table(
        "Equations 1 and 2 with measured inputs",
        predictions,
        *of_their_arms("arm", "suite target setting"),
        *chosen(EQUATIONS, "inputs alpha c t_seq_ms t_draft_ms t_verify_ms t_rest_ms proposed_per_round mgl"),
        *of_their_arms("arm", "speedup", speedup="measured speedup"),
        *chosen(EQUATIONS, "eq1 eq1_off eq2 eq2_off corrected corrected_off"),
        id="equations",
        note="Each predicted speedup is followed by itself over the measured one: 1 is right.",
    )


def equation_sentences(predictions: Sequence[Equations]) -> tuple[str, ...]:
    """How far each equation is off, and why; then what equation 1 gives with the study's own figures."""
    of_rounds, timed = ([e for e in predictions if e.inputs == inputs] for inputs in ("rounds", "calibration"))
    values: dict[str, Any] = {"worst_2": max(of_rounds, key=lambda e: e.eq2.off.value, default=None)}
    if of_rounds:
        off = [e.corrected.off.value for e in timed if e.corrected is not None]
        spans = {
            "eq1": [e.eq1.off.value for e in of_rounds],
            "eq2": [e.eq2.off.value for e in of_rounds],
            "verify": [e.t_verify_ms / e.t_seq_ms for e in of_rounds],
            "timed": off,
        }
        values |= {name: (min(span), max(span)) if span else None for name, span in spans.items()}
    return prose("equations", printed=_printed(), **values)


def _printed() -> list[dict[str, Any]]:
    """Equation 1 with the study's own acceptance and throughputs."""
    study = published.load("study")
    plain = {cells["target"]: float(cells["tok_s"].split()[0]) for cells in study.table("table 4").cells}
    timed_as = {model.id: model.draft_timed_as for model in study.models}
    rows = []
    for cells in study.table("table 5").cells:
        if (cells["target"], cells["draft"], cells["gamma"]) in _PRINTED:
            c = plain[cells["target"]] / plain[timed_as[cells["draft"]] or ""]
            inputs = {"alpha": float(cells["acceptance_percent"]) / 100, "c": c, "gamma": int(cells["gamma"])}
            name = f"{cells['target']} with {cells['draft']}"
            rows.append({"name": name, **inputs, "eq1": equation_1(**inputs), "printed": cells["speedup"]})
    return rows


# --- section 5.2 --------------------------------------------------------------------------------------------------


def traffic_table(study: Study) -> Table:
    """What a plain token and a verification read, how fast, and what of it memory gives. Raises AnalysisError."""
    passes = shown_passes(study)
    if not passes:
        raise AnalysisError(
            "No pass of known bytes was timed.", hint=f"Time some: mlsd calibrate MODEL --db {quoted(study.source)}."
        )

    return table(
        "Bandwidth (section 5.2): bytes, time, GB/s",
        [*passes, *printed_reads()],
        *chosen(BANDWIDTH, "model source k"),
        column("reads", "bytes", "of weights", lambda p: p.read_bytes or 0),
        column("ms", "3", "", "ms.value"),
        *chosen(BANDWIDTH, "gb_s"),
        column("of measured", "0%", "GB/s over what memory gave here", _of_measured),
        *chosen(BANDWIDTH, "of_stated claimed_gb_s"),
        column("so", "0%", "all weights, GB/s, over the peak", lambda p: p.of_stated(p.claimed_gb_s),
               "all weights, of the peak", detail=True),
        *chosen(BANDWIDTH, "time_a_token bytes_a_token claimed_a_token gflop_s"),
        id="traffic",
        note="Above 100 % of measured the weights stay in a cache; where all weights over the time exceed the memory, "
        "they were not all read, or stay in a cache.",
    )  # fmt: skip


def _of_measured(p: Pass) -> float | None:
    return p.gb_s / p.roof.gb_s if p.roof is not None and p.roof is not M2_ULTRA else None


def shown_passes(study: Study) -> list[Pass]:
    """Of each model its plain token, from the suite with most trials, then passes over a few k."""
    shown = list[Pass]()
    for passes in grouped(study.read_passes, lambda read: read.model).values():
        plain = [read for read in passes if read.source == "plain decoding"]
        most = max(plain, key=lambda read: read.ms.n if read.ms else 0, default=None)
        shown += [most] if most is not None else [read for read in passes if read.k == 1][:1]
        shown += [read for read in passes if read.source == "timed passes" and read.k in SHOWN]
    return shown


def printed_reads() -> list[Pass]:
    """Plain tokens of the study: what routing makes them read, over the printed time."""
    study = published.load("study")
    n_bytes = {model.id: model.pass_bytes for model in study.models if model.pass_bytes}
    claimed = {cells["target"]: 1e9 * float(cells["gb_claimed"]) for cells in study.table("section 4.1").cells}
    speeds = {cells["target"]: float(cells["tok_s"].split()[0]) for cells in study.table("table 4").cells}
    return [
        Pass(
            model=target,
            source="printed, M2 Ultra",
            gb_s=n_bytes[target] * tok_s / 1e9,
            k=1,
            ms=Interval(value=1e3 / tok_s),
            read_bytes=n_bytes[target],
            weight_bytes=claimed.get(target),
            roof=M2_ULTRA,
        )
        for target, tok_s in speeds.items()
        if target in n_bytes
    ]


def traffic_sentences(study: Study) -> tuple[str, ...]:
    """The same in words: what a plain token reads, what a verification saves, and the study's figure."""
    passes = shown_passes(study)
    wide = {read.model: read for read in passes if read.source == "timed passes" and 1 < (read.k or 0) <= 5}
    printed = next(read for read in printed_reads() if read.model == "moe_q4")
    return prose(
        "bandwidth",
        plain=[read for read in passes if read.source == "plain decoding"],
        wide=list(wide.values()),
        roof=next((read.roof for read in passes), None),
        ultra=M2_ULTRA,
        printed_bytes=printed.read_bytes,
        printed_gb_s=printed.gb_s,
    )
