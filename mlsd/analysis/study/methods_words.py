"""In sentences: why drafting methods pay or do not pay on a target, from what their rounds commit and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlsd.analysis.fits.calibration import TargetCurve
from mlsd.analysis.results.methods_table import TimingRow
from mlsd.units import format_bytes


def sentences(rows: Sequence[TimingRow], curves: Mapping[str, TargetCurve], source: str) -> tuple[str, ...]:
    """What a wider pass costs each target, then each method on it: committed against needed, and what takes the time.

    `curves` are calibrations by target, `source` the database to store one in.
    """
    said: list[str] = []
    for target in dict.fromkeys(row.target for row in rows):
        said.append(_wider(target, curves.get(target), source))
        said += [text for row in rows if row.target == target and (text := _method(row))]
    return tuple(said)


def _wider(target: str, curve: TargetCurve | None, source: str) -> str:
    efficiency = {} if curve is None else curve.efficiency
    if 2 not in efficiency:
        return f"{target}: T(2)/T(1) was not timed (mlsd calibrate {target} --db {source})."
    widest = max(efficiency)
    wide = f", T({widest})/T(1) = {1 / efficiency[widest]:.2f}" if widest > 2 else ""
    return f"{target}: T(2)/T(1) = {1 / efficiency[2]:.2f}{wide}; 1 would mean that verification is free."


def _method(row: TimingRow) -> str | None:
    """None where plain decoding of the target was not timed."""
    if row.break_even_mgl is None:
        return None
    total_ms = sum(row.ms_per_round.values())
    part, ms = max(row.ms_per_round.items(), key=lambda item: item[1])
    verdict = "pays" if row.mgl > row.break_even_mgl else "does not pay"
    text = (
        f"{row.method}, gamma {row.gamma}, {verdict} on {row.target}: a round commits {row.mgl:.2f} tokens and takes "
        f"{row.break_even_mgl:.2f} plain rounds, {100 * ms / total_ms:.0f} % of it in {part}"
    )
    if row.found is not None and row.not_found is not None:
        share = row.found.rounds / (row.found.rounds + row.not_found.rounds)
        plain_ms = total_ms / row.break_even_mgl
        costly = row.found.ms["round"] / plain_ms
        text += f"; the {100 * share:.0f} % of rounds with a proposal take {costly:.1f} plain rounds each"
    if row.draft_pass_ms is not None and row.draft_pass_bytes is not None:
        share = row.draft_pass_ms * row.break_even_mgl / total_ms
        saves = "saves" if share < 1 else "saves no"
        read = format_bytes(round(row.draft_pass_bytes))
        text += f"; a pass of its draft reads {read} and {saves} time: {share:.2f} plain rounds"
    return text + "."
